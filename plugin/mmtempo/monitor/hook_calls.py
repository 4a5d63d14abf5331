"""Call the hooks of a runner one by one, for an observer that measures the time of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from .hook_timer import HookTimer

_observers: WeakKeyDictionary[Any, HookTimer] = WeakKeyDictionary()


def observe_hooks(runner: Any, observer: HookTimer) -> None:
    """Have `call_hooks` of this runner take its hooks from the observer, until `stop_observing`."""
    _observers[runner] = observer


def stop_observing(runner: Any) -> None:
    """Undo `observe_hooks`, if it was called."""
    _observers.pop(runner, None)


def observer_of(runner: Any) -> HookTimer | None:
    """Return the observer of a runner; None if it has none."""
    return _observers.get(runner)


def hooks_at(runner: Any, point: str, arguments: dict[str, Any]) -> Iterable[Any]:
    """Return the hooks of a runner; call each before the next one is taken.

    Args:
        runner: The runner.
        point: Name of the hook point.
        arguments: Keyword arguments of the hooks.
    """
    observer = _observers.get(runner)
    return list(runner.hooks) if observer is None else observer.hooks_at(point, runner, arguments)


def call_hooks(runner: Any, point: str, **arguments: Any) -> None:
    """Call all hooks at a hook point, by `Runner.call_hook` or, if observed, as it does.

    A runner that overrides `call_hook` calls its hooks itself. If observed, a hook that is
    registered during a hook point is called from the next hook point on.

    Args:
        runner: The runner.
        point: Name of the hook point.
        **arguments: Keyword arguments of the hooks.
    """
    observer = _observers.get(runner)
    if observer is None or _overrides_call_hook(runner):
        runner.call_hook(point, **arguments)
        return
    for hook in observer.hooks_at(point, runner, arguments):
        if hasattr(hook, point):
            try:
                getattr(hook, point)(runner, **arguments)
            except TypeError as error:
                raise TypeError(f'{error} in {hook}') from None


def _overrides_call_hook(runner: Any) -> bool:
    """Return whether the class or the instance replaces mmengine's `call_hook`."""
    method = type(runner).call_hook
    is_stock = method.__module__.startswith('mmengine.') and not hasattr(method, '__wrapped__')
    return 'call_hook' in vars(runner) or not is_stock
