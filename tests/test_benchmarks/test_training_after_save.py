"""Windows with the save, the warm-up or the end of a training are not compared."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmtempo.benchmarks import training_after_save
from mmtempo.benchmarks.training_after_save import TRAIN, before_and_after, measure


def write_windows(path: Path, slower: float, until: int = 210) -> None:
    """Write windows of 0.25 s an iteration; the first iteration belongs to no window."""
    lines: list[dict[str, Any]] = [dict(kind='run')]
    for last in range(10, until + 1, 10):
        count = 9 if last == 10 else 10
        seconds = 0.25 if last <= 100 else 0.25 * slower
        if last in (10, 20, 100, 110, 200):
            seconds = 99.0
        lines.append(dict(kind='window', iter=last - 1, iterations=count, seconds=count * seconds))
    path.write_text('\n'.join(map(json.dumps, lines)) + '\n')


def test_windows_with_saves_and_warm_up_do_not_count(tmp_path: Path) -> None:
    write_windows(tmp_path / 'tempo.jsonl', slower=1.2)
    before, after = before_and_after(tmp_path / 'tempo.jsonl')
    assert (before, after) == (pytest.approx(0.25), pytest.approx(0.3))


def test_training_that_ended_early_is_an_error(tmp_path: Path) -> None:
    write_windows(tmp_path / 'tempo.jsonl', slower=1.0, until=110)
    with pytest.raises(ValueError, match='7 windows before and 0 after iteration 100'):
        before_and_after(tmp_path / 'tempo.jsonl')


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    ran: list[str] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess:
        assert command[1] == str(TRAIN)
        assert TRAIN.is_file()
        folder = Path(command[command.index('--work-dir') + 1])
        saves = 'default_hooks.checkpoint.interval=100' in command
        ran.append('save' if saves else 'no save')
        write_windows(folder / 'tempo.jsonl', slower=1.1 if saves else 1.0)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(training_after_save, 'subprocess', SimpleNamespace(run=run))
    report = measure('config.py', repeats=3)
    assert sorted(ran) == ['no save'] * 3 + ['save'] * 3
    (check,) = report.checks
    assert (check.value, check.limit, check.ok) == (
        pytest.approx(1.1),
        training_after_save.MAX_RATIO,
        False,
    )
    assert report.arms['no save']['after_to_before']['median'] == pytest.approx(1.0)
    assert list(tmp_path.iterdir()) == []
