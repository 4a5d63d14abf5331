"""A thread that looks at memory, disks and the device while a training runs."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mmtempo.utils.threads import HelperThread

from .evidence import COUNTERS, Sample, evidence, findings
from .readings import MachineReadings

# Of the interval. Who nudges all the time has ten samples instead of one, not thousands.
REST = 0.1
STOPPING_SECONDS = 2.0  # a reading may hang, as a driver does; the training goes on then


class Readings(Protocol):
    """What the watch looks at, by a name for people; each returns figures by their names."""

    @property
    def parts(self) -> Mapping[str, Callable[[], Mapping[str, Any] | None]]:
        """Nothing of what is not known."""

    def close(self) -> None:
        """Nothing is read any more."""


class MachineSampler:
    """Takes a sample of the machine once a second, and remembers the last ten minutes.

    ::

        thread:    readings --> sample --> ring, peak, warnings
        training:  latest() peak() between() warnings()      look, and never wait for the thread

    The ring is a tuple that is replaced, not changed, so that nobody needs a lock for it: a
    worker that is forked meanwhile finds it whole, and its copy of the watch does not run. The
    thread says nothing itself: what is to be said is asked for by `warnings`.

    Example::

        watch = MachineWatch(readings=MachineReadings(device))
        watch.start()
        watch.latest()             # {'time': ..., 'ram_used': 0.31, 'device': {...}, ...}
        watch.between(start, end)  # {'psi_memory': 0.8, 'swap_in': 52428800}
        watch.stop()

    Args:
        interval: Seconds from sample to sample. Defaults to 1.0.
        keep: How many samples. Defaults to 600.
        readings: Defaults to None: `MachineReadings()`, without a device.
        clock: Seconds, by which `between` is asked; `time.perf_counter` if none is given.
    """

    def __init__(
        self,
        interval: float = 1.0,
        keep: int = 600,
        readings: Readings | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if interval <= 0:
            raise ValueError(f'interval must be above 0 seconds, found {interval!r}')
        if keep < 2:
            raise ValueError(f'keep must be 2 samples or more, found {keep!r}')
        self._interval, self._keep, self._clock = interval, keep, clock
        self._readings: Readings = readings or MachineReadings()
        self._parts = dict(self._readings.parts)
        self._samples: tuple[Sample, ...] = ()
        self._first: Sample | None = None
        self._peak: dict[str, Any] = {}
        self._said: set[str] = set()
        self._to_say: deque[str] = deque()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._ending, self._wake = threading.Event(), threading.Event()

    @property
    def running(self) -> bool:
        """Whether the thread is there; not in a process that was forked from this one."""
        return self._thread is not None and self._pid == os.getpid() and self._thread.is_alive()

    def start(self) -> None:
        """Begin; the first sample is taken at once, in the thread."""
        if self.running:
            return
        self._pid = os.getpid()
        # Of its own, also in a process that was forked while somebody held the old ones' locks.
        self._ending, self._wake = threading.Event(), threading.Event()
        self._thread = HelperThread('machine-watch', self._run, self._ending, self._wake)
        atexit.register(self.stop)  # before what it reads is taken down
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it has found can still be asked for."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        atexit.unregister(self.stop)
        self._ending.set()
        self._wake.set()
        if thread is not threading.current_thread():  # a run may be collected as garbage in it
            thread.join(STOPPING_SECONDS)

    def nudge(self) -> None:
        """Have a sample taken soon: an iteration was slow, and its end is to be seen."""
        if self.running:
            self._wake.set()

    def covers(self, moment: float) -> bool:
        """Whether a sample was taken after it, so that `between` knows all about it."""
        return bool(self._samples) and self._samples[-1].began >= moment

    def latest(self) -> dict[str, Any] | None:
        """The newest sample; None before the first one."""
        return dict(self._samples[-1].figures) if self._samples else None

    def peak(self) -> dict[str, Any]:
        """The worst of each figure in the whole run: the most, or the least of what is free."""
        return dict(self._peak)

    def between(self, start: float, end: float) -> dict[str, Any]:
        """What was unusual then, as evidence for a slow iteration; see `evidence`.

        Args:
            start: Of the iteration, by the watch's clock.
            end: Of it.
        """
        return evidence(self._samples, start, end)

    def warnings(self) -> list[str]:
        """What is new and should be said; each comes once."""
        return [self._to_say.popleft() for _ in range(len(self._to_say))]

    def sample(self) -> None:
        """Take one, as the thread does; only while it does not run."""
        began = self._clock()
        figures: dict[str, Any] = {'time': time.time()}
        for name, reading in tuple(self._parts.items()):
            try:
                found = reading()
            except Exception as error:
                del self._parts[name]
                kind = type(error).__name__
                self._to_say.append(f'{name} cannot be watched from now on: {kind}: {error}')
                continue
            for key, value in (found or {}).items():
                if isinstance(value, dict):  # two readings know about the device
                    value = figures.get(key, {}) | value
                figures[key] = value
        self._add(Sample(began, self._clock(), figures))

    def _add(self, sample: Sample) -> None:
        self._first = self._first or sample
        self._samples = (*self._samples[1 - self._keep :], sample)
        self._peak = _worst(self._peak, sample.figures)
        for what, text in findings(self._first, self._samples, self._said):
            self._said.add(what)
            self._to_say.append(text)

    def _run(self, ending: threading.Event, wake: threading.Event) -> None:
        try:
            while True:
                self.sample()
                if ending.wait(self._interval * REST):
                    return
                wake.wait(self._interval * (1 - REST))
                wake.clear()
                if ending.is_set():
                    return
        finally:
            self._readings.close()


def _worst(peak: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    worst = dict(peak)
    for name, value in figures.items():
        if name in COUNTERS or name == 'time' or isinstance(value, str):
            continue
        if isinstance(value, dict):
            worst[name] = _worst(peak.get(name, {}), value)
        elif isinstance(value, list):
            worst[name] = sorted({*peak.get(name, ()), *value})
        else:
            choose = min if name.endswith('_free') else max
            worst[name] = choose(peak.get(name, value), value)
    return worst
