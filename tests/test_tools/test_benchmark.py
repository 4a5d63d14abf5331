"""Exit codes, files and errors of tools/benchmark.py."""

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
    sys.path.insert(0, str(ROOT / 'tools'))
    try:
        import benchmark
    finally:
        sys.path.pop(0)
    return benchmark


@pytest.mark.parametrize(('waits', 'code'), [(0, 0), (1, 1)])
def test_exit_code_tells_whether_all_bars_are_met(
    waits: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    asked: list[bool] = []

    def measure(quick: bool) -> Report:
        asked.append(quick)
        report = Report('splat')
        report.at_most('waits', waits, 0)
        return report

    monkeypatch.setitem(BENCHMARKS, 'splat', measure)
    path = tmp_path / 'report.json'
    monkeypatch.setattr(sys, 'argv', ['benchmark.py', 'splat', '--quick', '--json', str(path)])
    assert tool().main() == code
    assert asked == [True]
    assert json.loads(path.read_text())['checks'][0]['ok'] == (code == 0)
    assert f'waits: {waits} (<= 0)' in capsys.readouterr().out


def call(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / 'tools/benchmark.py'), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=800)


def test_wrong_arguments_are_reported_before_the_measurement(tmp_path: Path) -> None:
    result = call('splat', '--json', str(tmp_path / 'no' / 'report.json'))
    assert result.returncode == 2
    assert f'--json: the folder {tmp_path}/no does not exist' in result.stderr
    result = call('logger', 'config.py')
    assert result.returncode == 2
    assert 'config, --cfg-options: found with logger, expected with family only' in result.stderr
    result = call('splatt')
    assert result.returncode == 2
    assert 'splat' in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(('name', 'checks'), [('splat', 15), ('checkpoint', 3)])
def test_whole_benchmark_writes_its_checks(name: str, checks: int, tmp_path: Path) -> None:
    result = call(name, '--quick', '--json', str(tmp_path / 'report.json'))
    assert result.returncode in (0, 1), result.stderr
    content = json.loads((tmp_path / 'report.json').read_text())
    assert len(content['checks']) >= checks
    assert content['machine']['cpu'] in result.stdout
