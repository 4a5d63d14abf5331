"""What the process itself can say about an iteration, for a microsecond or two."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

FULL = 2  # the generation whose collection goes through everything
Totals = tuple[float | None, ...]


class IterationCounters:
    """Totals so far; the differences between two reads tell of what lies between them.

    ======================== ===================================================================
    major_faults             pages that the training's thread waited for: read from a disk or swap
    minor_faults             pages that it was given, or that were there already
    involuntary_switches     how often it was put aside for somebody else while it had work to do
    system_seconds           CPU time of it in the kernel
    user_seconds             CPU time of it elsewhere; what is missing from the clock's is waiting
    gc_seconds               garbage collections, of any generation and in any thread
    gc_collections           full ones among them
    ======================== ===================================================================

    The first five are of the thread that reads: a process-wide count would blame the training for
    what its checkpoint writer or a pinning thread does beside it, and costs more the more threads
    there are. Where the system has no such count (macOS) they are of the process, on Windows
    they are None. A collection holds the GIL, so whoever does it, all threads wait.

    Example::

        counters = IterationCounters()
        counters.start()
        before = counters.read()
        train_step()
        counters.difference(before, counters.read())  # {'major_faults': 0, ...}
        counters.stop()

    Args:
        clock: Nanoseconds; `time.perf_counter_ns` if none is given.
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
        """Watch garbage collections from now on; until then, they are not known."""
        if self._removal is None:
            self._collections.begin()
            gc.callbacks.append(self._collections)
            # It goes with this object as well, and at the latest when the interpreter ends.
            self._removal = weakref.finalize(self, _remove, self._collections)

    def stop(self) -> None:
        """Leave nothing behind; the totals remain."""
        if self._removal is not None:
            self._removal()
            self._removal = None

    def read(self) -> Totals:
        """Totals in the order of `NAMES`, to be asked for by the training's thread."""
        collections = self._collections
        if self._whose is None:
            return (None, None, None, None, None, collections.seconds, collections.full)
        usage = resource.getrusage(self._whose)
        return (
            usage.ru_majflt,
            usage.ru_minflt,
            usage.ru_nivcsw,
            usage.ru_stime,
            usage.ru_utime,
            collections.seconds,
            collections.full,
        )

    @classmethod
    def difference(cls, before: Totals, after: Totals) -> dict[str, float]:
        """What came to the totals between two reads, by name; without what is not known."""
        return {
            name: new - old
            for name, old, new in zip(cls.NAMES, before, after)
            if old is not None and new is not None
        }


class _Collections:
    """Called before and after each garbage collection, in the thread that does it."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.seconds: float | None = None
        self.full: int | None = None
        self._clock = clock
        self._begun: dict[int, int] = {}  # by thread

    def begin(self) -> None:
        self.seconds, self.full = self.seconds or 0.0, self.full or 0
        self._begun.clear()

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        thread = threading.get_ident()
        if phase == 'start':
            self._begun[thread] = self._clock()
            return
        begun = self._begun.pop(thread, None)
        if begun is not None:  # None where it had begun before anybody looked
            self.seconds = (self.seconds or 0.0) + (self._clock() - begun) / 1e9
            self.full = (self.full or 0) + (info['generation'] == FULL)


def _remove(callback: _Collections) -> None:
    with contextlib.suppress(ValueError):  # somebody has cleared the list
        gc.callbacks.remove(callback)
