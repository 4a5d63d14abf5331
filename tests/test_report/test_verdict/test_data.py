"""Advice on the loader: what waiting for data costs, and which override reduces it."""

from __future__ import annotations

import pytest

from mmtempo.report.verdict import judge
from tests.testing.summaries import comb, summary
from tests.testing.verdicts import overrides, stalled


def test_one_slow_worker_is_named_and_more_workers_are_advised() -> None:
    verdict = judge(comb())
    assert verdict.headline == 'Waiting for data takes 9.9 % of the time.'
    assert verdict.why == [
        'Waiting for data: 77.0 s, 9.9 % of the time, 15.4 ms per iteration.',
        'The loader delivers 90 % of the batches that the training can process.',
        'Late batches cost 76.0 s of that, in 610 iterations. Main cause: worker 2 was late.',
        'Worker 2 was late: every 8th iteration = num_workers: 602 of 610 stalls, on 97 % of its '
        'places.',
    ]
    assert overrides(verdict) == ['train_dataloader.num_workers=10']
    assert verdict.change[0].why == '8 workers on 16 cores; about 10 are needed'


@pytest.mark.parametrize('cores', [8, 6])
def test_workers_never_exceed_cores(cores: int) -> None:
    verdict = judge(comb(machine=dict(cores=cores, accelerator='GPU')))
    assert not verdict.change
    assert verdict.why[-1].startswith(
        f'No core is left for another worker: 8 workers on {cores} cores. Make'
    )
    for name in ('CachedDataset', 'Fast...', 'reduce_to', 'ResizeRandomCrop'):
        assert name in verdict.why[-1]


def test_cores_are_shared_by_the_processes_of_a_node() -> None:
    setting = dict(comb()['setting'], world=2, local_world=2)
    assert (
        'No core is left for another worker: 8 workers on 8 cores.'
        in judge(comb(setting=setting)).why[-1]
    )
    setting.update(world=16, local_world=1)  # one process on each of sixteen nodes
    assert overrides(judge(comb(setting=setting))) == ['train_dataloader.num_workers=10']


def test_training_without_accelerator_keeps_a_core() -> None:
    verdict = judge(comb(machine=dict(cores=9, accelerator=None), device_busy=None))
    assert 'No core is left for another worker: 8 workers on 9 cores.' in verdict.why[-1]


def test_cached_dataset_is_not_advised_twice() -> None:
    changed = comb(machine=dict(cores=8, accelerator='GPU'))
    changed['setting']['cache'] = True
    assert 'larger budget' in judge(changed).why[-1]


def test_needed_workers_are_limited_to_cores() -> None:
    found = summary(phases=dict(data=700.0), machine=dict(cores=12))
    verdict = judge(found)
    assert overrides(verdict) == ['train_dataloader.num_workers=12']
    assert verdict.change[0].why == '8 workers on 12 cores; about 18 are needed'
    assert verdict.why[-1].startswith(
        '12 cores cannot run the 18 workers that are needed. Make samples cheaper'
    )


def test_delivered_share_excludes_evaluations() -> None:
    verdict = judge(comb(phases={**comb()['phases'], 'evaluation': dict(seconds=1000.0)}))
    assert verdict.headline.startswith('Evaluation')
    assert 'The loader delivers 90 % of the batches that the training can process.' in verdict.why


def test_main_cause_and_periods_are_those_of_data() -> None:
    found = comb()
    causes = {'worker 0 was late': dict(seconds=1.0, count=3, category='data')}
    found['lost']['by_cause'] = {**causes, **found['lost']['by_cause']}
    found['periods'].append(dict(every=50, cause='LoggerHook', text='every 50th'))
    verdict = judge(found)
    late = 'Late batches cost 77.0 s of that, in 613 iterations. Main cause: worker 2 was late.'
    assert late in verdict.why
    assert not any('50th' in line for line in verdict.why)


def test_loader_without_workers_gets_some() -> None:
    found = summary(phases=dict(data=1400.0), setting=dict(num_workers=0))
    verdict = judge(found)
    # Batches take twice as long as the step: two workers keep up, a third is the margin.
    assert overrides(verdict) == ['train_dataloader.num_workers=3']


def test_occasional_late_batches_raise_the_prefetch_factor() -> None:
    lost = stalled('worker 5 was late', 'data', 60.0)
    found = summary(phases=dict(data=63.0), **lost)
    found['phases']['data']['p50'] = 0.0002
    assert overrides(judge(found)) == ['train_dataloader.prefetch_factor=4']
    found['setting']['prefetch_factor'] = 8
    assert not judge(found).change


def test_warm_up_of_the_loader_is_not_waiting() -> None:
    stall = dict(iter=1, lost=60.0, phase='data', category='warm-up', cause='first iterations')
    found = summary(phases=dict(data=63.0), stalls=[stall])
    assert judge(found).headline.startswith('Nothing to fix')
    assert judge({**found, 'stalls': []}).headline.startswith('Waiting for data')


@pytest.mark.parametrize('kind', ['IterBased', 'EpochBased'])
def test_stock_loop_is_replaced(kind: str) -> None:
    setting = dict(loop=f'{kind}TrainLoop', parts=['ValLoop'])
    verdict = judge(summary(phases=dict(data=100.0, evaluation=60.0), setting=setting))
    assert overrides(verdict)[0] == f'train_cfg.type=Prefetch{kind}TrainLoop'
    assert '--zero-wait' in verdict.change[0].why
    assert 'val_cfg.type=PrefetchValLoop' in overrides(verdict)


@pytest.mark.parametrize('has_type', [False, None])
def test_train_cfg_without_type_gets_no_override(has_type: bool | None) -> None:
    """mmengine refuses a config with both, before it trains."""
    setting = dict(loop='EpochBasedTrainLoop', train_cfg_has_type=has_type)
    verdict = judge(summary(phases=dict(data=100.0, to_device=50.0), setting=setting))
    assert not any(override.startswith('train_cfg') for override in overrides(verdict))
    sentence = "write type='PrefetchEpochBasedTrainLoop' in train_cfg instead of by_epoch"
    assert any(sentence in line for line in verdict.why)


def test_foreign_loop_is_not_replaced() -> None:
    verdict = judge(summary(phases=dict(data=100.0), setting=dict(loop='TheirLoop')))
    assert not any('type=' in override for override in overrides(verdict))


def test_no_advice_takes_memory_when_it_is_short() -> None:
    found = comb(memory=dict(peak=dict(ram_used=0.96)))
    verdict = judge(found)
    assert overrides(verdict) == ['train_dataloader.prefetch_factor=1']
    assert any(line.startswith('Memory is short') for line in verdict.why)
    assert '96 % of the memory was in use.' in verdict.why


@pytest.mark.parametrize('middle', [0.0, 0.015])
def test_loader_without_memory_gets_less_prefetch(middle: float) -> None:
    causes = {
        'worker 1 was late': dict(seconds=80.0, count=40, category='data'),
        'swapping': dict(seconds=30.0, count=9, category='memory'),
    }
    found = summary(phases=dict(data=90.0), lost=dict(by_cause=causes))
    found['phases']['data']['p50'] = middle
    assert overrides(judge(found)) == ['train_dataloader.prefetch_factor=1']


def test_stock_logs_suffice_for_a_headline() -> None:
    phases = dict(data=dict(seconds=30.0, share=0.3), train=dict(seconds=70.0, share=0.7))
    verdict = judge(dict(iterations=500, phases=phases, p50=0.2))
    assert verdict.headline.startswith('Waiting for data takes 30 % of the time')
    assert not verdict.change  # the numbers of workers and cores are unknown
