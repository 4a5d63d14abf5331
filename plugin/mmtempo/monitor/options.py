"""What a monitor is asked for, checked before anything is watched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MonitorOptions:
    """As `ThroughputMonitorHook` takes them."""

    interval: int | None
    stall_factor: float
    watch_interval: float
    stage_profile: dict | None

    @classmethod
    def checked(cls, *values: Any) -> MonitorOptions:
        options = cls(*values)
        options._check('interval', options.interval is None or _is_whole(options.interval), '1 up')
        number = isinstance(options.stall_factor, (int, float)) and options.stall_factor > 0
        options._check('stall_factor', number, 'a number above 0')
        number = isinstance(options.watch_interval, (int, float)) and options.watch_interval >= 0
        options._check('watch_interval', number, 'seconds, or 0 for none')
        profile = options.stage_profile
        keys = {'modules', 'begin', 'iterations'}
        known = profile is None or (isinstance(profile, dict) and set(profile) <= keys)
        options._check('stage_profile', known, "a dict of 'modules', 'begin', 'iterations'")
        _check_profile(profile or {})
        return options

    def _check(self, name: str, is_right: bool, expected: str) -> None:
        _check(name, getattr(self, name), is_right, expected)


def _check_profile(profile: dict) -> None:
    """Its values; what is not given has a default."""
    kinds: dict[str, tuple[Callable[[Any], bool], str]] = dict(
        modules=(_are_modules, "'auto' or a list of names of the model's modules"),
        begin=(functools.partial(_is_whole, least=0), 'a whole number from 0 up'),
        iterations=(_is_whole, 'a whole number from 1 up'),
    )
    for key, value in profile.items():
        is_right, expected = kinds[key]
        _check(f'stage_profile.{key}', value, is_right(value), expected)


def _check(name: str, value: Any, is_right: bool, expected: str) -> None:
    if not is_right:
        raise ValueError(f'default_hooks.timer.{name} must be {expected}, found {value!r}')


def _is_whole(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_modules(value: Any) -> bool:
    """Whether they can be names; which of them the model has is for `find_modules` to say."""
    if isinstance(value, str):
        return value == 'auto'
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    return is_list and all(isinstance(name, str) for name in value)
