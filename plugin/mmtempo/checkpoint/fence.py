"""Stands between a snapshot and whatever would change what it has not copied yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from mmengine.hooks import EMAHook, Hook, ParamSchedulerHook

from mmtempo.utils.modules import layers_of
from mmtempo.utils.runner import optimizers_of

# Their hooks change no weights, but for the averages of `EMAHook`; schedules change the optimizer.
KNOWN = ('mmengine.', 'mmseg.', 'mmtempo.')
SAVING = ('after_train_iter', 'after_train_epoch', 'after_val_epoch')


class SnapshotFence(Hook):
    """While it is up, calls `fence` before anything may change parameters; a runner's first hook.

    No stage of a hook lies between the backward pass and the optimizer's step, so each optimizer
    gets a hook of torch's, for so long. That one is not called where an update is left out, as
    after an overflow; the averages of `EMAHook` are updated all the same, at `after_train_iter`.

    Args:
        fence: Returns when the state may change, and whether it must be asked again before the
            next change.
        on_activity: Called when the training goes on from between two iterations.
    """

    priority = 'HIGHEST'
    time_category = 'checkpoint'  # where the monitor counts its time

    def __init__(self, fence: Callable[[], bool], on_activity: Callable[[], None]) -> None:
        self._fence, self._on_activity = fence, on_activity
        self._optimizers: list[Any] = []
        self._handles: list[Any] = []
        self._is_early = self._is_up = self._is_traced = False

    def install(self, runner: Any) -> bool:
        """Take the first place among the hooks; False where it has it already."""
        if self in runner.hooks:
            return False
        runner.hooks.insert(0, self)
        return True

    def observe(self, runner: Any) -> None:
        """From now on, nobody changes parameters unseen while it is up."""
        self.ignore()
        early = [hook for hook in runner.hooks if has_user_code(hook, 'before_train_iter')]
        self._is_early = bool(early)
        for hook in early:
            runner.logger.info(
                f'{type(hook).__name__} may change weights before the forward pass: '
                'checkpoints are copied before it is called.'
            )
        self._optimizers = optimizers_of(runner)
        # A step that is compiled is compiled anew where its optimizer has got other hooks.
        self._is_traced = any('train_step' in vars(layer) for layer in layers_of(runner.model))
        if self._is_traced:
            self._attach()

    def ignore(self) -> None:
        self._is_up = self._is_traced = False
        self._detach()
        self._optimizers = []

    def arm(self) -> None:
        """Until `fence` says that it need not be asked again."""
        self._is_up = True
        if not self._handles:
            self._attach()

    def disarm(self) -> None:
        self._is_up = False
        if not self._is_traced:
            self._detach()

    def _attach(self) -> None:
        hook: Any = self._before_step
        if self._is_traced:  # and where anything has changed that it has looked at
            hook = torch.compiler.disable(hook)
        self._handles = [one.register_step_pre_hook(hook) for one in self._optimizers]

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_step(self, *args: Any, **kwargs: Any) -> None:
        if self._is_up:
            self._fence()  # torch goes through its hooks: none can be taken away here

    def before_train_iter(self, *args: Any, **kwargs: Any) -> None:
        self._on_activity()
        if self._is_early and self._is_up:
            self._fence()

    def _pass(self, *args: Any, **kwargs: Any) -> None:
        self._on_activity()
        if self._is_up and not self._fence():
            self.disarm()

    after_train_iter = before_train_epoch = after_train_epoch = _pass
    before_val = after_val = before_val_epoch = before_test_epoch = after_train = _pass


def has_user_code(hook: Hook, *stages: str) -> bool:
    """Whether a hook has code of a user at one of these stages."""
    own = (getattr(type(hook), stage) for stage in stages)
    return any(not stage.__module__.startswith(KNOWN) for stage in own)


def change_weights_after(saver: Hook, runner: Any) -> list[str]:
    """Return the types of hooks that may change weights after `saver` at a stage of saves."""
    return [
        type(hook).__name__
        for hook in hooks_after(saver, runner)
        if isinstance(hook, (EMAHook, ParamSchedulerHook)) or has_user_code(hook, *SAVING)
    ]


def may_read_files(saver: Hook, runner: Any) -> list[str]:
    """Return the types of hooks of users that are called after `saver` at a stage of saves."""
    return [
        type(hook).__name__ for hook in hooks_after(saver, runner) if has_user_code(hook, *SAVING)
    ]


def hooks_after(saver: Hook, runner: Any) -> list[Hook]:
    """Return the hooks after `saver`; all where another hook or a script calls it."""
    hooks: list[Hook] = runner.hooks
    return hooks[hooks.index(saver) + 1 :] if saver in hooks else hooks
