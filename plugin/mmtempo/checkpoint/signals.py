"""End a training on SIGINT or SIGTERM with a checkpoint from which it resumes exactly."""

from __future__ import annotations

import inspect
import signal
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import EMAHook
from mmengine.runner import EpochBasedTrainLoop

from mmtempo.evaluation.owed_evaluation import is_due, owe
from mmtempo.system.interrupts import Interrupts

from .fence import has_user_code
from .signal_agreement import SignalAgreement


class Reached(NamedTuple):
    """Point of a training at which its state is consistent.

    Attributes:
        epoch: Number of completed epochs; 0 if the loop counts none.
        iteration: Number of completed iterations.
        owes: Whether an evaluation is due at this point and not complete.
    """

    epoch: int
    iteration: int
    owes: bool = False


class StopOnSignal:
    """Reader of received signals that stops a training where its state is consistent.

    ============================  ===================================================
    the signal arrives            the run ends
    ============================  ===================================================
    during an iteration           after it
    between two iterations        before the next one. A prefetching loop whose
                                  workers make the batches ends at once, since the
                                  next batch may never arrive
    before the first iteration    in the same way, without a checkpoint: nothing has
                                  changed
    during an evaluation          after its iteration; the averages are swapped back
    with several processes        after the same iteration in all of them, within about
                                  1 s, or after the current one if that takes longer;
                                  in an evaluation only if all have the same number of
                                  batches
    ============================  ===================================================

    An evaluation that is cut off, or that was due next, is recorded in the checkpoint.

    Args:
        save: Bound method that takes the runner, epoch, iteration and whether to save even if this
            state is saved already. It returns when the checkpoint is durable.
        abandon: Bound method that stops a save at once.
    """

    def __init__(self, save: Any, abandon: Any) -> None:
        # Weak references: the handlers outlive a failed training, and the hook holds the runner.
        self._save, self._abandon = weakref.WeakMethod(save), weakref.WeakMethod(abandon)
        self._interrupts: Interrupts | None = None
        self._runner: Any = lambda: None
        self._start: tuple[int, int] | None = None
        self._is_evaluating = False
        self._agreement: SignalAgreement | None = None  # None for a single process

    def begin(self, runner: Any) -> None:
        """Install the handlers."""
        self.end()
        self._runner, self._is_evaluating = weakref.ref(runner), False
        self._start = (runner.epoch, runner.iter)
        self._agreement = SignalAgreement(runner.iter) if get_world_size() > 1 else None
        self._interrupts = Interrupts(self._is_training, self._leave, self._notice())
        self._interrupts.install()

    def end(self) -> None:
        """Restore the handlers that were installed before."""
        if self._interrupts is not None:
            self._interrupts.restore()
            self._interrupts = None

    def between_iterations(self, runner: Any) -> None:
        """Stop if a single process has received a signal; called while its loop waits as well."""
        requested = None if self._interrupts is None else self._interrupts.requested
        if requested is None or self._agreement is not None:
            return
        if self._is_evaluating:
            self._stop_evaluation(runner, requested)
        else:
            self._stop(runner, requested, Reached(runner.epoch, runner.iter))

    def after_iteration(self, runner: Any, batch: int) -> None:
        """Stop if a signal has arrived; the state is consistent here.

        Args:
            runner: Runner of the training.
            batch: Index of the batch within its epoch.
        """
        # Schedules by epoch have not been stepped yet, so `after_epoch` stops instead.
        if self._interrupts is None or is_end_of_epoch(runner, batch):
            return
        requested = self._interrupts.requested
        if requested is None and self._agreement is None:
            return
        done = runner.iter + 1
        owes = not counts_epochs(runner) and is_due(runner.train_loop, done)
        reached = Reached(runner.epoch, done, owes)
        if self._agreement is not None:
            requested = self._agree(self._agreement.after_iteration, runner, reached)
        if requested is not None:
            self._stop(runner, requested, reached)

    def after_epoch(self, runner: Any) -> None:
        """Stop if a signal has arrived; the state is consistent, with the epoch completed."""
        if self._interrupts is None:
            return
        requested = self._interrupts.requested
        reached = Reached(runner.epoch, runner.iter)
        if counts_epochs(runner):
            epoch = runner.epoch + 1
            reached = Reached(epoch, runner.iter, is_due(runner.train_loop, epoch))
        if self._agreement is not None:
            requested = self._agree(self._agreement.ask, runner, reached)
        if requested is not None:
            self._stop(runner, requested, reached)

    def before_evaluation(self, runner: Any) -> None:
        """Prepare to stop during an evaluation."""
        self._is_evaluating = True
        if self._interrupts is not None and self._agreement is not None:
            self._agreement.begin_evaluation(len(runner.val_dataloader))

    def in_evaluation(self, runner: Any, batch: int) -> None:
        """Stop if a signal has arrived; the evaluation can be repeated.

        Args:
            runner: Runner of the training.
            batch: Index of the batch within the evaluation.
        """
        if self._interrupts is None:
            return
        requested = self._interrupts.requested
        if self._agreement is not None:
            requested = self._agreement.in_evaluation(batch + 1, requested)
        if requested is not None:
            self._stop_evaluation(runner, requested)

    def after_evaluation(self) -> None:
        """Note that the evaluation has ended."""
        self._is_evaluating = False

    def _stop_evaluation(self, runner: Any, requested: signal.Signals) -> None:
        if any(has_user_code(hook, 'before_val', 'before_val_epoch') for hook in runner.hooks):
            return  # what these hooks changed for the evaluation, they restore at its end
        for hook in runner.hooks:
            if isinstance(hook, EMAHook):
                hook.after_val_epoch(runner)
        self._stop(runner, requested, Reached(runner.epoch, runner.iter, owes=True))

    def _is_training(self) -> bool:
        runner = self._runner()
        return runner is not None and is_training(runner)

    def _leave(self) -> None:
        abandon = self._abandon()
        if abandon is not None:
            abandon()

    def _notice(self) -> str:
        """Return what to print when a signal arrives; in the main process only."""
        if self._agreement is None:
            return 'the run ends after this iteration, with a checkpoint'
        if not is_main_process():
            return ''
        return 'the run ends at the same iteration in all processes, with a checkpoint'

    def _agree(self, ask: Callable, runner: Any, reached: Reached) -> signal.Signals | None:
        """Exchange signals with the other processes; if one of them has died, save and raise."""
        assert self._interrupts is not None
        try:
            return ask(reached.iteration, self._interrupts.requested)
        except RuntimeError:
            self._keep(runner, reached)
            raise

    def _keep(self, runner: Any, reached: Reached) -> None:
        if reached[:2] == self._start:
            return
        if reached.owes:
            owe(runner, reached.iteration)
        save = self._save()
        assert save is not None
        save(runner, reached.epoch, reached.iteration, reached.owes)

    def _stop(self, runner: Any, number: signal.Signals, reached: Reached) -> None:
        self._keep(runner, reached)
        if self._agreement is not None:
            self._agreement.wait()
        self.end()
        runner.logger.warning(f'{number.name}: stopped after {reached.iteration} iterations.')
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def is_training(runner: Any) -> bool:
    """Return whether the training loop is on the stack; no hook runs when an error ends stock's."""
    run = inspect.unwrap(type(runner.train_loop).run).__code__
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (
        frame.f_code is run and frame.f_locals.get('self') is runner.train_loop
    ):
        frame = frame.f_back
    return frame is not None


def repeats_epochs(runner: Any) -> bool:
    """Return whether the loop can only start at the beginning of an epoch."""
    loop = runner.train_loop
    return counts_epochs(runner) and not getattr(loop, 'resumes_within_epoch', False)


def counts_epochs(runner: Any) -> bool:
    """Return whether the training loop counts epochs."""
    return isinstance(runner.train_loop, EpochBasedTrainLoop)


def is_end_of_epoch(runner: Any, batch: int) -> bool:
    """Return whether a batch is the last one of an epoch; `batch` is its index."""
    return counts_epochs(runner) and batch + 1 == len(runner.train_dataloader)
