"""Names of phases, and attribution of time to the phase that the training thread is in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def charged_to(name: str) -> Iterator[None]:
    """Attribute the time spent in this block to the phase `name`.

    No-op without an active timeline. Call it in the training thread only.
    """
    if not _active:
        yield
        return
    timeline = _active[-1]
    start, before = timeline.clock(), timeline.carved()
    try:
        yield
    finally:
        inner = timeline.carved() - before
        timeline.carve(name, timeline.clock() - start - inner)
