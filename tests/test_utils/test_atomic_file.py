"""A file is replaced as a whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from mmtempo.utils.atomic_file import replace_file, write_whole


def test_a_replaced_file_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / 'a.html'
    path.write_text('old')
    assert write_whole(path, 'new ä') == path
    assert path.read_text(encoding='utf-8') == 'new ä'
    assert os.listdir(tmp_path) == ['a.html']


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / 'a.html'
    path.write_text('old')

    def full(file: BinaryIO) -> None:
        file.write(b'n')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match='No space left'):
        replace_file(path, full)
    assert (path.read_text(), os.listdir(tmp_path)) == ('old', ['a.html'])


def test_an_interrupt_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / 'a.html'
    path.write_text('old')

    def interrupted(file: BinaryIO) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(path, interrupted)
    assert (path.read_text(), os.listdir(tmp_path)) == ('old', ['a.html'])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match='the folder .*nowhere does not exist'):
        write_whole(tmp_path / 'nowhere/a.html', '')


def test_a_device_or_pipe_is_not_replaced(tmp_path: Path) -> None:
    """A file in the place of a device would stay until the next boot."""
    os.mkfifo(tmp_path / 'pipe')
    reader = os.open(tmp_path / 'pipe', os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / 'pipe', 'text')
    assert os.read(reader, 10) == b'text'
    os.close(reader)
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, 'text')
