"""Repeat on resume an evaluation that a signal has interrupted or prevented."""

from __future__ import annotations

import bisect
from typing import Any

# Key, in the message hub of every checkpoint, of the iteration whose evaluation is missing.
OWED = 'evaluation_owed'


def is_due(loop: Any, done: int) -> bool:
    """Return whether a training loop of mmengine's kind evaluates after `done` iterations.

    Args:
        loop: The training loop.
        done: Number of iterations, or of epochs where the loop counts epochs.
    """
    if loop.runner.val_loop is None or not getattr(loop, 'val_interval', None):
        return False
    interval = loop.val_interval
    if hasattr(loop, 'dynamic_milestones'):  # what `_decide_current_val_interval` will set
        interval = loop.dynamic_intervals[bisect.bisect(loop.dynamic_milestones, done + 1) - 1]
    last = loop.max_epochs if hasattr(loop, 'run_epoch') else loop.max_iters
    return done >= getattr(loop, 'val_begin', 1) and (done % interval == 0 or done == last)


def owe(runner: Any, iteration: int) -> None:
    """Record in the message hub that the evaluation after this iteration is missing."""
    runner.message_hub.update_info(OWED, iteration)


def is_owed(runner: Any) -> bool:
    """Return whether the evaluation at the present iteration is missing."""
    return runner.val_loop is not None and runner.message_hub.get_info(OWED) == runner.iter


def evaluate_owed(runner: Any) -> None:
    """Run the missing evaluation, if there is one. Call it before the next iteration."""
    if not is_owed(runner):
        return
    # Before the evaluation, because a new best score saves the message hub.
    runner.message_hub.pop_info(OWED)
    runner.logger.info(
        f'Evaluating after iteration {runner.iter}: the previous run stopped before this '
        'evaluation was complete'
    )
    # As in the run that stopped: metrics may read these values, which hooks set at the start of
    # the last iteration.
    runner.message_hub.update_info('iter', runner.iter - 1)
    if hasattr(runner.train_loop, 'run_epoch'):
        runner.message_hub.update_info('epoch', runner.epoch - 1)
    runner.val_loop.run()
