"""Figures of a run, of which any may be missing."""

from __future__ import annotations

from typing import Any

import pytest

from mmtempo.report.verdict.figures import MIN_READINGS, RunFigures, is_pause
from tests.testing.summaries import summary
from tests.testing.verdict_cases import losing


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
    found = dict(phases=phases, stalls=stalls)
    assert (RunFigures(found).waited, RunFigures(found).computed) == (6.0, 5.0)
    # Our loader knows how long the training waited for batches that were not there.
    ours = RunFigures(dict(found, loader=dict(seconds=3.0, starting=1.0)))
    assert (ours.waited, ours.computed) == (2.0, 5.0)


@pytest.mark.parametrize(
    ('changes', 'short'),
    [
        (dict(memory=dict(peak=dict(ram_used=0.91))), True),
        (dict(memory=dict(peak=dict(ram_used=0.9))), False),
        (dict(pressure=dict(memory=0.031)), True),
        (dict(pressure=dict(memory=0.029)), False),
        (losing(0.031, 'page faults', 'memory'), True),
        (losing(0.029, 'page faults', 'memory'), False),
        (losing(0.5, 'page faults', 'host'), False),
    ],
)
def test_memory_is_short_if_full_or_waited_for(changes: dict, short: bool) -> None:
    assert RunFigures(summary(**changes)).is_short_of_memory == short


@pytest.mark.parametrize(
    ('pressure', 'taken'),
    [
        (dict(queued=0.031, others=0.11), True),
        (dict(queued=0.029, others=0.9), False),  # it waits for its own workers
        (dict(queued=0.9, others=0.1), False),
        (dict(queued=0.9), False),
        (None, False),
    ],
)
def test_cpus_are_taken_if_others_let_the_training_wait(pressure: Any, taken: bool) -> None:
    assert RunFigures(dict(pressure=pressure)).is_taken == taken


def test_lost_seconds_of_a_cause_are_those_of_its_category() -> None:
    causes = {'page faults': dict(seconds=3.0, category='host')}
    run = RunFigures(dict(lost=dict(by_cause=causes)))
    assert [run.lost_to('page faults', one) for one in ('host', 'memory', None)] == [3.0, 0.0, 3.0]
    assert run.lost_to('swapping') == 0.0


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
