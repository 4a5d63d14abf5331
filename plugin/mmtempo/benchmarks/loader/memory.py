"""Measure the memory of a loader and its workers with a full cache."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from mmtempo.benchmarks import process_memory
from mmtempo.benchmarks.harness import Report

# Bar.
MAX_MEMORY = 1.25
COMMAND = [sys.executable, '-m', 'mmtempo.benchmarks.loader.holder']


@dataclass(frozen=True)
class Held:
    """Memory while all prefetched batches exist.

    Attributes:
        cached: Bytes in the cache.
        total: Bytes of the process and its workers, with shared memory counted once.
    """

    cached: int
    total: int


def held_with(budget: int, workers: list[int]) -> dict[int, Held] | None:
    """Return the memory with each number of workers, measured in a fresh process.

    Args:
        budget: Bytes of the cache, which is full.
        workers: Numbers of workers.

    Returns:
        Memory by number of workers; None on systems other than Linux.
    """
    if not process_memory.memory_of(os.getpid()):
        return None
    command = [*COMMAND, str(budget), *map(str, workers)]
    found: dict[int, Held] = {}
    with process_memory.talking_to(command) as (process, failure):
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('ready'):
                count, cached = map(int, line.split()[1:])
                found[count] = Held(cached, process_memory.memory_of(process.pid))
                process.stdin.write('next\n')
                process.stdin.flush()
        if process.wait() or list(found) != workers:
            raise failure()
    return found


def measure_memory(report: Report, budget: int, workers: list[int]) -> None:
    """Compare the memory with different numbers of workers.

    Args:
        report: Report to which figures, a check and a table are added.
        budget: Bytes of the cache.
        workers: Numbers of workers; the last is compared with the first.
    """
    found = held_with(budget, workers)
    if found is None:
        report.notes.append('memory: not measured here, it needs /proc/PID/smaps_rollup')
        return
    first = workers[0]
    table = report.add_table(
        'memory with a full cache; MB, shared counted once (PSS)',
        ('workers', 'in the cache', 'in all processes', f'x {first} worker'),
    )
    for count, held in found.items():
        share = held.total / found[first].total
        report.arms[f'memory, {count} workers'] = dict(
            cached_bytes=held.cached, total_bytes=held.total, to_first=share
        )
        sizes = f'{held.cached / 1e6:,.0f}', f'{held.total / 1e6:,.0f}'
        table.add_row(str(count), *sizes, f'{share:.3f}')
    share = found[workers[-1]].total / found[first].total
    report.at_most(f'memory: {workers[-1]} workers, x {first} worker', share, MAX_MEMORY)
