"""Statistics account for all time, and name periodic causes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mmtempo.timing.stall_detector import StallDetector
from mmtempo.timing.statistics import EVEN, KEEP, is_even
from tests.testing.timelines import MeasuredRun


def test_counts_that_were_not_read_are_no_evidence() -> None:
    run = MeasuredRun()
    run.counts = lambda number: number == 20
    for number in range(1, 101):
        run.collected += 0.5
        run.go(step=0.5 if number == 60 else 0.0)
    run.meter.take(is_last=True)
    (stall,) = run.meter.summary({})['stalls']
    assert stall['evidence'] == {}
    assert stall['phase'] == 'step'


def test_every_stall_is_above_the_suspect_threshold() -> None:
    """The threshold is that of the fastest kind, and each stall exceeds it."""
    run = MeasuredRun(factor=0.01, kinds_by='step')
    assert run.meter.suspect == 0
    for _ in range(100):
        run.go()
        run.go(data=1.0, step=0.01)
    run.meter.take()
    assert run.meter.suspect == pytest.approx(0.12, rel=0.02)
    for tenth in range(100):
        run.go(clip=tenth / 1000)
        run.go()
    run.meter.take(is_last=True)
    slow = [stall['seconds'] for stall in run.meter.summary({})['stalls']]
    assert len(slow) > 40
    assert min(slow) > 0.12


def test_suspect_threshold_of_short_iterations() -> None:
    """A stall exceeds the usual time by a millisecond at least."""
    detector = StallDetector()
    detector.look(np.full(30, 0.001), np.zeros(30))
    assert detector.suspect == pytest.approx(0.0018)


@pytest.mark.parametrize('step', [1, 7, 50, 400])
def test_figures_do_not_depend_on_the_window_length(step: int) -> None:
    run = MeasuredRun()
    seconds = iterations = lost = 0.0
    for number in range(1, 1201):
        run.go(evaluation=5.0) if number % 400 == 0 else run.go()
        if number % step == 0:
            window, stalls = run.meter.take()
            assert window is not None
            seconds += window['seconds']
            iterations += window['iterations']
            lost += sum(stall['lost'] for stall in stalls)
            assert sum(window['phases'].values()) == pytest.approx(window['seconds'])
    window, stalls = run.meter.take(is_last=True)
    if window is not None:
        seconds, iterations = seconds + window['seconds'], iterations + window['iterations']
    lost += sum(stall['lost'] for stall in stalls)
    summary = run.meter.summary({})
    assert iterations == summary['iterations'] == 1200
    assert seconds == pytest.approx((run.clock.now - run.timeline.began) * 1e-9)
    assert seconds == pytest.approx(summary['seconds'])
    assert sum(phase['share'] for phase in summary['phases'].values()) == pytest.approx(1)
    assert lost == pytest.approx(summary['lost']['seconds'])
    assert {stall['iter'] for stall in summary['stalls']} == {400, 800, 1200}
    assert summary['lost']['by_cause']['evaluation']['count'] == 3
    assert summary['lost']['seconds'] == pytest.approx(15, rel=0.1)
    assert summary['it_per_s'] == pytest.approx(1200 / seconds)
    assert summary['steady'] == pytest.approx(10, rel=0.02)
    assert summary['p50'] == pytest.approx(0.1, rel=0.02)
    assert summary['p99'] < 0.12  # evaluations are left out
    assert 0 < summary['cv'] < 0.05


@pytest.mark.parametrize('step', [1, 10, 99])
def test_steady_speed_of_a_short_window_excludes_its_evaluation(step: int) -> None:
    """The last window of a run is often one iteration with an evaluation or a save."""
    run = MeasuredRun(kinds_by='step')
    speeds = []
    for number in range(1, 201):
        slow = dict(evaluation=5.0) if number % 100 == 0 else {}
        run.go(**slow, **(dict(step=0.1) if number % 2 else {}))
        if number % step == 0:
            speeds.append(run.meter.take()[0]['steady'])
    window, _ = run.meter.take(is_last=True)
    speeds += [] if window is None else [window['steady']]
    kinds = (10.0, 5.0) if step == 1 else (1 / 0.15,)
    assert all(min(abs(speed / kind - 1) for kind in kinds) < 0.1 for speed in speeds)
    if step == 99:
        assert window is not None
        assert (window['iterations'], window['it_per_s']) == (2, pytest.approx(0.38, rel=0.1))


@pytest.mark.parametrize('workers', [4, 8])
def test_slow_worker_is_found_as_a_period(workers: int) -> None:
    run = MeasuredRun()
    slow = 2
    for number in range(400):
        worker = number % workers
        samples = [4 * number + index for index in range(4)]
        late = 0.3 if worker == slow else 0.0
        origin = SimpleNamespace(
            worker=worker, seconds=0.9, slowest=samples[1], slowest_seconds=0.8
        )
        info = SimpleNamespace(samples=samples, waited=late, origin=origin, usual=0.7)
        note = dict(delivery=info)
        run.go(data=late, note=note)
        if number % 50 == 0:
            run.meter.take()
    run.meter.take(is_last=True)
    intervals = dict(num_workers=workers, log_interval=50, val_interval=None)
    summary = run.meter.summary(intervals)
    (period,) = summary['periods']
    assert (period['every'], period['what'], period['worker']) == (workers, 'num_workers', slow)
    assert period['cause'] == 'worker 2 was late'
    assert all((sample // 4) % workers == slow and sample % 4 == 1 for sample in period['samples'])
    assert f'every {workers}th iteration = num_workers' in period['text']
    assert list(summary['lost']['by_cause']) == ['worker 2 was late']
    expected = 400 // workers
    assert summary['lost']['count'] == expected
    assert summary['lost']['seconds'] == pytest.approx(0.3 * expected, rel=0.1)


def test_even_training_has_no_stalls() -> None:
    run = MeasuredRun()
    for number in range(3000):
        run.go()
        if number % 50 == 0:
            run.meter.take()
    _, stalls = run.meter.take(is_last=True)
    summary = run.meter.summary({})
    assert not stalls
    assert summary['lost'] == dict(seconds=0.0, share=0.0, count=0, by_cause={})
    assert summary['periods'] == summary['stalls'] == summary['changes'] == []


def test_all_iterations_are_of_one_kind_without_a_step_phase() -> None:
    run = MeasuredRun(kinds_by='step')
    for number in range(200):
        run.go(clip=0.2 if number == 150 else 0.0)
    _, stalls = run.meter.take(is_last=True)
    assert [stall['iter'] for stall in stalls] == [151]


def test_accumulating_iterations_are_compared_with_each_other() -> None:
    run = MeasuredRun(kinds_by='step')
    for number in range(400):
        run.go(step=0.2 if number % 4 == 3 else 0.0)
    _, stalls = run.meter.take(is_last=True)
    assert not stalls
    for number in range(100):
        run.go(clip=0.2 if number == 50 else 0.0)
    _, stalls = run.meter.take(is_last=True)
    assert [stall['iter'] for stall in stalls] == [451]
    assert stalls[0]['phase'] == 'clip'


def test_counts_are_evidence_of_their_own_iteration() -> None:
    run = MeasuredRun()
    for number in range(1, 101):
        run.collected += 0.01
        if number == 60:
            run.collected += 0.5
            run.go(step=0.5)
        else:
            run.go()
        if number % 10 == 0:
            run.meter.take()
    run.meter.take(is_last=True)
    (stall,) = run.meter.summary({})['stalls']
    assert (stall['iter'], stall['cause']) == (60, 'garbage collection')
    assert stall['evidence'] == dict(gc_seconds=pytest.approx(0.5))


def test_machine_evidence_covers_the_time_of_the_iteration() -> None:
    asked: list[tuple[float, float]] = []

    def between(start: float, end: float) -> dict:
        asked.append((start, end))
        return dict(throttled=0.9)

    run = MeasuredRun(machine=between)
    for number in range(100):
        start = run.clock.now * 1e-9
        run.go(forward_again=1.0 if number == 50 else 0.0)
        if number == 50:
            wanted = start, run.clock.now * 1e-9
    run.meter.take(is_last=True)
    assert asked == [pytest.approx(wanted)]


def test_longest_stalls_are_kept() -> None:
    run = MeasuredRun(keep=5)
    for number in range(1, 2001):
        run.go(data=1.1 ** (number / 50) if number % 50 == 0 else 0.0)
        if number % 50 == 0:
            run.meter.take()
    run.meter.take(is_last=True)
    summary = run.meter.summary({})
    assert [stall['iter'] for stall in summary['stalls']] == [2000, 1950, 1900, 1850, 1800]
    assert summary['lost']['count'] > 30


def test_ring_has_the_last_iterations() -> None:
    run = MeasuredRun()
    for _ in range(1500):
        run.go()
        run.meter.take()
    ring = run.meter.ring()
    assert ring['phases'] == ['data', 'forward', 'backward']
    assert [row[0] for row in ring['rows']] == [*range(477, 1501)]
    ends = np.array([row[1] + sum(row[2:]) for row in ring['rows']])
    np.testing.assert_allclose(ends[:-1], [row[1] for row in ring['rows'][1:]])
    assert run.meter.ring(10) == dict(ring, rows=ring['rows'][-10:])


@pytest.mark.parametrize('first', [0, 50_000])
def test_change_has_the_number_of_its_iteration(first: int) -> None:
    run = MeasuredRun(first)
    for number in range(1, 601):
        run.go(later=0.1 if number > 300 else 0.0)
        if number % 50 == 0:
            run.meter.take()
    run.meter.take(is_last=True)
    (change,) = run.meter.summary({})['changes']
    assert change['iter'] == first + 301
    assert (change['old'], change['new']) == (pytest.approx(0.1, 0.02), pytest.approx(0.2, 0.02))


def test_summary_keeps_at_most_keep_stalls() -> None:
    run = MeasuredRun()
    for number in range(1, 1501):
        run.go(data=1.0 if number % 15 == 0 else 0.0)
        if number % 50 == 0:
            run.meter.take()
    run.meter.take(is_last=True)
    summary = run.meter.summary({})
    assert (len(summary['stalls']), summary['lost']['count']) == (KEEP, 100)


def test_even_is_below_the_target() -> None:
    assert [is_even(cv) for cv in (0.0, EVEN - 1e-6, EVEN, 0.5)] == [True, True, False, False]


def test_evaluation_does_not_make_a_window_uneven() -> None:
    """Evaluations are excluded from percentiles and cv, and included in the speed."""
    run = MeasuredRun()
    for number in range(50):
        run.go(evaluation=5.0 * (number == 20))
    window, _ = run.meter.take()
    assert window is not None
    assert window['p99'] < 0.12
    assert window['cv'] < 0.05
    assert window['it_per_s'] == pytest.approx(50 / 10, rel=0.02)
