"""Marks between a runner's hooks, so that each one's time has its name."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from mmengine.hooks import CheckpointHook, Hook, LoggerHook

from mmtempo.timing.timeline import Timeline
from mmtempo.utils.phases import LOADER_ENDS

# By stage, what the time before its first hook was spent on.
BEFORE = dict(
    before_train_epoch='unexplained',
    before_train_iter='data',
    after_train_iter='unexplained',
    after_train_epoch=LOADER_ENDS,  # no batch is waited for
    before_val='unexplained',
    before_val_epoch='evaluation',
    after_val_epoch='evaluation',
    after_val='evaluation',
    after_train='unexplained',
)
# Of the hooks of a runner that calls them in its own way.
ALL = 'hooks'
# Where no hook of ours writes the line, what is found goes there by itself.
VISUALIZER = 'logging: visualizer'
# Once an epoch: hooks that do nothing else get no mark.
RARE = {'before_train_epoch', 'after_train_epoch', 'after_train'}


# Called with the runner, and what its hooks are called with.
_Around = Callable[[Any, dict[str, Any]], None]


class _Stage(NamedTuple):
    """What is called at a stage, as long as the runner's hooks are these.

    Attributes:
        hooks: All of the runner.
        calls: Those that do something at this stage, and the phase of each one's time.
        opening: What is called before.
        closing: What is called behind.
    """

    hooks: list[Hook]
    calls: list[tuple[Hook, int | None]]
    opening: _Around
    closing: _Around | None


class HookTimer:
    """Calls a runner's hooks in its place, with a mark behind each that does something.

    ::

        opening, hook, mark, hook, mark, ..., hook, mark, closing

    The runner gets a `call_hook` of its own until `leave`; its class and its hooks stay what they
    are. Hooks that do nothing at a stage are left out, which costs less than to call them. One
    that is registered while a stage is gone through is called from the next one on. Where a
    runner has a `call_hook` of its own already, that is called, with one mark behind all.

    Args:
        timeline: What they mark.
        opening: What is called at a stage before the first hook, instead of a mark, with the
            runner and what its hooks are called with.
        closing: What is called at a stage behind the last hook, alike.
    """

    def __init__(
        self,
        timeline: Timeline,
        opening: dict[str, _Around] | None = None,
        closing: dict[str, _Around] | None = None,
    ) -> None:
        self._timeline, self._closing = timeline, closing or {}
        self._opening = {stage: self._marking(name) for stage, name in BEFORE.items()}
        self._opening.update(opening or {})
        self.categories = {ALL: 'hook', LOADER_ENDS: 'data', VISUALIZER: 'logging'}  # of phases

    def join(self, runner: Any) -> None:
        """Take its place; also while the runner goes through its hooks."""
        self.leave(runner)
        # Known to the runner alone: it knows the hooks, which may know the runner, and whoever
        # marks is to outlive it.
        caller = _Caller(runner, self._timeline, self._stage)
        runner.call_hook = caller.call_hook

    @staticmethod
    def leave(runner: Any) -> None:
        """Give it back."""
        caller = getattr(runner.call_hook, '__self__', None)
        if isinstance(caller, _Caller):
            del runner.call_hook
            vars(runner).update(caller.before)

    def _marking(self, name: str) -> _Around:
        phase = self._timeline.phase(name)
        return lambda runner, arguments: self._timeline.mark(phase)

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
            if name in stages:
                calls.append((hook, phase))
        return _Stage(list(hooks), calls, self._opening[name], self._closing.get(name))


class _Caller:
    """What a runner calls its hooks with.

    Attributes:
        before: What the runner itself had instead, by name.
    """

    def __init__(
        self, runner: Any, timeline: Timeline, stage: Callable[[str, list[Hook]], _Stage]
    ) -> None:
        self._runner: Callable[[], Any] = weakref.ref(runner)
        self._timeline, self._make = timeline, stage
        self._log, self._clock = timeline.log, timeline.clock
        self._stages: dict[str, _Stage] = {}
        self.before = {key: value for key, value in vars(runner).items() if key == 'call_hook'}
        self._theirs, self._is_own_way = runner.call_hook, _calls_in_its_own_way(runner)

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """As `Runner.call_hook`."""
        runner, stage = self._runner(), self._stages.get(fn_name)
        if stage is None or stage[0] != runner._hooks:
            if fn_name not in BEFORE:
                self._theirs(fn_name, **kwargs)
                return
            stage = self._stages[fn_name] = self._make(fn_name, runner._hooks)
        _, calls, opening, closing = stage
        opening(runner, kwargs)
        log, clock = self._log, self._clock
        if self._is_own_way:
            self._theirs(fn_name, **kwargs)
            log += (self._timeline.phase(ALL), clock())
        else:
            for hook, phase in calls:
                try:
                    getattr(hook, fn_name)(runner, **kwargs)
                except TypeError as error:
                    raise TypeError(f'{error} in {hook}') from None
                if phase is not None:
                    log += (phase, clock())
        if closing is not None:
            closing(runner, kwargs)


def _calls_in_its_own_way(runner: Any) -> bool:
    of_class = type(runner).call_hook
    is_stock = of_class.__module__.startswith('mmengine.') and not hasattr(of_class, '__wrapped__')
    return 'call_hook' in vars(runner) or not is_stock


def _stages_of(hook: Any) -> set[str]:
    """Those at which it does something."""
    if not isinstance(hook, Hook):
        return {stage for stage in BEFORE if hasattr(hook, stage)}
    return {*hook.get_triggered_stages(), *vars(hook)} & set(BEFORE)


def category_of(hook: Hook) -> str:
    """What kind of work its time is."""
    if isinstance(hook, CheckpointHook):
        return 'checkpoint'
    return getattr(hook, 'time_category', 'logging' if isinstance(hook, LoggerHook) else 'hook')
