"""Measure the time of each hook of a runner."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from mmengine.hooks import CheckpointHook, Hook, LoggerHook

from mmtempo.timing.timeline import Timeline
from mmtempo.utils.phases import LOADER_ENDS

# By hook point, the phase of the time before its first hook.
BEFORE = dict(
    before_train_epoch='unexplained',
    before_train_iter='data',
    after_train_iter='unexplained',
    after_train_epoch=LOADER_ENDS,  # the time after the last batch is no wait for data
    before_val='unexplained',
    before_val_epoch='evaluation',
    after_val_epoch='evaluation',
    after_val='evaluation',
    after_train='unexplained',
)
# Phase of all hooks of a runner that overrides `call_hook`.
ALL = 'hooks'
# Phase of the monitor's scalars where no hook of ours writes them with the log line.
VISUALIZER = 'logging: visualizer'
# Hook points once per epoch: hooks that only use these get no phase.
RARE = {'before_train_epoch', 'after_train_epoch', 'after_train'}

# Called with the runner and the keyword arguments of its hooks.
_Callback = Callable[[Any, dict[str, Any]], None]


class _HookPoint(NamedTuple):
    """Calls at a hook point, valid as long as the runner has the same hooks.

    Attributes:
        hooks: All hooks of the runner.
        calls: Hooks that implement this hook point, and their phases.
        opening: Callback before the first hook.
        closing: Callback after the last hook.
    """

    hooks: list[Hook]
    calls: list[tuple[Hook, int | None]]
    opening: _Callback
    closing: _Callback | None


class HookTimer:
    """Timer that calls the hooks of a runner and marks the end of each in a timeline.

    ::

        opening, hook, mark, hook, mark, ..., hook, mark, closing

    The runner gets a `call_hook` attribute until `detach`; its class and its hooks are unchanged.
    Hooks that do not implement a hook point are skipped, which is faster than calling them. A hook
    that is registered during a hook point is called from the next hook point on. If the runner
    overrides `call_hook`, that method is called, with one mark after all hooks.

    Args:
        timeline: Timeline that gets the marks.
        opening: Callbacks by hook point, called before the first hook instead of a mark, with the
            runner and the keyword arguments of its hooks.
        closing: Callbacks by hook point, called after the last hook with the same arguments.

    Attributes:
        categories: Category of the time by phase.
    """

    def __init__(
        self,
        timeline: Timeline,
        opening: dict[str, _Callback] | None = None,
        closing: dict[str, _Callback] | None = None,
    ) -> None:
        self._timeline, self._closing = timeline, closing or {}
        self._opening = {point: self._marking(name) for point, name in BEFORE.items()}
        self._opening.update(opening or {})
        self.categories = {ALL: 'hook', LOADER_ENDS: 'data', VISUALIZER: 'logging'}

    def attach(self, runner: Any) -> None:
        """Replace `call_hook` of the runner; also possible during a hook point."""
        self.detach(runner)
        # Only the runner references the caller, which references the hooks, and hooks may reference
        # the runner: so this timer can outlive the runner and does not keep it alive.
        caller = _Caller(runner, self._timeline, self._hook_point)
        runner.call_hook = caller.call_hook

    @staticmethod
    def detach(runner: Any) -> None:
        """Restore `call_hook` of the runner."""
        caller = getattr(runner.call_hook, '__self__', None)
        if isinstance(caller, _Caller):
            del runner.call_hook
            vars(runner).update(caller.before)

    def _marking(self, name: str) -> _Callback:
        phase = self._timeline.phase(name)
        return lambda runner, arguments: self._timeline.mark(phase)

    def _hook_point(self, name: str, hooks: list[Hook]) -> _HookPoint:
        calls: list[tuple[Hook, int | None]] = []
        seen: list[str] = []
        for hook in hooks:
            points = _hook_points_of(hook)
            phase = None
            if not points <= RARE:  # else its time belongs to the next mark
                phase_name = f'hook:{type(hook).__name__}'
                seen.append(phase_name)
                if seen.count(phase_name) > 1:
                    phase_name = f'{phase_name} {seen.count(phase_name)}'
                self.categories[phase_name] = category_of(hook)
                phase = self._timeline.phase(phase_name)
            if name in points:
                calls.append((hook, phase))
        return _HookPoint(list(hooks), calls, self._opening[name], self._closing.get(name))


class _Caller:
    """Replacement of `Runner.call_hook`.

    Attributes:
        before: The runner's `call_hook` attribute by name, if it had one.
    """

    def __init__(
        self, runner: Any, timeline: Timeline, make: Callable[[str, list[Hook]], _HookPoint]
    ) -> None:
        self._runner: Callable[[], Any] = weakref.ref(runner)
        self._timeline, self._make = timeline, make
        self._log, self._clock = timeline.log, timeline.clock
        self._points: dict[str, _HookPoint] = {}
        self.before = {key: value for key, value in vars(runner).items() if key == 'call_hook'}
        self._original, self._is_custom = runner.call_hook, _overrides_call_hook(runner)

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """Call all hooks at a hook point, like `Runner.call_hook`."""
        runner, point = self._runner(), self._points.get(fn_name)
        if point is None or point[0] != runner._hooks:
            if fn_name not in BEFORE:
                self._original(fn_name, **kwargs)
                return
            point = self._points[fn_name] = self._make(fn_name, runner._hooks)
        _, calls, opening, closing = point
        opening(runner, kwargs)
        log, clock = self._log, self._clock
        if self._is_custom:
            self._original(fn_name, **kwargs)
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


def _overrides_call_hook(runner: Any) -> bool:
    """Return whether the class or the instance replaces mmengine's `call_hook`."""
    method = type(runner).call_hook
    is_stock = method.__module__.startswith('mmengine.') and not hasattr(method, '__wrapped__')
    return 'call_hook' in vars(runner) or not is_stock


def _hook_points_of(hook: Any) -> set[str]:
    """Return the hook points that a hook implements."""
    if not isinstance(hook, Hook):
        return {point for point in BEFORE if hasattr(hook, point)}
    return {*hook.get_triggered_stages(), *vars(hook)} & set(BEFORE)


def category_of(hook: Hook) -> str:
    """Return the category of the time that a hook takes."""
    if isinstance(hook, CheckpointHook):
        return 'checkpoint'
    return getattr(hook, 'time_category', 'logging' if isinstance(hook, LoggerHook) else 'hook')
