"""What samples of the machine say: why an iteration took long, and what to change in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

MB, GB = 1 << 20, 1 << 30
# Totals since the machine began: only their differences say anything.
COUNTERS = {'swap_in', 'swap_out', 'psi_cpu', 'psi_memory', 'psi_io', 'throttled'}
# What share of the iteration is worth a word, at least so many seconds. Some waiting for CPUs and
# disks is what workers do all the time: there, what goes beyond the usual counts.
STALLS = {'psi_memory': 0.1, 'throttled': 0.1, 'psi_io': 0.25, 'psi_cpu': 0.5}
USUAL = {'psi_io', 'psi_cpu'}
FEWEST_SECONDS = 0.02
MUCH_WRITEBACK = 64 * MB
# Less is what others on the machine do now and then.
SOME_SWAPPING = MB

FULL_RAM, FEW_SHM = 0.9, 0.1
# /dev/shm shrinks where it goes down evenly for a minute or more, by a twentieth of it or more,
# and would be full within an hour. Batches come and go there: only the most that is free counts.
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
    """Figures by name, and when reading them began and ended."""

    began: float
    ended: float
    figures: dict[str, Any]

    def get(self, name: str) -> Any:
        """None where it was not read; `device.retries` lies one level deeper."""
        found: Any = self.figures
        for part in name.split('.'):
            found = (found or {}).get(part)
        return found


def evidence(samples: Sequence[Sample], start: float, end: float) -> dict[str, Any]:
    """What was unusual between two moments; samples next to them count.

    ==================== =====================================================================
    swap_in, swap_out    bytes, from 1 MB on
    psi_memory           seconds for which some process here waited for memory; psi_io and
                         psi_cpu likewise, what goes beyond the usual. Not more than there were.
    throttled            seconds that a CPU quota has taken away, of all CPUs together
    writeback            bytes on their way to disks at worst, from 64 MB on
    retries              how often the device's allocator has run out and begun anew
    throttle             why the GPU was slowed down, if it is not for most of the time
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


def findings(
    first: Sample, samples: Sequence[Sample], known: Container[str] = ()
) -> Iterator[tuple[str, str]]:
    """What should be changed before it gets worse: what about, and a text for people.

    Args:
        first: Of this run.
        samples: The most recent ones, the newest last.
        known: What not to look for any more. Defaults to ().
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
    size = figures.get('tree_pss')
    ours = '' if size is None else f', {_size(size)} by {_processes(figures["tree_processes"])}'
    return (
        f'RAM: {used:.0%} of {_size(total)} of {figures.get("ram_of", "the machine")} is in '
        f'use{ours}; when it is full, processes are killed: {LESS_MEMORY}'
    )


def _swapping(first: Sample, samples: Sequence[Sample]) -> str | None:
    ways = [_difference(first, samples[-1], name) for name in ('swap_in', 'swap_out')]
    if max(ways) < SOME_SWAPPING:
        return None
    return (
        f'swap: since the run began the machine has read {_size(ways[0])} back from it and '
        f'written {_size(ways[1])} to it; who needs such a page waits for the disk: {LESS_MEMORY}'
    )


def _full_shm(first: Sample, samples: Sequence[Sample]) -> str | None:
    free, total = samples[-1].get('shm_free'), samples[-1].get('shm_total')
    if not total or free is None or free >= FEW_SHM * total:
        return None
    return (
        f'/dev/shm: {_size(free)} of {_size(total)} is free; a worker that writes beyond it is '
        f'killed: {_less_shm(total)}'
    )


def _shrinking_shm(first: Sample, samples: Sequence[Sample]) -> str | None:
    """The most that was free, in each third of the time."""
    total = samples[-1].get('shm_total')
    some = samples[:: math.ceil(len(samples) / TREND_SAMPLES)]  # not all, each time
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
        f'/dev/shm: what is free shrinks by {_size(60 * rate)} a minute, {_size(most[2])} of '
        f'{_size(total)} is left, which is enough for {left / 60:.0f} minutes; something keeps '
        f'batches, or leaves files there: {_less_shm(total)}'
    )


def _retries(first: Sample, samples: Sequence[Sample]) -> str | None:
    """Also those of the first sample: the allocator counts in this process only."""
    retries = samples[-1].get('device.retries')
    if not retries:
        return None
    reserved = samples[-1].get('device.reserved')
    now = '' if reserved is None else f' ({_size(reserved)} reserved now)'
    return (
        f'device memory: {retries} x it was full{now}, so that all that was kept for reuse had '
        f'to be given back, for which the device stands still: {LESS_DEVICE_MEMORY}'
    )


def _difference(old: Sample, new: Sample, name: str) -> float:
    before, after = old.get(name), new.get(name)
    return 0 if before is None or after is None else after - before


def _usual_rate(samples: Sequence[Sample], old: Sample, new: Sample, name: str) -> float:
    """A second, at all other times."""
    amount = _difference(samples[0], samples[-1], name) - _difference(old, new, name)
    seconds = (samples[-1].began - samples[0].began) - (new.began - old.began)
    return amount / seconds if seconds > 0 else 0.0


def _unusual_reasons(samples: Sequence[Sample], around: Sequence[Sample]) -> list[str]:
    seen = [reason for one in samples for reason in one.get('device.throttle') or ()]
    now = {reason for one in around for reason in one.get('device.throttle') or ()}
    others = len(samples) - len(around)
    return sorted(reason for reason in now if not others or seen.count(reason) <= len(samples) / 2)


def _less_shm(total: int) -> str:
    return LESS_SHM.format(size=f'{math.ceil(2 * total / GB)}g')


def _processes(number: int) -> str:
    return 'this process' if number == 1 else f'the {number} processes of this training'


def _size(size: float) -> str:
    unit, name = (GB, 'GB') if size >= GB else (MB, 'MB') if size >= MB else (1024, 'kB')
    return f'{size / unit:.3g} {name}'
