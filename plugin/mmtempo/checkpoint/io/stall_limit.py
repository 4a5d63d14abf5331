"""Whether work that reports its progress has stopped making any."""

from __future__ import annotations

import time
from collections.abc import Callable


class StallLimit:
    """The time for which a progress figure may stay as it is.

    Args:
        seconds: The longest time without progress.
        clock: In seconds, `time.monotonic` unless given.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock = seconds, clock
        self._seen: object = None
        self.restart()

    def restart(self) -> None:
        """Count the time from now on."""
        self._since = self._clock()

    def is_reached(self, progress: object) -> bool:
        """Whether the figure has been the same for too long."""
        if progress != self._seen:
            self._seen = progress
            self.restart()
        return self._clock() - self._since >= self.seconds
