"""The verdict: each cost with its share, the largest first, and overrides that work."""

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
from mmtempo.report.verdict import judge
from mmtempo.timing.statistics import EVEN
from tests.testing.summaries import comb, summary
from tests.testing.verdicts import STOCK_HOOKS, overrides, stalled


def test_run_of_evaluation_alone() -> None:
    verdict = judge(dict(iterations=20, phases=dict(evaluation=dict(seconds=9.0))))
    assert verdict.headline == 'Evaluation takes 100 % of the time.'


@pytest.mark.parametrize('part', ['PrefetchValLoop', 'TheirValLoop'])
def test_foreign_val_loop_is_not_replaced(part: str) -> None:
    setting = dict(loop='IterBasedTrainLoop', parts=[part])
    verdict = judge(summary(phases=dict(evaluation=60.0), setting=setting))
    assert overrides(verdict) == ['train_cfg.val_interval=15000']


def test_full_memory_is_reported_without_any_cost() -> None:
    verdict = judge(summary(memory=dict(peak=dict(ram_used=0.93))))
    assert verdict.headline.startswith('Nothing to fix')
    assert '93 % of the memory was in use.' in verdict.why
    assert overrides(verdict)[-2:] == [
        'train_dataloader.prefetch_factor=1',
        'train_dataloader.num_workers=4',
    ]


def test_swapping_is_lack_of_memory() -> None:
    verdict = judge(summary(**stalled('swapping', 'memory', 80.0)))
    assert verdict.headline == 'Lack of memory costs 11 % of the time.'
    assert verdict.why[0] == 'Swapping: 80.0 s, 11 % of the time, in 40 iterations.'


def test_page_faults_are_lack_of_memory_only_if_it_is_full() -> None:
    found = summary(**stalled('page faults', 'memory', 80.0))
    assert judge(found).headline == 'Page faults cost 11 % of the time.'
    found['memory'] = dict(peak=dict(ram_used=0.95))
    assert judge(found).headline == 'Lack of memory costs 11 % of the time.'


def test_little_swapping_is_reported_without_advice() -> None:
    verdict = judge(summary(**stalled('swapping', 'memory', 2.0, count=1)))
    assert verdict.why[-1].startswith('Swapping: 2.00 s')
    assert not any('train_dataloader' in override for override in overrides(verdict))


def test_evaluation_interval_is_prolonged() -> None:
    verdict = judge(summary(phases=dict(evaluation=60.0)))
    assert verdict.headline == 'Evaluation takes 7.9 % of the time.'
    assert overrides(verdict) == ['train_cfg.val_interval=15000']
    assert verdict.change[0].why == 'every 15000 iterations instead of 5000'


def test_evaluation_interval_in_epochs() -> None:
    setting = dict(by_epoch=True, epoch_length=1250, val_interval=2500)
    verdict = judge(summary(phases=dict(evaluation=60.0), setting=setting))
    assert overrides(verdict) == ['train_cfg.val_interval=6']
    assert verdict.change[0].why == 'every 6 epochs instead of 2'


def test_interval_never_exceeds_the_training() -> None:
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
def test_slow_hook_is_replaced_or_runs_less_often(hook: str, override: str) -> None:
    setting = {} if hook.startswith(('Async', 'Sparse')) else dict(default_hooks=STOCK_HOOKS)
    verdict = judge(summary(phases={f'hook:{hook}': 50.0}, setting=setting))
    assert overrides(verdict) == [override]
    assert verdict.headline.startswith(f'{hook} takes 6.')
    assert verdict.why[0].startswith(f'{hook}: 50.')


def test_hooks_that_are_not_told_apart_need_our_loop() -> None:
    setting = dict(loop='IterBasedTrainLoop', train_cfg_has_type=True, default_hooks=STOCK_HOOKS)
    setting['parts'] = ['IterBasedTrainLoop', 'LoggerHook']
    verdict = judge(summary(phases={'hooks': 50.0}, setting=setting))
    assert verdict.headline.startswith('Hooks take 6.')
    assert verdict.why[0].startswith('All hooks together: 50.')
    assert 'with a loop of mmtempo' in verdict.why[1]
    assert overrides(verdict) == [
        'train_cfg.type=PrefetchIterBasedTrainLoop',
        'default_hooks.logger.type=SparseLoggerHook',
    ]


def test_hook_is_replaced_under_the_key_of_the_config() -> None:
    setting = dict(default_hooks=dict(saving='CheckpointHook'))
    verdict = judge(summary(phases={'hook:CheckpointHook': 50.0}, setting=setting))
    assert overrides(verdict) == ['default_hooks.saving.type=AsyncCheckpointHook']


def test_interval_of_never_is_not_prolonged() -> None:
    found = summary(phases={'hook:AsyncCheckpointHook': 50.0})
    found['setting']['checkpoint_interval'] = -1
    verdict = judge(found)
    assert verdict.headline.startswith('AsyncCheckpointHook takes 6.')
    assert not verdict.change


def test_replaced_default_hook_keeps_its_interval() -> None:
    """AsyncCheckpointHook, as stock, never saves by default."""
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
def test_custom_hook_gets_no_override(named: dict | None) -> None:
    """The hook is a custom one, or its key is unknown."""
    verdict = judge(
        summary(phases={'hook:CheckpointHook': 50.0}, setting=dict(default_hooks=named))
    )
    assert verdict.headline.startswith('CheckpointHook takes')
    assert not verdict.change


def test_checkpoint_interval_has_the_unit_of_its_hook() -> None:
    """The loop may count epochs while the hook counts iterations, as in `_base_`."""
    phases = {'hook:AsyncCheckpointHook': 50.0}
    setting = dict(by_epoch=True, epoch_length=1250, checkpoint_interval=2500)
    iterations = dict(setting, checkpoint_by_epoch=False)
    verdict = judge(summary(phases=phases, setting=iterations))
    assert overrides(verdict) == ['default_hooks.checkpoint.interval=7500']
    epochs = dict(setting, checkpoint_by_epoch=True)
    verdict = judge(summary(phases=phases, setting=epochs))
    assert overrides(verdict) == ['default_hooks.checkpoint.interval=6']
    assert verdict.change[0].why == 'every 6 epochs instead of 2'


def test_phases_of_a_save_are_summed() -> None:
    phases = {
        'checkpoint: wait for the writer': 15.0, 'checkpoint: fence': 6.0,
        'hook:AsyncCheckpointHook': 3.0, 'hook:SnapshotFence': 1.0,
    }  # fmt: skip
    verdict = judge(summary(phases=phases))
    assert verdict.headline.startswith('AsyncCheckpointHook takes 3.4 %')


def test_hooks_of_a_class_are_summed() -> None:
    verdict = judge(summary(phases={'hook:EMAHook': 20.0, 'hook:EMAHook 2': 20.0}))
    assert verdict.headline == 'EMAHook takes 5.4 % of the time.'


def test_unknown_hook_gets_no_override() -> None:
    verdict = judge(summary(phases={'hook:EMAHook': 100.0}))
    assert verdict.headline == 'EMAHook takes 12 % of the time.'
    assert not verdict.change


@pytest.mark.parametrize(
    ('cause', 'category', 'start', 'override'),
    [
        ('garbage collection', 'gc', 'Garbage collection costs 5.7 %', None),
        ('forward', 'unexplained', 'Delay of unknown cause costs', None),
        ('first iterations', 'warm-up', 'Warm-up costs', None),
        ('new input shape', 'device', 'Delay on the device', 'env_cfg.cudnn_benchmark=False'),
        (
            'device memory was full',
            'device',
            'Delay on the device costs',
            'optim_wrapper.type=SparseAmpOptimWrapper',
        ),
    ],
)
def test_stalls_are_judged_by_category(
    cause: str, category: str, start: str, override: str | None
) -> None:
    verdict = judge(summary(**stalled(cause, category, 40.0)))
    assert verdict.headline.startswith(start)
    assert verdict.why[0].endswith(f'in 40 iterations. Main cause: {cause}.')
    assert overrides(verdict) == ([override] if override else [])


def test_workers_leave_a_core_to_the_main_process() -> None:
    lost = stalled('other processes had the CPU', 'host', 40.0)
    found = summary(machine=dict(cores=8), **lost)
    assert overrides(judge(found)) == ['train_dataloader.num_workers=7']
    assert not judge({**found, 'machine': dict(cores=16)}).change
    needed = judge(summary(phases=dict(data=90.0), machine=dict(cores=8), **lost))
    assert not needed.change


def test_slow_copies_need_pinned_memory() -> None:
    found = summary(phases=dict(to_device=50.0), setting=dict(pin_memory=False))
    verdict = judge(found)
    assert overrides(verdict) == ['train_dataloader.pin_memory=True']
    assert verdict.headline == 'Preprocessing and copies to the device take 6.7 % of the time.'


def test_idle_device_is_attributed_to_the_host() -> None:
    found = summary(phases=dict(data=20.0), device_busy=dict(mean=0.55, looks=40))
    found['setting'].update(default_hooks=STOCK_HOOKS, parts=['RuntimeInfoHook'])
    verdict = judge(found)
    assert verdict.headline == (
        'Apart from waiting for data, evaluation and saving, the device is idle for 41 % of the '
        'time.'
    )
    assert verdict.why[:2] == [
        'The driver reports the device busy for 55 % of the time (40 readings).',
        'Waiting for data, evaluation and saving take 4.1 %.',
    ]
    assert overrides(verdict) == [
        'default_hooks.runtime_info.type=SparseRuntimeInfoHook',
        'compile=True',
    ]


def test_compiled_step_is_not_advised_to_compile() -> None:
    found = summary(device_busy=dict(mean=0.5, looks=40))
    found['phases']['train_step'] = found['phases'].pop('forward')
    verdict = judge(found)
    assert verdict.headline.startswith('Apart from waiting for data')
    assert not verdict.change


@pytest.mark.parametrize('busy', [None, dict(mean=0.3, looks=9), dict(mean=0.99, looks=9)])
def test_few_readings_make_no_claim_about_the_device(busy: dict | None) -> None:
    """Device events measure the time between them, which includes idle time."""
    verdict = judge(summary(device_busy=busy))
    assert verdict.headline.startswith('Nothing to fix')
    assert (verdict.why, verdict.change) == ([], [])


def test_device_idle_for_data_is_no_slow_host() -> None:
    verdict = judge(summary(phases=dict(data=300.0), device_busy=dict(mean=0.65, looks=40)))
    assert verdict.headline.startswith('Waiting for data')
    assert not any('idle' in line or 'busy' in line for line in verdict.why)


def ranks(**changes: Any) -> dict[str, Any]:
    data = dict(max=0.05, rank=3, mean=0.04, usual=3, often=45, of=50, **changes)
    return dict(data=data, step=dict(max=0.14, rank=0, mean=0.14, usual=0, often=50, of=50))


def test_rank_with_late_data() -> None:
    verdict = judge(summary(ranks=ranks()))
    assert verdict.headline == 'Late data on rank 3 costs 28 % of the time.'
    assert verdict.why[:3] == [
        'The slowest rank waits 40.0 ms per iteration for data, rank 0 600 us.',
        'Rank 3 was the slowest at 45 of 50 log points.',
        'The other ranks wait for it in their backward pass. Check the workers, cores and disk of '
        'its node.',
    ]


@pytest.mark.parametrize(
    'change', [dict(usual=0), dict(often=20), dict(mean=0.004), dict(usual=None)]
)
def test_ranks_without_a_slowest(change: dict[str, Any]) -> None:
    found = ranks()
    found['data'].update(change)
    assert judge(summary(ranks=found)).headline.startswith('Nothing to fix')


def test_rank_with_slow_steps() -> None:
    found = ranks()
    found['data'].update(mean=0.0)
    found['step'].update(usual=1, mean=0.06, least=0.02, often=48)
    verdict = judge(summary(ranks=found))
    assert verdict.headline == 'Slow steps on rank 1 cost 28 % of the time.'
    assert verdict.why[:2] == [
        'Without data and backward pass, the slowest rank takes 60.0 ms per iteration, the fastest '
        '20.0 ms.',
        'Rank 1 was the slowest at 48 of 50 log points.',
    ]
    found['step'].update(often=20)
    assert judge(summary(ranks=found)).headline.startswith('Nothing to fix')


@pytest.mark.parametrize('by_epoch', [True, False])
def test_loader_end_needs_persistent_workers(by_epoch: bool) -> None:
    verdict = judge(summary(phases={'loader: end': 100.0}, setting=dict(by_epoch=by_epoch)))
    assert verdict.headline.startswith('Ending the loader takes')
    expected = ['train_dataloader.persistent_workers=True'] if by_epoch else []
    assert overrides(verdict) == expected


def test_slow_visualizer_is_reported() -> None:
    verdict = judge(summary(phases={'logging: visualizer': 100.0}))
    assert verdict.headline.startswith('Visualizer takes')


def test_sustained_slowdown_is_reported() -> None:
    causes = {'slower forward': dict(seconds=200.0, count=900, category='pace')}
    verdict = judge(summary(lost=dict(seconds=200.0, share=0.2, count=900, by_cause=causes)))
    assert verdict.headline.startswith('Sustained slowdown costs')
    assert verdict.why[0].endswith('in 900 iterations. Main cause: slower forward.')


def test_nothing_to_fix() -> None:
    verdict = judge(summary())
    assert verdict.headline == (
        'Nothing to fix: 98 % of the time is spent in training steps. Iteration times vary by '
        '4.1 % (target: below 10 %).'
    )
    assert verdict.why[0] == (
        'The device is the limit: its driver reports it busy for 96 % of the time (100 readings).'
    )
    assert overrides(verdict) == ['optim_wrapper.type=SparseAmpOptimWrapper']


@pytest.mark.parametrize('part', ['SparseAmpOptimWrapper', 'AmpOptimWrapper', 'TheirWrapper'])
def test_mixed_precision_is_advised_only_if_known_to_be_off(part: str) -> None:
    assert not judge(summary(setting=dict(parts=[part]))).change


def test_partly_idle_device_is_not_the_limit() -> None:
    verdict = judge(summary(device_busy=dict(mean=0.84, looks=100)))
    assert verdict.headline.startswith('Nothing to fix')
    assert (verdict.why, verdict.change) == ([], [])


@pytest.mark.parametrize(('cv', 'even'), [(0.0999, True), (EVEN, False)])
def test_run_is_even_below_the_target(cv: float, even: bool) -> None:
    assert judge(summary(cv=cv)).headline.startswith('Nothing to fix') == even


@pytest.mark.parametrize(
    'steps', [('forward and backward', 'step'), ('train_step',), ('forward', 'backward', 'step')]
)
def test_all_parts_of_a_step_count_as_training(steps: tuple) -> None:
    found = summary()
    phases = found['phases']
    seconds = sum(phases.pop(name)['seconds'] for name in ('forward', 'backward', 'step'))
    phases.update({name: dict(seconds=seconds / len(steps)) for name in steps})
    assert judge(found).headline.startswith('Nothing to fix: 98 % of the time is spent in training')


def test_run_without_accelerator() -> None:
    verdict = judge(summary(machine=dict(accelerator=None), device_busy=None))
    assert verdict.why == ['There is no accelerator: the model runs on the CPU.']
    assert not verdict.change


def test_uneven_run_without_a_single_cost() -> None:
    lost = stalled('forward', 'unexplained', 20.0)
    verdict = judge(summary(cv=0.23, **lost))
    assert verdict.headline == (
        'No cost exceeds 3.0 % of the time, but iteration times vary by 23 % (target: below 10 %).'
    )
    assert verdict.why[0] == 'Stalls cost 2.8 % of the time.'


def test_largest_cost_comes_first() -> None:
    phases = {'data': 60.0, 'evaluation': 90.0, 'hook:CheckpointHook': 40.0}
    verdict = judge(summary(phases=phases, setting=dict(default_hooks=STOCK_HOOKS)))
    assert verdict.headline.startswith('Evaluation')
    starts = [line.partition(':')[0] for line in verdict.why if ':' in line]
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
            'Too short to judge: 3 iterations; at least 20 are needed.',
        ),
        (
            dict(iterations=1, phases=dict(data=dict(seconds=1.0))),
            'Too short to judge: 1 iteration; at least 20 are needed.',
        ),
    ],
)
def test_too_little_to_judge(found: dict, headline: str) -> None:
    verdict = judge(found)
    assert verdict.headline.startswith(headline)
    assert (verdict.why, verdict.change) == ([], [])


def everything() -> list[dict[str, Any]]:
    """Return summaries whose verdicts contain all overrides."""
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
def test_overrides_can_be_applied_to_a_config(found: dict[str, Any]) -> None:
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
def test_verdict_is_json(found: dict[str, Any]) -> None:
    verdict = dataclasses.asdict(judge(found))
    assert json.loads(json.dumps(verdict)) == verdict
    assert set(verdict) == {'headline', 'why', 'change'}
    assert all(set(change) == {'override', 'why'} for change in verdict['change'])
