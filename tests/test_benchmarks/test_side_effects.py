"""No part slows the steps after it; and the measurement sees one that does."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
import torch

from mmtempo.benchmarks import side_effects
from mmtempo.benchmarks.harness import Report
from mmtempo.benchmarks.side_effects import Effect, measure_side_effects, run_part
from mmtempo.benchmarks.side_effects_run import PARTS, Toy, window
from tests.testing.processes import SPAWN, in_child

STEPS = 10
needs_linux = pytest.mark.skipif(sys.platform != 'linux', reason='needs RUSAGE_THREAD and /proc')


@needs_linux
@pytest.mark.timeout(300)
@pytest.mark.parametrize('part', ['save', 'loader', 'resume', 'monitor'])
def test_part_adds_no_context_switches_and_no_threads(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('OMP_NUM_THREADS', str(os.cpu_count()))
    found = run_part(part, STEPS, str(tmp_path), '--width', '8')
    assert len(found.before) == len(found.after) == STEPS
    assert (found.lost is not None) == (part == 'save')
    assert found.switches is not None
    assert found.threads is not None
    before, after = found.switches
    assert after <= 3 * before + 20
    assert found.threads[1] <= found.threads[0]


def switches_with_a_second_team() -> tuple[float, float]:
    torch.set_num_threads(os.cpu_count() or 1)
    toy, release, started = Toy(), threading.Event(), threading.Event()

    def run() -> None:
        torch.ones(10**6).add_(1)
        started.set()
        release.wait()

    before = window(toy, STEPS)['switches']
    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    after = window(toy, STEPS)['switches']
    release.set()
    thread.join()
    return before, after


@needs_linux
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason='one core has no team')
def test_a_second_team_is_seen() -> None:
    before, after = in_child(switches_with_a_second_team, context=SPAWN)
    assert after > 3 * before + 20


def test_report_judges_medians_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple] = []

    def run(part: str, steps: int, folder: str, *options: str) -> Effect:
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
        ('save: step time after / before', 1.5, 1.02, False),
        ('save: context switches per step after', 200, 26, False),
        ('save: native threads added', 1, 0, False),
    ]
    figures = report.arms['own processes, save']
    assert figures['after_to_before']['n'] == 3
    assert figures['switches'] == (2, 200)
    assert set(report.arms) == {'own processes, nothing', 'own processes, save'}


def test_counts_that_are_not_visible_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_effects, 'run_part', lambda *args: Effect([1.0], [1.01]))
    report = Report('some')
    measure_side_effects(report, ['monitor'], ['monitor'], True)
    assert [check.name for check in report.checks] == ['monitor: step time after / before']
    assert report.arms['own processes, monitor']['switches'] is None
    assert 'not measured here' in report.notes[-1]


def test_bars_are_those_of_the_issue() -> None:
    assert (side_effects.MAX_RATIO, side_effects.MAX_SWITCHES) == (1.02, (3, 20))
    assert side_effects.REPEATS['full'] >= 5


def test_failure_of_the_process_is_shown(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match='invalid choice'):
        run_part('no such part', STEPS, str(tmp_path))
    assert 'save' in PARTS
