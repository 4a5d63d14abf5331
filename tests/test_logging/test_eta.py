"""The remaining time follows from measured costs, with a fake clock."""

from __future__ import annotations

import pytest

from mmtempo.logging.eta import RemainingTime


def run(times: RemainingTime, now: float, seconds: float, iterations: int) -> float:
    for _ in range(iterations):
        now += seconds
        times.tick(now)
    return now


def test_warm_up_does_not_count() -> None:
    times = RemainingTime(warm_up=2)
    times.tick(0.0)
    now = run(times, 0.0, 60.0, 2)
    assert times.left(100, 0, 0) is None
    run(times, now, 0.5, 10)
    assert times.left(100, 0, 0) == pytest.approx(50.0)


def test_evaluations_and_saves_are_estimated_from_their_mean_cost() -> None:
    times = RemainingTime(warm_up=0)
    times.tick(0.0)
    now = run(times, 0.0, 1.0, 5)
    times.paused('val', 30.0)
    now = run(times, now, 31.0, 1)
    times.saved()
    now = run(times, now, 5.0, 1)
    run(times, now, 1.0, 3)
    assert times.left(10, 2, 3) == pytest.approx(10 * 1.0 + 2 * 30.0 + 3 * 4.0)


def test_evaluation_and_save_in_one_iteration_are_separated() -> None:
    times = RemainingTime(warm_up=0)
    times.tick(0.0)
    now = run(times, 0.0, 1.0, 4)
    times.saved()
    times.paused('val', 10.0)
    run(times, now, 1.0 + 10.0 + 2.0, 1)
    assert times.left(0, 1, 0) == pytest.approx(10.0)
    assert times.left(0, 0, 1) == pytest.approx(2.0)


def test_a_save_during_warm_up_is_not_counted_as_iteration() -> None:
    times = RemainingTime(warm_up=0)
    times.tick(0.0)
    times.saved()
    now = run(times, 0.0, 50.0, 1)
    run(times, now, 1.0, 2)
    assert times.left(1, 0, 1) == pytest.approx(1.0)
