"""Repeats on resume an evaluation that a signal has cut off or kept from starting."""

from __future__ import annotations

import bisect
from typing import Any

# In the message hub, which every checkpoint carries: the iteration whose evaluation is owed.
OWED = 'evaluation_owed'


def is_due(loop: Any, done: int) -> bool:
    """Return whether a training loop of mmengine's kind evaluates after that many iterations.

    Args:
        loop: Of the training.
        done: Iterations, or epochs where the loop counts these.
    """
    if loop.runner.val_loop is None or not getattr(loop, 'val_interval', None):
        return False
    interval = loop.val_interval
    if hasattr(loop, 'dynamic_milestones'):  # as `_decide_current_val_interval` will set it
        interval = loop.dynamic_intervals[bisect.bisect(loop.dynamic_milestones, done + 1) - 1]
    last = loop.max_epochs if hasattr(loop, 'run_epoch') else loop.max_iters
    return done >= getattr(loop, 'val_begin', 1) and (done % interval == 0 or done == last)


def owe(runner: Any, iteration: int) -> None:
    """Note that the evaluation after this iteration is missing, for the checkpoint."""
    runner.message_hub.update_info(OWED, iteration)


def is_owed(runner: Any) -> bool:
    """Return whether the evaluation at the present iteration is missing."""
    return runner.val_loop is not None and runner.message_hub.get_info(OWED) == runner.iter


def evaluate_owed(runner: Any) -> None:
    """Evaluate where that is missing; to be called before the next iteration."""
    if not is_owed(runner):
        return
    # Before the evaluation: one that finds a new best saves the message hub.
    runner.message_hub.pop_info(OWED)
    runner.logger.info(
        f'Evaluating after iteration {runner.iter}: the run stopped before this evaluation was '
        'complete.'
    )
    # As in the run that was stopped: metrics may read these, and the last hooks to set them were
    # those that ran before its last iteration.
    runner.message_hub.update_info('iter', runner.iter - 1)
    if hasattr(runner.train_loop, 'run_epoch'):
        runner.message_hub.update_info('epoch', runner.epoch - 1)
    runner.val_loop.run()
