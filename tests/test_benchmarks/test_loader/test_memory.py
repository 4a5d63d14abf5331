"""Memory with each number of workers is measured and compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mmtempo.benchmarks import process_memory
from mmtempo.benchmarks.harness import Report
from mmtempo.benchmarks.loader import memory
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
def test_memory_with_each_number_of_workers_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, 'COMMAND', [sys.executable, '-S', '-c', HOLDER])
    found = held_with(10 * MB, [1, 4])
    assert found is not None
    assert [held.cached for held in found.values()] == [10 * MB] * 2
    # Both include the interpreter.
    assert 29 * MB < found[4].total - found[1].total < 35 * MB


@linux
def test_failed_process_is_an_error_with_its_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (check.value, check.limit) == (pytest.approx(1.3), memory.MAX_MEMORY)
    assert not check.at_least
    report.write(str(tmp_path / 'loader.json'))
    arms = json.loads((tmp_path / 'loader.json').read_text())['arms']
    assert arms['memory, 2 workers']['total_bytes'] == 2500


def test_memory_is_left_out_where_it_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, '_read', lambda path: '')
    report = Report('loader')
    measure_memory(report, 2000, [1])
    assert (report.arms, report.checks) == ({}, [])
    assert 'not measured here' in report.notes[0]
