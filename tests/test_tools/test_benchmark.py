"""`tools/benchmark.py` on a command line: exit codes, files, mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mmtempo.benchmarks import BENCHMARKS, Report
from tests.testing.common import ROOT


def tool() -> ModuleType:
    """Import the script as a module."""
    sys.path.insert(0, str(ROOT / 'tools'))
    try:
        import benchmark
    finally:
        sys.path.pop(0)
    return benchmark


@pytest.mark.parametrize(('waits', 'code'), [(0, 0), (1, 1)])
def test_exit_code_is_1_if_a_bar_is_missed(
    waits: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    quick_values: list[bool] = []

    def measure(quick: bool) -> Report:
        quick_values.append(quick)
        report = Report('splat')
        report.at_most('waits', waits, 0)
        return report

    monkeypatch.setitem(BENCHMARKS, 'splat', measure)
    path = tmp_path / 'report.json'
    monkeypatch.setattr(sys, 'argv', ['benchmark.py', 'splat', '--quick', '--json', str(path)])
    assert tool().main() == code
    assert quick_values == [True]
    assert json.loads(path.read_text())['checks'][0]['ok'] == (code == 0)
    assert f'waits: {waits} (<= 0)' in capsys.readouterr().out


def call(*arguments: str) -> subprocess.CompletedProcess:
    """Run the script in a process."""
    command = [sys.executable, str(ROOT / 'tools/benchmark.py'), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=800)


def test_mistakes_are_errors_before_measuring(tmp_path: Path) -> None:
    result = call('splat', '--json', str(tmp_path / 'no' / 'report.json'))
    assert result.returncode == 2
    assert f'--json: the folder {tmp_path}/no does not exist' in result.stderr
    result = call('splatt')
    assert result.returncode == 2
    assert 'splat' in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(('name', 'checks'), [('splat', 15), ('checkpoint', 3)])
def test_benchmark_runs_from_the_command_line(name: str, checks: int, tmp_path: Path) -> None:
    result = call(name, '--quick', '--json', str(tmp_path / 'report.json'))
    assert result.returncode in (0, 1), result.stderr
    content = json.loads((tmp_path / 'report.json').read_text())
    assert len(content['checks']) >= checks
    assert content['machine']['cpu'] in result.stdout
