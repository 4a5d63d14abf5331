"""What NVIDIA's driver says about a GPU; needs `nvidia-ml-py`, or knows nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

# Bits of the driver's mask, those that take speed away. It also has idle, clocks that the user
# or a display has set, and those of a GPU that waits for another.
THROTTLE_REASONS = {
    0x4: 'power limit',
    0x8: 'hardware slowdown',
    0x20: 'temperature',
    0x40: 'temperature (hardware)',
    0x80: 'power brake',
    0x200: 'board limit',
    0x400: 'reliability',
}


class Nvml:
    """Utilisation, power, clock, memory and throttling of one GPU.

    NVML is begun by the first `read` and ended by `close`. A figure that the GPU does not have is
    missing from what is read, as utilisation is for a slice of one.

    Args:
        index: Of the GPU, as CUDA counts in this process.
        properties: Of the GPU, as torch has them: they say which one it is, where
            `CUDA_VISIBLE_DEVICES` alone does not (CUDA begins with the fastest, NVML with the
            lowest bus number). Defaults to None.
        library: Defaults to None: `pynvml`, where it is installed.
    """

    def __init__(self, index: int, properties: Any = None, library: Any = None) -> None:
        self._index, self._properties = index, properties
        self._library = library
        self._handle: Any = None
        self._begun = False

    def read(self) -> dict[str, Any]:
        """`utilisation` (0 to 1), `power` (W), `clock` (MHz), `memory_used`, `throttle`."""
        if not self._begun:
            self._begin()
        if self._handle is None:
            return {}
        nvml, handle, found = self._library, self._handle, {}
        figures: dict[str, Callable[[], Any]] = {
            'utilisation': lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            'power': lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            'clock': lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            'memory_used': lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            'throttle': lambda: throttle_reasons(_reasons(nvml, handle)),
        }
        for name, figure in figures.items():
            with contextlib.suppress(nvml.NVMLError):
                found[name] = figure()
        return found

    def close(self) -> None:
        """End NVML, if it was begun here."""
        if self._handle is not None:
            self._handle, self._begun = None, False
            self._shut_down()

    def _begin(self) -> None:
        self._begun = True
        if self._library is None:
            try:
                import pynvml
            except ImportError:
                return
            self._library = pynvml
        try:
            self._library.nvmlInit()
        except self._library.NVMLError:  # there is no driver, or another version of it
            return
        self._handle = self._find()
        if self._handle is None:
            self._shut_down()

    def _find(self) -> Any:
        """The first that is there, of what the GPU may be called; None where none is."""
        for find in _ways(self._library, self._index, self._properties):
            with contextlib.suppress(self._library.NVMLError):
                return find()
        return None

    def _shut_down(self) -> None:
        with contextlib.suppress(self._library.NVMLError):
            self._library.nvmlShutdown()


def throttle_reasons(mask: int) -> list[str]:
    """In words, why the clocks are lower than they could be."""
    return [reason for bit, reason in THROTTLE_REASONS.items() if mask & bit]


def _reasons(nvml: Any, handle: Any) -> int:
    try:
        return nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (nvml.NVMLError, AttributeError):  # older ones have the older name only
        return nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)


def _ways(nvml: Any, index: int, properties: Any) -> list[Callable[[], Any]]:
    """Of finding the GPU, the surest first."""
    ways: list[Callable[[], Any]] = []
    uuid = getattr(properties, 'uuid', None)
    if uuid is not None:
        for kind in ('GPU', 'MIG'):
            ways.append(partial(nvml.nvmlDeviceGetHandleByUUID, f'{kind}-{uuid}'))
    if hasattr(properties, 'pci_bus_id'):
        bus = f'{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0'
        domain = getattr(properties, 'pci_domain_id', 0)
        ways.append(partial(nvml.nvmlDeviceGetHandleByPciBusId, f'{domain:08x}:{bus}'))
    return ways or [partial(_by_environment, nvml, index)]


def _by_environment(nvml: Any, index: int) -> Any:
    """By what `CUDA_VISIBLE_DEVICES` says, which NVML does not look at."""
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    if not visible:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    entries = [entry.strip() for entry in visible.split(',')]
    if index >= len(entries):
        return None
    if entries[index].isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(entries[index]))
    # CUDA takes as much of a UUID as tells one GPU from the others; NVML wants all of it.
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        if nvml.nvmlDeviceGetUUID(handle).startswith(entries[index]):
            return handle
    return nvml.nvmlDeviceGetHandleByUUID(entries[index])  # a slice of a GPU
