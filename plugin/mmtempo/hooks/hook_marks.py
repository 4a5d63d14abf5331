"""Marks between a runner's hooks, so that each one's time has its name."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

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
# Of the hooks of a runner that calls them in its own way.
ALL = 'hooks'
# Once an epoch: hooks that do nothing else get no mark.
RARE = {'before_train_epoch', 'after_train_epoch', 'after_train'}


class _Stage(NamedTuple):
    """What is called at a stage, as long as the runner's hooks are these.

    Attributes:
        hooks: All of the runner; the list itself.
        length: How many they were.
        calls: Those that do something at this stage, and the phase of each one's time.
        opening: What is called before.
        closing: What is called behind.
    """

    hooks: list[Hook]
    length: int
    calls: list[tuple[Hook, int | None]]
    opening: Callable[..., None]
    closing: Callable[..., None] | None


class HookMarks:
    """Calls a runner's hooks in its place, with a mark behind each that does something.

    ::

        opening, hook, mark, hook, mark, ..., hook, mark, closing

    The runner gets a `call_hook` of its own until `leave`; its class and its hooks stay what they
    are. Hooks that do nothing at a stage are left out, which is cheaper than to call them: with
    it, marks cost an iteration less than hooks of their own would, which they once were. Where a
    runner's class has a `call_hook` of its own, that is called, with one mark behind all. What a
    hook names in `idle_stages` it does not do while somebody marks.

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
        self._timeline, self._closing = timeline, closing or {}
        self._opening = {stage: timeline.marker(name) for stage, name in BEFORE.items()}
        self._opening.update(opening or {})
        self.categories = {ALL: 'hook'}  # of phases
        self._stages: dict[str, _Stage] = {}
        self._runner: Callable[[], Any] = lambda: None
        self._is_own_way = False

    def join(self, runner: Any) -> None:
        """Take its place; also while the runner goes through its hooks."""
        self._runner, self._stages = weakref.ref(runner), {}
        self._is_own_way = not type(runner).call_hook.__module__.startswith('mmengine.')
        runner.call_hook = self.call_hook

    @staticmethod
    def leave(runner: Any) -> None:
        """Give it back."""
        if isinstance(getattr(runner.call_hook, '__self__', None), HookMarks):
            del runner.call_hook

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """As `Runner.call_hook`."""
        runner = self._runner()
        if fn_name not in BEFORE:
            type(runner).call_hook(runner, fn_name, **kwargs)
            return
        hooks, stage = runner._hooks, self._stages.get(fn_name)
        if stage is None or stage.hooks is not hooks or stage.length != len(hooks):
            stage = self._stages[fn_name] = self._stage(fn_name, hooks)
        stage.opening(runner, **kwargs)
        log, clock = self._timeline.log, self._timeline.clock
        if self._is_own_way:
            type(runner).call_hook(runner, fn_name, **kwargs)
            log += (self._timeline.phase(ALL), clock())
        else:
            for hook, phase in stage.calls:
                try:
                    getattr(hook, fn_name)(runner, **kwargs)
                except TypeError as error:
                    raise TypeError(f'{error} in {hook}') from None
                if phase is not None:
                    log += (phase, clock())
        if stage.closing is not None:
            stage.closing(runner, **kwargs)

    def _stage(self, name: str, hooks: list[Hook]) -> _Stage:
        calls: list[tuple[Hook, int | None]] = []
        seen: list[str] = []
        for hook in hooks:
            stages = _stages_of(hook)
            phase = None
            if not stages <= RARE:  # else its time is the next one's
                of_hook = f'hook:{type(hook).__name__}'
                seen.append(of_hook)
                if seen.count(of_hook) > 1:
                    of_hook = f'{of_hook} {seen.count(of_hook)}'
                self.categories[of_hook] = category_of(hook)
                phase = self._timeline.phase(of_hook)
            if name in stages and name not in getattr(hook, 'idle_stages', ()):
                calls.append((hook, phase))
        return _Stage(hooks, len(hooks), calls, self._opening[name], self._closing.get(name))


def _stages_of(hook: Hook) -> set[str]:
    """Those at which it does something."""
    return {*hook.get_triggered_stages(), *vars(hook)} & set(BEFORE)


def category_of(hook: Hook) -> str:
    """What kind of work its time is."""
    if isinstance(hook, (CheckpointHook, SnapshotFence)):
        return 'checkpoint'
    return 'logging' if isinstance(hook, LoggerHook) else 'hook'
