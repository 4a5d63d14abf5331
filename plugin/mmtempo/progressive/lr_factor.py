"""Scale learning rates during iterations, out of the sight of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class LRFactor:
    """A factor on all learning rates, applied from the start of an iteration to its end.

    A schedule computes the next rate from the one that it finds: by a factor, from a minimum, or
    from the initial rate. Between iterations it finds the rate that it has set, so that each
    schedule keeps its shape.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._scheduled: list[Any] = []  # rates of the schedules, during an iteration

    def begin(self, wrapper: Any) -> None:
        """Apply the factor at the start of an iteration.

        Args:
            wrapper: The optimizer wrapper, or an `OptimWrapperDict`.
        """
        if self.factor != 1:
            for group in _groups(wrapper):
                self._scheduled.append(group['lr'])
                group['lr'] = group['lr'] * self.factor

    def end(self, wrapper: Any) -> None:
        """Set the rates of the schedules again; the groups may have been copied meanwhile.

        Args:
            wrapper: The optimizer wrapper, or an `OptimWrapperDict`.
        """
        for group, value in zip(_groups(wrapper) if self._scheduled else (), self._scheduled):
            group['lr'] = value
        self._scheduled = []

    def restore(self, wrapper: Any, state: dict) -> None:
        """Set the rates of the schedules in a state that is saved during an iteration.

        Args:
            wrapper: The optimizer wrapper, or an `OptimWrapperDict`.
            state: The state dict of the wrapper.
        """
        parts = state.values() if hasattr(wrapper, 'optim_wrappers') else [state]
        groups: list[dict] = []
        for part in parts:
            groups += part['param_groups']
            if 'base_param_settings' in part:
                # A shallow copy, because the state dict holds the wrapper's own dict.
                part['base_param_settings'] = dict(part['base_param_settings'])
                groups.append(part['base_param_settings'])
        for group, value in zip(groups, self._scheduled):
            group['lr'] = value


def _groups(wrapper: Any) -> Iterator[dict]:
    """Yield the parameter groups, and the settings of which a wrapper logs the base rate."""
    for one in wrapper.values() if hasattr(wrapper, 'optim_wrappers') else [wrapper]:
        yield from one.param_groups
