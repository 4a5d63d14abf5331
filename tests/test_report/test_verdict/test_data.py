"""Advice on the loader: what waiting for data costs, and which override reduces it."""

from __future__ import annotations

from typing import Any

import pytest

from mmtempo.report.verdict import judge
from tests.testing.summaries import comb, summary
from tests.testing.verdict_cases import LATE_SAMPLES, TOTAL, late
from tests.testing.verdicts import overrides, stalled


def test_one_slow_worker_is_named_and_more_workers_are_advised() -> None:
    verdict = judge(comb())
    assert verdict.headline == 'Waiting for data takes 9.9 % of the time.'
    assert verdict.why == [
        'Waiting for data: 77.0 s, 9.9 % of the time, 15.4 ms per iteration.',
        'The loader delivers 90 % of the batches that the training can process.',
        'Late batches: 76.0 s of that, in 610 iterations. Main cause: worker 2 was late.',
        'Worker 2 was late: every 8th iteration = num_workers: 602 of 610 stalls, on 97 % of its '
        'places.',
    ]
    assert overrides(verdict) == ['train_dataloader.num_workers=10']
    assert verdict.change[0].why == '8 workers on 16 cores; about 10 are needed'


@pytest.mark.parametrize(
    ('cores', 'setting', 'accelerator', 'text'),
    [
        (8, {}, 'GPU', '8 workers on 8 cores.'),
        (6, {}, 'GPU', '8 workers on 6 cores.'),
        (9, {}, None, '8 workers on 9 cores.'),  # the training needs a core itself
        (16, dict(world=2, local_world=2), 'GPU', '8 workers on 8 cores.'),
        # One process on each of sixteen nodes.
        (16, dict(world=16, local_world=1), 'GPU', ''),
    ],
)
def test_workers_never_exceed_cores(
    cores: int, setting: dict, accelerator: str | None, text: str
) -> None:
    found = comb(machine=dict(cores=cores, accelerator=accelerator), device_busy=None)
    found['setting'].update(setting)
    verdict = judge(found)
    if text:
        assert f'No core is left for another worker: {text}' in verdict.why
    assert overrides(verdict) == ([] if text else ['train_dataloader.num_workers=10'])


def test_needed_workers_are_limited_to_cores() -> None:
    verdict = judge(summary(phases=dict(data=700.0), machine=dict(cores=12)))
    assert overrides(verdict) == ['train_dataloader.num_workers=12']
    assert verdict.change[0].why == '8 workers on 12 cores; about 18 are needed'
    assert 'The free cores cannot run the 18 workers that are needed.' in verdict.why


def test_workers_that_wait_may_exceed_the_cores() -> None:
    known = dict(queued=0.0)
    verdict = judge(summary(**late(0.45, cores=2, made=9600.0, cpu=2400.0, pressure=known)))
    assert verdict.findings[0].key == 'data: workers'
    assert overrides(verdict) == ['train_dataloader.num_workers=8']
    assert (
        'Making a batch needs a CPU in 25 % of the time; in the rest it waits for a disk, the '
        'network, or another thread or process.' in verdict.why
    )


def test_unknown_cpu_time_makes_no_claim() -> None:
    run = late(cores=8)
    del run['loader']['cpu']
    verdict = judge(summary(**run))
    assert verdict.findings[0].key == 'data: cpu'
    assert not any('CPU time' in line or 'needs a CPU' in line for line in verdict.why)


@pytest.mark.parametrize(
    ('changes', 'texts'),
    [
        ({}, ['Wrap the dataset in CachedDataset']),
        (dict(cache=True), []),  # with room in its budget
        (dict(cache=True, used=95), ['The budget of CachedDataset is full with 20 of 30 samples']),
        (dict(cache=True, transforms=['RandomCrop']), ['Use FastRandomCrop (tempo']),
        (dict(cache=True, transforms=['FastRandomCrop']), []),
        (dict(cache=True, transforms=['Resize', 'FastRandomCrop']), ['Use ResizeRandomCrop']),
        (dict(cache=True, transforms=['ResizeRandomCrop']), []),
        (dict(files='.jpg'), ['Wrap the', 'FastLoadImageFromFile(reduce_to=...)']),
        (dict(files='.png'), ['Wrap the']),
        (dict(cache=True, files='.jpg'), []),
    ],
)
def test_samples_are_made_cheaper_where_it_is_possible(changes: dict, texts: list[str]) -> None:
    cache = dict(samples=20, total=30, used=changes.get('used', 5), budget=100)
    run = late(cores=8) | dict(cache=cache if 'cache' in changes else None)
    why = judge(summary(**run, setting=changes)).why
    at = why.index('A sample needs a CPU for 300 ms.')
    assert why[at - 1].startswith('No core is left')
    assert len(why[at + 1 :]) == len(texts)
    for line, text in zip(why[at + 1 :], texts):
        assert line.startswith(text)


@pytest.mark.parametrize('cache', [True, False])
def test_no_advice_takes_memory_when_it_is_short(cache: bool) -> None:
    run = late() | dict(memory=dict(peak=dict(ram_used=0.96)))
    full = dict(samples=20, total=30, used=99, budget=100)
    verdict = judge(summary(**run, setting=dict(cache=cache), cache=full if cache else None))
    assert overrides(verdict) == ['train_dataloader.prefetch_factor=1']
    assert 'Memory is short: do not add workers.' in verdict.why
    assert '96 % of the memory was in use.' in verdict.why
    assert not any('CachedDataset' in line for line in verdict.why)


def test_minor_page_faults_are_no_shortage() -> None:
    run = late() | stalled('page faults', 'host', 0.2 * TOTAL)
    verdict = judge(summary(**run))
    assert 'train_dataloader.num_workers=10' in overrides(verdict)
    assert not any('emory is short' in line for line in verdict.why)


@pytest.mark.parametrize('general', [True, False])
def test_loader_without_memory_gets_less_prefetch(general: bool) -> None:
    causes = {
        'worker 1 was late': dict(seconds=80.0, count=40, category='data'),
        'swapping': dict(seconds=30.0, count=9, category='memory'),
    }
    run = late(made=6000.0 if general else 4000.0) | dict(lost=dict(by_cause=causes))
    assert overrides(judge(summary(**run))) == ['train_dataloader.prefetch_factor=1']


def test_delivered_share_excludes_evaluations() -> None:
    phases = {**comb()['phases'], 'evaluation': dict(seconds=1000.0, count=2)}
    verdict = judge(comb(phases=phases))
    assert verdict.headline.startswith('Evaluation')
    assert 'The loader delivers 90 % of the batches that the training can process.' in verdict.why


def test_main_cause_and_periods_are_those_of_data() -> None:
    found = comb()
    causes = {'worker 0 was late': dict(seconds=1.0, count=3, category='data')}
    found['lost']['by_cause'] = {**causes, **found['lost']['by_cause']}
    found['periods'].append(dict(every=50, cause='LoggerHook', text='every 50th'))
    why = judge(found).why
    assert any(line.endswith('Main cause: worker 2 was late.') for line in why)
    assert not any('50th' in line for line in why)


def test_loader_without_workers_gets_some() -> None:
    verdict = judge(summary(phases=dict(data=1400.0), setting=dict(num_workers=0)))
    # Batches take twice as long as the step: two workers keep up, a third is the margin.
    assert overrides(verdict) == ['train_dataloader.num_workers=3']


def sample(index: int, lost: float) -> dict[str, Any]:
    found = dict(slowest_sample=index, sample_seconds=lost, usual_sample_seconds=0.01)
    return dict(cause='slow sample', category='data', phase='data', lost=lost, evidence=found)


def test_slow_samples_are_named_and_no_worker() -> None:
    stalls = [sample(17, 1.2), sample(8, 0.9), sample(17, 1.1)]
    verdict = judge(summary(**late(made=4000.0), **LATE_SAMPLES, stalls=stalls))
    assert verdict.headline == 'Waiting for a few slow samples takes 10 % of the time.'
    assert verdict.why[1:] == [
        '2 slow samples (8, 17): up to 1.20 s each, others 10.0 ms. Check their files and what '
        'their transforms do.'
    ]
    assert overrides(verdict) == ['train_dataloader.prefetch_factor=4']
    many = [sample(index, 1.0) for index in range(12)]
    why = judge(summary(**late(made=4000.0), **LATE_SAMPLES, stalls=many)).why
    assert why[1].startswith('12 slow samples (0, 1, 2, 3, 4, 5, 6, 7, ...): up to')


@pytest.mark.parametrize(
    ('setting', 'starved', 'advised'),
    [
        ({}, 300, ['train_dataloader.prefetch_factor=4']),
        ({}, 250, []),  # few late batches are no matter of prefetching
        (dict(prefetch_factor=None), 300, ['train_dataloader.prefetch_factor=4']),
        (dict(prefetch_factor=5), 300, []),
    ],
)
def test_late_batches_raise_the_prefetch_factor(
    setting: dict, starved: int, advised: list[str]
) -> None:
    verdict = judge(summary(**late(made=4000.0, starved=starved), setting=setting))
    assert verdict.headline == 'Waiting for late batches takes 10 % of the time.'
    assert f'{starved} of 5000 batches were late.' in verdict.why
    assert overrides(verdict) == advised


def test_late_batches_of_a_stock_loader() -> None:
    found = summary(phases=dict(data=63.0), **stalled('worker 5 was late', 'data', 60.0))
    found['phases']['data']['p50'] = 0.0002
    verdict = judge(found)
    assert verdict.findings[0].key == 'data: late'
    assert overrides(verdict) == ['train_dataloader.prefetch_factor=4']


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


def test_stock_logs_suffice_for_a_headline() -> None:
    phases = dict(data=dict(seconds=30.0, p50=0.06), train=dict(seconds=70.0, p50=0.14))
    verdict = judge(dict(iterations=500, phases=phases, p50=0.2))
    assert verdict.headline.startswith('Waiting for data takes 30 % of the time')
    assert not verdict.change  # the numbers of workers and cores are unknown
