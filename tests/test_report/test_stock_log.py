"""Logs of runs without the monitor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmtempo.report import read_log, stock_log
from tests.testing.toy import STOCK, by_epoch, config, train, with_evaluation


def test_log_of_a_stock_run(tmp_path: Path) -> None:
    cfg = with_evaluation(config(tmp_path, STOCK))
    cfg.train_cfg.update(max_iters=45, val_interval=20)
    cfg.default_hooks.checkpoint = None
    train(cfg)
    log = read_log(tmp_path)
    assert log.kind == 'stock'
    assert log.source.parent.name == 'vis_data'
    assert log.source.name != 'scalars.json'
    # Lines of evaluations are skipped; the last five iterations have no line.
    assert [(line['iter'], line['iterations']) for line in log.windows] == [
        (10, 10), (20, 10), (30, 10), (40, 10),
    ]  # fmt: skip
    assert log.summary['iterations'] == 40
    assert set(log.summary['phases']) == {'data', 'everything else'}
    assert sum(entry['share'] for entry in log.summary['phases'].values()) == pytest.approx(1)
    assert log.stalls == []
    assert 'steady' not in log.summary
    notes = ' '.join(log.notes)
    assert 'no stalls, no causes' in notes
    assert 'logging, saving' in notes
    # The folder of a single run and the other file have the same content.
    assert read_log(log.source.parent.parent).windows == log.windows
    assert read_log(log.source.with_name('scalars.json')).windows == log.windows


def test_log_of_a_stock_run_by_epoch(tmp_path: Path) -> None:
    cfg = by_epoch(config(tmp_path, STOCK), epochs=2)
    cfg.default_hooks.checkpoint = None
    train(cfg)
    log = read_log(tmp_path)
    assert [line['iter'] for line in log.windows] == [10, 20, 30, 40]
    assert [line['epoch'] for line in log.windows] == [1, 1, 2, 2]


def write(path: Path, *lines: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    return path


def line(step: int, **more: float) -> dict:
    return dict(lr=0.1, data_time=0.02, loss=1.0, time=0.1, iter=step, step=step, **more)


def test_summary_has_memory_and_speed(tmp_path: Path) -> None:
    path = write(tmp_path / 'log.json', line(50, memory=1000), line(100, memory=1500))
    log = read_log(path)
    assert log.summary['it_per_s'] == pytest.approx(10)
    assert log.summary['seconds'] == pytest.approx(10)
    assert log.summary['phases']['data']['share'] == pytest.approx(0.2)
    assert log.summary['memory']['peak'] == dict(device=dict(allocated=1500 << 20))
    assert 'memory' not in read_log(write(path, line(50))).summary


def test_resumed_run_counts_its_own_iterations(tmp_path: Path) -> None:
    log = read_log(write(tmp_path / 'log.json', line(1050), line(1100), line(1150)))
    assert [window['iterations'] for window in log.windows] == [50, 50, 50]


def test_single_line_counts_for_its_window(tmp_path: Path) -> None:
    """A run resumed at 50000 has not done 50050 iterations."""
    log = read_log(write(tmp_path / 'log.json', line(50050)))
    assert [window['iterations'] for window in log.windows] == [10]
    assert log.summary['it_per_s'] == pytest.approx(10)
    assert (log.summary['iterations'], log.summary['last_iter']) == (10, 50050)
    assert read_log(write(tmp_path / 'log.json', line(4))).windows[0]['iterations'] == 4
    # An earlier run in the same file shows the interval between lines.
    log = read_log(write(tmp_path / 'log.json', line(50), line(100), line(80)))
    assert [window['iterations'] for window in log.windows] == [50, 50, 50]


def test_long_log_is_read_in_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Counting(line(10 * (number + 1)) for number in range(500))
    monkeypatch.setattr(stock_log, '_train_lines', lambda file: lines)
    content = stock_log.stock_content(tmp_path)
    assert content is not None
    assert len(content[1]) == 500
    assert lines.copied <= 4 * len(lines)


class Counting(list):
    """A list that counts the items copied out of it."""

    copied = 0

    def __getitem__(self, index: Any) -> Any:
        items = super().__getitem__(index)
        self.copied += len(items) if isinstance(index, slice) else 1
        return items

    def __iter__(self) -> Any:
        self.copied += len(self)
        return super().__iter__()


def test_file_with_two_runs(tmp_path: Path) -> None:
    log = read_log(write(tmp_path / 'log.json', *map(line, (10, 20, 30, 20, 30, 40))))
    assert [window['run'] for window in log.windows] == [0, 0, 0, 1, 1, 1]
    assert log.summary['last_iter'] == 40


def test_newest_training_is_read_and_test_runs_are_skipped(tmp_path: Path) -> None:
    write(tmp_path / '20260101_000000/vis_data/20260101_000000.json', line(10), line(20))
    newest = write(tmp_path / '20260102_000000/vis_data/20260102_000000.json', line(10))
    write(tmp_path / '20260103_000000/20260103_000000.json', dict(mIoU=0.5, time=0.1, step=0))
    assert read_log(tmp_path).source == newest


def test_half_lines_and_nan_are_skipped_and_prefixes_removed(tmp_path: Path) -> None:
    hierarchy = {f'train/{key}': value for key, value in line(10).items() if key != 'iter'}
    path = write(tmp_path / 'scalars.json', dict(hierarchy, iter=10))
    with open(path, 'a') as file:
        file.write('{"time": NaN, "iter": 20}\n{"ti')
    assert [window['iter'] for window in read_log(path).windows] == [10]


def test_line_without_data_time_has_no_phases(tmp_path: Path) -> None:
    content = line(10)
    del content['data_time']
    log = read_log(write(tmp_path / 'log.json', content))
    assert 'phases' not in log.summary
    assert 'waiting' not in log.summary['verdict']['headline']


def test_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / 'annotations.json', dict(images=[]))
    with pytest.raises(FileNotFoundError, match=r'annotations.json: found no log of a training'):
        read_log(path)
