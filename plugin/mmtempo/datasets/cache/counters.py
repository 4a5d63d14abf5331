"""Counters that several processes increment without a lock."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

PROCESSES = 256
# Words of a process: one cache line, so that processes do not share one.
WORDS = 8
SIZE = PROCESSES * WORDS * 8


class ProcessCounters:
    """Counters in shared memory: a row for each process, of which the sums are read.

    A new process takes the row of one that has ended, and adds to its counts. With more than 256
    processes at a time some share a row and may lose counts.

    Args:
        memory: `SIZE` bytes, initially zero.
        lock: Returns a context manager that excludes other processes; used once per process.
    """

    def __init__(self, memory: memoryview, lock: Callable[[], AbstractContextManager]) -> None:
        self._words = memory.cast('B').cast('Q')
        self._rows = np.frombuffer(memory, np.uint64).reshape(PROCESSES, WORDS)
        self._lock = lock
        self._pid, self._start = 0, 0

    def add(self, which: int) -> None:
        """Increment counter 0 to 6."""
        if self._pid != os.getpid():
            self._join()
        self._words[self._start + 1 + which] += 1

    def total(self, which: int) -> int:
        """Return the sum of a counter over all processes, also those that have ended."""
        return int(self._rows[:, 1 + which].sum())

    def clear(self) -> None:
        """Set all counters to 0."""
        self._rows[:, 1:] = 0

    def _join(self) -> None:
        pid = os.getpid()
        with self._lock():
            owners = self._rows[:, 0].tolist()
            free = (row for row in range(PROCESSES) if not _is_alive(owners[row], pid))
            row = next(free, pid % PROCESSES)
            self._rows[row, 0] = pid
        self._pid, self._start = pid, WORDS * row


def _is_alive(pid: int, own: int) -> bool:
    if pid in (0, own):
        return False
    if sys.platform == 'win32':  # `os.kill` would end the process there
        return True
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
