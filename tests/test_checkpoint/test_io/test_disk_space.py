"""Shortage of disk space, and removal of abandoned temporary files."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmtempo.checkpoint.io import writer_process
from mmtempo.checkpoint.io.disk_space import remove_leftovers, shortage
from mmtempo.checkpoint.io.writer_process import STALE, TEMPORARY, new_temporary, temporary_of


@pytest.mark.parametrize(
    ('size', 'files', 'missing'), [(10, 2, 0), (50, 2, 0), (50, 3, 50), (101, 1, 1)]
)
def test_shortage(size: int, files: int, missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, 'disk_usage', lambda folder: SimpleNamespace(free=100))
    assert shortage('.', size, files) == missing


def test_unknown_free_space_is_no_shortage(tmp_path: Path) -> None:
    assert shortage(str(tmp_path / 'gone'), 1 << 60, 1) == 0
    assert shortage(str(tmp_path), 1 << 60, 1) > 0


def test_only_our_temporary_files_are_removed(tmp_path: Path) -> None:
    others = ['a.pth', '.hidden', 'a.mmtempo-tmp', '.a.pth.mmtempo-tmp.pth']
    for name in others:
        (tmp_path / name).touch()
    left = [temporary_of(str(tmp_path / name)) for name in ('b.pth', 'last_checkpoint')]
    for path in left:
        Path(path).touch()
    assert remove_leftovers(str(tmp_path)) == [os.path.basename(path) for path in left]
    assert sorted(os.listdir(tmp_path)) == sorted(others)
    assert remove_leftovers(str(tmp_path)) == []


def test_leftover_that_cannot_be_removed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = (Path(temporary_of(str(tmp_path / name))) for name in 'ab')
    file.touch()
    folder.mkdir()  # DeepSpeed saves folders
    (folder / 'part').touch()

    def remove(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, 'remove', remove)
    assert remove_leftovers(str(tmp_path)) == [folder.name]
    assert os.listdir(tmp_path) == [file.name]


WRITING = """
import runpy, sys, time
module = runpy.run_path({path!r})
with module['new_temporary'](sys.argv[1]) as name:
    print(name, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """Another process that is writing a file in this folder."""
    code = WRITING.format(path=writer_process.__file__)
    process = subprocess.Popen(
        [sys.executable, '-c', code, str(tmp_path / 'a.pth')], stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_temporary_file_of_a_live_process_is_kept(other: subprocess.Popen, tmp_path: Path) -> None:
    assert other.stdout is not None
    name = Path(other.stdout.readline().strip())
    os.utime(name, (0, 0))  # the age does not matter
    assert remove_leftovers(str(tmp_path)) == []
    assert name.exists()
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert name.exists()
    assert remove_leftovers(str(tmp_path)) == [name.name]


def test_temporary_file_of_this_process_is_kept(tmp_path: Path) -> None:
    with new_temporary(str(tmp_path / 'a')) as name:
        assert remove_leftovers(str(tmp_path)) == []
        assert os.listdir(tmp_path) == [os.path.basename(name)]
        os.replace(name, tmp_path / 'a')
    assert os.listdir(tmp_path) == ['a']


def test_temporary_file_of_another_host_is_kept_until_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems lock within one host only."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, 'gethostname', lambda: 'elsewhere')
        path = Path(temporary_of(str(tmp_path / 'a')))
    path.touch()
    assert remove_leftovers(str(tmp_path)) == []
    before = time.time() - STALE - 60
    os.utime(path, (before, before))
    assert remove_leftovers(str(tmp_path)) == [path.name]


def test_without_file_locks_only_stale_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(38, 'Function not implemented')

    monkeypatch.setattr(writer_process.fcntl, 'flock', flock)
    with new_temporary(str(tmp_path / 'a')) as name:
        assert remove_leftovers(str(tmp_path)) == []
        os.utime(name, (0, 0))
        assert remove_leftovers(str(tmp_path)) == [os.path.basename(name)]


def test_new_file_removed_as_abandoned_gets_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may remove it between its creation and its lock."""
    flock, removed = writer_process.fcntl.flock, []

    def late(file: int, how: int) -> None:
        if not removed:
            removed.append(None)  # first, because `remove_leftovers` locks as well
            removed[:] = remove_leftovers(str(tmp_path))
        flock(file, how)

    monkeypatch.setattr(writer_process.fcntl, 'flock', late)
    with new_temporary(str(tmp_path / 'a')) as name:
        assert len(removed) == 1
        assert os.path.basename(name) != removed[0]
        assert os.listdir(tmp_path) == [os.path.basename(name)]
        assert name.endswith(TEMPORARY)
