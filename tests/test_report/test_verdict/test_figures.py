"""Figures of a run, of which any may be missing."""

from __future__ import annotations

from typing import Any

import pytest

from mmtempo.report.verdict.figures import MIN_READINGS, RunFigures, is_pause
from tests.testing.summaries import summary


def test_empty_summary_has_no_figures() -> None:
    run = RunFigures({})
    assert (run.iterations, run.total, run.seconds('data'), run.median('data')) == (0, 0, 0, 0)
    assert (run.waited, run.computed, run.lost('gc')) == (0, 0, [])
    assert (run.cores, run.device_busy, run.whole('num_workers')) == (None, None, None)
    assert not run.is_short_of_memory
    assert not run.has_part('ValLoop')


def test_costs_are_formatted_with_share_and_mean() -> None:
    run = RunFigures(dict(iterations=100, phases=dict(a=dict(seconds=3.0), b=dict(seconds=1.0))))
    assert run.cost(3.0) == '3.00 s, 75 % of the time'
    assert run.per_iteration(3.0) == '30.0 ms per iteration'


def test_causes_of_a_category_are_sorted_by_seconds() -> None:
    causes = {
        'small': dict(seconds=1.0, count=2, category='gc'),
        'other': dict(seconds=9.0, count=1, category='data'),
        'large': dict(seconds=3.0, category='host'),
    }
    run = RunFigures(dict(lost=dict(by_cause=causes)))
    assert run.lost('gc', 'host') == [('large', 3.0, 0), ('small', 1.0, 2)]


@pytest.mark.parametrize(
    ('value', 'whole'), [(8, 8), (0, 0), (-1, None), (True, None), (2.0, None), (None, None)]
)
def test_whole_settings_are_integers_from_0(value: Any, whole: int | None) -> None:
    assert RunFigures(dict(setting=dict(num_workers=value))).whole('num_workers') == whole


def test_part_is_the_loop_a_part_or_a_hook_with_a_phase() -> None:
    run = RunFigures(summary(phases={'hook:EMAHook': 1.0}))
    for name in ('PrefetchIterBasedTrainLoop', 'SparseOptimWrapper', 'EMAHook'):
        assert run.has_part(name)
    assert not run.has_part('OptimWrapper')
    assert run.key_of_hook('SparseLoggerHook') == 'logger'
    assert run.key_of_hook('EMAHook') is None


@pytest.mark.parametrize(
    ('setting', 'cores'),
    [({}, 16), (dict(world=4), 4), (dict(world=16, local_world=2), 8), (dict(world=99), 1)],
)
def test_cores_are_divided_by_the_processes_of_the_node(setting: dict, cores: int) -> None:
    assert RunFigures(dict(machine=dict(cores=16), setting=setting)).cores == cores


def test_waiting_excludes_the_warm_up_of_the_loader() -> None:
    stalls = [
        dict(lost=4.0, category='warm-up', phase='data'),
        dict(lost=1.0, category='warm-up', phase='forward'),
        dict(lost=2.0, category='data', phase='data'),
    ]
    phases = dict(data=dict(seconds=10.0), forward=dict(seconds=5.0), evaluation=dict(seconds=7.0))
    run = RunFigures(dict(phases=phases, stalls=stalls))
    assert run.waited == 6.0
    assert run.computed == 5.0


@pytest.mark.parametrize(('missing', 'busy'), [(0, 0.8), (1, None)])
def test_device_is_judged_from_enough_readings(missing: int, busy: float | None) -> None:
    readings = MIN_READINGS - missing
    run = RunFigures(dict(device_busy=dict(mean=0.8, looks=readings)))
    assert (run.device_busy, run.device_readings) == (busy, readings)


@pytest.mark.parametrize(
    ('phase', 'pause'),
    [
        ('evaluation', True), ('checkpoint: fence', True), ('hook:AsyncCheckpointHook', True),
        ('hook:SnapshotFence', True), ('loader: end', True), ('data', False), ('forward', False),
        ('hook:EMAHook', False),
    ],
)  # fmt: skip
def test_pauses_consume_no_batches(phase: str, pause: bool) -> None:
    assert is_pause(phase) == pause
