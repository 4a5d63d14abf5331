"""Counters of the process and its training thread, read within microseconds."""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

FULL = 2  # the generation of a full collection
_COUNTS = operator.attrgetter('ru_majflt', 'ru_minflt', 'ru_nivcsw', 'ru_stime', 'ru_utime')
Totals = tuple[float | None, ...]


class IterationCounters:
    """Totals so far; the difference of two reads describes the time between them.

    ======================== ===================================================================
    major_faults             page faults that read from a disk or swap
    minor_faults             page faults without input or output
    involuntary_switches     times that the scheduler preempted the thread
    system_seconds           CPU time in the kernel
    user_seconds             CPU time outside the kernel; the rest of the clock is waiting
    gc_seconds               garbage collections of any generation, in any thread
    gc_collections           full garbage collections
    ======================== ===================================================================

    The first five count the calling thread: counts of the process would include the checkpoint
    writer and pinning threads, and take longer the more threads there are. On systems without
    counts of a thread (macOS) they count the process, on Windows they are None. A garbage
    collection holds the GIL, so all threads wait, whichever thread runs it.

    Example::

        counters = IterationCounters()
        counters.start()
        before = counters.read()
        train_step()
        counters.read()[1] - before[1]  # minor page faults of the step
        counters.stop()

    Args:
        clock: Returns nanoseconds; `time.perf_counter_ns` if not given.
    """

    NAMES: tuple[str, ...] = (
        'major_faults',
        'minor_faults',
        'involuntary_switches',
        'system_seconds',
        'user_seconds',
        'gc_seconds',
        'gc_collections',
    )

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._collections = _Collections(clock)
        self._removal: weakref.finalize | None = None
        self._whose = None
        if resource is not None:
            self._whose = getattr(resource, 'RUSAGE_THREAD', resource.RUSAGE_SELF)

    def start(self) -> None:
        """Start counting garbage collections, which are None before."""
        if self._removal is None:
            self._collections.begin()
            gc.callbacks.append(self._collections)
            # Also removes it when this object is collected or the interpreter exits.
            self._removal = weakref.finalize(self, _remove, self._collections)

    def stop(self) -> None:
        """Stop counting garbage collections; the totals remain."""
        if self._removal is not None:
            self._removal()
            self._removal = None

    def read(self) -> Totals:
        """Return the totals in the order of `NAMES`. Call it in the training thread."""
        collections = self._collections
        counts = [None] * 5 if self._whose is None else _COUNTS(resource.getrusage(self._whose))
        return (*counts, collections.seconds, collections.full)


def cpu_demand() -> float:
    """Return the seconds in which this thread computed, or was ready to and waited for a CPU.

    Without the kernel's count of the waiting, only those in which it computed.
    """
    seconds = time.thread_time()
    file = _schedstat(os.getpid(), threading.get_native_id())
    if file is not None:
        seconds += int(os.pread(file, 64, 0).split()[1]) * 1e-9
    return seconds


@functools.cache
def _schedstat(process: int, thread: int) -> int | None:
    """Open the file of a thread, once: opening takes longer than reading."""
    try:
        return os.open(f'/proc/{process}/task/{thread}/schedstat', os.O_RDONLY)
    except OSError:
        return None


class _Collections:
    """A callback of the garbage collector, called in the thread that collects."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.seconds: float | None = None
        self.full: int | None = None
        self._clock = clock
        self._begun: dict[int, int] = {}  # by thread

    def begin(self) -> None:
        """Start, or continue, counting."""
        self.seconds, self.full = self.seconds or 0.0, self.full or 0
        self._begun.clear()

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        thread = threading.get_ident()
        if phase == 'start':
            self._begun[thread] = self._clock()
            return
        begun = self._begun.pop(thread, None)
        if begun is not None:  # None if it began before `start`
            self.seconds = (self.seconds or 0.0) + (self._clock() - begun) / 1e9
            self.full = (self.full or 0) + (info['generation'] == FULL)


def _remove(callback: _Collections) -> None:
    with contextlib.suppress(ValueError):  # other code has cleared the list
        gc.callbacks.remove(callback)
