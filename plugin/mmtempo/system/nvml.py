"""Read an NVIDIA GPU over NVML; returns nothing without `nvidia-ml-py`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

# Bits of the driver's mask that reduce the clocks. Others mean idle, clocks set by the user or a
# display, and a GPU that waits for another.
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
    """Utilization, power, clock, memory and throttling of one GPU.

    It is initialized at once; `close` shuts it down. A figure that the GPU does not have, such as
    the utilization of a MIG slice, is left out.

    Args:
        index: The CUDA index of the GPU in this process.
        properties: The device properties of torch, which identify the GPU. CUDA orders GPUs by
            speed, NVML by bus number. Defaults to None: use `CUDA_VISIBLE_DEVICES`.
        library: The NVML library. Defaults to None: `pynvml`, if installed.
    """

    def __init__(self, index: int, properties: Any = None, library: Any = None) -> None:
        self._library, self._handle = library or _installed(), None
        if self._library is None:
            return
        with contextlib.suppress(self._library.NVMLError):  # no driver, or another version of it
            self._library.nvmlInit()
            self._handle = _find(self._library, index, properties)
            if self._handle is None:
                self._library.nvmlShutdown()

    def read(self) -> dict[str, Any]:
        """Return `utilisation` (0 to 1), `power` (W), `clock` (MHz), `memory_used`, `throttle`."""
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
        """Shut down NVML if it was initialized here."""
        if self._handle is not None:
            self._handle = None
            with contextlib.suppress(self._library.NVMLError):
                self._library.nvmlShutdown()


def _installed() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _find(nvml: Any, index: int, properties: Any) -> Any:
    """Return the handle of the GPU, found by the surest identifier; None if none works."""
    for find in _ways(nvml, index, properties):
        with contextlib.suppress(nvml.NVMLError):
            return find()
    return None


def throttle_reasons(mask: int) -> list[str]:
    """Return the names of the reasons in a mask for reduced clocks."""
    return [reason for bit, reason in THROTTLE_REASONS.items() if mask & bit]


def _reasons(nvml: Any, handle: Any) -> int:
    try:
        return nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (nvml.NVMLError, AttributeError):  # older drivers and libraries
        return nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)


def _ways(nvml: Any, index: int, properties: Any) -> list[Callable[[], Any]]:
    """Return ways to find the GPU, surest first."""
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
    """Find the GPU by `CUDA_VISIBLE_DEVICES`, which NVML ignores."""
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    if not visible:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    entries = [entry.strip() for entry in visible.split(',')]
    if index >= len(entries):
        return None
    if entries[index].isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(entries[index]))
    # CUDA accepts a unique prefix of a UUID; NVML needs all of it.
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        if nvml.nvmlDeviceGetUUID(handle).startswith(entries[index]):
            return handle
    return nvml.nvmlDeviceGetHandleByUUID(entries[index])  # a MIG slice
