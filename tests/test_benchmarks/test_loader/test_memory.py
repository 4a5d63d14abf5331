"""Memory is looked at while the cache is full and all workers are there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmtempo.benchmarks import process_memory
from mmtempo.benchmarks.harness import Report
from mmtempo.benchmarks.loader import holder, memory
from mmtempo.benchmarks.loader.memory import Held, held_with, measure_memory

HOLDER = """
import sys
for count in sys.argv[2:]:
    held = b'x' * int(sys.argv[1]) * int(count)
    print('something else')
    print('ready', count, sys.argv[1], flush=True)
    sys.stdin.readline()
"""
MB = 10**6
linux = pytest.mark.skipif(
    not Path('/proc/self/smaps_rollup').exists(), reason='needs /proc/PID/smaps_rollup'
)


@linux
def test_each_number_is_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, 'COMMAND', [sys.executable, '-S', '-c', HOLDER])
    found = held_with(10 * MB, [1, 4])
    assert found is not None
    assert [held.cached for held in found.values()] == [10 * MB] * 2
    # The interpreter itself is in both.
    assert 29 * MB < found[4].total - found[1].total < 35 * MB


@linux
def test_what_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for code in ('1 / 0', 'print("ready 1 5"); input(); 1 / 0'):
        monkeypatch.setattr(memory, 'COMMAND', [sys.executable, '-S', '-c', code])
        with pytest.raises(RuntimeError, match='ZeroDivisionError'):
            held_with(1, [1])
    monkeypatch.setattr(memory, 'COMMAND', [sys.executable, '-S', '-c', 'pass'])
    with pytest.raises(RuntimeError, match='failed'):
        held_with(1, [1])


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {1: Held(2000, 2400), 2: Held(2000, 2500), 8: Held(2000, 3120)}
    monkeypatch.setattr(memory, 'held_with', lambda budget, workers: found)
    report = Report('loader')
    measure_memory(report, 2000, [1, 2, 8])
    (check,) = report.checks
    assert (check.value, check.limit, check.at_least) == (pytest.approx(1.3), 1.25, False)
    report.write(str(tmp_path / 'loader.json'))
    arms = json.loads((tmp_path / 'loader.json').read_text())['arms']
    assert arms['memory, 2 workers']['total_bytes'] == 2500


def test_elsewhere_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, '_read', lambda path: '')
    report = Report('loader')
    measure_memory(report, 2000, [1])
    assert (report.arms, report.checks) == ({}, [])
    assert 'not measured here' in report.notes[0]


@linux
def test_the_holder_has_a_full_cache_and_its_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    looked: list[int] = []
    before = len(process_memory.family_of(os.getpid()))  # with the process itself

    def readline() -> str:
        looked.append(len(process_memory.family_of(os.getpid())))
        return '\n'

    monkeypatch.setattr(holder, 'SHAPE', (60, 80))
    monkeypatch.setattr(holder, 'REST', 0)
    monkeypatch.setattr(holder, 'SPARE', 1.2)  # small samples have large heads
    # More samples than are made ahead.
    size = 60 * 4 * 60 * 80
    monkeypatch.setattr(sys, 'argv', ['loader_holder', str(size), '1', '2'])
    monkeypatch.setattr(sys, 'stdin', SimpleNamespace(readline=readline, close=lambda: None))
    holder.main()
    assert looked == [before + 1, before + 2]
    ready = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in ready] == [['ready', '1'], ['ready', '2']]
    assert all(size <= int(line[2]) < 1.2 * size for line in ready)
