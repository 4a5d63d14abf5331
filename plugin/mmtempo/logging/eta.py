"""Estimate the remaining time of a training, including evaluations and checkpoints."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import CheckpointHook


class RemainingTime:
    """Estimate from the mean costs of an iteration, an evaluation and a save.

    ::

        paused('val', seconds)   an evaluation since the last tick took this time
        saved()                  a save since the last tick; its cost shows in the next tick
        tick(now)                an iteration has ended

    Args:
        warm_up: Number of first iterations to ignore, which compile, benchmark convolutions and
            fill caches. Defaults to 10.
    """

    def __init__(self, warm_up: int = 10) -> None:
        self._to_skip = warm_up
        self._last: float | None = None
        self._paused, self._has_saved = 0.0, False
        self._sums = dict(iteration=0.0, val=0.0, save=0.0)
        self._numbers = dict(iteration=0, val=0, save=0)

    def paused(self, what: str, seconds: float) -> None:
        """Add time that is not part of an iteration."""
        self._paused += seconds
        self._add(what, seconds)

    def saved(self) -> None:
        """Note that a checkpoint was saved, or its save started, since the last tick."""
        self._has_saved = True

    def tick(self, now: float) -> None:
        """End an iteration; `now` is in seconds of any clock."""
        last, self._last = self._last, now
        paused, self._paused = self._paused, 0.0
        has_saved, self._has_saved = self._has_saved, False
        if last is None:
            return
        took = now - last - paused
        if has_saved:
            if self._numbers['iteration']:
                self._add('save', max(0.0, took - self._mean('iteration')))
        elif self._to_skip > 0:
            self._to_skip -= 1
        else:
            self._add('iteration', took)

    def left(self, iterations: int, evaluations: float, saves: float) -> float | None:
        """Return the remaining seconds; None during warm-up."""
        if not self._numbers['iteration']:
            return None
        return (
            iterations * self._mean('iteration')
            + evaluations * self._mean('val')
            + saves * self._mean('save')
        )

    def _add(self, what: str, seconds: float) -> None:
        self._sums[what] += seconds
        self._numbers[what] += 1

    def _mean(self, what: str) -> float:
        return self._sums[what] / self._numbers[what] if self._numbers[what] else 0.0


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
