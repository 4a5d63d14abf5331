"""Each wait for a save ends, also if the writer process or the disk makes no progress."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from mmtempo.checkpoint.io import writer as durable_writer
from mmtempo.checkpoint.io.save import Save
from mmtempo.checkpoint.io.stall_limit import StallLimit
from mmtempo.checkpoint.io.writer import DurableWriter
from tests.testing.durable_writer import LONG, is_value, process_of, resources, save, stop_process


class UntilKilled(StallLimit):
    """A limit without a clock, reached without any report until the process is killed."""

    def __init__(self, seconds: float) -> None:
        self.restarts = -1
        super().__init__(seconds)

    def restart(self) -> None:
        self.restarts += 1

    def is_reached(self, progress: object) -> bool:
        return progress == 0 and self.restarts == 0


class Always(UntilKilled):
    """A limit that is always reached."""

    def is_reached(self, progress: object) -> bool:
        return True


def test_stalled_process_is_replaced_by_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_writer, 'StallLimit', UntilKilled)
    warnings: list[str] = []
    writer = DurableWriter(timeout=0.2, warn=warnings.append)
    stop_process(writer)
    done = save(writer, tmp_path / 'a')
    writer.wait()
    assert (done.error, done.fallback) == (None, 'ended with exit code -9')
    assert is_value(tmp_path / 'a', 1)
    assert warnings[0] == (
        'checkpoint writer: no progress of a for 200 ms (0 B written); the writer process is '
        'killed, and the training process writes the files'
    )
    starts = {line.partition(' (')[0] for line in warnings[1:]}
    assert starts <= {'checkpoint writer: waiting for a'}
    writer.close()


def test_close_kills_a_stalled_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_writer, 'StallLimit', UntilKilled)
    before = resources()
    writer = DurableWriter(timeout=0.2, warn=lambda line: None)
    stop_process(writer)
    done = save(writer, tmp_path / 'a')
    writer.close()
    assert (done.error, done.fallback) == (None, 'ended with exit code -9')
    assert is_value(tmp_path / 'a', 1)
    assert resources() == before


def test_stall_of_both_processes_fails_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each later save, until the disk responds."""
    go = threading.Event()
    fsync = os.fsync

    def waiting(file: int) -> None:
        go.wait()
        fsync(file)

    monkeypatch.setattr(os, 'fsync', waiting)  # of this process
    writer = DurableWriter(timeout=0.2, warn=lambda line: None)
    stop_process(writer)
    done = save(writer, tmp_path / 'a')
    with monkeypatch.context() as patch:
        patch.setattr(durable_writer, 'StallLimit', Always)
        writer.wait()
    assert isinstance(done.error, TimeoutError)
    assert 'no progress of a for 200 ms (0 B written)' in str(done.error)
    with pytest.raises(TimeoutError, match='an earlier save is still blocked'):
        save(writer, tmp_path / 'b')
    go.set()
    assert writer._thread._idle.wait(LONG)
    writer._thread._timeout = LONG
    done = save(writer, tmp_path / 'b', 2)
    writer.close()
    assert done.error is None
    assert is_value(tmp_path / 'b', 2)


class SecondLook(StallLimit):
    """A limit without a clock, reached at the second look without progress."""

    looks = 0

    def is_reached(self, progress: object) -> bool:
        self.looks = self.looks + 1 if progress == self._last else 0
        self._last = progress
        return self.looks == 2


def test_save_given_up_while_it_awaits_another_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Save(['other'])
    old = tmp_path / 'old'
    old.touch()
    monkeypatch.setattr(durable_writer, 'StallLimit', SecondLook)
    writer = DurableWriter(timeout=0.02, warn=lambda line: None)
    done = save(
        writer,
        tmp_path / 'a',
        marker=(str(tmp_path / 'marker'), 'a'),
        remove=[str(old)],
        after=other,
    )
    writer.wait()
    assert isinstance(done.error, TimeoutError)
    other.end()
    assert writer._thread._idle.wait(LONG)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['old']
    writer.close()


def test_progress_of_an_awaited_save_is_no_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Save(['other'])
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        other.report(len(lines))
        if len(lines) == 9:
            other.end()

    class WhileWaiting(SecondLook):
        def is_reached(self, progress: object) -> bool:
            return not other.is_done and super().is_reached(progress)

    monkeypatch.setattr(durable_writer, 'StallLimit', WhileWaiting)
    writer = DurableWriter(timeout=0.02, warn=progress)
    done = save(writer, tmp_path / 'a', after=other)
    while not lines or not done.is_done:
        writer.wait()
    writer.close()
    assert done.error is None
    assert is_value(tmp_path / 'a', 1)


def test_save_given_up_is_not_taken_over_by_this_process(tmp_path: Path) -> None:
    writer = DurableWriter(warn=lambda line: None)
    stop_process(writer)
    done = save(writer, tmp_path / 'a')
    while writer._thread._working is None:
        time.sleep(0.001)
    done.end(TimeoutError('no progress'))
    os.kill(process_of(writer), signal.SIGKILL)
    assert writer._thread._idle.wait(LONG)
    assert list(tmp_path.iterdir()) == []
    writer.close()
