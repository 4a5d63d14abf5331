"""Call the hooks of a runner one by one, for a timer that measures each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from .hook_timer import HookTimer

# By runner, the timer that `call_hooks` and `hooks_at` take its hooks from.
timers: WeakKeyDictionary[Any, HookTimer] = WeakKeyDictionary()


def hooks_at(runner: Any, point: str, arguments: dict[str, Any]) -> Iterable[Any]:
    """Return the hooks of a runner; call each before the next one is taken.

    Args:
        runner: The runner.
        point: Name of the hook point.
        arguments: Keyword arguments of the hooks.
    """
    timer = timers.get(runner)
    return list(runner.hooks) if timer is None else timer.hooks_at(point, runner, arguments)


def call_hooks(runner: Any, point: str, **arguments: Any) -> None:
    """Call all hooks at a hook point, by `Runner.call_hook` or, if timed, as it does.

    A runner that overrides `call_hook` calls its hooks itself. If timed, a hook that is registered
    during a hook point is called from the next hook point on.

    Args:
        runner: The runner.
        point: Name of the hook point.
        **arguments: Keyword arguments of the hooks.
    """
    timer = timers.get(runner)
    if timer is None or _overrides_call_hook(runner):
        runner.call_hook(point, **arguments)
        return
    for hook in timer.hooks_at(point, runner, arguments):
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
