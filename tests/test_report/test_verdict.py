"""What is slow is named with its share, the largest loss first, and each override works."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

import pytest
from mmengine.config import Config, DictAction
from mmengine.hooks import LoggerHook
from mmengine.registry import HOOKS, LOOPS, OPTIM_WRAPPERS

import mmtempo  # noqa: F401  (registers what overrides name)
from mmtempo.hooks import SparseLoggerHook
from mmtempo.replacements import DEFAULT_HOOKS
from mmtempo.report.verdict import Verdict, judge
from mmtempo.timing.statistics import EVEN
from tests.testing.summaries import comb, summary


def overrides(verdict: Verdict) -> list[str]:
    return [change.override for change in verdict.change]


# As a config has them that was written for mmengine alone.
STOCK_HOOKS = dict(runtime_info='RuntimeInfoHook', logger='LoggerHook', checkpoint='CheckpointHook')


def stalled(cause: str, category: str, seconds: float, count: int = 40) -> dict[str, Any]:
    causes = {cause: dict(seconds=seconds, count=count, category=category)}
    return dict(lost=dict(seconds=seconds, share=0.1, count=count, by_cause=causes))


def test_one_slow_worker() -> None:
    verdict = judge(comb())
    assert verdict.headline == (
        'Waiting for data takes 9.9 % of the time: the loader delivers 0.90 of what is needed.'
    )
    assert verdict.why == [
        'Waiting for data: 77.0 s, 9.9 % of the time, 15.4 ms an iteration; the loader delivers '
        '0.90 of what is needed.',
        '76.0 s of that were lost in 610 iterations whose batch was late, mostly: worker 2 was '
        'late.',
        'Worker 2 was late: every 8th iteration = num_workers: 602 of 610 stalls, on 97 % of its '
        'places.',
    ]
    assert overrides(verdict) == ['train_dataloader.num_workers=10']
    assert verdict.change[0].why == '8 workers on 16 cores; 10 are needed'


@pytest.mark.parametrize('cores', [8, 6])
def test_no_more_workers_than_cores(cores: int) -> None:
    verdict = judge(comb(machine=dict(cores=cores, accelerator='GPU')))
    assert not verdict.change
    assert verdict.why[-1].startswith(f'The CPU is the limit: 8 workers on {cores} cores. Make')
    for name in ('CachedDataset', 'Fast...', 'reduce_to', 'ResizeRandomCrop'):
        assert name in verdict.why[-1]


def test_cores_are_shared_by_the_processes_of_a_node() -> None:
    setting = dict(comb()['setting'], world=2, local_world=2)
    assert 'The CPU is the limit: 8 workers on 8 cores.' in judge(comb(setting=setting)).why[-1]
    setting.update(world=16, local_world=1)  # one on each of sixteen nodes
    assert overrides(judge(comb(setting=setting))) == ['train_dataloader.num_workers=10']


def test_the_training_needs_a_core_where_it_is_all_there_is() -> None:
    verdict = judge(comb(machine=dict(cores=9, accelerator=None), device_busy=None))
    assert 'The CPU is the limit: 8 workers on 9 cores.' in verdict.why[-1]


def test_what_is_cached_already_is_not_advised() -> None:
    changed = comb(machine=dict(cores=8, accelerator='GPU'))
    changed['setting']['cache'] = True
    assert 'larger budget' in judge(changed).why[-1]


def test_as_many_workers_as_there_are_cores_for() -> None:
    found = summary(phases=dict(data=700.0), machine=dict(cores=12))
    verdict = judge(found)
    assert overrides(verdict) == ['train_dataloader.num_workers=12']
    assert verdict.change[0].why == '8 workers on 12 cores; 18 would be needed'
    assert verdict.why[-1].startswith('12 cores will not be enough. Make samples cheaper')


def test_what_a_loader_delivers_does_not_depend_on_evaluations() -> None:
    verdict = judge(comb(phases={**comb()['phases'], 'evaluation': dict(seconds=1000.0)}))
    assert verdict.headline.startswith('Evaluation')
    assert any(line.endswith('the loader delivers 0.90 of what is needed.') for line in verdict.why)


def test_nothing_but_an_evaluation() -> None:
    verdict = judge(dict(iterations=20, phases=dict(evaluation=dict(seconds=9.0))))
    assert verdict.headline == 'Evaluation takes 100 % of the time.'


def test_the_cause_that_costs_most_and_only_periods_of_data() -> None:
    found = comb()
    causes = {'worker 0 was late': dict(seconds=1.0, count=3, category='data')}
    found['lost']['by_cause'] = {**causes, **found['lost']['by_cause']}
    found['periods'].append(dict(every=50, cause='LoggerHook', text='every 50th'))
    verdict = judge(found)
    lost = '77.0 s of that were lost in 613 iterations whose batch was late, mostly: worker 2 was '
    assert f'{lost}late.' in verdict.why
    assert not any('50th' in line for line in verdict.why)


def test_no_workers_at_all() -> None:
    found = summary(phases=dict(data=1400.0), setting=dict(num_workers=0))
    verdict = judge(found)
    # As much time again, twice: two processes would do it beside, a third is the margin.
    assert overrides(verdict) == ['train_dataloader.num_workers=3']


def test_late_now_and_then() -> None:
    lost = stalled('worker 5 was late', 'data', 60.0)
    found = summary(phases=dict(data=63.0), **lost)
    found['phases']['data']['p50'] = 0.0002
    assert overrides(judge(found)) == ['train_dataloader.prefetch_factor=4']
    found['setting']['prefetch_factor'] = 8
    assert not judge(found).change


def test_the_very_first_batches_are_no_steady_time() -> None:
    stall = dict(iter=1, lost=60.0, phase='data', category='warm-up', cause='first iterations')
    found = summary(phases=dict(data=63.0), stalls=[stall])
    assert judge(found).headline.startswith('Nothing to fix')
    assert judge({**found, 'stalls': []}).headline.startswith('Waiting for data')


@pytest.mark.parametrize('kind', ['IterBased', 'EpochBased'])
def test_stock_loops(kind: str) -> None:
    setting = dict(loop=f'{kind}TrainLoop', parts=['ValLoop'])
    verdict = judge(summary(phases=dict(data=100.0, evaluation=60.0), setting=setting))
    assert overrides(verdict)[0] == f'train_cfg.type=Prefetch{kind}TrainLoop'
    assert '--zero-wait' in verdict.change[0].why
    assert 'val_cfg.type=PrefetchValLoop' in overrides(verdict)


@pytest.mark.parametrize('part', ['PrefetchValLoop', 'TheirValLoop'])
def test_an_evaluation_of_somebody_elses_is_left_alone(part: str) -> None:
    setting = dict(loop='IterBasedTrainLoop', parts=[part])
    verdict = judge(summary(phases=dict(evaluation=60.0), setting=setting))
    assert overrides(verdict) == ['train_cfg.val_interval=15000']


@pytest.mark.parametrize('has_type', [False, None])
def test_a_train_cfg_without_type_takes_no_override(has_type: bool | None) -> None:
    """mmengine refuses a config with both, before it trains."""
    setting = dict(loop='EpochBasedTrainLoop', train_cfg_has_type=has_type)
    verdict = judge(summary(phases=dict(data=100.0, to_device=50.0), setting=setting))
    assert not any(override.startswith('train_cfg') for override in overrides(verdict))
    sentence = "write type='PrefetchEpochBasedTrainLoop' in train_cfg instead of by_epoch"
    assert any(sentence in line for line in verdict.why)


def test_somebody_elses_loop_is_left_alone() -> None:
    verdict = judge(summary(phases=dict(data=100.0), setting=dict(loop='TheirLoop')))
    assert not any('type=' in override for override in overrides(verdict))


def test_where_memory_is_short_nothing_takes_more_of_it() -> None:
    found = comb(memory=dict(peak=dict(ram_used=0.96)))
    verdict = judge(found)
    assert overrides(verdict) == ['train_dataloader.prefetch_factor=1']
    assert any(line.startswith('Memory is short') for line in verdict.why)
    assert '96 % of the memory was in use.' in verdict.why


def test_memory_is_told_though_nothing_else_is() -> None:
    verdict = judge(summary(memory=dict(peak=dict(ram_used=0.93))))
    assert verdict.headline.startswith('Nothing to fix')
    assert '93 % of the memory was in use.' in verdict.why
    assert overrides(verdict)[-2:] == [
        'train_dataloader.prefetch_factor=1',
        'train_dataloader.num_workers=4',
    ]


def test_swapping() -> None:
    verdict = judge(summary(**stalled('swapping', 'memory', 80.0)))
    assert verdict.headline == 'A lack of memory costs 11 % of the time.'
    assert verdict.why[0] == 'Swapping: 80.0 s, 11 % of the time, in 40 iterations.'


def test_a_little_swapping_is_told_and_no_more() -> None:
    verdict = judge(summary(**stalled('swapping', 'memory', 2.0, count=1)))
    assert verdict.why[-1].startswith('Swapping: 2.00 s')
    assert not any('train_dataloader' in override for override in overrides(verdict))


@pytest.mark.parametrize('middle', [0.0, 0.015])
def test_a_loader_that_lacks_memory_gets_no_more_of_it(middle: float) -> None:
    causes = {
        'worker 1 was late': dict(seconds=80.0, count=40, category='data'),
        'swapping': dict(seconds=30.0, count=9, category='memory'),
    }
    found = summary(phases=dict(data=90.0), lost=dict(by_cause=causes))
    found['phases']['data']['p50'] = middle
    assert overrides(judge(found)) == ['train_dataloader.prefetch_factor=1']


def test_evaluation() -> None:
    verdict = judge(summary(phases=dict(evaluation=60.0)))
    assert verdict.headline == 'Evaluation takes 7.9 % of the time.'
    assert overrides(verdict) == ['train_cfg.val_interval=15000']
    assert verdict.change[0].why == 'every 15000 iterations instead of 5000'


def test_evaluation_by_epoch() -> None:
    setting = dict(by_epoch=True, epoch_length=1250, val_interval=2500)
    verdict = judge(summary(phases=dict(evaluation=60.0), setting=setting))
    assert overrides(verdict) == ['train_cfg.val_interval=6']
    assert verdict.change[0].why == 'every 6 epochs instead of 2'


def test_an_interval_never_exceeds_the_training() -> None:
    found = summary(phases=dict(evaluation=90.0), max_iters=12000)
    assert overrides(judge(found)) == ['train_cfg.val_interval=10000']
    assert not judge({**found, 'max_iters': 9000}).change


@pytest.mark.parametrize(
    ('hook', 'override'),
    [
        ('CheckpointHook', 'default_hooks.checkpoint.type=AsyncCheckpointHook'),
        ('LoggerHook', 'default_hooks.logger.type=SparseLoggerHook'),
        ('RuntimeInfoHook', 'default_hooks.runtime_info.type=SparseRuntimeInfoHook'),
        ('AsyncCheckpointHook', 'default_hooks.checkpoint.interval=15000'),
        ('SparseLoggerHook', 'default_hooks.logger.interval=250'),
    ],
)
def test_hooks(hook: str, override: str) -> None:
    setting = {} if hook.startswith(('Async', 'Sparse')) else dict(default_hooks=STOCK_HOOKS)
    verdict = judge(summary(phases={f'hook:{hook}': 50.0}, setting=setting))
    assert overrides(verdict) == [override]
    assert verdict.headline.startswith(f'{hook} takes 6.')
    assert verdict.why[0].startswith(f'{hook}: 50.')


def test_a_hook_is_exchanged_under_the_key_that_the_config_has() -> None:
    setting = dict(default_hooks=dict(saving='CheckpointHook'))
    verdict = judge(summary(phases={'hook:CheckpointHook': 50.0}, setting=setting))
    assert overrides(verdict) == ['default_hooks.saving.type=AsyncCheckpointHook']


def test_a_hook_that_mmengine_adds_keeps_its_interval() -> None:
    """Of AsyncCheckpointHook, as of stock's, the default is to save never."""
    slow = {'hook:CheckpointHook': 50.0, 'hook:LoggerHook': 40.0}
    verdict = judge(summary(phases=slow, setting=dict(default_hooks={})))
    assert overrides(verdict) == [
        'default_hooks.checkpoint.type=AsyncCheckpointHook',
        'default_hooks.checkpoint.interval=1',
        'default_hooks.logger.type=SparseLoggerHook',
    ]
    assert DEFAULT_HOOKS['logger'] == ('mmengine.hooks.LoggerHook', {})
    assert SparseLoggerHook().interval == LoggerHook().interval


@pytest.mark.parametrize('named', [dict(checkpoint=None), None])
def test_a_hook_that_no_override_reaches(named: dict | None) -> None:
    """It is among the custom hooks; or it is not known where it is."""
    verdict = judge(
        summary(phases={'hook:CheckpointHook': 50.0}, setting=dict(default_hooks=named))
    )
    assert verdict.headline.startswith('CheckpointHook takes')
    assert not verdict.change


def test_a_checkpoint_is_counted_as_its_hook_counts() -> None:
    """The loop's unit is not its hook's: `_base_/default_runtime.py` counts iterations."""
    phases = {'hook:AsyncCheckpointHook': 50.0}
    setting = dict(by_epoch=True, epoch_length=1250, checkpoint_interval=2500)
    iterations = dict(setting, checkpoint_by_epoch=False)
    verdict = judge(summary(phases=phases, setting=iterations))
    assert overrides(verdict) == ['default_hooks.checkpoint.interval=7500']
    epochs = dict(setting, checkpoint_by_epoch=True)
    verdict = judge(summary(phases=phases, setting=epochs))
    assert overrides(verdict) == ['default_hooks.checkpoint.interval=6']
    assert verdict.change[0].why == 'every 6 epochs instead of 2'


def test_phases_of_a_checkpoint_are_one() -> None:
    phases = {
        'checkpoint: wait for the writer': 15.0, 'checkpoint: fence': 6.0,
        'hook:AsyncCheckpointHook': 3.0, 'hook:SnapshotFence': 1.0,
    }  # fmt: skip
    verdict = judge(summary(phases=phases))
    assert verdict.headline.startswith('AsyncCheckpointHook takes 3.4 %')


def test_two_hooks_of_a_class_are_one() -> None:
    verdict = judge(summary(phases={'hook:EMAHook': 20.0, 'hook:EMAHook 2': 20.0}))
    assert verdict.headline == 'EMAHook takes 5.4 % of the time.'


def test_a_hook_that_nobody_knows() -> None:
    verdict = judge(summary(phases={'hook:EMAHook': 100.0}))
    assert verdict.headline == 'EMAHook takes 12 % of the time.'
    assert not verdict.change


@pytest.mark.parametrize(
    ('cause', 'category', 'start', 'override'),
    [
        ('garbage collection', 'gc', 'Garbage collection costs 5.7 %', None),
        ('forward', 'unexplained', 'An unknown cause costs', None),
        ('first iterations', 'warm-up', 'Warm-up costs', None),
        ('new input shape', 'device', 'A device that', 'env_cfg.cudnn_benchmark=False'),
        (
            'device memory was full',
            'device',
            'A device that is held up costs',
            'optim_wrapper.type=SparseAmpOptimWrapper',
        ),
    ],
)
def test_stalls(cause: str, category: str, start: str, override: str | None) -> None:
    verdict = judge(summary(**stalled(cause, category, 40.0)))
    assert verdict.headline.startswith(start)
    assert verdict.why[0].endswith(f'in 40 iterations, mostly: {cause}.')
    assert overrides(verdict) == ([override] if override else [])


def test_workers_that_take_the_training_its_cores() -> None:
    lost = stalled('other processes had the CPU', 'host', 40.0)
    found = summary(machine=dict(cores=8), **lost)
    assert overrides(judge(found)) == ['train_dataloader.num_workers=7']
    assert not judge({**found, 'machine': dict(cores=16)}).change
    needed = judge(summary(phases=dict(data=90.0), machine=dict(cores=8), **lost))
    assert not needed.change


def test_copies() -> None:
    found = summary(phases=dict(to_device=50.0), setting=dict(pin_memory=False))
    verdict = judge(found)
    assert overrides(verdict) == ['train_dataloader.pin_memory=True']
    assert verdict.headline == 'Preprocessing and copies to the device take 6.7 % of the time.'


def test_a_device_that_waits_for_the_host() -> None:
    found = summary(phases=dict(data=20.0), device_busy=dict(mean=0.55, looks=40))
    found['setting'].update(default_hooks=STOCK_HOOKS, parts=['RuntimeInfoHook'])
    verdict = judge(found)
    assert verdict.headline == 'The device is idle for 41 % of the time: the host is too slow.'
    assert verdict.why[0] == (
        'The device was busy for 55 % of the time, by its driver at 40 looks; waiting for data, '
        'evaluation and checkpoints explain 4.1 %.'
    )
    assert overrides(verdict) == [
        'default_hooks.runtime_info.type=SparseRuntimeInfoHook',
        'compile=True',
    ]


def test_a_step_that_is_compiled_is_not_to_be_compiled() -> None:
    found = summary(device_busy=dict(mean=0.5, looks=40))
    found['phases']['train_step'] = found['phases'].pop('forward')
    verdict = judge(found)
    assert verdict.headline.startswith('The device is idle')
    assert not verdict.change


@pytest.mark.parametrize('busy', [None, dict(mean=0.3, looks=9), dict(mean=0.99, looks=9)])
def test_of_a_device_that_nobody_has_looked_at_nothing_is_claimed(busy: dict | None) -> None:
    """Its own clock tells the time between two events, in which it may be idle as well."""
    verdict = judge(summary(device_busy=busy))
    assert verdict.headline.startswith('Nothing to fix')
    assert (verdict.why, verdict.change) == ([], [])


def test_what_waits_for_data_is_no_slow_host() -> None:
    verdict = judge(summary(phases=dict(data=300.0), device_busy=dict(mean=0.65, looks=40)))
    assert verdict.headline.startswith('Waiting for data')
    assert not any('idle' in line or 'busy' in line for line in verdict.why)


def ranks(**changes: Any) -> dict[str, Any]:
    data = dict(max=0.05, rank=3, mean=0.04, usual=3, often=45, of=50, **changes)
    return dict(data=data, step=dict(max=0.14, rank=0, mean=0.14, usual=0, often=50, of=50))


def test_another_process_that_is_late_with_its_data() -> None:
    verdict = judge(summary(ranks=ranks()))
    assert verdict.headline == 'Rank 3 is late with its data: 28 % of the time.'
    assert verdict.why[0] == (
        'Rank 3 waits 40.0 ms an iteration for data, rank 0 600 µs: it was the longest at 45 of '
        '50 log points. The others wait for it in their backward pass; look at the workers, cores '
        'and disk of its node.'
    )


@pytest.mark.parametrize(
    'change', [dict(usual=0), dict(often=20), dict(mean=0.004), dict(usual=None)]
)
def test_processes_that_are_all_alike(change: dict[str, Any]) -> None:
    found = ranks()
    found['data'].update(change)
    assert judge(summary(ranks=found)).headline.startswith('Nothing to fix')


def test_another_process_that_is_slow_itself() -> None:
    found = ranks()
    found['data'].update(mean=0.0)
    found['step'].update(usual=1, mean=0.06, least=0.02, often=48)
    verdict = judge(summary(ranks=found))
    assert verdict.headline == 'Rank 1 is slow in its steps: 28 % of the time.'
    assert verdict.why[0].startswith(
        'Rank 1 takes 60.0 ms an iteration for what is its own, without data and backward pass, '
        'the fastest 20.0 ms: it was the longest at 48 of 50 log points.'
    )
    found['step'].update(often=20)
    assert judge(summary(ranks=found)).headline.startswith('Nothing to fix')


@pytest.mark.parametrize('by_epoch', [True, False])
def test_the_end_of_a_loader(by_epoch: bool) -> None:
    verdict = judge(summary(phases={'loader: end': 100.0}, setting=dict(by_epoch=by_epoch)))
    assert verdict.headline.startswith('The end of the loader takes')
    expected = ['train_dataloader.persistent_workers=True'] if by_epoch else []
    assert overrides(verdict) == expected


def test_a_slow_visualizer() -> None:
    verdict = judge(summary(phases={'logging: visualizer': 100.0}))
    assert verdict.headline.startswith('Visualizer takes')


def test_a_slower_pace_is_told() -> None:
    causes = {'slower forward': dict(seconds=200.0, count=900, category='pace')}
    verdict = judge(summary(lost=dict(seconds=200.0, share=0.2, count=900, by_cause=causes)))
    assert verdict.headline.startswith('A slower pace costs')
    assert verdict.why[0].endswith('in 900 iterations, mostly: slower forward.')


def test_nothing_to_fix() -> None:
    verdict = judge(summary())
    assert verdict.headline == (
        'Nothing to fix: 98 % of the time goes into training steps, and iterations vary by 4.1 % '
        '(target: below 10 %).'
    )
    assert verdict.why[0].startswith('The device is the limit: it was busy for 96 % of the time')
    assert overrides(verdict) == ['optim_wrapper.type=SparseAmpOptimWrapper']


@pytest.mark.parametrize('part', ['SparseAmpOptimWrapper', 'AmpOptimWrapper', 'TheirWrapper'])
def test_mixed_precision_only_where_it_is_known_to_be_off(part: str) -> None:
    assert not judge(summary(setting=dict(parts=[part]))).change


def test_a_device_with_a_little_to_spare_is_not_called_the_limit() -> None:
    verdict = judge(summary(device_busy=dict(mean=0.84, looks=100)))
    assert verdict.headline.startswith('Nothing to fix')
    assert (verdict.why, verdict.change) == ([], [])


@pytest.mark.parametrize(('cv', 'even'), [(0.0999, True), (EVEN, False)])
def test_even_is_below_the_target(cv: float, even: bool) -> None:
    assert judge(summary(cv=cv)).headline.startswith('Nothing to fix') == even


@pytest.mark.parametrize(
    'steps', [('forward and backward', 'step'), ('train_step',), ('forward', 'backward', 'step')]
)
def test_all_that_a_step_may_consist_of_is_the_step(steps: tuple) -> None:
    found = summary()
    phases = found['phases']
    seconds = sum(phases.pop(name)['seconds'] for name in ('forward', 'backward', 'step'))
    phases.update({name: dict(seconds=seconds / len(steps)) for name in steps})
    assert judge(found).headline.startswith('Nothing to fix: 98 % of the time goes into training')


def test_a_cpu() -> None:
    verdict = judge(summary(machine=dict(accelerator=None), device_busy=None))
    assert verdict.why == ['The CPU is the limit: there is no accelerator.']
    assert not verdict.change


def test_uneven_without_a_single_cause() -> None:
    lost = stalled('forward', 'unexplained', 20.0)
    verdict = judge(summary(cv=0.23, **lost))
    assert verdict.headline == (
        'No single cost is worth a change, but iterations vary by 23 % (target: below 10 %); '
        'stalls cost 2.8 %.'
    )


def test_the_largest_loss_comes_first() -> None:
    phases = {'data': 60.0, 'evaluation': 90.0, 'hook:CheckpointHook': 40.0}
    verdict = judge(summary(phases=phases, setting=dict(default_hooks=STOCK_HOOKS)))
    assert verdict.headline.startswith('Evaluation')
    starts = [line.partition(':')[0] for line in verdict.why]
    assert starts == ['Evaluation', 'Waiting for data', 'CheckpointHook']
    assert [override.partition('=')[0] for override in overrides(verdict)] == [
        'train_cfg.val_interval',
        'train_dataloader.num_workers',
        'default_hooks.checkpoint.type',
    ]


def test_warnings_are_passed_on() -> None:
    verdict = judge(summary(warnings=['/dev/shm is nearly full', 'b', 'c', 'd']))
    assert verdict.headline.startswith('Nothing to fix')
    assert verdict.why[-3:] == ['/dev/shm is nearly full', 'b', 'c']


@pytest.mark.parametrize(
    ('found', 'headline'),
    [
        ({}, 'Nothing was measured.'),
        (dict(iterations=500), 'Nothing was measured.'),
        (
            dict(iterations=3, phases=dict(data=dict(seconds=1.0))),
            'Too short to judge: 3 iterations; 20 are needed.',
        ),
        (
            dict(iterations=1, phases=dict(data=dict(seconds=1.0))),
            'Too short to judge: 1 iteration; 20 are needed.',
        ),
    ],
)
def test_too_little_to_judge(found: dict, headline: str) -> None:
    verdict = judge(found)
    assert verdict.headline.startswith(headline)
    assert (verdict.why, verdict.change) == ([], [])


def test_what_stock_logs_hold_is_enough_for_a_word() -> None:
    phases = dict(data=dict(seconds=30.0, share=0.3), train=dict(seconds=70.0, share=0.7))
    verdict = judge(dict(iterations=500, phases=phases, p50=0.2))
    assert verdict.headline.startswith('Waiting for data takes 30 % of the time')
    assert not verdict.change  # of workers and cores nothing is known


def everything() -> list[dict[str, Any]]:
    """Summaries that have all overrides between them."""
    hooks = ('CheckpointHook', 'LoggerHook', 'RuntimeInfoHook')
    slow = dict.fromkeys((f'hook:{hook}' for hook in hooks), 60.0)
    stock = dict(
        loop='IterBasedTrainLoop', pin_memory=False, parts=['ValLoop', 'OptimWrapper'],
        default_hooks=STOCK_HOOKS,
    )  # fmt: skip
    ours = {'hook:AsyncCheckpointHook': 60.0, 'hook:SparseLoggerHook': 60.0, 'evaluation': 60.0}
    full = summary(
        {**slow, 'data': 200.0, 'to_device': 90.0}, stock, memory=dict(peak=dict(ram_used=0.95))
    )
    shapes = summary(ours, **stalled('new input shape', 'device', 60.0))
    late = summary(dict(data=90.0), **stalled('worker 1 was late', 'data', 80.0))
    late['phases']['data']['p50'] = 0.0
    memory = summary(None, stock, **stalled('device memory was full', 'device', 60.0))
    idle = summary(setting=dict(stock, default_hooks={}), device_busy=dict(mean=0.2, looks=99))
    idle['phases']['hook:CheckpointHook'] = dict(seconds=90.0)
    return [comb(), full, shapes, late, memory, idle]


@pytest.mark.parametrize('found', everything(), ids=lambda found: judge(found).headline[:20])
def test_overrides_are_taken_as_they_are(found: dict[str, Any]) -> None:
    verdict = judge(found)
    assert verdict.change
    keys = [override.partition('=')[0] for override in overrides(verdict)]
    assert len(set(keys)) == len(keys)
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    options = parser.parse_args(['--cfg-options', *overrides(verdict)]).cfg_options
    cfg = Config.fromfile('configs/lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py')
    cfg.merge_from_dict(options)
    registries = dict(train_cfg=LOOPS, val_cfg=LOOPS, optim_wrapper=OPTIM_WRAPPERS)
    for key, value in options.items():
        if key.endswith('.type'):
            registry = registries.get(key.partition('.')[0], HOOKS)
            assert registry.get(value) is not None, f'{key}={value}'
        else:
            assert isinstance(value, (int, bool))


@pytest.mark.parametrize('found', everything(), ids=lambda found: judge(found).headline[:20])
def test_a_verdict_is_json(found: dict[str, Any]) -> None:
    verdict = dataclasses.asdict(judge(found))
    assert json.loads(json.dumps(verdict)) == verdict
    assert set(verdict) == {'headline', 'why', 'change'}
    assert all(set(change) == {'override', 'why'} for change in verdict['change'])
