"""What was submitted is durable, or it is said that it is not; and nothing is left behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mmtempo
from mmtempo.checkpoint.io import writer as durable_writer
from mmtempo.checkpoint.io import writer_client, writer_process
from mmtempo.checkpoint.io.archive import check_archive
from mmtempo.checkpoint.io.save import Save
from mmtempo.checkpoint.io.snapshot import Snapshot
from mmtempo.checkpoint.io.stall_limit import StallLimit
from mmtempo.checkpoint.io.writer import DurableWriter, WriterDied
from tests.testing.trees import History, same, tree

LONG = 60.0  # seconds; only what hangs takes that long
# From Python 3.12 on; data loaders fork all the same.
forks = pytest.mark.filterwarnings('ignore:.*multi-threaded:DeprecationWarning')


@pytest.fixture
def writer() -> Iterator[DurableWriter]:
    writer = DurableWriter()
    yield writer
    writer.close()


def load(path: Path) -> Any:
    assert check_archive(str(path)) is None
    return torch.load(path, weights_only=True)


def process_of(writer: DurableWriter) -> int:
    process = writer._worker._process
    assert process is not None
    return process.pid


def save(writer: DurableWriter, path: Path, value: int = 1, **options: Any) -> Save:
    """One that is on its way, and nothing of it is late."""
    return writer.save([(str(path), dict(value=torch.full((3,), value)))], **options)


def is_value(path: Path, value: int) -> bool:
    return torch.equal(load(path)['value'], torch.full((3,), value))


def test_files_marker_and_removals(writer: DurableWriter, tmp_path: Path) -> None:
    old, gone = tmp_path / 'old.pth', tmp_path / 'gone.pth'
    old.touch()
    given = tree()
    state = given['state_dict']
    late = {state['plain'].data_ptr()}
    done = writer.save(
        [(str(tmp_path / 'best.pth'), dict(best=state['plain'])), (str(tmp_path / 'a.pth'), given)],
        marker=(str(tmp_path / 'marker'), 'a.pth'),
        remove=[str(old), str(gone)],
        late=late,
    )
    state['int'].zero_()
    writer.fence()
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
    """The check sees the copies, in the writer's thread; nothing is written or removed."""
    old, marker = tmp_path / 'old.pth', tmp_path / 'marker'
    old.touch()
    seen: list[Any] = []

    def check(contents: list) -> None:
        seen.append((threading.current_thread().name, contents[0]['value'].tolist()))
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
    assert seen == [('mmtempo-writer', [2.0] * 3), ('mmtempo-writer', [1.0] * 3)]


def test_one_save_at_a_time(
    writer: DurableWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    ask, wait, take = durable_writer._Worker._ask, DurableWriter.wait, Snapshot.take
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

    monkeypatch.setattr(durable_writer._Worker, '_ask', asking)
    monkeypatch.setattr(Snapshot, 'take', taking)
    assert not writer.is_busy
    save(writer, tmp_path / 'a', 1)
    assert writer.is_busy
    monkeypatch.setattr(DurableWriter, 'wait', waiting)
    save(writer, tmp_path / 'b', 2)  # the memory is not overwritten before it is written
    writer.wait()
    assert busy == [False, False]
    assert is_value(tmp_path / 'a', 1)
    assert is_value(tmp_path / 'b', 2)


def test_a_larger_state_is_seen_by_the_process(writer: DurableWriter, tmp_path: Path) -> None:
    for length in (10, 100_000, 10):
        given = dict(value=torch.arange(length))
        writer.save([(str(tmp_path / 'a'), given)])
        writer.wait()
        assert same(load(tmp_path / 'a'), given)
    writer.save([(str(tmp_path / 'a'), dict(text='x'))])
    writer.wait()
    assert load(tmp_path / 'a') == dict(text='x')


def test_a_process_that_was_killed_while_idle(writer: DurableWriter, tmp_path: Path) -> None:
    save(writer, tmp_path / 'a')
    writer.wait()
    pid = process_of(writer)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    done = save(writer, tmp_path / 'b', 2)
    writer.wait()
    assert (done.error, done.restarts, done.fallback) == (None, 1, None)
    assert is_value(tmp_path / 'b', 2)
    done = save(writer, tmp_path / 'c')
    writer.wait()
    assert (done.error, done.restarts) == (None, 0)


def test_a_process_that_was_killed_with_a_job(writer: DurableWriter, tmp_path: Path) -> None:
    save(writer, tmp_path / 'a')
    writer.wait()
    os.kill(process_of(writer), signal.SIGSTOP)
    done = save(writer, tmp_path / 'b', 2)
    os.kill(process_of(writer), signal.SIGKILL)
    writer.wait()
    assert (done.error, done.restarts, done.fallback) == (None, 0, 'ended with exit code -9')
    assert is_value(tmp_path / 'b', 2)
    done = save(writer, tmp_path / 'c', 3)  # which has a new process
    writer.wait()
    assert (done.error, done.restarts, done.fallback) == (None, 1, None)
    assert is_value(tmp_path / 'c', 3)


DYING = """
import os, runpy, signal
with open({count!r}, 'r+') as file:
    left = int(file.read())
    file.seek(0)
    file.write(str(left - 1))
if left > 0:
    os.{step} = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
runpy.run_path({path!r}, run_name='__main__')
"""


@pytest.fixture
def dying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int, str], DurableWriter]]:
    """Makes a writer whose first processes kill themselves when they come to a step."""
    made: list[DurableWriter] = []

    def prepare(times: int, step: str) -> DurableWriter:
        count, script = tmp_path / 'count', tmp_path / 'script.py'
        count.write_text(str(times))
        path = writer_process.__file__
        script.write_text(DYING.format(count=str(count), step=step, path=path))
        monkeypatch.setattr(writer_client, 'writer_process', SimpleNamespace(__file__=str(script)))
        made.append(DurableWriter())
        return made[-1]

    yield prepare
    for writer in made:
        writer.close()


@pytest.mark.parametrize('step', ['fsync', 'replace', 'remove'])
def test_a_process_that_was_killed_while_writing(
    step: str, dying: Callable[[int, str], DurableWriter], tmp_path: Path
) -> None:
    writer = dying(1, step)
    folder = tmp_path / 'work'
    folder.mkdir()
    (folder / 'old').touch()
    marker = (str(folder / 'marker'), 'a')
    done = save(writer, folder / 'a', marker=marker, remove=[str(folder / 'old')])
    writer.wait()
    assert (done.error, done.restarts, done.fallback) == (None, 0, 'ended with exit code -9')
    assert sorted(os.listdir(folder)) == ['a', 'marker']
    assert is_value(folder / 'a', 1)


def test_killed_each_time(dying: Callable[[int, str], DurableWriter], tmp_path: Path) -> None:
    """And this process cannot write either: nothing of the save is there."""
    writer = dying(2, 'fsync')
    folder = tmp_path / 'work'
    folder.mkdir()
    (folder / 'old').touch()
    for _ in range(2):
        with fails_to_sync():
            done = save(writer, folder / 'a', remove=[str(folder / 'old')])
            writer.wait()
        assert isinstance(done.error, OSError)
        assert done.error.errno == errno.EIO
        assert done.fallback == 'ended with exit code -9'
        assert os.listdir(folder) == ['old']  # and nothing half
    done = save(writer, folder / 'a', 3)  # the third one lives
    writer.wait()
    assert (done.error, done.fallback) == (None, None)
    assert is_value(folder / 'a', 3)


def test_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, 'executable', str(tmp_path / 'no python'))
        writer = DurableWriter()
        done = save(writer, tmp_path / 'a')
        writer.wait()
    assert done.error is None
    assert done.fallback is not None
    assert done.fallback.startswith('could not be started ([Errno 2]')
    assert is_value(tmp_path / 'a', 1)
    done = save(writer, tmp_path / 'b', 2)
    writer.close()
    assert (done.error, done.restarts, done.fallback) == (None, 0, None)
    assert is_value(tmp_path / 'b', 2)


class UntilKilled(StallLimit):
    """A limit without a clock: reached by no report at all, until the process is killed."""

    def __init__(self, seconds: float) -> None:
        self.restarts = -1
        super().__init__(seconds)

    def restart(self) -> None:
        self.restarts += 1

    def is_reached(self, progress: object) -> bool:
        return progress == 0 and self.restarts == 0


class Always(UntilKilled):
    """One that is reached whenever it is looked at."""

    def is_reached(self, progress: object) -> bool:
        return True


def stop_process(writer: DurableWriter) -> None:
    """As a process that waits for a disk."""
    os.kill(process_of(writer), signal.SIGSTOP)


def test_process_without_progress_is_replaced_by_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_writer, 'StallLimit', UntilKilled)
    said: list[str] = []
    writer = DurableWriter(timeout=0.2, warn=said.append)
    stop_process(writer)
    done = save(writer, tmp_path / 'a')
    writer.wait()
    assert (done.error, done.fallback) == (None, 'ended with exit code -9')
    assert is_value(tmp_path / 'a', 1)
    assert said[0] == (
        'checkpoint writer: no progress for 0 s (a: 0 MB written); its process is killed, and the '
        'training process writes the files.'
    )
    assert {line.partition(' since')[0] for line in said[1:]} <= {'checkpoint writer: waiting'}
    writer.close()


def test_close_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where it is the end that waits."""
    monkeypatch.setattr(durable_writer, 'StallLimit', UntilKilled)
    before = left()
    writer = DurableWriter(timeout=0.2, warn=lambda line: None)
    stop_process(writer)
    done = save(writer, tmp_path / 'a')
    writer.close()
    assert (done.error, done.fallback) == (None, 'ended with exit code -9')
    assert is_value(tmp_path / 'a', 1)
    assert left() == before


def test_no_progress_at_all_fails_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every later one, until the disk answers."""
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
    assert 'no progress for 0 s (a: 0 MB written)' in str(done.error)
    with pytest.raises(TimeoutError, match='an earlier save is still stuck'):
        save(writer, tmp_path / 'b')
    go.set()
    assert writer._worker._idle.wait(LONG)
    writer._worker._timeout = LONG
    done = save(writer, tmp_path / 'b', 2)
    writer.close()
    assert done.error is None
    assert is_value(tmp_path / 'b', 2)


class Waited(StallLimit):
    """Reached at the second look without progress; without a clock."""

    looks = 0

    def is_reached(self, progress: object) -> bool:
        self.looks = self.looks + 1 if progress == self._seen else 0
        self._seen = progress
        return self.looks == 2


def test_save_that_was_given_up_changes_nothing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had waited for a save of another writer; its owner has taken it back."""
    other = Save(['other'])
    old = tmp_path / 'old'
    old.touch()
    monkeypatch.setattr(durable_writer, 'StallLimit', Waited)
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
    assert writer._worker._idle.wait(LONG)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['old']
    writer.close()


def test_progress_of_the_save_that_is_waited_for_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Save(['other'])
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        other.report(len(lines))
        if len(lines) == 9:
            other.end()

    class WhileWaiting(Waited):
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


def test_save_that_was_given_up_is_not_taken_over(tmp_path: Path) -> None:
    writer = DurableWriter(warn=lambda line: None)
    stop_process(writer)
    done = save(writer, tmp_path / 'a')
    while writer._worker._asked is None:
        time.sleep(0.001)
    done.end(TimeoutError('no progress'))
    os.kill(process_of(writer), signal.SIGKILL)
    assert writer._worker._idle.wait(LONG)
    assert list(tmp_path.iterdir()) == []
    writer.close()


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
    assert [size // writer_process.PART for size in sizes] == [1, 2, 2, 0]  # and synced
    assert torch.equal(load(tmp_path / 'a')['value'], large)
    assert done.written == os.path.getsize(tmp_path / 'a')


def test_signals_are_for_the_training(writer: DurableWriter, tmp_path: Path) -> None:
    """Schedulers send SIGTERM to all processes of a job."""
    save(writer, tmp_path / 'a')
    writer.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(process_of(writer), number)
    assert os.getsid(process_of(writer)) != os.getsid(0)
    done = save(writer, tmp_path / 'b')
    writer.wait()
    assert (done.error, done.restarts) == (None, 0)


@contextlib.contextmanager
def fails_to_sync() -> Iterator[None]:
    """In this process."""

    def failing(file: int) -> None:
        raise OSError(errno.EIO, 'no disk')

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, 'fsync', failing)
        yield


def limited(writer: DurableWriter, folder: Path) -> Path:
    resource.prlimit(process_of(writer), resource.RLIMIT_FSIZE, (20_000, 20_000))
    return folder / 'large'


@pytest.mark.parametrize(
    ('number', 'where'),
    [
        (errno.ENOENT, lambda writer, folder: folder / 'gone/a'),
        (errno.ENOTDIR, lambda writer, folder: folder / 'a/b'),
        (errno.EACCES, lambda writer, folder: Path('/sys/a')),  # to root as well
        (errno.EFBIG, limited),
    ],
)
def test_what_the_disk_says(
    number: int, where: Callable, writer: DurableWriter, tmp_path: Path
) -> None:
    save(writer, tmp_path / 'a')
    writer.wait()
    path = where(writer, tmp_path)
    large = {str(part): torch.ones(1000) for part in range(20)}
    done = writer.save([(str(path), large)], remove=[str(tmp_path / 'a')])
    writer.fence()
    writer.wait()
    assert isinstance(done.error, OSError)
    assert (done.error.errno, done.error.filename) == (number, str(path))
    assert os.listdir(tmp_path) == ['a']
    done = save(writer, tmp_path / 'b')
    writer.wait()
    assert (done.error, done.restarts) == (None, 0)


def test_what_cannot_be_pickled(writer: DurableWriter, tmp_path: Path) -> None:
    done = writer.save([(str(tmp_path / 'a'), dict(function=lambda: None))])
    writer.fence()
    writer.wait()
    assert type(done.error) is not WriterDied
    assert 'lambda' in str(done.error)
    assert os.listdir(tmp_path) == []
    assert save(writer, tmp_path / 'a').error is None


def test_an_error_does_not_hold_the_copies(writer: DurableWriter, tmp_path: Path) -> None:
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


def test_no_memory_for_the_copy(
    writer: DurableWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> None:
        raise OSError(errno.ENOMEM, 'no memory')

    save(writer, tmp_path / 'a')
    with monkeypatch.context() as patch:
        patch.setattr(os, 'posix_fallocate', fails)
        with pytest.raises(OSError, match='no memory'):
            writer.save([(str(tmp_path / 'b'), dict(value=torch.ones(10_000)))])
        writer.fence()
        assert not writer.is_busy
    done = save(writer, tmp_path / 'b', 2)
    writer.wait()
    assert done.error is None
    assert is_value(tmp_path / 'b', 2)


def test_a_thread_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    writer = DurableWriter()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', fails)
        with pytest.raises(RuntimeError, match='new thread'):
            save(writer, tmp_path / 'a')
        writer.fence()
    save(writer, tmp_path / 'b')
    writer.close()
    assert os.listdir(tmp_path) == ['b']


def left() -> tuple[int, list[str], int]:
    """File descriptors, threads and mappings."""
    with open('/proc/self/maps') as file:
        mapped = sum('mmtempo-checkpoint' in line for line in file)
    names = [thread.name for thread in threading.enumerate() if 'mmtempo' in thread.name]
    return len(os.listdir('/proc/self/fd')), names, mapped


@pytest.mark.parametrize('way', ['close', 'killed', 'failed', 'unused'])
def test_close_leaves_nothing(way: str, tmp_path: Path) -> None:
    before = left()
    writer = DurableWriter()
    if way != 'unused':
        done = save(writer, tmp_path / ('gone/a' if way == 'failed' else 'a'))
        writer.wait()
        assert (done.error is None) is (way != 'failed')
        pid = process_of(writer)
        assert left() != before
    if way == 'killed':
        os.kill(pid, signal.SIGKILL)
    writer.close()
    assert left() == before
    if way != 'unused':
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    writer.close()
    with pytest.raises(RuntimeError, match='the writer is closed'):
        save(writer, tmp_path / 'b')


@forks
def test_close_does_not_wait_for_data_loaders(tmp_path: Path) -> None:
    """A process that was forked lives on, without the writer's pipes."""
    writer = DurableWriter()
    save(writer, tmp_path / 'a')
    writer.wait()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    closing = threading.Thread(target=writer.close)
    closing.start()
    closing.join(LONG)
    hangs = closing.is_alive()
    os.close(theirs)
    os.close(ours)
    os.waitpid(child, 0)
    closing.join()
    assert not hangs


@forks
def test_a_forked_process_ends_nothing(tmp_path: Path) -> None:
    writer = DurableWriter()
    save(writer, tmp_path / 'a')
    writer.wait()
    child = os.fork()
    if child == 0:
        writer.close()
        del writer
        gc.collect()
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    done = save(writer, tmp_path / 'b')
    writer.close()
    assert (done.error, done.restarts) == (None, 0)


def in_the_middle(
    writer: DurableWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Event]:
    """A save that goes on when the second event is set; the first one says that it is there."""
    there, go = threading.Event(), threading.Event()
    ask = durable_writer._Worker._ask

    def asking(self: Any, *args: Any) -> dict:
        there.set()
        go.wait()
        return ask(self, *args)

    monkeypatch.setattr(durable_writer._Worker, '_ask', asking)
    save(writer, path)
    there.wait()
    return there, go


def test_garbage_is_written_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = left()
    writer = DurableWriter()
    _, go = in_the_middle(writer, tmp_path / 'a', monkeypatch)
    join = threading.Thread.join

    def joining(self: threading.Thread, timeout: float | None = None) -> None:
        go.set()
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, 'join', joining)
    del writer
    gc.collect()
    assert go.is_set()
    assert is_value(tmp_path / 'a', 1)
    assert left() == before


def test_garbage_that_its_own_thread_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which cannot wait for itself."""
    before = left()
    holder = [DurableWriter()]
    finish = Snapshot.finish
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, 'unraisablehook', unraisable.append)
    given = threading.Event()

    def dropping(self: Snapshot) -> None:
        given.wait()
        holder.clear()
        finish(self)

    monkeypatch.setattr(Snapshot, 'finish', dropping)
    save(holder[0], tmp_path / 'a')
    thread = holder[0]._worker._thread
    assert thread is not None
    given.set()
    thread.join(LONG)
    assert not thread.is_alive()
    assert unraisable == []
    assert is_value(tmp_path / 'a', 1)
    assert left() == before


@pytest.mark.parametrize('is_started', [True, False])
def test_abandon(is_started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = left()
    writer = DurableWriter()
    if is_started:
        save(writer, tmp_path / 'before')
        writer.wait()
    _, go = in_the_middle(writer, tmp_path / 'a', monkeypatch)
    thread, last = writer._worker._thread, writer._last
    assert thread is not None
    assert last is not None
    writer.abandon()
    writer.close()  # waits for nothing
    go.set()
    thread.join(LONG)
    assert isinstance(last.error, WriterDied)
    assert os.listdir(tmp_path) == (['before'] if is_started else [])
    writer.fence()
    writer.wait()
    assert left() == before


def test_abandon_before_any_save() -> None:
    before = left()
    DurableWriter().abandon()
    assert left() == before


# Each ends the interpreter in its way, with a save on its way.
ENDINGS = """
import atexit, os, signal, sys, threading, types
stub = types.ModuleType('mmtempo')  # the package itself imports mmseg, which takes seconds
stub.__path__ = [{package!r}]
sys.modules['mmtempo'] = stub
import torch
from mmtempo.checkpoint.io.writer import DurableWriter, _Worker

go, ask = threading.Event(), _Worker._ask
_Worker._ask = lambda *args: go.wait() and ask(*args)  # nothing is written before the end

def begin(name):
    global writer
    atexit.register(go.set)
    writer = DurableWriter()
    weight = torch.ones(300_000)
    path = os.path.join({folder!r}, name)
    writer.save([(path, dict(weight=weight))], late={{weight.data_ptr()}})
    writer.fence()
    weight.zero_()

for name in ('sys.exit', 'error', 'end', 'killed'):
    pid = os.fork()
    if pid == 0:
        break
    code = os.waitpid(pid, 0)[1]
    print(name, os.waitstatus_to_exitcode(code), flush=True)
else:
    os._exit(0)

begin(name)
if name == 'sys.exit':
    sys.exit(143)
if name == 'error':
    raise ValueError('of the training')
if name == 'killed':
    go.set()
    writer.wait()
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:  # a data loader, that does not see at once that the training has gone
        signal.pause()
    print(pid, writer._worker._process.pid, flush=True)
    input()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_however_the_interpreter_ends(tmp_path: Path) -> None:
    script = ENDINGS.format(package=os.path.dirname(str(mmtempo.__file__)), folder=str(tmp_path))
    training = subprocess.Popen(
        [sys.executable, '-c', script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert training.stdin is not None
    assert training.stdout is not None
    assert training.stderr is not None
    codes = [training.stdout.readline().strip() for _ in range(3)]
    assert codes == ['sys.exit 143', 'error 1', 'end 0']
    # A writer does not outlive a training that was killed: it could disturb the next one.
    loader, process = map(int, training.stdout.readline().split())
    handle = os.pidfd_open(process)
    training.stdin.write('\n')
    training.stdin.flush()
    ended = bool(select.select([handle], [], [], LONG / 4)[0])
    os.close(handle)
    os.kill(loader, signal.SIGKILL)
    out, err = training.communicate()
    assert out == 'killed -9\n'
    assert ended
    # Nothing was printed but the error.
    assert err.count('Traceback') == 1
    assert 'ValueError: of the training' in err
    for name in ('sys.exit', 'error', 'end', 'killed'):
        assert torch.equal(load(tmp_path / name)['weight'], torch.ones(300_000)), name
    assert len(os.listdir(tmp_path)) == 4
