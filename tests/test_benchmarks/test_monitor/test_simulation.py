"""The simulated training is one: files, stalls with evidence, verdicts; and a leak is seen."""

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


def test_all_is_written_that_a_training_writes(
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
    # The latest are not judged before those of their kind that come next.
    assert [line['iter'] for line in stalls] == list(range(STALL, 20_000, STALL))[: len(stalls)]
    assert len(stalls) >= 60
    assert {'psi_cpu', 'samples', 'worker', 'minor_faults'} <= set(stalls[5]['evidence'])
    assert lines[-1]['ranks'].keys() == {'data', 'step'}
    summary = json.loads((tmp_path / 'tempo_summary.json').read_text())
    assert summary['iterations'] == 19_999  # as in a training, a line's own has not ended yet
    assert (summary['periods'][0]['every'], summary['lost']['count']) == (STALL, len(stalls))
    assert summary['verdict']['headline']
    assert summary['device_busy']['looks'] == summary['ranks']['data']['of'] == 400


def test_memory_is_held_and_does_not_grow(tmp_path: Path) -> None:
    first, second = held(str(tmp_path), 8000, 12_000)
    assert 500_000 < first.bytes < 5_000_000
    assert second.bytes <= 1.02 * first.bytes
    assert second.objects <= 1.02 * first.objects


def test_a_leak_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaks(RunRecorder):
        def window(self) -> dict | None:
            vars(self).setdefault('kept', []).append(super().window())
            return self.kept[-1]  # type: ignore[attr-defined]

    monkeypatch.setattr(monitor_simulation, 'RunRecorder', Leaks)
    first, second = held(str(tmp_path), 8000, 12_000)
    assert second.bytes > 1.02 * first.bytes


def test_bytes_of_what_an_object_holds() -> None:
    content = np.zeros(1000)
    whole = bytes_of([content, dict(a=[content, 'x' * 500]), deque([bytes(300)])])
    assert 8000 + 500 + 300 < whole < 8000 + 500 + 300 + 2000
    assert bytes_of([np, print, dict]) < 200  # code is nobody's
