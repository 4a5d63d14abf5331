"""Evidence in samples of the machine: causes of slow iterations, and warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

from mmtempo.utils.units import size

MIB, GIB = 1 << 20, 1 << 30
# Totals since boot: only differences are meaningful.
COUNTERS = {
    'swap_in', 'swap_out', 'psi_cpu', 'psi_memory', 'psi_io', 'throttled', 'cpu_all', 'cpu_busy',
    'cpu_own', 'queued',
}  # fmt: skip
# Least share of an iteration, of at least FEWEST_SECONDS, that counts as evidence. Workers always
# wait a little for CPUs and disks, so of USUAL only what exceeds the usual rate counts.
STALLS = {'psi_memory': 0.1, 'throttled': 0.1, 'psi_io': 0.25, 'psi_cpu': 0.5}
USUAL = {'psi_io', 'psi_cpu'}
FEWEST_SECONDS = 0.02
MUCH_WRITEBACK = 64 * MIB
SOME_SWAPPING = MIB  # other programs swap smaller amounts now and then

FULL_RAM, FEW_SHM = 0.9, 0.1
# Free space of /dev/shm shrinks if it falls evenly for a minute or more, by 5 % or more, and would
# reach 0 within an hour. Batches come and go, so maxima of the free space are compared.
TREND_SECONDS, TREND_SHARE, TREND_HORIZON, TREND_SAMPLES = 60, 0.05, 3600, 60

LESS_MEMORY = (
    'lower train_dataloader.num_workers or train_dataloader.prefetch_factor, or the budget of the '
    'cache (CachedDataset, train_dataloader.dataset.budget)'
)
LESS_SHM = (
    'lower train_dataloader.num_workers or train_dataloader.prefetch_factor, or give the container '
    '--shm-size={size}, or --ipc=host'
)
LESS_DEVICE_MEMORY = (
    'lower train_dataloader.batch_size, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True '
    'where inputs differ in size'
)


class Sample(NamedTuple):
    """Figures by name, and when their reading began and ended."""

    began: float
    ended: float
    figures: dict[str, Any]

    def get(self, name: str) -> Any:
        """Return a figure, or None where it was not read; `device.retries` is a nested name."""
        found: Any = self.figures
        for part in name.split('.'):
            found = (found or {}).get(part)
        return found


def evidence(samples: Sequence[Sample], start: float, end: float) -> dict[str, Any]:
    """Return what was unusual between two moments, including the samples next to them.

    ==================== =====================================================================
    swap_in, swap_out    bytes, from 1 MiB
    psi_memory           seconds in which a process here waited for memory; psi_io and psi_cpu
                         likewise, beyond the usual rate. At most the length of the interval.
    throttled            CPU seconds that a quota has taken away, summed over CPUs
    writeback            maximum of bytes being written to disks, from 64 MiB
    retries              times that the device allocator ran out of memory and retried
    throttle             reasons for reduced GPU clocks that do not hold most of the time
    ==================== =====================================================================
    """
    first = max((i for i, one in enumerate(samples) if one.ended <= start), default=0)
    last = next((i for i, one in enumerate(samples) if one.began >= end), len(samples) - 1)
    around = samples[first : last + 1]
    if not around:
        return {}
    old, new = around[0], around[-1]
    found: dict[str, Any] = {}
    least = dict.fromkeys(('swap_in', 'swap_out'), SOME_SWAPPING) | {'device.retries': 1}
    for name, fewest in least.items():
        if _difference(old, new, name) >= fewest:
            found[name.removeprefix('device.')] = _difference(old, new, name)
    for name, share in STALLS.items():
        stalled = _difference(old, new, name)
        if name in USUAL:
            stalled -= _usual_rate(samples, old, new, name) * (new.began - old.began)
        if name.startswith('psi'):
            stalled = min(stalled, end - start)
        if stalled >= max(FEWEST_SECONDS, share * (end - start)):
            found[name] = stalled
    writeback = max(one.get('writeback') or 0 for one in around)
    if writeback >= MUCH_WRITEBACK:
        found['writeback'] = writeback
    reasons = _unusual_reasons(samples, around)
    if reasons:
        found['throttle'] = reasons
    return found


def pressure(first: Sample, last: Sample) -> dict[str, float]:
    """Return shares over the time between two samples; those that are unknown are absent.

    ==================== =====================================================================
    seconds              length of that time
    cpu, memory, io      share of it in which a process here waited for it
    queued               share of it in which the main thread waited for a CPU
    throttled            CPU seconds that a quota has taken away, summed over CPUs, per second
    swapped              bytes read from swap, of the whole machine
    busy                 share of the CPU time of this process's cores that was used
    others               share of it that other processes used
    ==================== =====================================================================
    """
    seconds = last.began - first.began
    if seconds <= 0:
        return {}
    found = dict(seconds=seconds)
    for name in ('psi_cpu', 'psi_memory', 'psi_io', 'queued', 'throttled'):
        if first.get(name) is not None:
            found[name.removeprefix('psi_')] = _difference(first, last, name) / seconds
    if first.get('swap_in') is not None:
        found['swapped'] = _difference(first, last, 'swap_in')
    whole = _difference(first, last, 'cpu_all')
    if whole:
        busy, own = (_difference(first, last, name) for name in ('cpu_busy', 'cpu_own'))
        found.update(busy=busy / whole, others=max(0.0, busy - own) / whole)
    return found


def findings(
    first: Sample, samples: Sequence[Sample], known: Container[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield name and text of conditions that should be changed before they get worse.

    Args:
        first: The first sample of this run.
        samples: The most recent samples, newest last.
        known: Names of conditions to skip. Defaults to ().
    """
    checks: tuple[Callable[[Sample, Sequence[Sample]], str | None], ...]
    checks = (_full_ram, _swapping, _full_shm, _shrinking_shm, _retries)
    for check in checks:
        text = None if check.__name__ in known else check(first, samples)
        if text is not None:
            yield check.__name__, text


def _full_ram(first: Sample, samples: Sequence[Sample]) -> str | None:
    figures = samples[-1].figures
    used, total = figures.get('ram_used'), figures.get('ram_total', 0)
    if used is None or used <= FULL_RAM:
        return None
    used_here = figures.get('tree_pss')
    ours = (
        ''
        if used_here is None
        else f', {size(used_here)} by {_processes(figures["tree_processes"])}'
    )
    return (
        f'RAM: {used:.0%} of {size(total)} of {figures.get("ram_of", "the machine")} is in '
        f'use{ours}; processes are killed when it is full: {LESS_MEMORY}'
    )


def _swapping(first: Sample, samples: Sequence[Sample]) -> str | None:
    ways = [_difference(first, samples[-1], name) for name in ('swap_in', 'swap_out')]
    if max(ways) < SOME_SWAPPING:
        return None
    return (
        f'swap: {size(ways[0])} read and {size(ways[1])} written since the run began; processes '
        f'wait for these pages: {LESS_MEMORY}'
    )


def _full_shm(first: Sample, samples: Sequence[Sample]) -> str | None:
    free, total = samples[-1].get('shm_free'), samples[-1].get('shm_total')
    if not total or free is None or free >= FEW_SHM * total:
        return None
    return (
        f'/dev/shm: {size(free)} of {size(total)} is free; a worker that exceeds it is killed: '
        f'{_less_shm(total)}'
    )


def _shrinking_shm(first: Sample, samples: Sequence[Sample]) -> str | None:
    """Compare the maxima of free space in each third of the time."""
    total = samples[-1].get('shm_total')
    some = samples[:: math.ceil(len(samples) / TREND_SAMPLES)]  # a subset, for speed
    free, third = [one.get('shm_free') for one in some], len(some) // 3
    seconds = samples[-1].began - samples[0].began
    if not total or not third or None in free or seconds < TREND_SECONDS:
        return None
    most = [max(free[i * third : (i + 1) * third]) for i in range(3)]
    fall = most[0] - most[2]
    is_even = min(most[0] - most[1], most[1] - most[2]) >= fall / 4
    if fall < TREND_SHARE * total or not is_even:
        return None
    rate = fall / (some[2 * third].began - some[0].began)
    left = most[2] / rate
    if left > TREND_HORIZON:
        return None
    return (
        f'/dev/shm: free space shrinks by {size(60 * rate)} a minute; {size(most[2])} of '
        f'{size(total)} is left, enough for {left / 60:.0f} minutes; batches are kept, or files '
        f'are left there: {_less_shm(total)}'
    )


def _retries(first: Sample, samples: Sequence[Sample]) -> str | None:
    """Count since the start of the process: the allocator counts this process only."""
    retries = samples[-1].get('device.retries')
    if not retries:
        return None
    reserved = samples[-1].get('device.reserved')
    now = '' if reserved is None else f' ({size(reserved)} reserved now)'
    return (
        f'device memory: full {retries} times{now}; each time the cached memory was freed, which '
        f'stops the device: {LESS_DEVICE_MEMORY}'
    )


def _difference(old: Sample, new: Sample, name: str) -> float:
    before, after = old.get(name), new.get(name)
    return 0 if before is None or after is None else after - before


def _usual_rate(samples: Sequence[Sample], old: Sample, new: Sample, name: str) -> float:
    """Return the rate of a counter, a second, outside the interval."""
    amount = _difference(samples[0], samples[-1], name) - _difference(old, new, name)
    seconds = (samples[-1].began - samples[0].began) - (new.began - old.began)
    return amount / seconds if seconds > 0 else 0.0


def _unusual_reasons(samples: Sequence[Sample], around: Sequence[Sample]) -> list[str]:
    seen = [reason for one in samples for reason in one.get('device.throttle') or ()]
    now = {reason for one in around for reason in one.get('device.throttle') or ()}
    others = len(samples) - len(around)
    return sorted(reason for reason in now if not others or seen.count(reason) <= len(samples) / 2)


def _less_shm(total: int) -> str:
    return LESS_SHM.format(size=f'{math.ceil(2 * total / GIB)}g')


def _processes(number: int) -> str:
    return 'this process' if number == 1 else f'the {number} processes of this training'
