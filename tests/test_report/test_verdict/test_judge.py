"""The verdict: each finding where it is true and not where it is nearly true, largest first."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from mmengine.config import Config, DictAction
from mmengine.registry import HOOKS, LOOPS, OPTIM_WRAPPERS

import mmtempo  # noqa: F401  (registers what overrides name)
from mmtempo.report.verdict import CATALOGUE, RunFigures, Verdict, judge
from mmtempo.timing.causes import STEP
from mmtempo.timing.statistics import EVEN
from tests.testing.summaries import comb, summary
from tests.testing.verdict_cases import CASES, TOTAL, Case, losing, made_up, taking
from tests.testing.verdicts import STOCK_HOOKS, overrides

each_case = pytest.mark.parametrize('case', CASES, ids=lambda case: case.key)


def keys(verdict: Verdict) -> list[str]:
    return [finding.key for finding in verdict.findings]


@each_case
def test_finding_is_reported_where_it_is_true(case: Case) -> None:
    found = made_up(case)
    verdict = judge(found)
    assert [key for key in keys(verdict) if key != 'healthy'] == [case.key] * (
        case.key != 'healthy'
    )
    finding = next(one for one in verdict.findings if one.key == case.key)
    assert finding.headline or (verdict.findings[0].key, finding.seconds) == ('healthy', 0.0)
    assert finding.seconds == 0 or verdict.headline == finding.headline
    if case.share is not None:
        assert finding.seconds / RunFigures(found).total == pytest.approx(case.share, rel=0.02)


@pytest.mark.parametrize(
    ('case', 'run', 'other'),
    [(case, run, other) for case in CASES for run, other in case.nearly],
    ids=lambda one: one.key if isinstance(one, Case) else '',
)
def test_finding_is_not_reported_where_it_is_nearly_true(case: Case, run: dict, other: str) -> None:
    assert keys(judge(summary(**run))) == [other] != [case.key]


@pytest.mark.parametrize('find', CATALOGUE, ids=lambda find: find.__name__)
def test_each_function_of_the_catalogue_has_a_case(find: Any) -> None:
    assert any([*find(RunFigures(made_up(case)))] for case in CASES)


@each_case
def test_each_sentence_is_one_of_a_finding(case: Case) -> None:
    verdict = judge(made_up(case))
    assert verdict.why == [line for finding in verdict.findings for line in finding.why]
    for sentence in (verdict.headline, *verdict.why):
        assert sentence.endswith('.') or sentence == 'a', sentence


def without_each_key(part: Any) -> Iterator[None]:
    """Remove each key of a nested dict in turn, while the caller runs."""
    for key in [*part] if isinstance(part, dict) else ():
        value = part.pop(key)
        yield
        part[key] = value
        yield from without_each_key(value)
    for item in part if isinstance(part, list) else ():
        yield from without_each_key(item)


@each_case
def test_any_key_of_a_summary_may_be_missing(case: Case) -> None:
    found = made_up(case)
    for _ in without_each_key(found):
        assert judge(found).headline
    assert found == made_up(case)


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
    idle = summary(setting=dict(stock, default_hooks={}), device_busy=dict(mean=0.2, looks=99))
    idle['phases']['hook:CheckpointHook'] = dict(seconds=90.0)
    ends = summary({'loader: end': 60.0}, dict(by_epoch=True, persistent_workers=False))
    static = losing(0.05, 'torch compiled', 'device', setting=dict(compile_dynamic=False))
    no_core = losing(0.05, 'waiting for a CPU', 'host', machine=dict(cores=8))
    return [comb(), full, summary(ours), idle, ends, summary(**static), summary(**no_core)]


@pytest.fixture(scope='module')
def config() -> Config:
    return Config.fromfile('configs/lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py')


@pytest.mark.parametrize('found', [*everything(), *map(made_up, CASES)])
def test_overrides_can_be_applied_to_a_config(found: dict[str, Any], config: Config) -> None:
    advised = overrides(judge(found))
    names = [override.partition('=')[0] for override in advised]
    assert len(set(names)) == len(names)
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='*', action=DictAction)
    options = parser.parse_args(['--cfg-options', *advised]).cfg_options or {}
    assert [*options] == names
    cfg = copy.deepcopy(config)
    cfg.merge_from_dict(options)
    registries = dict(train_cfg=LOOPS, val_cfg=LOOPS, optim_wrapper=OPTIM_WRAPPERS)
    for key, value in options.items():
        if key.endswith('.type'):
            registry = registries.get(key.partition('.')[0], HOOKS)
            assert registry.get(value) is not None, f'{key}={value}'
        else:
            assert isinstance(value, (int, bool)), f'{key}={value}'


def test_summaries_with_all_overrides_have_some() -> None:
    assert all(overrides(judge(found)) for found in everything())


@pytest.mark.parametrize('found', everything(), ids=lambda found: judge(found).headline[:20])
def test_verdict_is_json(found: dict[str, Any]) -> None:
    verdict = dataclasses.asdict(judge(found))
    assert json.loads(json.dumps(verdict)) == verdict
    assert set(verdict) == {'headline', 'why', 'change', 'findings'}
    assert all(set(change) == {'override', 'why'} for change in verdict['change'])
    assert {'key', 'seconds', 'headline', 'why', 'change'} <= set(verdict['findings'][0])


def test_largest_cost_comes_first() -> None:
    phases = {'data': 120.0, 'evaluation': 150.0, 'hook:CheckpointHook': 40.0}
    verdict = judge(summary(phases=phases, setting=dict(default_hooks=STOCK_HOOKS)))
    assert keys(verdict) == ['evaluation', 'data: workers', 'save']
    assert verdict.headline == verdict.findings[0].headline
    assert [override.partition('=')[0] for override in overrides(verdict)] == [
        'train_cfg.val_interval',
        'train_dataloader.num_workers',
        'default_hooks.checkpoint.type',
    ]


def test_larger_cost_decides_about_a_key() -> None:
    run = losing(0.05, 'waiting for a CPU', 'host', machine=dict(cores=8))
    run['lost']['by_cause']['swapping'] = dict(seconds=0.2 * TOTAL, count=9, category='memory')
    verdict = judge(summary(**run))
    assert keys(verdict) == ['swap', 'cpu']
    assert 'train_dataloader.num_workers=4' in overrides(verdict)
    assert 'train_dataloader.num_workers=7' not in overrides(verdict)


def test_healthy_run() -> None:
    verdict = judge(summary())
    assert verdict.headline == (
        'Healthy: nothing to change. 98 % of the time in forward, backward and step.'
    )
    assert verdict.why == [
        'The device is the limit: its driver reports it busy for 96 % of the time (100 readings).',
        'Mixed precision (--amp) may reduce its work.',
    ]
    assert not verdict.change


@pytest.mark.parametrize('part', ['SparseAmpOptimWrapper', 'AmpOptimWrapper', 'TheirWrapper'])
def test_mixed_precision_is_named_only_if_known_to_be_off(part: str) -> None:
    assert len(judge(summary(setting=dict(parts=[part]))).why) == 1


@pytest.mark.parametrize(
    'busy', [None, dict(mean=0.84, looks=100), dict(mean=0.3, looks=9), dict(mean=0.99, looks=9)]
)
def test_no_claim_about_a_device_that_is_partly_idle_or_unknown(busy: dict | None) -> None:
    """Device events measure the time between them, which includes idle time."""
    verdict = judge(summary(device_busy=busy))
    assert verdict.headline.startswith('Healthy')
    assert (verdict.why, verdict.change) == ([], [])


@pytest.mark.parametrize(('cv', 'even'), [(0.0999, True), (EVEN, False), (None, True)])
def test_uneven_run_without_a_single_cost(cv: float | None, even: bool) -> None:
    verdict = judge(summary(cv=cv, device_busy=None))
    assert verdict.headline.startswith('Healthy')
    text = 'Iteration times vary by 10 % (target: below 10 %).'
    assert verdict.why == ([] if even else [text])


@pytest.mark.parametrize('steps', [('forward and backward', 'step'), ('train_step',), STEP])
def test_all_parts_of_a_step_count_as_training(steps: tuple) -> None:
    found = summary(machine=dict(accelerator=None), device_busy=None)
    phases = found['phases']
    seconds = sum(phases.pop(name)['seconds'] for name in ('forward', 'backward', 'step'))
    phases.update({name: dict(seconds=seconds / len(steps)) for name in steps})
    assert judge(found).headline.startswith('Healthy: nothing to change. 9')


@pytest.mark.parametrize('phases', [dict(data=1.0, train=99.0), dict(evaluation=9.0)])
def test_unknown_step_has_no_share(phases: dict) -> None:
    """As in stock logs, whose only other phase is `train`."""
    named = {name: dict(seconds=seconds) for name, seconds in phases.items()}
    assert '0.0 %' not in judge(dict(iterations=500, phases=named)).headline


def test_short_run() -> None:
    verdict = judge(summary(iterations=60))
    assert verdict.headline == (
        'Short run: 60 iterations; a verdict needs 200. 98 % of the time in forward, backward and '
        'step.'
    )
    assert (verdict.why, verdict.change) == ([], [])


def test_risks_are_reported_for_a_short_run() -> None:
    verdict = judge(summary(iterations=60, memory=dict(peak=dict(ram_used=0.95)), warnings=['a']))
    assert keys(verdict) == ['short', 'memory', 'warnings']


def test_busy_machine_comes_before_larger_costs() -> None:
    verdict = judge(summary(**taking(0.5, 'evaluation'), pressure=dict(queued=0.05, others=0.4)))
    assert keys(verdict) == ['busy machine', 'evaluation']
    assert verdict.headline.endswith('the figures of this run are unreliable.')


@pytest.mark.parametrize(
    ('found', 'headline'),
    [
        ({}, 'Nothing was measured.'),
        (dict(iterations=500), 'Nothing was measured.'),
        (
            dict(iterations=19, phases=dict(data=dict(seconds=1.0))),
            'Too short to judge: 19 iterations; at least 20 are needed.',
        ),
        (
            dict(iterations=1, phases=dict(data=dict(seconds=1.0))),
            'Too short to judge: 1 iteration; at least 20 are needed.',
        ),
    ],
)
def test_too_little_to_judge(found: dict, headline: str) -> None:
    verdict = judge(found)
    assert verdict.headline == headline
    assert (keys(verdict), verdict.why, verdict.change) == (['nothing'], [], [])
