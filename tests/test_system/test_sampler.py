"""A ring of samples: fake readings and clock, real threads, forks and exits."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mmtempo.system import sampler
from mmtempo.system.sampler import MachineSampler
from tests.testing.processes import FORK, in_child

MB = 1 << 20
# Without the package itself, whose import takes seconds.
ALONE = """
import sys, types
stub = sys.modules['mmtempo'] = types.ModuleType('mmtempo')  # avoids importing mmseg
stub.__path__ = [sys.argv[1]]
from mmtempo.system.readings import MachineReadings
from mmtempo.system.sampler import MachineSampler
class Readings(MachineReadings):
    def close(self):
        super().close()
        print('closed')
watch = MachineSampler(interval=0.001, readings=Readings())
watch.start()
while watch.latest() is None:
    pass
"""
forks = pytest.mark.skipif(not hasattr(os, 'fork'), reason='there is no fork')


class FakeReadings:
    """Readings that return `now`; each takes a second of the fake clock."""

    def __init__(self, **more: Callable[[], Any]) -> None:
        self.clock, self.closed = 0.0, 0
        self.now: dict[str, Any] = {}
        self.parts: dict[str, Callable[[], Any]] = {'all': lambda: dict(self.now), **more}

    def close(self) -> None:
        self.closed += 1


class Counting(FakeReadings):
    """Readings that signal and count each call."""

    def __init__(self) -> None:
        self.count = 0
        self.asked = threading.Semaphore(0)
        super().__init__(count=self._count)

    def _count(self) -> dict[str, int]:
        self.count += 1
        self.asked.release()
        return {'count': self.count}


@pytest.fixture
def readings() -> FakeReadings:
    return FakeReadings()


@pytest.fixture
def watch(readings: FakeReadings) -> MachineSampler:
    return MachineSampler(readings=readings, clock=lambda: readings.clock)


@pytest.fixture
def take(watch: MachineSampler, readings: FakeReadings) -> Callable[..., None]:
    """Take a sample with these figures, a second after the last one."""

    def take(**figures: Any) -> None:
        readings.now = figures
        watch.sample()
        readings.clock += 1

    return take


@pytest.fixture
def counting() -> Iterator[tuple[MachineSampler, Counting]]:
    readings = Counting()
    watch = MachineSampler(interval=3600.0, readings=readings)
    yield watch, readings
    watch.stop()


class TestSamples:
    def test_latest_returns_the_newest_sample(self, watch: MachineSampler, take: Callable) -> None:
        assert watch.latest() is None
        take(ram_used=0.5, tree_pss=7)
        take(ram_used=0.25)
        latest = watch.latest()
        assert latest is not None
        assert latest.pop('time') > 1.7e9
        assert latest == {'ram_used': 0.25}

    def test_two_readings_of_the_device_are_merged(self) -> None:
        readings = FakeReadings(
            allocator=lambda: {'device': {'allocated': 5}},
            gpu=lambda: {'device': {'power': 200.0}},
            unknown=lambda: None,
        )
        watch = MachineSampler(readings=readings)
        watch.sample()
        latest = watch.latest()
        assert latest is not None
        assert latest['device'] == {'allocated': 5, 'power': 200.0}

    def test_peak_is_the_worst_of_the_run(self, watch: MachineSampler, take: Callable) -> None:
        assert watch.peak() == {}
        device = {'allocated': 5, 'throttle': ['power limit']}
        take(ram_used=0.5, ram_of='the machine', shm_free=9, swap_in=1, psi_cpu=2, device=device)
        device = {'allocated': 3, 'retries': 1, 'throttle': ['temperature']}
        take(ram_used=0.75, shm_free=4, swap_in=2, device=device)
        take(ram_used=0.25, shm_free=8, tree_pss=6, device={'throttle': []})
        assert watch.peak() == {
            'ram_used': 0.75,
            'shm_free': 4,
            'tree_pss': 6,
            'device': {
                'allocated': 5,
                'retries': 1,
                'throttle': ['power limit', 'temperature'],
            },
        }

    def test_pressure_is_that_of_the_whole_run(self, readings: FakeReadings) -> None:
        watch = MachineSampler(keep=2, readings=readings, clock=lambda: readings.clock)
        assert watch.pressure() == {}
        for waited in (3.0, 3.0, 4.0, 4.5, 5.0):
            readings.now = dict(psi_io=waited, queued=0.0)
            watch.sample()
            readings.clock += 1
        assert watch.pressure() == dict(seconds=4.0, io=0.5, queued=0.0)
        assert watch.peak() == {}  # totals since boot have no maximum

    def test_the_ring_is_bounded_but_not_the_peak(self, readings: FakeReadings) -> None:
        watch = MachineSampler(keep=3, readings=readings, clock=lambda: readings.clock)
        for second in range(1000):
            readings.now = {'swap_in': second * MB, 'ram_used': 1 / (second + 2)}
            watch.sample()
            readings.clock += 1
        assert watch.between(0, 2000) == {'swap_in': 2 * MB}
        assert watch.peak() == {'ram_used': 0.5}

    def test_between_returns_evidence(self, watch: MachineSampler, take: Callable) -> None:
        for swapped in (0, 0, 5, 5, 9):
            take(swap_in=swapped * MB)
        assert watch.between(1.5, 1.7) == {'swap_in': 5 * MB}
        assert watch.between(2.5, 2.7) == {}
        assert watch.between(0.5, 3.5) == {'swap_in': 9 * MB}


class TestWarnings:
    def test_each_warning_is_returned_once(self, watch: MachineSampler, take: Callable) -> None:
        full = dict(ram_used=0.95, ram_total=100 * MB)
        assert watch.warnings() == []
        take(ram_used=0.5, swap_in=0)
        assert watch.warnings() == []
        take(**full, swap_in=0)
        take(**full, swap_in=0)
        (text,) = watch.warnings()
        assert text.startswith('RAM: 95%')
        take(ram_used=0.5, swap_in=0)
        take(**full, swap_in=7 * MB)
        (text,) = watch.warnings()
        assert text.startswith('swap: ')
        assert watch.warnings() == []

    def test_swapping_counts_from_the_first_sample_of_the_run(self, readings: FakeReadings) -> None:
        """Also after the first sample has left the ring."""
        watch = MachineSampler(keep=2, readings=readings)
        for swapped in range(4, 24):
            readings.now = {'swap_out': swapped * MB // 8}
            watch.sample()
        (text,) = watch.warnings()
        assert '1.00 MiB written' in text

    def test_a_failing_reading_is_reported_once_and_dropped(self) -> None:
        calls = []

        def fail() -> None:
            calls.append(1)
            raise OSError(5, 'no such thing')

        readings = FakeReadings(GPU=fail, after=lambda: {'after': 1})
        readings.now = {'ram_used': 0.5}
        watch = MachineSampler(readings=readings)
        watch.sample()
        watch.sample()
        assert calls == [1]
        (text,) = watch.warnings()
        assert text == 'GPU: cannot be read any more (OSError: [Errno 5] no such thing)'
        latest = watch.latest()
        assert latest is not None
        assert set(latest) == {'time', 'ram_used', 'after'}


class TestThread:
    def test_the_thread_starts_and_stops_once(
        self, counting: tuple[MachineSampler, Counting]
    ) -> None:
        watch, readings = counting
        watch.stop()  # not started: no-op
        assert not watch.running
        for _ in range(2):
            before = threading.active_count()
            watch.start()
            watch.start()
            assert watch.running
            assert threading.active_count() == before + 1
            assert readings.asked.acquire(timeout=30)  # the first sample is taken at once
            watch.stop()
            watch.stop()
            assert not watch.running
            assert threading.active_count() == before
        assert readings.closed == 2
        latest = watch.latest()
        assert latest is not None
        assert latest['count'] == 2

    def test_samples_repeat(self) -> None:
        readings = Counting()
        watch = MachineSampler(interval=0.001, readings=readings)
        watch.start()
        for _ in range(5):
            assert readings.asked.acquire(timeout=30)
        watch.stop()

    def test_stop_does_not_wait_for_the_next_sample(
        self, counting: tuple[MachineSampler, Counting], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits = threading.Semaphore(0)

        class Event(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                if timeout is not None and timeout > 1000:
                    waits.release()
                return super().wait(timeout)

        before = threading.active_count()
        with monkeypatch.context() as patch:
            patch.setattr(threading, 'Event', Event)
            counting[0].start()
            assert waits.acquire(timeout=30)
        counting[0].stop()
        assert threading.active_count() == before

    def test_samples_are_an_interval_apart(self, counting: tuple[MachineSampler, Counting]) -> None:
        watch, readings = counting
        waits = []

        class Ending(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waits.append((readings.count, timeout))
                return readings.count == 3

        watch._run(Ending())
        assert waits == [(1, 3600), (2, 3600), (3, 3600)]
        assert readings.closed == 1

    def test_stop_returns_while_a_reading_hangs(
        self, readings: FakeReadings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The thread ends when the reading returns."""
        monkeypatch.setattr(sampler, 'STOPPING_SECONDS', 0.01)
        hangs, resumes = threading.Event(), threading.Event()

        def hang() -> None:
            hangs.set()
            resumes.wait(30)

        readings.parts['hangs'] = hang
        watch = MachineSampler(readings=readings)
        watch.start()
        (thread,) = [one for one in threading.enumerate() if 'machine-watch' in one.name]
        assert hangs.wait(30)
        watch.stop()
        assert thread.is_alive()
        assert thread.daemon
        resumes.set()
        thread.join(30)
        assert not thread.is_alive()
        assert readings.closed == 1

    def test_a_stopped_sampler_is_collected(
        self, counting: tuple[MachineSampler, Counting]
    ) -> None:
        watch = MachineSampler(readings=FakeReadings())
        watch.start()
        watch.stop()
        gone = weakref.ref(watch)
        del watch
        gc.collect()
        assert gone() is None


@forks
class TestFork:
    def test_a_child_has_no_running_watch(self, counting: tuple[MachineSampler, Counting]) -> None:
        watch, readings = counting
        watch.start()
        assert readings.asked.acquire(timeout=30)

        def look() -> tuple:
            running = watch.running
            watch.stop()
            latest = watch.latest()
            return running, threading.active_count(), latest and latest['count']

        while watch.latest() is None:  # the sample is stored soon after the reading
            os.sched_yield()
        assert in_child(look) == (False, 1, 1)
        assert watch.running
        assert readings.closed == 0

    def test_a_forked_child_can_start_the_sampler(
        self, counting: tuple[MachineSampler, Counting]
    ) -> None:
        watch, readings = counting
        watch.start()
        assert readings.asked.acquire(timeout=30)

        def start() -> tuple:
            watch.start()
            assert readings.asked.acquire(timeout=30)
            running = watch.running
            watch.stop()
            return running, watch.running, readings.count, readings.closed

        assert in_child(start) == (True, False, 2, 1)
        assert readings.count == 1

    def test_a_fork_while_the_lock_is_held_does_not_hang(
        self, counting: tuple[MachineSampler, Counting]
    ) -> None:
        """A worker may be forked at the moment when the thread begins to wait."""
        watch, readings = counting
        watch.start()
        assert readings.asked.acquire(timeout=30)

        def use() -> None:
            watch.stop()
            watch.start()
            watch.stop()

        child = FORK.Process(target=use, daemon=True)  # otherwise the test would hang at its end
        with watch._ending._cond:  # type: ignore[attr-defined]
            child.start()
        child.join(20)
        assert child.exitcode == 0


@pytest.mark.parametrize('end', ['', 'raise SystemExit(0)', 'watch.stop()'])
def test_the_interpreter_ends_with_it_running(end: str) -> None:
    """The readings are closed, and nothing is printed or hangs."""
    package = str(Path(sampler.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, '-c', ALONE + end, package], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, 'closed\n', '')


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_this_machine() -> None:
    watch = MachineSampler()
    watch.sample()
    watch.sample()
    latest = watch.latest()
    assert latest is not None
    names = {'time', 'ram_used', 'ram_total', 'main_rss', 'tree_pss', 'tree_processes'}
    assert names <= set(latest)
    assert set(watch.peak()) <= set(latest)
    assert [text for text in watch.warnings() if 'cannot be watched' in text] == []
