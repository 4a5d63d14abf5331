"""Findings about the machine: processors, memory, and warnings of the run."""

from __future__ import annotations

from collections.abc import Iterator

from mmtempo.utils.units import percent, size

from .figures import FULL, WORTH, Advice, Finding, RunFigures

SOME_SWAPPING = 1 << 20  # bytes; other programs swap smaller amounts now and then


def other_processes(run: RunFigures) -> Iterator[Finding]:
    """Find other processes that use the CPUs while the training waits for one."""
    if run.is_taken:
        seconds = run.pressure['queued'] * run.total
        headline = (
            f'Other processes use {percent(run.pressure["others"])} of the CPU time: the figures '
            'of this run are unreliable.'
        )
        why = (
            f'The main thread was ready to run and waited for a CPU for {run.cost(seconds)}. End '
            'the other processes, or train on a machine without them, and judge that run.'
        )
        yield Finding('busy machine', seconds, headline, [why], comes_first=True)


def cpu_quota(run: RunFigures) -> Iterator[Finding]:
    """Find a CPU limit of the container that stops the training."""
    stalls = run.lost_to('CPU limit of the container')
    share = run.pressure['throttled'] / (run.cores or 1)
    if 'queued' in run.pressure:  # workers that are stopped cost nothing while batches are in time
        share = min(share, run.pressure['queued'])
    seconds = max(stalls, share * run.total)
    if run.is_worth(seconds):
        headline = (
            f'The CPU limit of the container costs {percent(run.share(seconds))} of the time.'
        )
        why = (
            f'Its processes were stopped for {run.cost(seconds)}. Raise the limit (docker --cpus).'
        )
        yield Finding('cpu quota', seconds, headline, [why])


def memory(run: RunFigures) -> Iterator[Finding]:
    """Find a shortage of memory: full, swapping, or pages that are read from a disk again."""
    used, pressure = run.peak.get('ram_used') or 0.0, run.pressure['memory']
    swapping, faults = run.lost_to('swapping'), run.lost('memory')
    stalls = sum(seconds for _, seconds, _ in faults)
    seconds = max(stalls, pressure * run.total if pressure > WORTH else 0.0)
    if used <= FULL and not run.is_worth(seconds):
        return
    swapped = run.pressure['swapped']
    why = [f'{percent(used)} of the memory was in use.'] if used else []
    why += [f'{cause.capitalize()}: {run.cost(lost)}.' for cause, lost, _ in faults]
    if pressure > WORTH:
        why.append(f'A process waited for memory in {percent(pressure)} of the time.')
    if swapped >= SOME_SWAPPING:
        why.append(f'{size(swapped)} were read from swap.')
    key = 'swap' if swapping > seconds / 2 else 'memory'
    headline = f'Lack of memory costs {percent(run.share(seconds))} of the time.'
    if not run.is_worth(seconds):
        seconds, headline = 0.0, ''
    yield Finding(key, seconds, headline, why, _less_memory(run), is_risk=True)


def _less_memory(run: RunFigures) -> list[Advice]:
    workers, ahead = run.whole('num_workers') or 0, run.whole('prefetch_factor') or 1
    change = []
    if workers and ahead > 1:
        reason = f'fewer prefetched batches in memory than with {ahead}'
        change.append(Advice(f'train_dataloader.prefetch_factor={ahead // 2}', reason))
    if workers > 1 and not run.is_worth(run.waited):
        reason = f'each of the {workers} workers takes memory; the loader is not the limit'
        change.append(Advice(f'train_dataloader.num_workers={workers // 2}', reason))
    return change


def page_faults(run: RunFigures) -> Iterator[Finding]:
    """Find stalls by pages that are touched for the first time; memory need not be short."""
    seconds = run.lost_to('page faults', 'host')
    if run.is_worth(seconds):
        share = percent(run.share(seconds))
        headline = f'Page faults on newly allocated memory cost {share} of the time.'
        yield Finding('page faults', seconds, headline, [f'Page faults: {run.cost(seconds)}.'])


def warnings(run: RunFigures) -> Iterator[Finding]:
    """Pass on the first warnings of the run."""
    lines = [str(line) for line in (run.summary.get('warnings') or [])[:3]]
    if lines:
        yield Finding('warnings', 0.0, '', lines, is_risk=True)
