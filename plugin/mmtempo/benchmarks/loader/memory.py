"""How much memory a loader and its workers have, with a full cache."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from rich.table import Table

from mmtempo.benchmarks import process_memory
from mmtempo.benchmarks.harness import Report

# The bar of the issue that asked for this benchmark.
MAX_MEMORY = 1.25
COMMAND = [sys.executable, '-m', 'mmtempo.benchmarks.loader.holder']


@dataclass(frozen=True)
class Held:
    """What is held while all batches that are made ahead are there.

    Attributes:
        cached: Bytes in the cache.
        total: Bytes of the process and its workers, memory shared by them counted once.
    """

    cached: int
    total: int


def held_with(budget: int, workers: list[int]) -> dict[int, Held] | None:
    """What a loader holds with each number of workers, in a process of its own; Linux only.

    Args:
        budget: Bytes of the cache, which is full.
        workers: Numbers of workers.
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
                process.stdin.write('go on\n')
                process.stdin.flush()
        if process.wait() or list(found) != workers:
            raise failure()
    return found


def measure_memory(report: Report, budget: int, workers: list[int]) -> None:
    """Compare what is held with each number of workers.

    Args:
        report: Takes figures, check and table.
        budget: Bytes of the cache.
        workers: Numbers of workers; the last one is compared with the first one.
    """
    found = held_with(budget, workers)
    if found is None:
        report.notes.append('memory: not measured here, it needs /proc/PID/smaps_rollup')
        return
    first = workers[0]
    table = Table(title='memory with a full cache; MB, shared counted once (PSS)')
    for column in ('workers', 'in the cache', 'in all processes', f'x {first} worker'):
        table.add_column(column, justify='right')
    for count, held in found.items():
        share = held.total / found[first].total
        report.arms[f'memory, {count} workers'] = dict(
            cached_bytes=held.cached, total_bytes=held.total, to_first=share
        )
        sizes = f'{held.cached / 1e6:,.0f}', f'{held.total / 1e6:,.0f}'
        table.add_row(str(count), *sizes, f'{share:.3f}')
    report.tables.append(table)
    share = found[workers[-1]].total / found[first].total
    report.at_most(f'memory: {workers[-1]} workers, x {first} worker', share, MAX_MEMORY)
