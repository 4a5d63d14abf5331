"""Read the state of the machine and of the container of this process.

Each function returns figures by the names of a sample, or None where the system has none. Units are
bytes and seconds. `psi_*`, `throttled`, `swap_in`, `swap_out` and `cpu_*` are totals since the boot
of the machine, the creation of the control group or the start of this process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil

from .limits import control_groups, group_memory, meminfo, read_file, shared_memory
from .nvml import Nvml

if TYPE_CHECKING:
    import torch

Figures = dict[str, Any]
Reading = Callable[[], Figures | None]

DISK_CACHE = ('Dirty', 'Writeback')
# Pages moved to and from a disk or compressed memory (zswap); processes wait for both.
_SWAPPED = re.compile(r'^[pz]swp(in|out) (\d+)$', re.MULTILINE)
_STALLED = re.compile(r'^some .*total=(\d+)', re.MULTILINE)
# Version 2 counts microseconds, version 1 nanoseconds.
_THROTTLED = re.compile(r'^throttled_(usec|time) (\d+)$', re.MULTILINE)
_THROTTLED_UNITS = {'usec': 1e-6, 'time': 1e-9}
_PSS = re.compile(r'^Pss:\s+(\d+) kB', re.MULTILINE)


def memory(root: str = '/', groups: Sequence[str] = ()) -> Figures | None:
    """Return `ram_used`, `ram_total`, `ram_of`, `swap_used`, `dirty`, `writeback`.

    The first three describe the machine, or a control group that is closer to its limit.
    Reclaimable memory does not count as used.

    Args:
        root: Root of the file systems, for tests. Defaults to '/'.
        groups: Folders of control groups. Defaults to ().
    """
    if sys.platform != 'linux':
        whole, swap = psutil.virtual_memory(), psutil.swap_memory()
        used = 1 - whole.available / whole.total
        return dict(ram_used=used, ram_total=whole.total, ram_of='the machine', swap_used=swap.used)
    info = meminfo(root)
    if 'MemAvailable' not in info:
        return None
    total = info['MemTotal']
    candidates = [(1 - info['MemAvailable'] / total, total, 'the machine')]
    for folder in groups:
        uses = group_memory(folder)
        candidates += [(used / limit, limit, 'the container') for used, limit in uses if limit]
    found: Figures = dict(zip(('ram_used', 'ram_total', 'ram_of'), max(candidates)))
    if {'SwapTotal', 'SwapFree'} <= set(info):
        found['swap_used'] = info['SwapTotal'] - info['SwapFree']
    return found | {name.lower(): info[name] for name in DISK_CACHE if name in info}


def swapping(root: str = '/') -> Figures | None:
    """Return `swap_in` and `swap_out` of the whole machine since boot."""
    if sys.platform == 'darwin':
        swap = psutil.swap_memory()
        return dict(swap_in=swap.sin, swap_out=swap.sout)
    found: Figures = {}
    for way, pages in _SWAPPED.findall(read_file(root, 'proc/vmstat')):
        name = f'swap_{way}'
        found[name] = found.get(name, 0) + int(pages) * mmap.PAGESIZE
    return found or None


def pressure(root: str = '/', groups: Sequence[str] = ()) -> Figures | None:
    """Return `psi_cpu`, `psi_memory`, `psi_io`: seconds in which a process waited for it.

    Args:
        root: Root of the file systems, for tests. Defaults to '/'.
        groups: Folders of control groups, innermost first. A group counts this training and its
            workers, the machine all processes. Defaults to ().
    """
    found: Figures = {}
    for what in ('cpu', 'memory', 'io'):
        places = [(folder, f'{what}.pressure') for folder in groups]
        places.append((root, f'proc/pressure/{what}'))
        totals = (_STALLED.search(read_file(*place)) for place in places)
        first = next(filter(None, totals), None)
        if first is not None:
            found[f'psi_{what}'] = int(first[1]) * 1e-6
    return found or None


def throttling(groups: Sequence[str]) -> Figures | None:
    """Return `throttled`: CPU seconds that a quota has taken away, summed over CPUs."""
    totals = [
        int(number) * _THROTTLED_UNITS[unit]
        for folder in groups
        for unit, number in _THROTTLED.findall(read_file(folder, 'cpu.stat'))
    ]
    return dict(throttled=sum(totals)) if totals else None


def cpu_time(pid: int, root: str = '/') -> Figures | None:
    """Return `cpu_all`, `cpu_busy` of the cores of this process, `cpu_own` of its family, `queued`.

    `cpu_own` includes descendants that have ended, once their parents have collected them. `queued`
    are the seconds in which the main thread was ready to run and another one had its CPU.

    Args:
        pid: The process.
        root: Root of the file systems, for tests. Defaults to '/'.
    """
    if not hasattr(os, 'sched_getaffinity'):
        return None
    cores = {f'cpu{number}' for number in os.sched_getaffinity(pid)}
    lines = (line.split() for line in read_file(root, 'proc/stat').splitlines())
    # user, nice, system, idle, iowait, irq, softirq, steal; what follows is part of user and nice
    times = [[int(one) for one in line[1:9]] for line in lines if line and line[0] in cores]
    if not times:
        return None
    tick = os.sysconf('SC_CLK_TCK')
    everything = sum(map(sum, times)) / tick
    idle = sum(one[3] + one[4] for one in times) / tick
    own = sum(_cpu_ticks(one, root) for one in family_of(pid)) / tick
    found = dict(cpu_all=everything, cpu_busy=everything - idle, cpu_own=own)
    waited = read_file(root, f'proc/{pid}/schedstat').split()
    return found | (dict(queued=int(waited[1]) * 1e-9) if len(waited) > 1 else {})


def _cpu_ticks(pid: int, root: str) -> int:
    """Return the ticks of a process and of its children that have ended."""
    fields = read_file(root, f'proc/{pid}/stat').rpartition(')')[2].split()
    return sum(map(int, fields[11:15]))


def main_memory(process: psutil.Process) -> Figures:
    """Return `main_rss`, the resident memory of the process alone."""
    return dict(main_rss=process.memory_info().rss)


def tree_memory(pid: int) -> Figures:
    """Return `tree_pss` and `tree_processes` of a process and its descendants.

    Shared memory counts once in their sum. Without figures of shared memory, `tree_rss` is returned
    instead, which counts it once for each process.
    Slow for large processes, because the kernel walks through all their pages.
    """
    # The parent comes last: a page that a child maps meanwhile moves from the parent's share to the
    # child's, and would count in both.
    family = family_of(pid)[::-1]
    name, sizes = 'tree_pss', [_pss(one) for one in family]
    if sizes[-1] is None:
        name, sizes = 'tree_rss', [_rss(one) for one in family]
    known = [size for size in sizes if size is not None]  # the others have exited meanwhile
    return {name: sum(known), 'tree_processes': len(known)}


def family_of(pid: int) -> list[int]:
    """Return a process and its descendants, without iterating over all processes."""
    if not os.path.exists(
        '/proc/thread-self/children'
    ):  # another system, or a kernel without this file
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    family = [pid]
    for one in family:
        tasks = f'/proc/{one}/task'
        with contextlib.suppress(OSError):  # the process has exited
            for thread in os.listdir(tasks):  # each thread lists the children that it started
                family += map(int, read_file(tasks, f'{thread}/children').split())
    return family


def device_memory(device: torch.device) -> Figures | None:
    """Return `allocated`, `reserved` and `retries` of the device allocator; reset no peaks.

    Args:
        device: The device with its index; the current device differs between threads.
    """
    module = _initialized_module(device)
    stats = module.memory_stats(device) if hasattr(module, 'memory_stats') else {}
    names = dict(
        allocated='allocated_bytes.all.current',
        reserved='reserved_bytes.all.current',
        retries='num_alloc_retries',
    )
    found = {name: stats[key] for name, key in names.items() if key in stats}
    return dict(device=found) if found else None


class GpuReading:
    """A reading of `utilisation`, `power`, `clock`, `memory_used` and `throttle` of a GPU.

    Args:
        device: The device with its index. Nothing is read until torch has initialized CUDA.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._nvml: Nvml | None = None

    def __call__(self) -> Figures | None:
        if self._nvml is None:
            cuda = _initialized_module(self._device)
            if cuda is None:
                return None
            properties = cuda.get_device_properties(self._device)
            self._nvml = Nvml(self._device.index or 0, properties)
        found = self._nvml.read()
        return dict(device=found) if found else None

    def close(self) -> None:
        """Shut down NVML."""
        if self._nvml is not None:
            self._nvml.close()


class RateLimited:
    """A slow reading that repeats its last result until it may be taken again.

    Args:
        reading: The reading.
        rest: Minimum seconds between two readings. Defaults to 10.0.
        share: Maximum share of the time that readings may take. Defaults to 0.01.
        clock: Returns seconds; `time.perf_counter` if not given.
    """

    def __init__(
        self,
        reading: Reading,
        rest: float = 10.0,
        share: float = 0.01,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._reading, self._rest, self._share, self._clock = reading, rest, share, clock
        self._next = float('-inf')
        self._last: Figures | None = None

    def __call__(self) -> Figures | None:
        begun = self._clock()
        if begun >= self._next:
            self._last = self._reading()
            ended = self._clock()
            self._next = ended + max(self._rest, (ended - begun) / self._share)
        return self._last


class MachineReadings:
    """All readings by their subject, cheap enough for once a second.

    Args:
        device: The device of the model, with its index. Defaults to None: read no device.
        root: Root of the file systems, for tests. Defaults to '/'.
    """

    def __init__(self, device: torch.device | None = None, root: str = '/') -> None:
        own = psutil.Process()
        memory_groups = list(control_groups('memory', root))
        cpu_groups = list(control_groups('cpu', root))
        self.parts: dict[str, Reading] = {
            'RAM': partial(memory, root, memory_groups),
            'swapping': partial(swapping, root),
            '/dev/shm': partial(shared_memory, root),
            'pressure': partial(pressure, root, cpu_groups),
            'CPU time': partial(cpu_time, own.pid, root),
            'CPU quota': partial(throttling, cpu_groups),
            'memory of this process': partial(main_memory, own),
            'memory of all its processes': RateLimited(partial(tree_memory, own.pid)),
        }
        self._gpu: GpuReading | None = None
        if device is not None and device.type != 'cpu':
            self.parts['device memory'] = partial(device_memory, device)
        if device is not None and device.type == 'cuda':
            self._gpu = self.parts['GPU'] = GpuReading(device)

    def close(self) -> None:
        """Release what the readings have opened."""
        if self._gpu is not None:
            self._gpu.close()


def _initialized_module(device: torch.device) -> Any:
    """Return the torch module of a device, such as `torch.cuda`, if it is initialized."""
    import torch

    module = getattr(torch, device.type, None)
    is_initialized = getattr(module, 'is_initialized', None)
    return module if is_initialized is not None and is_initialized() else None


def _pss(pid: int) -> int | None:
    found = _PSS.search(read_file(f'/proc/{pid}', 'smaps_rollup'))
    return 1024 * int(found[1]) if found else None


def _rss(pid: int) -> int | None:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).memory_info().rss
    return None
