"""Decides at which iterations several processes ask each other for a signal."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST = 100  # iterations: a pace that drops suddenly must not delay the next asking for long


class AskingSchedule:
    """Iterations at which all processes meet, about every `seconds`.

    Each process measures its own pace, and the processes exchange the slowest one when they
    meet. All compute the next iteration from that value, so no other synchronization is needed::

        iteration     1  2  3  4  5  6  7  8 ... 15 ...
        asked at      *     *           *         *       fast: twice as many, up to 1 s or MOST
        asked at      *  *  *  *  *  *  *  *      *       an iteration takes more than 1 s

    Args:
        step: The iteration from which the next one is counted.
        seconds: Time between two askings. Defaults to 1.0.
        clock: Returns seconds; `time.perf_counter` as a rule.
    """

    def __init__(
        self, step: int, seconds: float = 1.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds, self._clock = seconds, clock
        self._asked, self._at = step, clock()
        self._interval = 1  # the pace is unknown

    def is_due(self, step: int) -> bool:
        """Return whether all processes ask after this iteration."""
        return step >= self._asked + self._interval

    def pace(self, step: int) -> float:
        """Return the seconds per iteration of this process since the last asking."""
        return (self._clock() - self._at) / max(1, step - self._asked)

    def settle(self, step: int, pace: float) -> None:
        """Choose the next iteration.

        A host that queues work ahead of its device seems fast in its first iterations, so the
        interval at most doubles each time.

        Args:
            step: The iteration after which the processes have met.
            pace: Seconds per iteration of the slowest process.
        """
        within = int(self._seconds / pace) if pace > self._seconds / MOST else MOST
        self._interval = max(1, min(within, 2 * self._interval, MOST))
        self._asked, self._at = step, self._clock()
