"""Measure the time of each hook of a runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mmengine.hooks import CheckpointHook, Hook, LoggerHook

from mmtempo.timing.timeline import Timeline
from mmtempo.utils.phases import HOOKS, LOADER_ENDS, UNPACK

from .hook_calls import timers

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
        self._timeline = timeline
        self.opening = {point: self._marking(name) for point, name in BEFORE.items()}
        self.opening.update(opening or {})
        self.closing: dict[str, _Callback] = dict.fromkeys(BEFORE, lambda *_: None)
        self.closing.update(closing or {})
        self.categories = {
            HOOKS: 'hook',
            LOADER_ENDS: 'data',
            UNPACK: 'data',
            VISUALIZER: 'logging',
        }
        # Types, because hooks may reference the runner, which this timer must not keep alive.
        self._order: dict[str, tuple[list[type], list[tuple[int, int | None]]]] = {}

    def mark_all(self) -> None:
        """Charge the time since the last mark to all hooks together."""
        self._timeline.mark(self._timeline.phase(HOOKS))

    def hooks_at(self, point: str, runner: Any, arguments: dict[str, Any]) -> Iterator[Any]:
        """Yield the hooks of a runner, and mark the end of each when the next one is taken."""
        hooks, log, clock = list(runner.hooks), self._timeline.log, self._timeline.clock
        if point in BEFORE:
            self.opening[point](runner, arguments)
        for index, phase in self._order_at(point, hooks):
            yield hooks[index]
            if phase is not None:
                log += (phase, clock())
        if point in BEFORE:
            self.closing[point](runner, arguments)

    def _marking(self, name: str) -> _Callback:
        phase = self._timeline.phase(name)
        return lambda runner, arguments: self._timeline.mark(phase)

    def _order_at(self, point: str, hooks: list[Any]) -> list[tuple[int, int | None]]:
        """Return index and phase of each hook; no phase for those that do nothing at this point."""
        types, order = self._order.get(point, ([], []))
        if types != [*map(type, hooks)]:
            types, order = [*map(type, hooks)], []
            for index, hook in enumerate(hooks):
                if isinstance(hook, HookEdge):
                    continue
                phase, number = None, types[: index + 1].count(types[index])
                if point in _hook_points_of(hook):
                    name = f'hook:{types[index].__name__}' + (f' {number}' if number > 1 else '')
                    self.categories[name] = category_of(hook)
                    phase = self._timeline.phase(name)
                order.append((index, phase))
            self._order[point] = types, order
        return order


class HookEdge(Hook):
    """First or last hook of a runner, for loops that do not use `call_hooks`.

    It tells the timer of the runner, if it has one, where a hook point begins or ends. Hooks
    of priority HIGHEST that were registered earlier, and hooks of priority LOWEST that were
    registered later, are outside.

    Args:
        is_last: Whether it is the last hook.
    """

    def __init__(self, is_last: bool) -> None:
        self.priority = 'LOWEST' if is_last else 'HIGHEST'
        self.is_last = is_last


def _reaching(point: str) -> Callable[..., None]:
    def method(self: HookEdge, runner: Any, **arguments: Any) -> None:
        timer = timers.get(runner)
        if timer is not None and self.is_last:
            timer.mark_all()
            timer.closing[point](runner, arguments)
        elif timer is not None:
            timer.opening[point](runner, arguments)

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
