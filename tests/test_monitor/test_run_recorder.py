"""Records are written at once, and the summary has all of them however a run ends."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from mmtempo.monitor.run_recorder import MOST_WARNINGS, RING, RunRecorder
from mmtempo.report import read_log
from mmtempo.report.trace import trace_events
from mmtempo.timing.run_files import RunFiles
from mmtempo.timing.statistics import IterationStats
from mmtempo.timing.timeline import Timeline
from tests.testing.summaries import summary as made_up
from tests.testing.timelines import Clock

SETTING = dict(made_up()['setting'], batch_size=4, world=2, max_iters=1000, log_interval=10)


class Run:
    """Recorded iterations of about 100 ms, on a clock that only `go` advances.

    Args:
        folder: Work dir; None for a process that does not write.
        first: Number of iterations done before the training. Defaults to 0.
    """

    def __init__(self, folder: Path | None, first: int = 0) -> None:
        self.clock = Clock()
        self.noise = random.Random(0)
        self.timeline = Timeline('data', clock=self.clock, before=first)
        self.number = first
        self.messages: list[str] = []
        record = None
        if folder is not None:
            record = RunFiles(
                str(folder), self.messages.append, clock=lambda: self.clock.now * 1e-9
            )
        categories = {'hook:Slow': 'hook', 'hook:AsyncCheckpointHook': 'checkpoint'}
        meter = IterationStats(self.timeline, categories=categories)
        self.report = RunRecorder(SETTING, meter, record, first)

    def go(self, count: int = 1, note: Any = None, **more: float) -> None:
        for _ in range(count):
            self.number += 1
            for name, seconds in dict(data=0.001, forward=0.099, **more).items():
                self.clock.go(seconds * self.noise.lognormvariate(0, 0.02))
                if name == 'data':
                    self.timeline.begin()
                else:
                    self.timeline.mark(self.timeline.phase(name.replace('__', ':')))
            if note is not None:
                self.timeline.annotate(note)
            self.timeline.end()


def lines_of(folder: Path, kind: str | None = None) -> list[dict]:
    lines = [json.loads(line) for line in (folder / 'tempo.jsonl').read_text().splitlines()]
    return [line for line in lines if kind in (None, line['kind'])]


def summary_of(folder: Path) -> dict:
    return json.loads((folder / 'tempo_summary.json').read_text())


def test_completed_run(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert lines_of(tmp_path)[0]['setting'] == SETTING
    for number in range(1, 11):
        run.go(49)
        run.go(hook__Slow=2.0 if number == 4 else 0.0)
        window = run.report.window()
        assert window is not None
        assert (window['iter'], window['iterations']) == (50 * number, 50)
    summary = run.report.end('completed')
    kinds = [line['kind'] for line in lines_of(tmp_path)]
    assert kinds == ['run', *['window'] * 4, 'stall', *['window'] * 6, 'end']
    assert (summary['iterations'], summary['status'], summary['max_iters']) == (
        500,
        'completed',
        1000,
    )
    assert summary['samples_per_s'] == pytest.approx(8 * summary['it_per_s'])
    assert summary['samples_per_s_steady'] == pytest.approx(8 * summary['steady'])
    assert summary['stalls'][0]['cause'] == 'Slow'
    assert summary['verdict']['headline'].startswith('Slow takes 3.')
    assert [row[0] for row in summary['ring']['rows']] == [*range(1, 501)]
    log = read_log(tmp_path)
    assert log.notes == []
    found, wanted = log.summary['verdict'], summary['verdict']
    for finding in wanted['findings']:
        finding['seconds'] = pytest.approx(finding['seconds'], abs=1e-6)  # rounded in the file
    assert found == wanted


def test_summary_of_a_running_training(tmp_path: Path) -> None:
    """A killed run leaves all its lines, and a summary that is at most a minute old."""
    run = Run(tmp_path)
    for _ in range(12):
        run.go(50)
        run.report.window()
    found = summary_of(tmp_path)
    assert found['status'] == 'running'
    assert 500 <= found['iterations'] <= 600
    assert len(lines_of(tmp_path, 'window')) == 12
    log = read_log(tmp_path)
    assert log.summary['status'] == 'running'
    last = found['last_iter']
    assert [row[0] for row in found['ring']['rows']] == [*range(last - RING + 1, last + 1)]
    assert f'iteration {last}' in [event['name'] for event in trace_events(log)]


def test_stalls_judged_at_the_end_are_written(tmp_path: Path) -> None:
    """They are written although no iterations are left for a window."""
    run = Run(tmp_path)
    run.go(95)
    run.go(2, hook__Slow=1.0)
    run.go(3)
    run.report.window()
    assert lines_of(tmp_path, 'stall') == []
    summary = run.report.end('interrupted')
    assert [line['iter'] for line in lines_of(tmp_path, 'stall')] == [96, 97]
    assert {stall['iter'] for stall in summary['stalls']} == {96, 97}
    assert len(lines_of(tmp_path, 'window')) == 1


def test_window_has_only_its_own_rank_times(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for index in range(6):
        run.go(10)
        found = dict(data=dict(max=0.1 * (index + 1), rank=3), step=dict(max=0.5, rank=0))
        run.report.update(ranks=found if index % 2 else None)
        run.report.window()
    windows = lines_of(tmp_path, 'window')
    assert ['ranks' in window for window in windows] == [False, True] * 3
    ranks = run.report.end('completed')['ranks']
    assert ranks['data'] == dict(
        max=pytest.approx(0.6), rank=3, mean=pytest.approx(0.4), usual=3, often=3, of=3
    )


def test_slow_rank_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(5):
        run.go(20)
        run.report.update(ranks=dict(data=dict(max=0.05, rank=3)))
        run.report.window()
    verdict = run.report.end('completed')['verdict']
    assert verdict['headline'].startswith('Late data on rank 3 costs')


def test_device_busy_is_a_mean_over_samples(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for index in range(20):
        run.go(10)
        now = dict(time=index // 2, ram_used=0.5, device=dict(utilisation=0.9 if index < 10 else 1))
        run.report.update(memory=dict(now=now, peak=now))
        run.report.window()
    summary = run.report.end('completed')
    assert summary['device_busy'] == dict(mean=pytest.approx(0.95), looks=10)
    assert lines_of(tmp_path, 'window')[0]['memory']['device'] == dict(utilisation=0.9)
    assert any('busy for 95 %' in line for line in summary['verdict']['why'])


def test_resumed_run_continues_the_numbers(tmp_path: Path) -> None:
    run = Run(tmp_path, first=700)
    run.go(100)
    run.go(100, later=0.1)
    summary = run.report.end('completed')
    assert (summary['first_iter'], summary['last_iter'], summary['iterations']) == (700, 900, 200)
    assert [change['iter'] for change in summary['changes']] == [801]
    assert lines_of(tmp_path)[0]['iter'] == 700


def test_process_that_does_not_write() -> None:
    run = Run(None)
    run.go(50)
    window = run.report.window()
    assert window is not None
    waited, worked = run.report.data_and_step(window)
    assert (waited, worked) == (pytest.approx(0.001, 0.05), pytest.approx(0.099, 0.05))
    assert run.report.data_and_step(None) == (0.0, 0.0)
    # Excluded: the backward pass, which waits for other processes, and work for all of them.
    others = {'backward': 7.0, 'hook:CheckpointHook': 5.0, 'hook:SparseLoggerHook': 3.0}
    phases = {**window['phases'], **others, 'loader: end': 2.0}
    more = run.report.data_and_step(dict(window, phases=phases))
    assert more == (pytest.approx(waited), pytest.approx(worked))
    run.report.warn('a warning', 7)
    assert run.report.end('completed')['warnings'] == ['a warning']


def test_log_line_names_unplanned_stalls_only(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.go(60)
    run.go(hook__AsyncCheckpointHook=3.0)
    run.go(20, note=dict(is_first=False))
    window = run.report.window()
    assert window is not None
    assert len(window['stalls']) == 1
    assert run.report.line(window) is None
    run.go(2, hook__Slow=1.0)
    run.go(20)
    window = run.report.window()
    assert window is not None
    line = run.report.line(window)
    assert line is not None
    assert line.startswith(('Iteration 82 took 1.', 'Iteration 83 took 1.'))
    assert ': Slow (2 slow iterations lost ' in line


def test_scalars_for_the_visualizer(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.go(50, hook__Slow=0.1)
    window = run.report.window()
    assert window is not None
    found = run.report.scalars(window)
    assert found['tempo/samples_per_s'] == pytest.approx(8 * found['tempo/it_per_s'])
    assert found['tempo/data'] == pytest.approx(0.005, 0.1)
    assert found['tempo/Slow'] == pytest.approx(0.5, 0.1)
    assert all(isinstance(value, float) for value in found.values())


def test_number_of_warnings_is_limited(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for number in range(MOST_WARNINGS + 5):
        run.report.warn(f'warning {number}', number)
    run.go(30)
    assert len(run.report.end('completed')['warnings']) == MOST_WARNINGS
    assert len(lines_of(tmp_path, 'warning')) == MOST_WARNINGS + 5


def test_run_without_iterations(tmp_path: Path) -> None:
    summary = Run(tmp_path).report.end('crashed', 'RuntimeError: boom')
    assert 'verdict' not in summary
    assert [line['kind'] for line in lines_of(tmp_path)] == ['run', 'end']
    assert read_log(tmp_path).summary['error'] == 'RuntimeError: boom'


def test_number_of_logged_changes_is_limited(tmp_path: Path) -> None:
    run, lines = Run(tmp_path), []
    run.go(100)
    for _ in range(30):
        run.go(40, later=0.1)
        run.go(40)
        window = run.report.window()
        assert window is not None
        lines.append(run.report.line(window))
    assert sum(line is not None and 'from here on' in line for line in lines) == 10
    assert len(lines_of(tmp_path, 'change')) > 50
