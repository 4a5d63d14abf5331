"""What a monitor is asked for, checked before anything is watched."""

from __future__ import annotations

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
        return options

    def _check(self, name: str, is_right: bool, expected: str) -> None:
        if not is_right:
            raise ValueError(
                f'default_hooks.timer.{name} must be {expected}, found {getattr(self, name)!r}'
            )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
