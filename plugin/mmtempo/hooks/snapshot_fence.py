"""Stands between a snapshot and whatever would change what it has not copied yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmengine.hooks import EMAHook, Hook, ParamSchedulerHook

from .checkpoint_content import optimizers_of

# Their hooks change no weights, but for the averages of `EMAHook`; schedules change the optimizer.
KNOWN = ('mmengine.', 'mmseg.', 'mmtempo.')
SAVING = ('after_train_iter', 'after_train_epoch', 'after_val_epoch')


class SnapshotFence(Hook):
    """Calls `fence` before anything may change parameters; the first of a runner's hooks.

    No stage of a hook lies between the backward pass and the optimizer's step, so each optimizer
    gets a hook of torch's. That one is not called where an update is left out, as after an
    overflow; the averages of `EMAHook` are updated all the same, at `after_train_iter`.

    Args:
        fence: Returns when the state may change.
        on_activity: Called when the training goes on from between two iterations.
    """

    priority = 'HIGHEST'

    def __init__(self, fence: Callable[[], None], on_activity: Callable[[], None]) -> None:
        self._fence, self._on_activity = fence, on_activity
        self._handles: list[Any] = []
        self._is_early = False

    def join(self, runner: Any) -> bool:
        """Take the first place among the hooks; False where it has it already."""
        if self in runner.hooks:
            return False
        runner.hooks.insert(0, self)
        return True

    def watch(self, runner: Any) -> None:
        """From now on, nobody changes parameters unseen."""
        self.unwatch()
        early = [hook for hook in runner.hooks if may_change_weights(hook, 'before_train_iter')]
        self._is_early = bool(early)
        for hook in early:
            runner.logger.info(
                f'{type(hook).__name__} may change weights before the forward pass: '
                'checkpoints are copied before it is called.'
            )
        for optimizer in optimizers_of(runner):
            self._handles.append(
                optimizer.register_step_pre_hook(lambda *args, **kwargs: self._fence())
            )

    def unwatch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def before_train_iter(self, *args: Any, **kwargs: Any) -> None:
        self._on_activity()
        if self._is_early:
            self._fence()

    def _pass(self, *args: Any, **kwargs: Any) -> None:
        self._on_activity()
        self._fence()

    after_train_iter = before_train_epoch = after_train_epoch = _pass
    before_val = after_val = before_val_epoch = before_test_epoch = after_train = _pass


def may_change_weights(hook: Hook, *stages: str) -> bool:
    """Whether a hook does something at one of these stages that nobody knows."""
    own = (getattr(type(hook), stage) for stage in stages)
    return any(not stage.__module__.startswith(KNOWN) for stage in own)


def change_weights_after(saver: Hook, runner: Any) -> list[str]:
    """Hooks that are called after `saver` where it saves, and may change weights there."""
    behind = runner.hooks[runner.hooks.index(saver) + 1 :]
    return [
        type(hook).__name__
        for hook in behind
        if isinstance(hook, (EMAHook, ParamSchedulerHook)) or may_change_weights(hook, *SAVING)
    ]
