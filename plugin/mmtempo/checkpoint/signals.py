"""Ends a training on SIGINT or SIGTERM with a checkpoint from which it resumes exactly."""

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
    """A point of a training at which its state is whole.

    Attributes:
        epoch: Completed epochs; 0 where the loop counts none.
        iteration: Completed iterations.
        owes: Whether the evaluation that is due here is not complete.
    """

    epoch: int
    iteration: int
    owes: bool = False


class StopOnSignal:
    """Stops a training, on a signal, at a point where its state is whole.

    ========================  ===================================================
    the signal comes          the run ends
    ========================  ===================================================
    within an iteration       after it
    between two iterations    at once: while it waits for data, that may never come
    before the first one      at once, and nothing is saved: nothing has changed
    within an evaluation      after its iteration; the averages are swapped back
    with several processes    all after the same iteration, which comes within about
                              1 s or, where one takes longer, is the present one; in
                              an evaluation only where all have equally many batches
    ========================  ===================================================

    An evaluation that is cut off, or that was due next, is owed: the checkpoint says so.

    Args:
        save: Saves what is reached (epoch, iteration, whether anew) unless that is saved
            already, and returns when it is durable.
        abandon: Leaves at once.
    """

    def __init__(self, save: Any, abandon: Any) -> None:
        # Weak: handlers outlive a training that failed, and the hook has the runner.
        self._save, self._abandon = weakref.WeakMethod(save), weakref.WeakMethod(abandon)
        self._interrupts: Interrupts | None = None
        self._runner: Any = lambda: None
        self._start: tuple[int, int] | None = None
        self._rest: Reached | None = None
        self._ending: signal.Signals | None = None  # what the training was stopped for
        self._agreement: SignalAgreement | None = None  # of several processes

    def begin(self, runner: Any) -> None:
        """Handle signals from now on."""
        self.end()
        self._ending = None
        self._runner = weakref.ref(runner)
        self._start = (runner.epoch, runner.iter)
        self._agreement = SignalAgreement(runner.iter) if get_world_size() > 1 else None
        self._interrupts = Interrupts(self._on_request, self._leave)
        self._interrupts.install()

    def end(self) -> None:
        """Handle them as before."""
        if self._interrupts is not None:
            self._interrupts.restore()
            self._interrupts = None
        self._rest = None

    def go_on(self) -> None:
        """No longer between two iterations."""
        self._rest = None
        if self._ending is not None:
            self._end_again()

    def after_iteration(self, runner: Any, batch: int) -> None:
        """Stop here if that is asked for: the state is whole.

        Args:
            runner: Of the training.
            batch: Number of the batch within its epoch.
        """
        if self._interrupts is None:
            return
        # The schedules have not seen the end of the epoch yet: see `after_epoch`.
        if is_end_of_epoch(runner, batch):
            return
        done = runner.iter + 1
        owes = not counts_epochs(runner) and is_due(runner.train_loop, done)
        self._rest = reached = Reached(runner.epoch, done, owes)  # a signal from now on stops
        requested = self._interrupts.requested
        if self._agreement is not None:
            requested = self._agree(self._agreement.after_iteration, runner, reached)
        if requested is not None:
            self._stop(runner, requested, reached)

    def before_epoch(self, runner: Any) -> None:
        """Stop here if that is asked for: the data loader may take long to begin."""
        if self._interrupts is None:
            return
        self._rest = Reached(runner.epoch, runner.iter)
        if self._interrupts.requested is not None and self._agreement is None:
            self._stop(runner, self._interrupts.requested, self._rest)

    def after_epoch(self, runner: Any) -> None:
        """Stop here if that is asked for: the state is whole, with the epoch counted."""
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
        """Prepare for signals within an evaluation."""
        if self._interrupts is not None and self._agreement is not None:
            self._agreement.begin_evaluation(len(runner.val_dataloader))

    def in_evaluation(self, runner: Any, batch: int) -> None:
        """Stop here if that is asked for: the evaluation can be repeated.

        Args:
            runner: Of the training.
            batch: Number of the batch within the evaluation.
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
            return  # what was changed for the evaluation is changed back at its end
        for hook in runner.hooks:
            if isinstance(hook, EMAHook):
                hook.after_val_epoch(runner)
        self._stop(runner, requested, Reached(runner.epoch, runner.iter, owes=True))

    def _on_request(self, number: signal.Signals) -> None:
        runner = self._runner()
        if runner is None or not is_training(runner):  # it has ended with an error
            self.end()
            signal.raise_signal(number)
            return
        if self._rest is not None and self._agreement is None:
            self._stop(runner, number, self._rest)
        when = 'this iteration'
        if self._agreement is not None:
            when = 'an iteration that all processes agree on, within about 1 s or this iteration'
        again = 'Ctrl-C once more' if number == signal.SIGINT else 'Ctrl-C'
        runner.logger.warning(
            f'{number.name}: the run ends after {when}, with a checkpoint; {again} leaves at once.'
        )

    def _leave(self) -> None:
        abandon = self._abandon()
        if abandon is not None:
            abandon()

    def _agree(self, ask: Callable, runner: Any, reached: Reached) -> signal.Signals | None:
        """Ask the other processes; where one of them has left, save what is reached."""
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
        """End what was stopped already: Python drops what a handler raises in a finalizer."""
        runner, number, self._ending = self._runner(), self._ending, None
        # Not where it has ended, and the user evaluates the result by hand.
        if number is not None and runner is not None and is_training(runner):
            self._ending = number
            _end(number)


class _Unraised:
    """In the place of `sys.unraisablehook`, leaves out the end of a training that Python drops.

    It is raised again, and no error: see `StopOnSignal._end_again`.
    """

    def __init__(self, report: Callable[[Any], Any]) -> None:
        self._report = report
        self.mark = object()  # on that end, which itself would keep its frames, and the model

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
    """Whether the loop is among the callers; no hook is told of an error that ends it."""
    run = inspect.unwrap(type(runner.train_loop).run).__code__
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (
        frame.f_code is run and frame.f_locals.get('self') is runner.train_loop
    ):
        frame = frame.f_back
    return frame is not None


def repeats_epochs(runner: Any) -> bool:
    """Whether the loop can begin nowhere but at the start of an epoch."""
    loop = runner.train_loop
    return counts_epochs(runner) and not getattr(loop, 'resumes_within_epoch', False)


def counts_epochs(runner: Any) -> bool:
    return isinstance(runner.train_loop, EpochBasedTrainLoop)


def is_end_of_epoch(runner: Any, batch: int) -> bool:
    return counts_epochs(runner) and batch + 1 == len(runner.train_dataloader)
