"""Made readings of a machine in a state that this one is not in: swap, pressure, a hot device."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from mmtempo.system.readings import MachineReadings

MIB = 1 << 20
_counted: defaultdict[str, float] = defaultdict(float)  # seconds lost, by reading
_throttle: list[str] = []


def note(reading: str, seconds: float) -> None:
    """Let a counter rise by the seconds that the training has lost."""
    _counted[reading] += seconds


def throttle(reason: str | None) -> None:
    """Set or clear why the device reduces its clocks."""
    _throttle[:] = [] if reason is None else [reason]


class MadeReadings(MachineReadings):
    """The readings of this machine, of which some are made.

    Attributes:
        what: 'memory', 'swap', 'disk' or 'device'.
    """

    what = ''

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._began = time.perf_counter()
        for subject, function in {
            'memory': {'RAM': self._full, 'pressure': self._memory_pressure},
            'swap': {'RAM': self._full, 'swapping': self._swapping},
            'disk': {'pressure': self._disk_pressure},
            'device': {'GPU': self._device},
        }[self.what].items():
            self._real = self.parts.get(subject)
            self.parts[subject] = function

    def _full(self) -> dict[str, Any]:
        used = dict(ram_used=0.97, ram_total=16 << 30, ram_of='the machine', swap_used=0)
        return used | (dict(swap_used=2 << 30) if self.what == 'swap' else {})

    def _memory_pressure(self) -> dict[str, float]:
        return dict(psi_cpu=0.0, psi_memory=_counted['memory'], psi_io=0.0)

    def _swapping(self) -> dict[str, int]:
        pages = int(_counted['swap'] * 80) * MIB  # at 80 MiB/s
        return dict(swap_in=pages, swap_out=pages)

    def _disk_pressure(self) -> dict[str, float]:
        # The workers wait for the disk all the time.
        return dict(psi_cpu=0.0, psi_memory=0.0, psi_io=0.95 * (time.perf_counter() - self._began))

    def _device(self) -> dict[str, Any]:
        is_slow = bool(_throttle)
        return dict(
            device=dict(
                utilisation=0.97, power=280.0 if is_slow else 410.0,
                clock=1485 if is_slow else 2520, memory_used=14 << 30, throttle=list(_throttle),
            )
        )  # fmt: skip
