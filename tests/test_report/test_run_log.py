"""Reading the files of a run, however it ended."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from mmtempo.report import read_log, run_log
from mmtempo.report.compare import compare
from mmtempo.timing import run_files
from tests.testing.made_up import START, made_up_run, write_lines, write_run, write_summary


def test_completed_run(tmp_path: Path) -> None:
    log = read_log(write_run(tmp_path / 'work', iterations=700))
    assert log.kind == 'tempo'
    assert log.summary['iterations'] == 700
    assert [line['iter'] for line in log.windows] == list(range(50, 701, 50))
    assert len(log.stalls) == log.summary['lost']['count']
    assert log.end is not None
    assert log.end['status'] == 'completed'
    assert len(log.runs) == 1
    assert log.notes == []
    assert log.name == 'lss_swin-mini_1xb4-300_synthetic-bev'
    # Either file selects the folder.
    for name in ('tempo.jsonl', 'tempo_summary.json'):
        assert read_log(tmp_path / 'work' / name).summary == log.summary


def test_newest_timestamped_folder_is_read(tmp_path: Path) -> None:
    write_run(tmp_path / '20260101_000000', iterations=100)
    write_run(tmp_path / '20260102_000000', iterations=200)
    (tmp_path / '20260103_000000').mkdir()
    assert read_log(tmp_path).summary['iterations'] == 200


def test_killed_run_has_its_last_summary_and_all_lines(tmp_path: Path) -> None:
    """A run that is killed after its first minute has a summary that is at most a minute old."""
    summary, lines = made_up_run(iterations=1000)
    summary.update(status='running', iterations=900, last_iter=900)
    write_lines(tmp_path, lines[:-1])
    write_summary(tmp_path, summary)
    with open(tmp_path / 'tempo.jsonl', 'a') as file:
        file.write('{"kind": "window", "iter": 1050, "itera')
    log = read_log(tmp_path)
    assert log.summary == summary
    assert [log.windows[0]['iter'], log.windows[-1]['iter']] == [50, 1000]
    broken, killed = log.notes
    assert 'Skipped 1 broken line of' in broken
    assert 'still running, or it was killed' in killed


def test_run_killed_before_its_first_summary_has_no_figures(tmp_path: Path) -> None:
    summary, lines = made_up_run(iterations=1000)
    write_lines(tmp_path, lines[:-1])
    log = read_log(tmp_path)
    same = ('version', 'started', 'first_iter', 'max_iters', 'machine', 'setting')
    expected = {key: summary[key] for key in same}
    assert log.summary == dict(expected, status='running', error=None)
    assert len(log.windows) == 20
    missing, killed = log.notes
    assert missing.startswith('tempo_summary.json is missing: the last run has no figures')
    assert 'still running, or it was killed' in killed


def test_resumed_run_may_append_to_a_half_line(tmp_path: Path) -> None:
    _, first = made_up_run(iterations=100)
    write_lines(tmp_path, first[:-1])
    with open(tmp_path / 'tempo.jsonl', 'a') as file:
        file.write('{"kind": "stall", "iter": 101, "te')
    summary, second = made_up_run(iterations=150, first=100, started=START + 1000)
    write_lines(tmp_path, second)
    write_summary(tmp_path, summary)
    log = read_log(tmp_path)
    assert [line['iter'] for line in log.runs] == [0, 100]
    assert [(line['run'], line['iter']) for line in log.windows] == [
        (0, 50), (0, 100), (1, 150), (1, 200), (1, 250),
    ]  # fmt: skip
    assert log.summary == summary
    assert '2 runs are in this folder' in ' '.join(log.notes)


def test_summary_of_an_earlier_run_is_ignored(tmp_path: Path) -> None:
    write_run(tmp_path, iterations=100)
    _, lines = made_up_run(iterations=50, first=100, started=START + 1000)
    write_lines(tmp_path, lines[:-1])
    log = read_log(tmp_path)
    assert (log.summary['first_iter'], log.summary['status']) == (100, 'running')
    assert 'iterations' not in log.summary
    assert [line['iter'] for line in log.windows] == [50, 100, 150]
    assert log.end is None
    assert 'that of an earlier run' in ' '.join(log.notes)


def test_summary_without_lines(tmp_path: Path) -> None:
    summary, _ = made_up_run(iterations=100)
    write_summary(tmp_path, summary)
    log = read_log(tmp_path)
    assert log.summary == summary
    assert log.windows == []


def test_crash_before_the_first_window(tmp_path: Path) -> None:
    _, lines = made_up_run(iterations=1)
    error = 'RuntimeError: boom'
    write_lines(tmp_path, [lines[0], dict(kind='end', iter=0, status='crashed', error=error)])
    log = read_log(tmp_path)
    assert log.summary['status'] == 'crashed'
    assert log.summary['error'] == error
    assert 'seconds' not in log.summary


def test_nan_is_read_as_none(tmp_path: Path) -> None:
    write_run(tmp_path, iterations=100)
    path = tmp_path / 'tempo_summary.json'
    path.write_text(path.read_text().replace('"cv": 0.031', '"cv": NaN'))
    assert read_log(tmp_path).summary['cv'] is None


def test_missing_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match='no such file or folder') as caught:
        read_log(tmp_path / 'nowhere')
    assert str(tmp_path / 'nowhere') in str(caught.value)
    with pytest.raises(
        FileNotFoundError, match='of ThroughputMonitorHook, or with stock logs'
    ) as caught:
        read_log(tmp_path)
    for word in (str(tmp_path), 'tempo_summary.json', 'tempo.jsonl', 'stock logs', 'scalars.json'):
        assert word in str(caught.value)
    (tmp_path / 'tempo.jsonl').write_text('{"kind": "ru')
    with pytest.raises(FileNotFoundError, match='no complete line'):
        read_log(tmp_path)


def test_unreadable_summary_leaves_the_lines(tmp_path: Path) -> None:
    (tmp_path / 'tempo_summary.json').write_text('[1]')
    with pytest.raises(ValueError, match='tempo_summary.json: .*expected an object, found list'):
        read_log(tmp_path)
    _, lines = made_up_run(iterations=100)
    write_lines(tmp_path, lines)
    log = read_log(tmp_path)
    assert log.summary['status'] == 'completed'
    assert len(log.windows) == 2
    assert json.dumps(log.summary)
    assert 'not readable' in ' '.join(log.notes)


def test_reader_and_writer_share_names_and_version() -> None:
    for name in ('LINES', 'SUMMARY', 'VERSION'):
        assert getattr(run_log, name) is getattr(run_files, name)


@pytest.mark.parametrize('broken', ['', '{"kind": "ru', '\x00\x00\n'])
def test_stock_logs_replace_empty_files(broken: str, tmp_path: Path) -> None:
    (tmp_path / 'tempo.jsonl').write_text(broken)
    stock = tmp_path / '20260101_000000/vis_data/20260101_000000.json'
    stock.parent.mkdir(parents=True)
    stock.write_text('{"iter": 10, "time": 0.1}\n{"iter": 20, "time": 0.1}\n')
    log = read_log(tmp_path)
    assert (log.kind, log.source) == ('stock', stock)
    assert 'tempo.jsonl contains no complete line' in log.notes[0]


def test_stock_logs_replace_an_unreadable_summary(tmp_path: Path) -> None:
    (tmp_path / 'tempo_summary.json').write_text('{')
    (tmp_path / 'scalars.json').write_text('{"iter": 10, "time": 0.1}\n')
    log = read_log(tmp_path)
    assert log.kind == 'stock'
    assert 'not readable as the summary of a run' in log.notes[0]


@pytest.mark.parametrize('empty', ['{}', '{"version": 1}'])
def test_summary_without_a_run_is_refused(empty: str, tmp_path: Path) -> None:
    (tmp_path / 'tempo_summary.json').write_text(empty)
    with pytest.raises(ValueError, match='expected one of iterations, seconds, status, found none'):
        read_log(tmp_path)
    write_lines(tmp_path, made_up_run(iterations=100)[1])
    log = read_log(tmp_path)
    assert log.summary['max_iters'] == 100
    assert 'not readable: the last run has no figures' in ' '.join(log.notes)


def stock_run(work: Path, started: float, config: str = '') -> Path:
    """Write stock logs of a run; return their folder, named as mmengine does."""
    name = time.strftime('%Y%m%d_%H%M%S', time.localtime(started))
    (work / name / 'vis_data').mkdir(parents=True)
    (work / name / 'vis_data/config.py').write_text(config)
    (work / name / f'vis_data/{name}.json').write_text('{"iter": 10, "time": 0.1}\n')
    return work / name


def test_newer_run_without_the_monitor_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, iterations=100)
    stock_run(tmp_path, START - 10)  # of the same run
    (tmp_path / '20990101_what').mkdir()  # of no run
    assert read_log(tmp_path).notes == []
    newer = stock_run(tmp_path, START + 3600, "timer = dict(type='IterTimerHook')")
    for path in (tmp_path, tmp_path / 'tempo_summary.json'):
        log = read_log(path)
        assert log.summary['iterations'] == 100
        (note,) = log.notes
        assert f'{newer.name} is a newer run, without ThroughputMonitorHook' in note
        assert str(newer) in note
    text = '\n'.join(compare(log, read_log(newer)).differences)
    assert f'A: {newer.name} is a newer run' in text
    assert 'B: 2' not in text


def test_newer_folders_of_tests_and_monitored_runs_are_ignored(tmp_path: Path) -> None:
    write_run(tmp_path, iterations=100)
    # A test run writes no lines of a training.
    (stock_run(tmp_path, START + 3600) / 'vis_data').rename(tmp_path / 'moved')
    # Of the same run, named in another time zone.
    stock_run(tmp_path, START + 7200, "timer = dict(type='ThroughputMonitorHook')")
    assert read_log(tmp_path).notes == []


def test_end_line_newer_than_the_summary(tmp_path: Path) -> None:
    """The disk was full when the last summary was written, and had room for a line."""
    summary, lines = made_up_run(iterations=200)
    error = 'OSError: [Errno 28] No space left on device'
    lines[-1].update(status='crashed', error=error, iter=230)
    summary.update(status='running', ended=lines[-1]['time'] - 8)
    write_lines(tmp_path, lines)
    write_summary(tmp_path, summary)
    log = read_log(tmp_path)
    assert (log.summary['status'], log.summary['error']) == ('crashed', error)
    assert log.summary['ended'] == lines[-1]['time']
    notes = ' '.join(log.notes)
    assert 'last written at iteration 200; the run ended at iteration 230' in notes
    assert 'killed' not in notes
