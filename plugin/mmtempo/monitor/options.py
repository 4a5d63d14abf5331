"""Options of a monitor, checked before a training starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmtempo.utils.checks import is_number, is_number_from, is_whole


@dataclass(frozen=True)
class MonitorOptions:
    """Options of `ThroughputMonitorHook`, which documents them."""

    interval: int | None
    stall_factor: float
    watch_interval: float
    stage_profile: dict | None

    def __post_init__(self) -> None:
        """Raise a ValueError that names the config key of an invalid option."""
        valid = self.interval is None or is_whole(self.interval)
        _check('interval', self.interval, valid, 'an integer of at least 1, or None')
        valid = is_number(self.stall_factor, 0)
        _check('stall_factor', self.stall_factor, valid, 'a number above 0')
        valid = is_number_from(self.watch_interval, 0)
        _check('watch_interval', self.watch_interval, valid, 'seconds, or 0 to turn it off')
        _check_profile(self.stage_profile)


def _check_profile(profile: Any) -> None:
    """Check the keys and values of `stage_profile`; absent keys have defaults."""
    checks: dict[str, tuple[Callable[[Any], bool], str]] = dict(
        modules=(_is_modules, "'auto' or a list of names of the model's modules"),
        begin=(lambda value: is_whole(value, least=0), 'an integer of at least 0'),
        iterations=(is_whole, 'an integer of at least 1'),
    )
    valid = profile is None or (isinstance(profile, dict) and set(profile) <= set(checks))
    _check('stage_profile', profile, valid, "a dict of 'modules', 'begin', 'iterations'")
    for key, value in (profile or {}).items():
        is_valid, expected = checks[key]
        _check(f'stage_profile.{key}', value, is_valid(value), expected)


def _check(name: str, value: Any, is_valid: bool, expected: str) -> None:
    if not is_valid:
        raise ValueError(f'default_hooks.timer.{name} must be {expected}, found {value!r}')


def _is_modules(value: Any) -> bool:
    """Return whether a value may name modules; `find_modules` checks that the model has them."""
    if isinstance(value, str):
        return value == 'auto'
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    return is_list and all(isinstance(name, str) for name in value)
