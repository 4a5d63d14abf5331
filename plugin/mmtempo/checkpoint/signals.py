"""End a training on SIGINT or SIGTERM with a checkpoint from which it resumes exactly."""

from __future__ import annotations

import inspect
import signal
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from mmengine.dist import get_world_size
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
    """Handler of signals that stops a training where its state is consistent.

    ============================  ===================================================
    the signal arrives            the run ends
    ============================  ===================================================
    during an iteration           after it
    between two iterations        at once, since the next batch may never arrive
    before the first iteration    at once, without a checkpoint: nothing has changed
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
        self._rest: Reached | None = None
        self._ending: signal.Signals | None = None  # signal that stopped the training
        self._agreement: SignalAgreement | None = None  # None for a single process

    def begin(self, runner: Any) -> None:
        """Install the handlers."""
        self.end()
        self._ending = None
        self._runner = weakref.ref(runner)
        self._start = (runner.epoch, runner.iter)
        self._agreement = SignalAgreement(runner.iter) if get_world_size() > 1 else None
        self._interrupts = Interrupts(self._on_request, self._leave)
        self._interrupts.install()

    def end(self) -> None:
        """Restore the handlers that were installed before."""
        if self._interrupts is not None:
            self._interrupts.restore()
            self._interrupts = None
        self._rest = None

    def go_on(self) -> None:
        """Note that the training has left the point between two iterations."""
        self._rest = None
        if self._ending is not None:
            self._end_again()

    def after_iteration(self, runner: Any, batch: int) -> None:
        """Stop if a signal has arrived; the state is consistent here.

        Args:
            runner: Runner of the training.
            batch: Index of the batch within its epoch.
        """
        if self._interrupts is None:
            return
        # Schedules by epoch have not been stepped yet, so `after_epoch` stops instead.
        if is_end_of_epoch(runner, batch):
            return
        done = runner.iter + 1
        owes = not counts_epochs(runner) and is_due(runner.train_loop, done)
        self._rest = reached = Reached(
            runner.epoch, done, owes
        )  # from now on a signal stops at once
        requested = self._interrupts.requested
        if self._agreement is not None:
            requested = self._agree(self._agreement.after_iteration, runner, reached)
        if requested is not None:
            self._stop(runner, requested, reached)

    def before_epoch(self, runner: Any) -> None:
        """Stop if a signal has arrived, since the data loader may take long to start."""
        if self._interrupts is None:
            return
        self._rest = Reached(runner.epoch, runner.iter)
        if self._interrupts.requested is not None and self._agreement is None:
            self._stop(runner, self._interrupts.requested, self._rest)

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
        if self._interrupts is not None and self._agreement is not None:
            self._agreement.begin_evaluation(len(runner.val_dataloader))

    def in_evaluation(self, runner: Any, batch: int) -> None:
        """Stop if a signal has arrived; the evaluation can be repeated.

        Args:
            runner: Runner of the training.
            batch: Index of the batch within the evaluation.
        """
        self._end_again()
        if self._interrupts is None:
            return
        requested = self._interrupts.requested
        if self._agreement is not None:
            requested = self._agreement.in_evaluation(batch + 1, requested)
        if requested is None:
            return
        if any(has_user_code(hook, 'before_val', 'before_val_epoch') for hook in runner.hooks):
            return  # what these hooks changed for the evaluation, they restore at its end
        for hook in runner.hooks:
            if isinstance(hook, EMAHook):
                hook.after_val_epoch(runner)
        self._stop(runner, requested, Reached(runner.epoch, runner.iter, owes=True))

    def _on_request(self, number: signal.Signals) -> None:
        runner = self._runner()
        if runner is None or not is_training(runner):  # the training has failed
            self.end()
            signal.raise_signal(number)
            return
        if self._rest is not None and self._agreement is None:
            self._stop(runner, number, self._rest)
        when = 'after this iteration'
        if self._agreement is not None:
            when = 'at the same iteration in all processes, within about 1 s or one iteration'
        again = 'Ctrl-C again' if number == signal.SIGINT else 'Ctrl-C'
        runner.logger.warning(
            f'{number.name}: the run ends {when}, with a checkpoint; press {again} to end at once.'
        )

    def _leave(self) -> None:
        abandon = self._abandon()
        if abandon is not None:
            abandon()

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
        self._rest = None
        self._keep(runner, reached)
        if self._agreement is not None:
            self._agreement.wait()
        self.end()
        runner.logger.warning(f'{number.name}: stopped after {reached.iteration} iterations.')
        self._ending = number
        _end(number)

    def _end_again(self) -> None:
        """Raise the end again, since Python drops what a handler raises inside a finalizer."""
        runner, number, self._ending = self._runner(), self._ending, None
        # Not if the training has ended and the user evaluates the model afterwards.
        if number is not None and runner is not None and is_training(runner):
            self._ending = number
            _end(number)


class _Unraised:
    """Replacement of `sys.unraisablehook` that does not report the dropped end of a training.

    The end is no error, and `StopOnSignal._end_again` raises it again.

    Args:
        report: The hook that is replaced.
    """

    def __init__(self, report: Callable[[Any], Any]) -> None:
        self._report = report
        # Identifies the exception; a reference to it would keep its frames and the model alive.
        self.mark = object()

    def __call__(self, unraisable: Any) -> None:
        if getattr(unraisable.exc_value, 'mark', None) is not self.mark:
            self._report(unraisable)


def _end(number: signal.Signals) -> None:
    end = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
    if not isinstance(sys.unraisablehook, _Unraised):
        sys.unraisablehook = _Unraised(sys.unraisablehook)
    vars(end)['mark'] = sys.unraisablehook.mark
    raise end


def is_training(runner: Any) -> bool:
    """Return whether the training loop is on the stack; no hook runs when an error ends it."""
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
