"""Hold the training back until a snapshot has copied what the training changes next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from mmengine.hooks import EMAHook, Hook, ParamSchedulerHook

from mmtempo.utils.modules import layers_of
from mmtempo.utils.runner import optimizers_of

# Hooks of these packages change no weights except for `EMAHook`, which swaps in its averages;
# schedules change the optimizer.
KNOWN_PACKAGES = ('mmengine.', 'mmseg.', 'mmtempo.')
SAVING = ('after_train_iter', 'after_train_epoch', 'after_val_epoch')


class SnapshotFence(Hook):
    """Hook that, while armed, calls `before_change` before parameters may change.

    It is the first hook of a runner. Between the backward pass and the optimizer step no method of
    a hook is called, so each optimizer has a pre-hook of torch during the training. That one is
    not called where an update is skipped, as after an overflow, but `EMAHook` then updates its
    averages all the same, in `after_train_iter`: `before_change` is therefore called there too.

    Args:
        before_change: Function that returns when the state may change. Its result says whether it
            must be called again before the next change.
        between_iterations: Function of the runner to call between two iterations, before any
            other hook of the next one.
    """

    priority = 'HIGHEST'
    time_category = 'checkpoint'  # where the monitor counts its time

    def __init__(
        self, before_change: Callable[[], bool], between_iterations: Callable[[Any], None]
    ) -> None:
        self._before_change, self._between_iterations = before_change, between_iterations
        self._handles: list[Any] = []
        self._is_early = self._is_armed = False

    def install(self, runner: Any) -> bool:
        """Insert this hook before all others; return False if it is installed already."""
        if self in runner.hooks:
            return False
        # Not by `register_hook`, which puts it after other hooks of priority HIGHEST. It stays
        # after the training, as hooks do, and does nothing there.
        runner.hooks.insert(0, self)
        return True

    def attach(self, runner: Any) -> None:
        """Attach to the optimizers, and find out which hooks may change weights early.

        From now on, no parameter changes without a call of `before_change` while this is armed.
        """
        self.detach()
        early = [hook for hook in runner.hooks if has_user_code(hook, 'before_train_iter')]
        self._is_early = bool(early)
        for hook in early:
            runner.logger.info(
                f'{type(hook).__name__} may change weights before the forward pass: '
                'checkpoints are copied before it is called.'
            )
        before_step: Any = self._pass
        # A compiled step would be compiled again when the attributes that this reads change.
        if any('train_step' in vars(layer) for layer in layers_of(runner.model)):
            before_step = torch.compiler.disable(before_step)
        self._handles = [one.register_step_pre_hook(before_step) for one in optimizers_of(runner)]

    def detach(self) -> None:
        """Disarm, and detach from the optimizers."""
        self._is_armed = False
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def arm(self) -> None:
        """Call `before_change` before each change, until no further call is needed."""
        self._is_armed = True

    def before_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self._between_iterations(runner)
        if self._is_early:
            self._pass()

    def before_train_epoch(self, runner: Any) -> None:
        self._between_iterations(runner)
        self._pass()

    def _pass(self, *args: Any, **kwargs: Any) -> None:
        if self._is_armed:
            self._is_armed = self._before_change()

    after_train_iter = after_train_epoch = _pass
    before_val = after_val = before_val_epoch = before_test_epoch = after_train = _pass


def has_user_code(hook: Hook, *stages: str) -> bool:
    """Return whether a user has overridden any of these methods of a hook."""
    methods = (getattr(type(hook), stage) for stage in stages)
    return any(not method.__module__.startswith(KNOWN_PACKAGES) for method in methods)


def change_weights_after(saver: Hook, runner: Any) -> list[str]:
    """Return the types of the hooks after `saver` that may change weights when it saves."""
    return [
        type(hook).__name__
        for hook in hooks_after(saver, runner)
        if isinstance(hook, (EMAHook, ParamSchedulerHook)) or has_user_code(hook, *SAVING)
    ]


def may_read_files(saver: Hook, runner: Any) -> list[str]:
    """Return the types of the hooks of users that are called after `saver` when it saves."""
    return [
        type(hook).__name__ for hook in hooks_after(saver, runner) if has_user_code(hook, *SAVING)
    ]


def hooks_after(saver: Hook, runner: Any) -> list[Hook]:
    """Return the hooks after `saver`, or all hooks if another hook or a script calls it."""
    hooks: list[Hook] = runner.hooks
    return hooks[hooks.index(saver) + 1 :] if saver in hooks else hooks
