"""Measure the time of each hook of a runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mmengine.hooks import CheckpointHook, Hook, LoggerHook

from mmtempo.timing.timeline import Timeline
from mmtempo.utils.phases import HOOKS, LOADER_ENDS, UNPACK

from .hook_calls import observer_of

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
# Phase of the monitor's scalars where no hook of ours writes them with the log line.
VISUALIZER = 'logging: visualizer'

# Called with the runner and the keyword arguments of its hooks.
_Callback = Callable[[Any, dict[str, Any]], None]


class HookTimer:
    """Timer that marks the end of each hook in a timeline.

    ::

        opening, hook, mark, hook, mark, ..., hook, mark, closing       our loops: `call_hooks`
        opening, hook, hook, ..., hook, mark, closing                   all others: `add_edges`

    Our loops take each hook from `hooks_at`, so that each has a phase of its name. Where another
    loop, or a runner that overrides `call_hook`, calls the hooks, they have one phase together.

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
        self.categories = {
            HOOKS: 'hook',
            LOADER_ENDS: 'data',
            UNPACK: 'data',
            VISUALIZER: 'logging',
        }
        # Types, because hooks may reference the runner, which this timer must not keep alive.
        self._phases: dict[str, tuple[list[type], list[int | None]]] = {}

    def open(self, point: str, runner: Any, arguments: dict[str, Any]) -> None:
        """Begin a measured hook point, before its first hook."""
        self._opening[point](runner, arguments)

    def close(self, point: str, runner: Any, arguments: dict[str, Any]) -> None:
        """End a measured hook point, after its last hook."""
        if point in self._closing:
            self._closing[point](runner, arguments)

    def mark_all(self) -> None:
        """Charge the time since the last mark to all hooks together."""
        self._timeline.mark(self._timeline.phase(HOOKS))

    def hooks_at(self, point: str, runner: Any, arguments: dict[str, Any]) -> Iterator[Any]:
        """Yield the hooks of a runner, and mark the end of each when the next one is taken."""
        hooks = [hook for hook in runner.hooks if not isinstance(hook, HookEdge)]
        if point not in BEFORE:
            yield from hooks
            return
        log, clock = self._timeline.log, self._timeline.clock
        self.open(point, runner, arguments)
        for hook, phase in zip(hooks, self._phases_at(point, hooks), strict=True):
            yield hook
            if phase is not None:
                log += (phase, clock())
        self.close(point, runner, arguments)

    def _marking(self, name: str) -> _Callback:
        phase = self._timeline.phase(name)
        return lambda runner, arguments: self._timeline.mark(phase)

    def _phases_at(self, point: str, hooks: list[Any]) -> list[int | None]:
        """Return the phase of each hook; None for hooks that do nothing at this hook point."""
        types, phases = self._phases.get(point, ([], []))
        if types != [type(hook) for hook in hooks]:
            types, phases = [type(hook) for hook in hooks], []
            for index, hook in enumerate(hooks):
                number = types[: index + 1].count(types[index])
                name = f'hook:{types[index].__name__}' + (f' {number}' if number > 1 else '')
                if point in _hook_points_of(hook):
                    self.categories[name] = category_of(hook)
                    phases.append(self._timeline.phase(name))
                else:
                    phases.append(None)
            self._phases[point] = types, phases
        return phases


class HookEdge(Hook):
    """First or last hook of a runner, for loops that do not use `call_hooks`.

    It tells the timer that observes the runner, if any, where a hook point begins or ends. Hooks
    of priority HIGHEST that were registered earlier, and hooks of priority LOWEST that were
    registered later, are outside.

    Args:
        is_last: Whether it is the last hook.
    """

    def __init__(self, is_last: bool) -> None:
        self.priority = 'LOWEST' if is_last else 'HIGHEST'
        self._is_last = is_last

    def reach(self, point: str, runner: Any, arguments: dict[str, Any]) -> None:
        """Tell the timer, if the runner has one."""
        timer = observer_of(runner)
        if timer is not None and self._is_last:
            timer.mark_all()
            timer.close(point, runner, arguments)
        elif timer is not None:
            timer.open(point, runner, arguments)


def _reaching(point: str) -> Callable[..., None]:
    def method(self: HookEdge, runner: Any, **arguments: Any) -> None:
        self.reach(point, runner, arguments)

    return method


for _point in BEFORE:
    setattr(HookEdge, _point, _reaching(_point))


def add_edges(runner: Any) -> None:
    """Register the first and the last hook of a runner, unless it has them.

    Call it in a hook that may be called twice: mmengine iterates over the list of hooks, and calls
    the present one again when another one is inserted before it.
    """
    if not any(isinstance(hook, HookEdge) for hook in runner.hooks):
        runner.register_hook(HookEdge(is_last=True))
        runner.register_hook(HookEdge(is_last=False))


def remove_edges(runner: Any) -> None:
    """Remove what `add_edges` has registered."""
    # A new list: without an item, the one that mmengine iterates over would skip a hook.
    runner._hooks = [hook for hook in runner.hooks if not isinstance(hook, HookEdge)]


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
