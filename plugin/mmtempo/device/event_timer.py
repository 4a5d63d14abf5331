"""Time the parts of an iteration on the device, with timing events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from .streams import note_time, tells_time


class TimingEvents:
    """A pool of timing events of a device. Nothing here synchronizes.

    Args:
        device: The accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[Any] = []

    @classmethod
    def of(cls, device: torch.device) -> TimingEvents | None:
        """Return the events of a device; None for devices without timing events, such as a CPU."""
        return cls(device) if tells_time(device) else None

    def note(self) -> Any:
        """Record an event on the current stream and return it."""
        return note_time(self._device, self._free.pop() if self._free else None)

    def free(self, events: Iterable[Any]) -> None:
        """Return events to the pool, also where the device has not reached them yet."""
        self._free.extend(events)


def seconds_between(start: Any, end: Any) -> float:
    """Return the seconds between two events that the device has reached."""
    return start.elapsed_time(end) / 1000


MOST_DONE = 1024  # iterations that were read and not taken yet


class _Iteration(NamedTuple):
    number: int
    names: list[str]
    events: list[Any]

    def is_done(self) -> bool:
        # Events on one stream complete in order, but others may be on other streams.
        return all(event.query() for event in reversed(self.events))

    def parts(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for name, start, end in zip(self.names, self.events, self.events[1:]):
            seconds[name] = seconds.get(name, 0.0) + seconds_between(start, end)
        return seconds


class EventTimer:
    """Attribute device time to the parts of an iteration, without synchronization.

    ::

        begin ... mark(a) ... mark(b) ... end(number)          what the host does
              |     a     |     b     |                         what the device does, later
                                            take() -> [(number, {a: seconds, b: seconds})]

    Completed events are read a few at a time, as iterations end. While `most` iterations are
    pending, further ones are not measured. At most 1024 results are kept until `take`.

    Args:
        events: The event pool of the device.
        every: Interval of measured iterations; the first one is measured. Defaults to 1.
        most: Maximum number of pending iterations. Defaults to 64.

    Attributes:
        skipped: Number of iterations that were not measured because too many were pending.
    """

    def __init__(self, events: TimingEvents, every: int = 1, most: int = 64) -> None:
        self.skipped = 0
        self._events, self._every, self._most = events, every, most
        self._seen = 0
        self._open: _Iteration | None = None
        self._pending: deque[_Iteration] = deque()
        self._done: deque[tuple[int, dict[str, float]]] = deque(maxlen=MOST_DONE)

    @classmethod
    def of(cls, device: torch.device, every: int = 1, most: int = 64) -> EventTimer | None:
        """Return a timer; None for devices without timing events.

        Args:
            device: The device of the model.
            every: Interval of measured iterations. Defaults to 1.
            most: Maximum number of pending iterations. Defaults to 64.
        """
        events = TimingEvents.of(device)
        return None if events is None else cls(events, every, most)

    def begin(self) -> None:
        """Begin an iteration; earlier work of the device is not counted."""
        self._drop()
        is_due = self._seen % self._every == 0
        self._seen += 1
        if not is_due:
            return
        if len(self._pending) >= self._most:
            self.skipped += 1
            return
        self._open = _Iteration(0, [], [self._events.note()])

    def mark(self, name: str) -> None:
        """Attribute the work given to the device since the last mark, or `begin`, to this part."""
        if self._open is not None:
            self._open.names.append(name)
            self._open.events.append(self._events.note())

    def end(self, number: int) -> None:
        """End an iteration at its last mark.

        Args:
            number: The number of the iteration.
        """
        if self._open is not None and self._open.names:
            self._pending.append(self._open._replace(number=number))
            self._open = None
        self._drop()
        self._read(2)  # more than one, to catch up; few, so that no iteration pays for many

    def take(self) -> list[tuple[int, dict[str, float]]]:
        """Return number and seconds by part of each completed iteration, in order, once."""
        self._read(len(self._pending))
        done = list(self._done)
        self._done.clear()
        return done

    def _read(self, most: int) -> None:
        while most and self._pending and self._pending[0].is_done():
            iteration = self._pending.popleft()
            self._done.append((iteration.number, iteration.parts()))
            self._events.free(iteration.events)
            most -= 1

    def _drop(self) -> None:
        """Discard an iteration that was not ended, for example because it failed."""
        if self._open is not None:
            self._events.free(self._open.events)
            self._open = None
