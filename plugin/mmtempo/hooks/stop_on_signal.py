"""Ends a training on SIGINT or SIGTERM with a checkpoint from which it goes on exactly."""

from __future__ import annotations

import inspect
import signal
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from mmengine.dist import all_reduce, barrier, get_world_size
from mmengine.hooks import EMAHook
from mmengine.runner import EpochBasedTrainLoop

from ..core.interrupts import Interrupts
from .snapshot_fence import may_change_weights

# Processes agree on the iteration to stop at; that often they ask each other.
ASK_EVERY = 10


class StopOnSignal:
    """Meets the request of a signal where the state is whole.

    ========================  ===================================================
    the signal comes          the run ends
    ========================  ===================================================
    within an iteration       after it
    between two iterations    at once: while it waits for data, that may never come
    before the first one      at once, and nothing is saved: nothing has changed
    within an evaluation      after its iteration; the averages are swapped back
    with several processes    after the next tenth iteration, all at the same
    ========================  ===================================================

    Args:
        save: Saves what is reached (epoch, iteration) unless that is saved already, and
            returns when it is durable.
        abandon: Leaves at once.
    """

    def __init__(self, save: Any, abandon: Any) -> None:
        # Of the hook, which has the runner: handlers outlive a training that failed.
        self._save, self._abandon = weakref.WeakMethod(save), weakref.WeakMethod(abandon)
        self._interrupts: Interrupts | None = None
        self._runner: Any = lambda: None
        self._start: tuple[int, int] | None = None
        self._rest: tuple[int, int] | None = None
        self._ending: signal.Signals | None = None  # what the training was stopped for
        self._group: Any = None

    def begin(self, runner: Any) -> None:
        """Handle signals from now on."""
        self.end()
        self._ending = None
        self._runner = weakref.ref(runner)
        self._start = (runner.epoch, runner.iter)
        if get_world_size() > 1 and torch.distributed.get_backend() != 'gloo':
            self._group = torch.distributed.new_group(backend='gloo')
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
        """The state is whole here, behind so many batches of the epoch and this one."""
        if self._interrupts is None:
            return
        reached = (runner.epoch, runner.iter + 1)
        # The schedules have not seen the end of the epoch yet: see `after_epoch`.
        if is_end_of_epoch(runner, batch):
            return
        self._rest = reached  # first: a signal that comes now is met at once
        requested = self._interrupts.requested
        if get_world_size() > 1:
            requested = self._agreed(requested) if reached[1] % ASK_EVERY == 0 else None
        if requested is not None:
            self._stop(runner, requested, reached)

    def before_epoch(self, runner: Any) -> None:
        """The state is whole here, and the data loader may take long to begin."""
        if self._interrupts is None:
            return
        self._rest = (runner.epoch, runner.iter)
        if self._interrupts.requested is not None and get_world_size() == 1:
            self._stop(runner, self._interrupts.requested, self._rest)

    def after_epoch(self, runner: Any) -> None:
        """The state is whole here, also for who counts epochs."""
        if self._interrupts is None:
            return
        requested = self._interrupts.requested
        if get_world_size() > 1:
            requested = self._agreed(requested)
        if requested is not None:
            self._stop(runner, requested, (runner.epoch + 1, runner.iter))

    def in_evaluation(self, runner: Any) -> None:
        """It may take long, and is not needed to go on."""
        self._end_again()
        if self._interrupts is None or self._interrupts.requested is None or get_world_size() > 1:
            return
        if any(may_change_weights(hook, 'before_val', 'before_val_epoch') for hook in runner.hooks):
            return  # what was changed for the evaluation is changed back at its end
        for hook in runner.hooks:
            if isinstance(hook, EMAHook):
                hook.after_val_epoch(runner)
        self._stop(runner, self._interrupts.requested, (runner.epoch, runner.iter))

    def _on_request(self, number: signal.Signals) -> None:
        runner = self._runner()
        if runner is None or not is_training(runner):  # it has ended with an error
            self.end()
            signal.raise_signal(number)
            return
        if self._rest is not None and get_world_size() == 1:
            self._stop(runner, number, self._rest)
        when = 'this iteration' if get_world_size() == 1 else f'the next {ASK_EVERY}th iteration'
        again = 'Ctrl-C once more' if number == signal.SIGINT else 'Ctrl-C'
        runner.logger.warning(
            f'{number.name}: the run ends after {when}, with a checkpoint; {again} leaves at once.'
        )

    def _leave(self) -> None:
        abandon = self._abandon()
        if abandon is not None:
            abandon()

    def _agreed(self, requested: signal.Signals | None) -> signal.Signals | None:
        """What any process was asked for."""
        number = torch.tensor(float(requested or 0))
        all_reduce(number, 'max', self._group)
        return signal.Signals(int(number.item())) if number.item() else None

    def _stop(self, runner: Any, number: signal.Signals, reached: tuple[int, int]) -> None:
        self._rest = None
        if reached != self._start:
            save = self._save()
            assert save is not None
            save(runner, *reached)
        if get_world_size() > 1:
            barrier(self._group)
        self.end()
        runner.logger.warning(f'{number.name}: stopped after {reached[1]} iterations.')
        self._ending = number
        _end(number)

    def _end_again(self) -> None:
        """End what was stopped already: a signal that comes within a finalizer, or a collection
        of garbage, is handled there, and Python drops what is raised."""
        runner, number, self._ending = self._runner(), self._ending, None
        # Not so where it has ended, and somebody evaluates by hand what has become of it.
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
