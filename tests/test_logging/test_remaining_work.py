"""Count the evaluations and saves to come, by iteration and by epoch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mmengine.hooks import CheckpointHook

from mmtempo.logging.remaining_work import evaluations_left, saves_left


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
