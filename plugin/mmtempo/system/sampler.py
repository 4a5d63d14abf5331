"""Sample memory, disks and the device in a thread while a training runs."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mmtempo.utils.threads import HelperThread

from .evidence import COUNTERS, Sample, evidence, findings, pressure
from .readings import MachineReadings

STOPPING_SECONDS = 2.0  # then the training continues without a reading that hangs


class Readings(Protocol):
    """Readings by subject; each returns figures by name."""

    @property
    def parts(self) -> Mapping[str, Callable[[], Mapping[str, Any] | None]]:
        """The readings; each returns None where it knows nothing."""

    def close(self) -> None:
        """Release what the readings have opened."""


class MachineSampler:
    """Samples of the machine, one a second, of the last ten minutes.

    ::

        thread:    readings --> sample --> ring, peak, warnings
        training:  latest() peak() between() warnings()      read without waiting for the thread

    The ring is a tuple that is replaced, not changed, so it needs no lock: a worker that is forked
    meanwhile has a consistent ring, and its copy of the sampler does not run. The thread logs
    nothing; the training asks for `warnings`.

    Example::

        sampler = MachineSampler(readings=MachineReadings(device))
        sampler.start()
        sampler.latest()             # {'time': ..., 'ram_used': 0.31, 'device': {...}, ...}
        sampler.between(start, end)  # {'psi_memory': 0.8, 'swap_in': 52428800}
        sampler.stop()

    Args:
        interval: Seconds between samples. Defaults to 1.0.
        keep: Number of samples to keep. Defaults to 600.
        readings: The readings. Defaults to None: `MachineReadings()` without a device.
        clock: Returns seconds, as used for `between`; `time.perf_counter` if not given.
    """

    def __init__(
        self,
        interval: float = 1.0,
        keep: int = 600,
        readings: Readings | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._interval, self._keep, self._clock = interval, keep, clock
        self._readings: Readings = readings or MachineReadings()
        self._parts = dict(self._readings.parts)
        self._samples: tuple[Sample, ...] = ()
        self._first: Sample | None = None
        self._peak: dict[str, Any] = {}
        self._reported: set[str] = set()
        self._pending: deque[str] = deque()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._ending = threading.Event()

    @property
    def running(self) -> bool:
        """Whether the thread runs; False in a forked process."""
        return self._thread is not None and self._pid == os.getpid() and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, which takes the first sample at once."""
        if self.running:
            return
        self._pid = os.getpid()
        # A new event: in a forked process the lock of the old one may be held for good.
        self._ending = threading.Event()
        self._thread = HelperThread('machine-watch', self._run, self._ending)
        atexit.register(self.stop)  # before the readings are torn down
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the samples remain."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        atexit.unregister(self.stop)
        self._ending.set()
        if thread is not threading.current_thread():  # garbage collection may call this there
            thread.join(STOPPING_SECONDS)

    def latest(self) -> dict[str, Any] | None:
        """Return the newest sample; None before the first."""
        return dict(self._samples[-1].figures) if self._samples else None

    def peak(self) -> dict[str, Any]:
        """Return the maximum of each figure over the run, of free space the minimum."""
        return dict(self._peak)

    def pressure(self) -> dict[str, float]:
        """Return what the machine was short of since the first sample; see `pressure`."""
        return {} if self._first is None else pressure(self._first, self._samples[-1])

    def between(self, start: float, end: float) -> dict[str, Any]:
        """Return evidence for a slow iteration; see `evidence`.

        Args:
            start: Start of the iteration, by the clock of the sampler.
            end: End of the iteration.
        """
        return evidence(self._samples, start, end)

    def warnings(self) -> list[str]:
        """Return new warnings; each is returned once."""
        return [self._pending.popleft() for _ in range(len(self._pending))]

    def sample(self) -> None:
        """Take a sample. Call it only while the thread does not run."""
        began = self._clock()
        figures: dict[str, Any] = {'time': time.time()}
        for name, reading in tuple(self._parts.items()):
            try:
                found = reading()
            except Exception as error:
                del self._parts[name]
                kind = type(error).__name__
                self._pending.append(f'{name}: cannot be read any more ({kind}: {error})')
                continue
            for key, value in (found or {}).items():
                if isinstance(value, dict):  # two readings have figures of the device
                    value = figures.get(key, {}) | value
                figures[key] = value
        self._add(Sample(began, self._clock(), figures))

    def _add(self, sample: Sample) -> None:
        self._first = self._first or sample
        self._samples = (*self._samples[1 - self._keep :], sample)
        self._peak = _worst(self._peak, sample.figures)
        for what, text in findings(self._first, self._samples, self._reported):
            self._reported.add(what)
            self._pending.append(text)

    def _run(self, ending: threading.Event) -> None:
        try:
            self.sample()
            while not ending.wait(self._interval):
                self.sample()
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
