"""A save is durable or has an error; nothing else of it is left.

Tests of a process that dies, of stalls and of the end of a writer are in
`test_writer_process_dies.py`, `test_writer_stalls.py` and `test_writer_end.py`.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmtempo.checkpoint.io import writer as durable_writer
from mmtempo.checkpoint.io import writer_process
from mmtempo.checkpoint.io.save import Save
from mmtempo.checkpoint.io.snapshot import Snapshot
from mmtempo.checkpoint.io.writer import DurableWriter, WriterDied
from tests.testing.durable_writer import is_value, load, process_of, save
from tests.testing.trees import History, same, tree


def test_files_marker_and_removals(writer: DurableWriter, tmp_path: Path) -> None:
    old, gone = tmp_path / 'old.pth', tmp_path / 'gone.pth'
    old.touch()
    content = tree()
    state = content['state_dict']
    late = {state['plain'].data_ptr()}
    done = writer.save(
        [
            (str(tmp_path / 'best.pth'), dict(best=state['plain'])),
            (str(tmp_path / 'a.pth'), content),
        ],
        marker=(str(tmp_path / 'marker'), 'a.pth'),
        remove=[str(old), str(gone)],
        late=late,
    )
    state['int'].zero_()
    writer.await_copies()
    state['plain'].zero_()
    writer.wait()
    assert (done.error, done.restarts, done.kept, done.is_done) == (None, 0, [], True)
    assert sorted(os.listdir(tmp_path)) == ['a.pth', 'best.pth', 'marker']
    assert (tmp_path / 'marker').read_text() == 'a.pth'
    expected = tree()
    expected['state_dict']['grad'].requires_grad_(False)
    assert same(load(tmp_path / 'a.pth'), expected)
    assert same(load(tmp_path / 'best.pth'), dict(best=expected['state_dict']['plain']))
    sizes = [os.path.getsize(tmp_path / name) for name in ('a.pth', 'best.pth')]
    assert done.written == sum(sizes)
    assert done.seconds > 0


def test_refused_copies_are_not_written(writer: DurableWriter, tmp_path: Path) -> None:
    """The check gets the copies, in the writer thread; nothing is written or removed."""
    old, marker = tmp_path / 'old.pth', tmp_path / 'marker'
    old.touch()
    calls: list[Any] = []

    def check(contents: list) -> None:
        calls.append((threading.current_thread().name, contents[0]['value'].tolist()))
        if contents[0]['value'][0] == 2:
            raise ValueError('refused')

    options = dict(marker=(str(marker), 'x'), remove=[str(old)], check=check)
    refused = save(writer, tmp_path / 'a.pth', 2, **options)
    writer.wait()
    assert str(refused.error) == 'refused'
    assert os.listdir(tmp_path) == ['old.pth']
    accepted = save(writer, tmp_path / 'a.pth', 1, **options)
    writer.wait()
    assert accepted.error is None
    assert sorted(os.listdir(tmp_path)) == ['a.pth', 'marker']
    assert calls == [('mmtempo-writer', [2.0] * 3), ('mmtempo-writer', [1.0] * 3)]


def test_one_save_at_a_time(
    writer: DurableWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    ask, wait, take = durable_writer._WriterThread._ask, DurableWriter.wait, Snapshot.take
    busy: list[bool] = []

    def asking(self: Any, *args: Any) -> dict:
        go.wait()
        return ask(self, *args)

    def waiting(self: DurableWriter) -> float:
        go.set()
        return wait(self)

    def taking(self: Snapshot, *args: Any) -> list:
        busy.append(writer.is_busy)
        return take(self, *args)

    monkeypatch.setattr(durable_writer._WriterThread, '_ask', asking)
    monkeypatch.setattr(Snapshot, 'take', taking)
    assert not writer.is_busy
    save(writer, tmp_path / 'a', 1)
    assert writer.is_busy
    monkeypatch.setattr(DurableWriter, 'wait', waiting)
    save(writer, tmp_path / 'b', 2)  # must not overwrite the buffer before it is written
    writer.wait()
    assert busy == [False, False]
    assert is_value(tmp_path / 'a', 1)
    assert is_value(tmp_path / 'b', 2)


def test_process_maps_a_larger_buffer(writer: DurableWriter, tmp_path: Path) -> None:
    for length in (10, 100_000, 10):
        content = dict(value=torch.arange(length))
        writer.save([(str(tmp_path / 'a'), content)])
        writer.wait()
        assert same(load(tmp_path / 'a'), content)
    writer.save([(str(tmp_path / 'a'), dict(text='x'))])
    writer.wait()
    assert load(tmp_path / 'a') == dict(text='x')


def test_progress_is_reported(
    writer: DurableWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    report = Save.report

    def noting(self: Save, size: int) -> None:
        sizes.append(size)
        report(self, size)

    monkeypatch.setattr(Save, 'report', noting)
    large = torch.zeros(2 * writer_process.PART + 1000, dtype=torch.uint8)
    large[[0, writer_process.PART - 1, writer_process.PART, -1]] = 7
    done = writer.save([(str(tmp_path / 'a'), dict(value=large))])
    writer.wait()
    assert done.error is None
    assert [size // writer_process.PART for size in sizes] == [1, 2, 0]  # 0 after the last sync
    assert torch.equal(load(tmp_path / 'a')['value'], large)
    assert done.written == os.path.getsize(tmp_path / 'a')


def test_process_ignores_signals(writer: DurableWriter, tmp_path: Path) -> None:
    """Schedulers send SIGTERM to all processes of a job."""
    save(writer, tmp_path / 'a')
    writer.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(process_of(writer), number)
    assert os.getsid(process_of(writer)) != os.getsid(0)
    done = save(writer, tmp_path / 'b')
    writer.wait()
    assert (done.error, done.restarts) == (None, 0)


def limited(writer: DurableWriter, folder: Path) -> Path:
    resource.prlimit(process_of(writer), resource.RLIMIT_FSIZE, (20_000, 20_000))
    return folder / 'large'


@pytest.mark.parametrize(
    ('number', 'where'),
    [
        (errno.ENOENT, lambda writer, folder: folder / 'gone/a'),
        (errno.ENOTDIR, lambda writer, folder: folder / 'a/b'),
        (errno.EACCES, lambda writer, folder: Path('/sys/a')),  # refused to root as well
        (errno.EFBIG, limited),
    ],
)
def test_disk_error_fails_the_save(
    number: int, where: Callable, writer: DurableWriter, tmp_path: Path
) -> None:
    save(writer, tmp_path / 'a')
    writer.wait()
    path = where(writer, tmp_path)
    large = {str(part): torch.ones(1000) for part in range(20)}
    done = writer.save([(str(path), large)], remove=[str(tmp_path / 'a')])
    writer.await_copies()
    writer.wait()
    assert isinstance(done.error, OSError)
    assert (done.error.errno, done.error.filename) == (number, str(path))
    assert os.listdir(tmp_path) == ['a']
    done = save(writer, tmp_path / 'b')
    writer.wait()
    assert (done.error, done.restarts) == (None, 0)


def test_content_that_cannot_be_pickled_fails_the_save(
    writer: DurableWriter, tmp_path: Path
) -> None:
    done = writer.save([(str(tmp_path / 'a'), dict(function=lambda: None))])
    writer.await_copies()
    writer.wait()
    assert type(done.error) is not WriterDied
    assert 'lambda' in str(done.error)
    assert os.listdir(tmp_path) == []
    assert save(writer, tmp_path / 'a').error is None


def test_error_does_not_keep_the_copies_alive(writer: DurableWriter, tmp_path: Path) -> None:
    copies: list[Any] = []
    take = writer._snapshot.take

    def noting(*args: Any) -> list:
        frozen = take(*args)
        copies.append(weakref.ref(frozen[0]['history']))
        return frozen

    writer._snapshot.take = noting  # type: ignore[method-assign]
    done = writer.save([(str(tmp_path / 'gone/a'), dict(history=History(), f=lambda: None))])
    writer.wait()
    gc.collect()
    assert done.error is not None
    assert copies[0]() is None


def test_missing_memory_raises_and_next_save_succeeds(
    writer: DurableWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> None:
        raise OSError(errno.ENOMEM, 'no memory')

    save(writer, tmp_path / 'a')
    with monkeypatch.context() as patch:
        patch.setattr(os, 'posix_fallocate', fails)
        with pytest.raises(OSError, match='no memory'):
            writer.save([(str(tmp_path / 'b'), dict(value=torch.ones(10_000)))])
        writer.await_copies()
        assert not writer.is_busy
    done = save(writer, tmp_path / 'b', 2)
    writer.wait()
    assert done.error is None
    assert is_value(tmp_path / 'b', 2)


def test_thread_that_cannot_be_started_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    writer = DurableWriter()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', fails)
        with pytest.raises(RuntimeError, match='new thread'):
            save(writer, tmp_path / 'a')
        writer.await_copies()
    save(writer, tmp_path / 'b')
    writer.close()
    assert os.listdir(tmp_path) == ['b']
