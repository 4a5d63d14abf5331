"""Writes that fail are reported once, counted, and never end the training."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mmtempo.utils.write_guard import WriteGuard, append_whole, drop_cut_line


def full() -> None:
    raise OSError(errno.ENOSPC, 'No space left on device', 'a.json')


def test_the_first_failure_and_the_recovery_are_reported() -> None:
    said: list[str] = []
    guard = WriteGuard('scalars', said.append)
    assert not guard.write(full)
    assert not guard.write(full, lines=3)
    assert guard.write(lambda: None)
    assert guard.write(lambda: None)
    assert len(said) == 2
    assert 'scalars: cannot write a.json (No space left on device)' in said[0]
    assert 'Make room on the disk' in said[0]
    assert said[1] == 'scalars: written again; lines lost: 4'


def test_other_errors_are_raised() -> None:
    def broken() -> None:
        raise ValueError('broken')

    with pytest.raises(ValueError, match='broken'):
        WriteGuard('scalars', print).write(broken)


def test_a_failed_append_leaves_the_file_as_it_was(small_disk: Path) -> None:
    path = small_disk / 'lines'
    append_whole(str(path), 'first\n')
    with pytest.raises(OSError, match='No space left'):
        append_whole(str(path), 'x' * 1_000_000)
    assert path.read_text() == 'first\n'


def test_a_cut_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / 'lines'
    for text, left in (('a\nb\nc', 'a\nb\n'), ('a\nb\n', 'a\nb\n'), ('cut', '')):
        path.write_text(text)
        drop_cut_line(str(path))
        assert path.read_text() == left


def test_a_long_file_without_lines_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / 'binary'
    path.write_text('x' * 100_000)
    drop_cut_line(str(path))
    assert path.stat().st_size == 100_000
