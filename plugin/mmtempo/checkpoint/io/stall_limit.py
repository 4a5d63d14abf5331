"""Detection of work that has stopped making progress."""

from __future__ import annotations

import time
from collections.abc import Callable


class StallLimit:
    """A limit on the time for which a progress value may stay the same.

    Args:
        seconds: Longest time without a change, in seconds.
        clock: Function that returns the time in seconds; `time.monotonic` unless given.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock = seconds, clock
        self._last: object = None
        self.restart()

    def restart(self) -> None:
        """Count the time from now on."""
        self._since = self._clock()

    def is_reached(self, progress: object) -> bool:
        """Return whether the value has been the same for at least `seconds`."""
        if progress != self._last:
            self._last = progress
            self.restart()
        return self._clock() - self._since >= self.seconds
