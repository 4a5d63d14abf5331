"""Marks between a runner's hooks, so that each one's time has its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmengine.hooks import CheckpointHook, Hook, LoggerHook

from ..core.timeline import Timeline
from .snapshot_fence import SnapshotFence

# By stage, what the time before its first hook was spent on.
BEFORE = dict(
    before_train_epoch='unexplained',
    before_train_iter='data',
    after_train_iter='unexplained',
    after_train_epoch='data',  # where an epoch ends, its loader does
    before_val='unexplained',
    before_val_epoch='evaluation',
    after_val_epoch='evaluation',
    after_val='evaluation',
    after_train='unexplained',
)
# Once an epoch: hooks that do nothing else get no mark.
RARE = {'before_train_epoch', 'after_train_epoch', 'after_train'}


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


class _Mark(Hook):
    """Does something at some stages, and at the others nothing, in no time."""

    before_train_iter = after_train_iter = staticmethod(_nothing)

    def __init__(self, actions: dict[str, Callable[..., None]], priority: Any = 'VERY_LOW') -> None:
        # That of its hook, so that a hook which is registered later finds the place it would have.
        self.priority = priority
        for stage, action in actions.items():
            setattr(self, stage, action)


class HookMarks:
    """Puts a mark behind each hook that does something in training, and one before the first.

    ::

        opening, hook, mark, hook, mark, ..., hook, mark and closing

    Nothing of mmengine is changed: marks are hooks. Each costs every iteration some microseconds,
    so there are no more of them than are needed: a hook with an attribute `mark_end` gets none,
    and is given what to call instead, where it has done something that counts.

    Args:
        timeline: What they mark.
        opening: What is called at a stage before the first hook, instead of a mark.
        closing: What is called at a stage behind the last hook.
    """

    def __init__(
        self,
        timeline: Timeline,
        opening: dict[str, Callable[..., None]] | None = None,
        closing: dict[str, Callable[..., None]] | None = None,
    ) -> None:
        self._timeline, self._opening, self._closing = timeline, opening or {}, closing or {}
        self.categories: dict[str, str] = {}  # of phases
        self._count = 0

    def join(self, runner: Any) -> None:
        """Take their places; also while the runner goes through its hooks."""
        self.leave(runner)
        opening = {stage: self._timeline.marker(name) for stage, name in BEFORE.items()}
        joined: list[Hook] = [_Mark({**opening, **self._opening}, 'HIGHEST')]
        names, name = [], ''
        for hook in runner.hooks:
            joined.append(hook)
            stages = set(hook.get_triggered_stages()) & set(BEFORE)
            if stages <= RARE:
                continue  # its time is the next one's
            name = f'hook:{type(hook).__name__}'
            names.append(name)
            if names.count(name) > 1:
                name = f'{name} {names.count(name)}'
            self.categories[name] = category_of(hook)
            marker = self._timeline.marker(name)
            if hasattr(hook, 'mark_end'):
                hook.mark_end = marker
            else:
                joined.append(_Mark(dict.fromkeys(stages, marker), hook.priority))
        self._close_with(joined, name)
        self._count = len(joined)
        # Another list: who goes through the old one is not led astray.
        runner._hooks = joined

    def join_again(self, runner: Any) -> None:
        """Where hooks were registered since, by other hooks."""
        if len(runner.hooks) != self._count:
            self.join(runner)

    def _close_with(self, joined: list[Hook], name: str) -> None:
        """Let the last mark, of the phase of that name, do what is to be done behind all hooks."""
        last = joined[-1] if isinstance(joined[-1], _Mark) else _Mark({}, 'LOWEST')
        if last is not joined[-1]:
            joined.append(last)
        for stage, closing in self._closing.items():
            is_marked = stage in vars(last)
            setattr(last, stage, self._timeline.marker(name, closing) if is_marked else closing)

    @staticmethod
    def leave(runner: Any) -> None:
        """Give their places back."""
        if any(isinstance(hook, _Mark) for hook in runner.hooks):
            runner._hooks = [hook for hook in runner.hooks if not isinstance(hook, _Mark)]


def category_of(hook: Hook) -> str:
    """What kind of work its time is."""
    if isinstance(hook, (CheckpointHook, SnapshotFence)):
        return 'checkpoint'
    return 'logging' if isinstance(hook, LoggerHook) else 'hook'
