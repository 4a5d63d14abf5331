"""How long the device took for the parts of an iteration, as it has noted itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from .streams import note_time, tells_time


class TimingEvents:
    """Events in which a device notes the time, each used again once it was read.

    Nothing here waits: what has not been reached by the device is asked for later.

    Args:
        device: The accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[Any] = []

    @classmethod
    def of(cls, device: torch.device) -> TimingEvents | None:
        """None where the device cannot tell its time: a CPU is measured by the host's clock."""
        return cls(device) if tells_time(device) else None

    def note(self) -> Any:
        """An event behind all that the device was given on its current stream."""
        return note_time(self._device, self._free.pop() if self._free else None)

    def free(self, events: Iterable[Any]) -> None:
        """They are not needed any more, also where the device has not reached them yet."""
        self._free.extend(events)


def seconds_between(start: Any, end: Any) -> float:
    """The device's time between two events that it has reached."""
    return start.elapsed_time(end) / 1000


MOST_DONE = 1024  # iterations that were read out and not taken yet


class _Iteration(NamedTuple):
    number: int
    names: list[str]
    events: list[Any]

    def is_done(self) -> bool:
        # The last one says it for the others as well, but for those on other streams.
        return all(event.query() for event in reversed(self.events))

    def parts(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for name, start, end in zip(self.names, self.events, self.events[1:]):
            seconds[name] = seconds.get(name, 0.0) + seconds_between(start, end)
        return seconds


class EventTimer:
    """Charges the device's time to the parts of an iteration; the host waits for none of it.

    ::

        begin ... mark(a) ... mark(b) ... end(number)          what the host does
              |     a     |     b     |                         what the device does, later
                                            take() -> [(number, {a: seconds, b: seconds})]

    What the device has done is read out bit by bit, as iterations end. When it is more than
    `most` of them behind, further ones are not measured; and what nobody takes for long is lost.

    Args:
        events: Of the device.
        every: Measure every so many iterations, the first of them included. Defaults to 1.
        most: How many iterations may be on their way. Defaults to 64.

    Attributes:
        skipped: Iterations that were due, and not measured because the device is far behind.
    """

    def __init__(self, events: TimingEvents, every: int = 1, most: int = 64) -> None:
        self.skipped = 0
        self._events, self._every, self._most = events, every, most
        self._seen = 0
        self._open: _Iteration | None = None
        self._flying: deque[_Iteration] = deque()
        self._done: deque[tuple[int, dict[str, float]]] = deque(maxlen=MOST_DONE)

    @classmethod
    def of(cls, device: torch.device, every: int = 1, most: int = 64) -> EventTimer | None:
        """None where the device cannot tell its time.

        Args:
            device: Of the model.
            every: Measure every so many iterations. Defaults to 1.
            most: How many iterations may be on their way. Defaults to 64.
        """
        events = TimingEvents.of(device)
        return None if events is None else cls(events, every, most)

    def begin(self) -> None:
        """Begin an iteration; what the device was given before belongs to none."""
        self._drop()
        is_due = self._seen % self._every == 0
        self._seen += 1
        if not is_due:
            return
        if len(self._flying) >= self._most:
            self.skipped += 1
            return
        self._open = _Iteration(0, [], [self._events.note()])

    def mark(self, name: str) -> None:
        """All that the device was given since the last mark, or `begin`, is this part."""
        if self._open is not None:
            self._open.names.append(name)
            self._open.events.append(self._events.note())

    def end(self, number: int) -> None:
        """End an iteration where its last mark was.

        Args:
            number: Of the iteration.
        """
        if self._open is not None and self._open.names:
            self._flying.append(self._open._replace(number=number))
            self._open = None
        self._drop()
        self._read(2)  # faster than they come, and no iteration pays for many others

    def take(self) -> list[tuple[int, dict[str, float]]]:
        """Seconds by part of the iterations that the device has done, in order, each once."""
        self._read(len(self._flying))
        done = list(self._done)
        self._done.clear()
        return done

    def _read(self, most: int) -> None:
        while most and self._flying and self._flying[0].is_done():
            iteration = self._flying.popleft()
            self._done.append((iteration.number, iteration.parts()))
            self._events.free(iteration.events)
            most -= 1

    def _drop(self) -> None:
        """One that was not ended, as where the iteration has failed."""
        if self._open is not None:
            self._events.free(self._open.events)
            self._open = None
