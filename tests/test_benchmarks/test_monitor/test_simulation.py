"""The simulated training writes what a training writes, and leaks are detected."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from mmtempo.benchmarks.monitor import simulation as monitor_simulation
from mmtempo.benchmarks.monitor.simulation import STALL, Simulation, bytes_of, held
from mmtempo.monitor.run_recorder import RunRecorder
from mmtempo.timing import run_files


def test_simulation_writes_the_files_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = Simulation(str(tmp_path))
    simulation.run(19_900)
    monkeypatch.setattr(run_files.RunFiles, 'is_due', True)
    simulation.run(20_000)
    lines = [json.loads(line) for line in (tmp_path / 'tempo.jsonl').read_text().splitlines()]
    kinds = [line['kind'] for line in lines]
    assert [kinds.count(kind) for kind in ('run', 'window', 'warning')] == [1, 400, 2]
    stalls = [line for line in lines if line['kind'] == 'stall']
    # The latest stalls are judged only after later iterations of their kind.
    assert [line['iter'] for line in stalls] == list(range(STALL, 20_000, STALL))[: len(stalls)]
    assert len(stalls) >= 60
    assert {'psi_cpu', 'samples', 'worker', 'minor_faults'} <= set(stalls[5]['evidence'])
    assert lines[-1]['ranks'].keys() == {'data', 'step'}
    summary = json.loads((tmp_path / 'tempo_summary.json').read_text())
    assert (
        summary['iterations'] == 19_999
    )  # as in a training: the iteration of the log point has not ended
    assert (summary['periods'][0]['every'], summary['lost']['count']) == (STALL, len(stalls))
    assert summary['verdict']['headline']
    assert summary['device_busy']['looks'] == summary['ranks']['data']['of'] == 400


def test_memory_does_not_grow(tmp_path: Path) -> None:
    first, second = held(str(tmp_path), 8000, 12_000)
    assert 500_000 < first.bytes < 5_000_000
    assert second.bytes <= 1.02 * first.bytes
    assert second.objects <= 1.02 * first.objects


def test_leak_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaks(RunRecorder):
        def window(self) -> dict | None:
            vars(self).setdefault('kept', []).append(super().window())
            return self.kept[-1]  # type: ignore[attr-defined]

    monkeypatch.setattr(monitor_simulation, 'RunRecorder', Leaks)
    first, second = held(str(tmp_path), 8000, 12_000)
    assert second.bytes > 1.02 * first.bytes


def test_bytes_include_all_referenced_objects() -> None:
    content = np.zeros(1000)
    whole = bytes_of([content, dict(a=[content, 'x' * 500]), deque([bytes(300)])])
    assert 8000 + 500 + 300 < whole < 8000 + 500 + 300 + 2000
    assert bytes_of([np, print, dict]) < 200  # code does not count
