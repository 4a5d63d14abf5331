"""One process at a time uses a folder; the lock of a dead process is released."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmtempo.system import folder_lock
from mmtempo.system.folder_lock import NAME, FolderInUseError, FolderLock

HOLDING = """
import os, runpy, sys, time
FolderLock = runpy.run_path({path!r})['FolderLock']
lock = FolderLock([sys.argv[1]])
child = 0
if sys.argv[2] == 'fork':
    child = os.fork() or time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""


class Holder:
    """Another process that holds a folder."""

    def __init__(self, folder: Path, forks: bool) -> None:
        code = HOLDING.format(path=folder_lock.__file__)
        self.process = subprocess.Popen(
            [sys.executable, '-c', code, str(folder), 'fork' if forks else 'alone'],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.child = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        if self.child:
            os.kill(self.child, signal.SIGKILL)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable]:
    holders = []

    def start(folder: Path = tmp_path, forks: bool = False) -> Holder:
        holders.append(Holder(folder, forks))
        return holders[-1]

    yield start
    for holder in holders:
        holder.close()


def test_another_process_is_named(hold: Callable, tmp_path: Path) -> None:
    holder = hold()
    before = (tmp_path / NAME).read_text()
    with pytest.raises(FolderInUseError, match='is in use by another training') as error:
        FolderLock([str(tmp_path)], patience=0)
    text = str(error.value)
    assert str(tmp_path) in text
    assert (
        f'process {holder.process.pid} on {socket.gethostname()}, which started there at ' in text
    )
    assert f' {tmp_path} alone)' in text  # its command line
    assert (tmp_path / NAME).read_text() == before
    assert os.listdir(tmp_path) == [NAME]


def test_a_killed_process_releases_its_locks(hold: Callable, tmp_path: Path) -> None:
    hold().kill()
    assert (tmp_path / NAME).exists()
    with FolderLock([str(tmp_path)], patience=0) as lock:
        assert lock.problems == []
        assert json.loads((tmp_path / NAME).read_text())['pid'] == os.getpid()
    assert os.listdir(tmp_path) == []


def test_an_orphaned_worker_holds_no_lock(hold: Callable, tmp_path: Path) -> None:
    """A forked loader worker that survives its killed parent."""
    holder = hold(forks=True)
    with pytest.raises(FolderInUseError):
        FolderLock([str(tmp_path)], patience=0)  # its parent is alive
    holder.kill()
    os.kill(holder.child, 0)
    # The child closes its inherited lock first of all, but may not have run yet.
    FolderLock([str(tmp_path)], patience=30).release()


def test_a_holder_that_exits_soon_is_awaited(
    hold: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = hold()
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        holder.kill()

    monkeypatch.setattr(folder_lock.time, 'sleep', sleep)
    FolderLock([str(tmp_path)]).release()
    assert len(pauses) == 1


def test_all_folders_or_none(hold: Callable, tmp_path: Path) -> None:
    free, taken = tmp_path / 'free', tmp_path / 'taken'
    hold(taken)
    with pytest.raises(FolderInUseError, match='taken'):
        FolderLock([str(free), str(taken)], patience=0)
    assert os.listdir(free) == []


def test_locks_of_one_process_share_a_folder(tmp_path: Path) -> None:
    first = FolderLock([str(tmp_path)])
    second = FolderLock([str(tmp_path / 'x' / '..'), str(tmp_path)])
    first.release()
    first.release()
    assert (tmp_path / NAME).exists()
    second.release()
    assert not (tmp_path / NAME).exists()


def test_a_lock_that_is_collected_is_released(tmp_path: Path) -> None:
    lock = FolderLock([str(tmp_path)])
    assert (tmp_path / NAME).exists()
    del lock
    gc.collect()
    assert not (tmp_path / NAME).exists()


def test_a_recreated_folder_is_locked_again(hold: Callable, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    first = FolderLock([str(work)])
    (work / NAME).unlink()
    work.rmdir()
    with FolderLock([str(work)]):
        assert (work / NAME).exists()
    first.release()
    hold(work)


def test_a_fork_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    with FolderLock([str(tmp_path)]) as lock:
        child = os.fork()
        if child == 0:
            lock.release()
            os._exit(len(folder_lock._held))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (tmp_path / NAME).exists()
        done = subprocess.run(
            [sys.executable, '-c', HOLDING.format(path=folder_lock.__file__), str(tmp_path), ''],
            capture_output=True, text=True,
        )  # fmt: skip
        assert 'FolderInUseError' in done.stderr
        assert f'process {os.getpid()} on ' in done.stderr


@pytest.mark.parametrize('number', [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_reported(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folder_lock.fcntl, 'flock', flock)
    open_files = len(os.listdir('/proc/self/fd'))
    lock = FolderLock([str(tmp_path)])
    (problem,) = lock.problems
    assert f'{tmp_path}: cannot be locked ({os.strerror(number)})' in problem
    assert len(os.listdir('/proc/self/fd')) == open_files
    lock.release()


def test_a_read_only_lock_file_can_be_locked(
    hold: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock file of another user can be read and locked, but not written."""
    plain_open = os.open

    def opening(path: str, flags: int, *mode: int) -> int:
        if path.endswith(NAME) and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, 'Permission denied', path)
        return plain_open(path, flags, *mode)

    (tmp_path / NAME).touch()
    monkeypatch.setattr(os, 'open', opening)
    FolderLock([str(tmp_path)]).release()
    holder = hold()
    with pytest.raises(FolderInUseError, match=str(holder.process.pid)):
        FolderLock([str(tmp_path)], patience=0)


def test_a_holder_without_description_is_reported(hold: Callable, tmp_path: Path) -> None:
    hold()
    os.truncate(tmp_path / NAME, 0)
    with pytest.raises(FolderInUseError, match=f'{NAME} does not name the process'):
        FolderLock([str(tmp_path)], patience=0)
