"""Count the evaluations and saves that a training has still to do."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import CheckpointHook


def evaluations_left(runner: Any, done: int) -> int:
    """Return the number of evaluations to come.

    Args:
        runner: The runner of the training, whose loop counts iterations or epochs.
        done: Number of completed iterations.
    """
    loop = runner.train_loop
    if runner.val_loop is None or not getattr(loop, 'val_interval', 0):
        return 0
    by_epoch = hasattr(loop, 'run_epoch')
    done, total = (loop.epoch, loop.max_epochs) if by_epoch else (done, loop.max_iters)
    first = max(done, loop.val_begin - 1)
    return _times_left(first, total, loop.val_interval, at_end=True)


def saves_left(runner: Any, done: int) -> float:
    """Return the number of saves to come by the checkpoint hooks of a runner.

    Args:
        runner: The runner of the training.
        done: Number of completed iterations.
    """
    return sum(
        (runner.max_epochs - runner.epoch) / hook.interval
        if hook.by_epoch
        else _times_left(done, runner.max_iters, hook.interval, at_end=hook.save_last)
        for hook in runner.hooks
        if isinstance(hook, CheckpointHook) and hook.interval > 0
    )


def _times_left(done: int, total: int, interval: int, at_end: bool) -> int:
    """Return how many multiples of an interval are still to come.

    Args:
        done: Completed iterations or epochs.
        total: Their number at the end.
        interval: How many there are between two events.
        at_end: Whether the end counts even if it is no multiple.
    """
    last = -(-total // interval) if at_end else total // interval
    return max(0, last - done // interval)
