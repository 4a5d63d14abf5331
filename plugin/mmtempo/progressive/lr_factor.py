"""Learning rates that are others within an iteration than schedules know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class LRFactor:
    """A factor on all learning rates, from the start of an iteration to its end.

    Schedules go on from what they find, in ways of their own: by factors, from a minimum, from
    the rates that they began with. They find what they have left, so that each keeps its shape.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._scheduled: list[Any] = []  # within an iteration

    def begin(self, wrapper: Any) -> None:
        """Of an iteration.

        Args:
            wrapper: Of the optimizer, or of several.
        """
        if self.factor != 1:
            for group in _groups(wrapper):
                self._scheduled.append(group['lr'])
                group['lr'] = group['lr'] * self.factor

    def end(self, wrapper: Any) -> None:
        """Of an iteration; groups may have been copied meanwhile."""
        for group, value in zip(_groups(wrapper) if self._scheduled else (), self._scheduled):
            group['lr'] = value
        self._scheduled = []

    def mend(self, wrapper: Any, state: dict) -> None:
        """Let what is saved within an iteration, as before an error, hold the schedules' rates.

        Args:
            wrapper: Of the optimizer, or of several.
            state: Of the wrapper.
        """
        parts = state.values() if hasattr(wrapper, 'optim_wrappers') else [state]
        groups: list[dict] = []
        for part in parts:
            groups += part['param_groups']
            if 'base_param_settings' in part:
                part['base_param_settings'] = dict(part['base_param_settings'])
                groups.append(part['base_param_settings'])
        for group, value in zip(groups, self._scheduled):
            group['lr'] = value


def _groups(wrapper: Any) -> Iterator[dict]:
    """Groups of parameters, and what a wrapper logs as the rate of none of them."""
    for one in wrapper.values() if hasattr(wrapper, 'optim_wrappers') else [wrapper]:
        yield from one.param_groups
