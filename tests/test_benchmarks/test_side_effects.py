"""Parts add no context switches and no threads; medians over processes are checked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mmtempo.benchmarks import side_effects
from mmtempo.benchmarks.harness import Report
from mmtempo.benchmarks.side_effects import Effect, measure_side_effects, run_part
from mmtempo.benchmarks.side_effects_run import PARTS

STEPS = 10
needs_linux = pytest.mark.skipif(sys.platform != 'linux', reason='needs RUSAGE_THREAD and /proc')


@needs_linux
@pytest.mark.timeout(300)
@pytest.mark.parametrize('part', ['save', 'loader', 'resume', 'monitor'])
def test_part_adds_no_context_switches_and_no_threads(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('OMP_NUM_THREADS', str(os.cpu_count()))
    monkeypatch.chdir(tmp_path)
    found = run_part(part, STEPS, '--width', '8')
    assert list(tmp_path.iterdir()) == []
    assert len(found.before) == len(found.after) == STEPS
    assert (found.lost is not None) == (part == 'save')
    before, after = found.switches
    factor, summand = side_effects.MAX_SWITCHES
    assert after <= factor * before + summand
    assert found.threads[1] <= found.threads[0]


def test_medians_over_processes_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple] = []

    def run(part: str, steps: int, *options: str) -> Effect:
        asked.append((part, steps, *options))
        number = sum(one[0] == part for one in asked)
        slow = 2.0 if number == 1 else 1.5  # the median of three rounds is 1.5
        return Effect([1.0, 1.0, 9.0], [slow, slow, 0.1], (2, 100 * number), (4, 5), lost=number)

    monkeypatch.setattr(side_effects, 'run_part', run)
    report = Report('some')
    found = measure_side_effects(report, ['nothing', 'save'], ['save'], True, '--width', '8')
    steps = side_effects.STEPS['quick']
    assert sorted(asked) == [(part, steps, '--width', '8') for part in found for _ in range(3)]
    assert [each.lost for each in found['save']] == [1, 2, 3]
    values = [(check.name, check.value, check.limit, check.ok) for check in report.checks]
    assert values == [
        ('save: step time after / before', 1.5, side_effects.MAX_RATIO, False),
        ('save: context switches per step after', 200, 3 * 2 + 20, False),
        ('save: native threads added', 1, side_effects.MAX_THREADS, False),
    ]
    figures = report.arms['own processes, save']
    assert figures['after_to_before']['n'] == 3
    assert figures['switches'] == (2, 200)
    assert set(report.arms) == {'own processes, nothing', 'own processes, save'}


def test_counts_are_left_out_where_they_are_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_effects, 'run_part', lambda *args: Effect([1.0], [1.01]))
    report = Report('some')
    measure_side_effects(report, ['monitor'], ['monitor'], True)
    assert [check.name for check in report.checks] == ['monitor: step time after / before']
    assert report.arms['own processes, monitor']['switches'] is None
    assert 'not measured here' in report.notes[-1]


def test_failed_process_is_an_error_with_its_stderr() -> None:
    with pytest.raises(RuntimeError, match='invalid choice'):
        run_part('no such part', STEPS)
    assert 'save' in PARTS
