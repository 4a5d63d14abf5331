"""Names of phases, and attribution of time to the phase that the training thread is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# Parts of a training step. `WHOLE` where it is compiled and has no parts, `BOTH` where parts of
# the model are called instead of the model.
TO_DEVICE, FORWARD, BACKWARD, STEP = 'to_device', 'forward', 'backward', 'step'
BOTH, WHOLE = 'forward and backward', 'train_step'
OUTSIDE = 'unexplained'
LOADER_ENDS = 'loader: end'  # after the last batch of an epoch
UNPACK = 'loader: unpack'  # of a batch that has arrived from a worker
RELEASE = 'release'  # of the outputs of a step, and with them of the autograd graph
HOOKS = 'hooks'  # all hooks of a hook point, where the loop does not tell them apart


class Charged(Protocol):
    """A timeline that time can be carved out of."""

    clock: Callable[[], int]

    def carve(self, name: str, nanoseconds: int) -> None:
        """Attribute this part of the time that is marked next to the phase `name`."""

    def carved(self) -> int:
        """Return the nanoseconds carved out of what is marked next, so far."""


_active: list[Charged] = []  # timelines of running trainings, nested ones after the outer one


def activate(timeline: Charged) -> None:
    """Make `charged_to` attribute time to this timeline, until `deactivate`."""
    _active.append(timeline)


def deactivate(timeline: Charged) -> None:
    """Undo `activate`, if it was called."""
    if timeline in _active:
        _active.remove(timeline)


class charged_to:
    """Context manager that attributes the time spent in its block to a phase.

    No-op without an active timeline. Use it in the training thread only.

    Args:
        name: Name of the phase.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._timeline = _active[-1] if _active else None
        if self._timeline is not None:
            self._before = self._timeline.carved()
            self._start = self._timeline.clock()

    def __exit__(self, *error: object) -> None:
        timeline = self._timeline
        if timeline is not None:
            inner = timeline.carved() - self._before
            timeline.carve(self._name, timeline.clock() - self._start - inner)
