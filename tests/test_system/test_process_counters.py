"""Counters with fake counts, a real page fault and a real collection."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mmtempo.system import process_counters
from mmtempo.system.process_counters import IterationCounters, cpu_demand
from tests.testing.processes import in_child


@pytest.fixture
def counters() -> Iterator[IterationCounters]:
    counters = IterationCounters()
    counters.start()
    yield counters
    counters.stop()


def fake_resource(asked: list[int], **names: int) -> SimpleNamespace:
    """Return two usages; the second has more of everything."""

    def getrusage(which: int) -> SimpleNamespace:
        n = len(asked)
        asked.append(which)
        return SimpleNamespace(
            ru_majflt=5 + n,
            ru_minflt=70 + 2 * n,
            ru_nivcsw=30 + 3 * n,
            ru_stime=1.0 + n / 2,
            ru_utime=2.0 + n / 4,
        )

    return SimpleNamespace(getrusage=getrusage, RUSAGE_SELF=0, **names)


@pytest.mark.parametrize(('names', 'whose'), [({'RUSAGE_THREAD': 1}, 1), ({}, 0)])
def test_totals(names: dict, whose: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are of the thread where supported, else of the process."""
    asked: list[int] = []
    monkeypatch.setattr(process_counters, 'resource', fake_resource(asked, **names))
    counters = IterationCounters()
    assert dict(zip(counters.NAMES, counters.read())) == {
        'major_faults': 5,
        'minor_faults': 70,
        'involuntary_switches': 30,
        'system_seconds': 1.0,
        'user_seconds': 2.0,
        'gc_seconds': None,  # not started
        'gc_collections': None,
    }
    assert counters.read()[:5] == (6, 72, 33, 1.5, 2.25)
    assert asked == [whose, whose]


def test_without_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no resource module."""
    monkeypatch.setattr(process_counters, 'resource', None)
    counters = IterationCounters()
    counters.start()
    before = counters.read()
    gc.collect()
    after = counters.read()
    counters.stop()
    assert before == (None, None, None, None, None, 0.0, 0)
    assert after[:5] == before[:5]
    assert after[-1] >= 1


class TestCollections:
    @pytest.fixture(autouse=True)
    def quiet(self) -> Iterator[None]:
        """Prevent other garbage collections."""
        gc.disable()
        gc.freeze()  # makes collections fast
        yield
        gc.unfreeze()
        gc.enable()

    def test_seconds_and_full_collections_are_counted(self) -> None:
        times = iter([10, 2_000_000_010, 5_000_000_000, 5_500_000_000])
        counters = IterationCounters(clock=lambda: next(times))
        counters.start()
        gc.collect(0)
        assert counters.read()[-2:] == (2.0, 0)
        gc.collect()
        counters.stop()
        assert counters.read()[-2:] == (2.5, 1)

    def test_collections_of_any_thread_count(self, counters: IterationCounters) -> None:
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        seconds, full = counters.read()[-2:]
        assert seconds
        assert full == 1

    def test_concurrent_collections_are_separated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a GIL, each end belongs to the start in the same thread."""
        times = iter([0, 1_000_000_000, 3_000_000_000, 4_000_000_000])
        counters = IterationCounters(clock=lambda: next(times))
        counters.start()
        call: Any = gc.callbacks[-1]
        for thread, phase in ((1, 'start'), (2, 'start'), (2, 'stop'), (1, 'stop')):
            monkeypatch.setattr(threading, 'get_ident', lambda thread=thread: thread)
            call(phase, {'generation': 2})
        monkeypatch.undo()
        counters.stop()
        assert counters.read()[-2:] == (6.0, 2)

    def test_a_collection_that_began_before_start_is_ignored(
        self, counters: IterationCounters
    ) -> None:
        gc.callbacks[-1]('stop', {'generation': 2})
        assert counters.read()[-2:] == (0.0, 0)

    def test_started_twice_and_again(self) -> None:
        before = list(gc.callbacks)
        counters = IterationCounters()
        for _ in range(2):
            counters.start()
            counters.start()
            assert len(gc.callbacks) == len(before) + 1
            gc.collect()
            counters.stop()
            counters.stop()
            assert gc.callbacks == before
            gc.collect()  # not counted
        assert counters.read()[-1] == 2

    def test_stop_removes_the_callback(self) -> None:
        before = list(gc.callbacks)
        counters = IterationCounters()
        counters.start()
        assert len(gc.callbacks) == len(before) + 1
        del counters
        assert gc.callbacks == before

    def test_a_cleared_callback_list_is_no_error(self) -> None:
        counters = IterationCounters()
        counters.start()
        gc.callbacks.pop()
        counters.stop()


@pytest.mark.skipif(sys.platform != 'linux', reason='counts of a thread')
def test_real_faults(counters: IterationCounters) -> None:
    """Faults of other threads do not count."""
    pages = 300

    def touch() -> None:
        with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
            if hasattr(mmap, 'MADV_NOHUGEPAGE'):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
            for page in range(pages):
                memory[page * mmap.PAGESIZE] = 1

    minor = counters.NAMES.index('minor_faults')
    before = counters.read()[minor]
    thread = threading.Thread(target=touch)
    thread.start()
    thread.join()
    between = counters.read()[minor]
    touch()
    after = counters.read()[minor]
    assert before is not None
    assert between is not None
    assert after is not None
    assert between - before < pages
    assert after - between >= pages


def spin(seconds: float = 1000.0) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def demand_of(work: Callable[..., Any], *args: Any) -> tuple[float, float, float]:
    """Return the growth of demand, CPU time and time, in a thread with a competitor for its CPU."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    other = os.fork()  # daemonic processes have no children by multiprocessing
    if other == 0:
        spin()
    began = cpu_demand(), time.thread_time(), time.perf_counter()
    work(*args)
    ended = cpu_demand(), time.thread_time(), time.perf_counter()
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    return tuple(after - before for before, after in zip(began, ended))  # type: ignore[return-value]


@pytest.mark.skipif(
    not os.path.exists('/proc/self/schedstat'), reason='needs the waits that Linux counts'
)
def test_wait_for_a_cpu_is_demand_and_sleep_is_none() -> None:
    demand, computed, took = in_child(demand_of, spin, 0.4)
    assert computed < 0.8 * took  # the competitor had the CPU
    assert demand > 0.9 * took
    demand, _, took = in_child(demand_of, time.sleep, 0.4)
    assert demand < 0.5 * took
