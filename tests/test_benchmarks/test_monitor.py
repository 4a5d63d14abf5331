"""Each arm is a process of its own, and trains; the report has the bars of the issue."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mmtempo.benchmarks import monitor
from mmtempo.benchmarks.monitor import ROUND, TIMERS, Apart, measure_monitor


def test_an_arm_trains_in_a_process_of_its_own(tmp_path: Path) -> None:
    arms = {
        name: Apart(timer, str(tmp_path / f'{os.getpid()}-{name}'))
        for name, timer in TIMERS.items()
    }
    for _ in range(2):
        for arm in arms.values():
            taken = arm.run()
            assert len(taken) == ROUND
            assert min(taken) > 0
    for arm in arms.values():
        arm.close()
    assert len({arm._process.pid for arm in arms.values()} | {os.getpid()}) == len(arms) + 1
    assert [arm._process.exitcode for arm in arms.values()] == [0, 0, 0]
    # The monitor has written of its own arm, down to the end; the others have none.
    assert [path.parent.name for path in tmp_path.rglob('tempo.jsonl')] == [f'{os.getpid()}-ours']
    (lines,) = tmp_path.rglob('tempo.jsonl')
    assert '"status":"completed"' in lines.read_text().splitlines()[-1]


def test_an_arm_that_ends_is_told(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(RuntimeError, match='an arm ended with exit code 1'):
        Apart(dict(type='NoSuchHook'), str(tmp_path / f'{os.getpid()}-none'))
    assert 'NoSuchHook' in capfd.readouterr().err


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(monitor, 'SETS', dict(quick=2))
    monkeypatch.setattr(monitor, 'ROUNDS', dict(quick=2))
    monkeypatch.setattr(monitor, 'WARM_UP', 1)
    monkeypatch.setattr(monitor, 'SIMULATED', dict(quick=(5000, 6000)))
    report = measure_monitor(quick=True)
    assert set(report.arms) == {*TIMERS, 'waits an iteration', 'simulated'}
    assert report.arms['ours']['n'] == 4
    assert [(check.limit, check.at_least) for check in report.checks] == [
        (60.0, False),
        (0, False),
        (1.02, False),
        (1.02, False),
    ]
    assert report.checks[1].value == 0
    report.write(str(tmp_path / 'monitor.json'))
