"""Counts are summed over processes, including those that have ended."""

from __future__ import annotations

import contextlib
import mmap

import pytest

from mmtempo.datasets.cache import counters as process_counters
from mmtempo.datasets.cache.counters import SIZE, ProcessCounters
from tests.testing.processes import in_child


def counters() -> ProcessCounters:
    return ProcessCounters(memoryview(mmap.mmap(-1, SIZE)), contextlib.nullcontext)


def count(counter: ProcessCounters, times: int) -> None:
    for _ in range(times):
        counter.add(0)
    counter.add(3)


def test_totals_include_ended_processes() -> None:
    counter = counters()
    count(counter, 5)
    for _ in range(2):
        in_child(count, counter, 10)
    count(counter, 1)
    assert [counter.total(which) for which in range(5)] == [26, 0, 0, 4, 0]
    # The second child reused the row of the first.
    assert (counter._rows[:, 0] != 0).sum() == 2
    counter.clear()
    count(counter, 2)
    assert counter.total(0) == 2


def test_counts_with_more_processes_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_counters, '_is_alive', lambda pid, own: True)
    counter = counters()
    count(counter, 5)
    assert counter.total(0) == 5
