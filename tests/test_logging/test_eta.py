"""The remaining time follows from measured costs, with a fake clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mmengine.hooks import CheckpointHook

from mmtempo.logging.eta import RemainingTime, evaluations_left, saves_left


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


@pytest.mark.parametrize(
    ('done', 'begin', 'interval', 'expected'),
    [
        (0, 1, 30, 4),
        (30, 1, 30, 3),
        (99, 1, 30, 1),
        (5, 50, 20, 3),
        (5, 101, 20, 0),
        (100, 1, 20, 0),
    ],
)
def test_evaluations_left_of_100_iterations(
    done: int, begin: int, interval: int, expected: int
) -> None:
    loop = SimpleNamespace(max_iters=100, val_begin=begin, val_interval=interval)
    runner = SimpleNamespace(train_loop=loop, val_loop=True)
    assert evaluations_left(runner, done) == expected


def test_evaluations_left_of_a_loop_that_counts_epochs() -> None:
    loop = SimpleNamespace(
        max_epochs=10, epoch=4, val_begin=1, val_interval=3, run_epoch=lambda: None
    )
    runner = SimpleNamespace(train_loop=loop, val_loop=True)
    assert evaluations_left(runner, 80) == 3  # after epochs 6, 9 and 10
    runner.val_loop = None
    assert evaluations_left(runner, 80) == 0


def test_saves_left_of_several_hooks() -> None:
    def left(**options: object) -> float:
        hook = CheckpointHook(**options)
        runner = SimpleNamespace(hooks=[hook, object()], max_iters=100, max_epochs=10, epoch=4)
        return saves_left(runner, 40)

    assert left(by_epoch=False, interval=30) == 3  # at 60, 90 and at the end
    assert left(by_epoch=False, interval=30, save_last=False) == 2
    assert left(by_epoch=False, interval=-1) == 0
    assert left(by_epoch=True, interval=2) == 3
