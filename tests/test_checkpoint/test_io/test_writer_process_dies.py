"""A writer process that dies is replaced: within a save by the training process."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmtempo.checkpoint.io import writer_client, writer_process
from mmtempo.checkpoint.io.writer import DurableWriter
from tests.testing.durable_writer import is_value, process_of, save


def test_process_killed_while_idle_is_restarted(writer: DurableWriter, tmp_path: Path) -> None:
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


def test_process_killed_with_a_job_is_replaced_by_this_one(
    writer: DurableWriter, tmp_path: Path
) -> None:
    save(writer, tmp_path / 'a')
    writer.wait()
    os.kill(process_of(writer), signal.SIGSTOP)
    done = save(writer, tmp_path / 'b', 2)
    os.kill(process_of(writer), signal.SIGKILL)
    writer.wait()
    assert (done.error, done.restarts, done.fallback) == (None, 0, 'ended with exit code -9')
    assert is_value(tmp_path / 'b', 2)
    done = save(writer, tmp_path / 'c', 3)  # by a new process
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
    """A function that returns a writer whose first processes kill themselves at a step."""
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
def test_process_killed_while_writing_is_replaced_by_this_one(
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


@contextlib.contextmanager
def fails_to_sync() -> Iterator[None]:
    """Let each sync of this process fail."""

    def failing(file: int) -> None:
        raise OSError(errno.EIO, 'no disk')

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, 'fsync', failing)
        yield


def test_save_that_both_processes_fail_leaves_nothing(
    dying: Callable[[int, str], DurableWriter], tmp_path: Path
) -> None:
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
        assert os.listdir(folder) == ['old']  # no temporary file either
    done = save(writer, folder / 'a', 3)  # by the third process, which does not die
    writer.wait()
    assert (done.error, done.fallback) == (None, None)
    assert is_value(folder / 'a', 3)


def test_process_that_cannot_be_started_is_replaced_by_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
