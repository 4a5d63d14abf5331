"""Content and order of writes: at any moment the disk has the complete old or new files."""

from __future__ import annotations

import ast
import errno
import os
import random
import re
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from mmtempo.checkpoint.io import writer_process
from mmtempo.checkpoint.io.archive import check_archive
from mmtempo.checkpoint.io.writer_process import (
    ALIGNMENT,
    TEMPORARY,
    do,
    replace_durably,
    temporary_of,
    write_archive,
)

RECORDS = [('data.pkl', b'pickled'), ('data/0', b'x' * 100), ('version', b'3\n')]


def starts(path: Path | str) -> dict[str, int]:
    """Return the offset of the content of each record."""
    found = {}
    with open(path, 'rb') as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            file.seek(info.header_offset)
            header = struct.unpack('<4s5H3L2H', file.read(30))
            found[info.filename] = info.header_offset + 30 + header[-2] + header[-1]
    return found


def test_imports_the_standard_library_only() -> None:
    """It is run without site packages."""
    with open(writer_process.__file__) as file:
        tree = ast.parse(file.read())
    names = {
        (name.name if isinstance(node, ast.Import) else str(node.module)).partition('.')[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    assert {name.partition('.')[0] for name in names} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize('limit', [zipfile.ZIP64_LIMIT, 1000])
def test_records_are_aligned_with_and_without_zip64(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header of a record above 2 GiB is longer; here above 1000 bytes."""
    monkeypatch.setattr(zipfile, 'ZIP64_LIMIT', limit)
    memory = memoryview(bytes(range(256)) * 40)
    records: list[tuple[str, Any]] = [
        ('data.pkl', b'pickled'),
        *[(f'data/{size}', (size, size)) for size in (1, 63, 64, 65, 950, 960, 1000, 4096)],
        ('data/none', b''),
        ('version', b'3\n'),
    ]
    path = tmp_path / 'a.pth'
    with open(path, 'wb') as file:
        write_archive(file, records, memory)
    offsets = starts(path)
    assert {offset % ALIGNMENT for offset in offsets.values()} == {0}
    with zipfile.ZipFile(path) as archive:
        for name, content in records:
            if isinstance(content, tuple):
                content = bytes(memory[content[0] : content[0] + content[1]])
            info = archive.getinfo(f'archive/{name}')
            assert archive.read(info) == content
            # Only large records have the longer header, which torch's reader accepts.
            has_long_header = offsets[info.filename] - info.header_offset > 30 + 24 + 4 + 63
            assert not has_long_header or len(content) > limit
    reader = torch._C.PyTorchFileReader(str(path))
    assert reader.get_record('data/4096') == bytes(memory[4096:8192])
    assert reader.get_record_offset('data/4096') == offsets['archive/data/4096']


def test_more_records_than_a_zip_without_zip64_can_count(tmp_path: Path) -> None:
    count = 0x10000 + 3
    with open(tmp_path / 'a', 'wb') as file:
        write_archive(file, [(str(number), b'') for number in range(count)], None)
    with zipfile.ZipFile(tmp_path / 'a') as archive:
        assert len(archive.namelist()) == count
        assert archive.read(f'archive/{count - 1}') == b''


def test_long_file_is_synced_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pages of it are in the page cache at any time; each part is reported as progress."""
    synced, reported = [], []
    original = os.posix_fadvise

    def fadvise(file: int, start: int, length: int, advice: int) -> None:
        synced.append(os.fstat(file).st_size)
        assert (start, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        original(file, start, length, advice)

    monkeypatch.setattr(os, 'posix_fadvise', fadvise)
    monkeypatch.setattr(writer_process, 'PART', 1000)
    memory = memoryview(random.Random(0).randbytes(5000))
    records: list[tuple[str, Any]] = [('a', (0, 3500)), *[(f'{n}', (n, 300)) for n in range(9)]]
    records.append(('version', b'3\n'))
    path = str(tmp_path / 'a')
    size = replace_durably(path, lambda file: write_archive(file, records, memory, reported.append))
    assert synced == [*reported, size]
    assert max(map(int.__sub__, synced, [0, *synced])) < 2000
    assert check_archive(path) is None


class Disk:
    """Record of the file operations of this process in order; some of them fail.

    Attributes:
        done: Name and file of each operation.
        fails: Error number by operation.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.done: list[tuple[str, str]] = []
        self.fails: dict[tuple[str, str], int] = {}
        self._folder = folder
        self._synced = os.fsync
        for name in ('replace', 'remove'):
            patch.setattr(os, name, self._noting(name, getattr(os, name)))
        patch.setattr(os, 'fsync', self._fsync)
        patch.setattr(writer_process.shutil, 'rmtree', lambda path: self._note('rmtree', path))

    def _noting(self, name: str, original: Any) -> Any:
        def noting(path: str, *more: Any) -> None:
            self._note(name, more[0] if more else path)
            original(path, *more)

        return noting

    def _fsync(self, file: int) -> None:
        self._note('fsync', os.readlink(f'/proc/self/fd/{file}'))
        self._synced(file)

    def _note(self, name: str, path: str) -> None:
        shown = without_owner(os.path.relpath(path, self._folder))
        self.done.append((name, shown))
        number = self.fails.get((name, shown))
        if number is not None:
            raise OSError(number, os.strerror(number), path)

    def names(self) -> list[str]:
        return sorted(map(without_owner, os.listdir(self._folder)))


def without_owner(name: str) -> str:
    """Remove the unique part of the name of a temporary file."""
    return re.sub(rf'\.[0-9a-f]{{8}}-\d+-[0-9a-f]{{8}}{TEMPORARY}$', TEMPORARY, name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    return Disk(monkeypatch, tmp_path)


def tmp(name: str) -> str:
    return f'.{name}{TEMPORARY}'


def job(folder: Path, **changes: Any) -> dict:
    files = [(str(folder / name), RECORDS) for name in ('best', 'step')]
    marker = (str(folder / 'marker'), 'step')
    return {
        **dict(buffer=None, files=files, marker=marker, remove=[str(folder / 'old')]),
        **changes,
    }


def test_each_file_is_durable_before_the_next_begins(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / 'old').write_text('old')
    answer = do(job(tmp_path), None)
    expected = []
    for name in ('best', 'step', 'marker'):
        expected += [('fsync', tmp(name)), ('replace', name), ('fsync', '.')]
    assert disk.done == [*expected, ('replace', tmp('old')), ('remove', tmp('old'))]
    assert (answer['error'], answer['kept']) == (None, [])
    assert answer['written'] == 2 * os.path.getsize(tmp_path / 'best')
    assert disk.names() == ['best', 'marker', 'step']
    assert (tmp_path / 'marker').read_text() == 'step'


@pytest.mark.parametrize(
    'write', [lambda file: write_archive(file, RECORDS, None), lambda file: file.write(b'marker')]
)
def test_file_is_complete_when_it_is_synced(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes in a buffer of Python would not be synced."""
    sizes = []
    monkeypatch.setattr(os, 'fsync', lambda file: sizes.append(os.fstat(file).st_size))
    size = replace_durably(str(tmp_path / 'a'), write)
    assert size == os.path.getsize(tmp_path / 'a') == sizes[0]


@pytest.mark.parametrize(
    'step', [('fsync', tmp('step')), ('replace', 'step'), ('fsync', tmp('marker'))]
)
def test_failed_save_is_undone(step: tuple, disk: Disk, tmp_path: Path) -> None:
    for name in ('old', 'marker'):
        (tmp_path / name).write_text('old')
    disk.fails[step] = errno.ENOSPC
    answer = do(job(tmp_path), None)
    path = str(tmp_path / step[1].removeprefix('.').removesuffix(TEMPORARY))
    assert answer['error'] == ('OSError', errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    assert disk.names() == ['marker', 'old']
    assert (tmp_path / 'marker').read_text() == 'old'


def test_failed_save_keeps_files_that_existed(disk: Disk, tmp_path: Path) -> None:
    for name in ('best', 'step'):
        (tmp_path / name).write_text('old')
    disk.fails['fsync', tmp('step')] = errno.EIO
    assert do(job(tmp_path), None)['error'][1] == errno.EIO
    assert check_archive(str(tmp_path / 'best')) is None
    assert (tmp_path / 'step').read_text() == 'old'
    assert disk.names() == ['best', 'step']


def test_files_that_the_marker_names_are_kept(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is unknown whether the marker is durable."""
    (tmp_path / 'old').write_text('old')
    original = writer_process.sync_folder

    def sync_folder(path: str) -> None:
        if ('replace', 'marker') in disk.done:
            raise OSError(errno.EIO, 'broken')
        original(path)

    monkeypatch.setattr(writer_process, 'sync_folder', sync_folder)
    answer = do(job(tmp_path), None)
    assert answer['error'] == ('OSError', errno.EIO, 'broken', str(tmp_path / 'marker'))
    assert disk.names() == ['best', 'marker', 'old', 'step']


@pytest.mark.parametrize('number', [errno.EINVAL, errno.ENOTSUP])
def test_file_system_that_cannot_sync_folders(number: int, disk: Disk, tmp_path: Path) -> None:
    disk.fails['fsync', '.'] = number
    assert do(job(tmp_path), None)['error'] is None
    assert disk.names() == ['best', 'marker', 'step']


def test_folder_that_cannot_be_synced_is_closed(disk: Disk, tmp_path: Path) -> None:
    before = len(os.listdir('/proc/self/fd'))
    disk.fails['fsync', '.'] = errno.EIO
    assert do(job(tmp_path), None)['error'][1] == errno.EIO
    assert len(os.listdir('/proc/self/fd')) == before
    assert disk.names() == []


def test_error_without_a_number_is_reported(tmp_path: Path) -> None:
    files = [(str(tmp_path / 'a'), [('data.pkl', (0, 5))])]
    name, number, _, path = do(job(tmp_path, files=files), None)['error']
    assert (name, number, path) == ('AssertionError', None, str(tmp_path / 'a'))
    assert os.listdir(tmp_path) == []


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    answer = do(job(tmp_path / 'gone'), None)
    assert answer['error'][:2] == ('FileNotFoundError', errno.ENOENT)


def test_files_that_cannot_be_removed_are_reported(disk: Disk, tmp_path: Path) -> None:
    for name in ('old', 'older'):
        (tmp_path / name).write_text('old')
    (tmp_path / 'folder').mkdir()
    disk.fails['remove', tmp('old')] = errno.EACCES
    remove = [str(tmp_path / name) for name in ('old', 'not there', 'older', 'folder')]
    answer = do(job(tmp_path, remove=remove), None)
    assert answer['error'] is None
    assert answer['kept'] == [(remove[0], os.strerror(errno.EACCES))]
    assert disk.done[-6:] == [
        (step, tmp(name))
        for name, last in (('old', 'remove'), ('older', 'remove'), ('folder', 'rmtree'))
        for step in ('replace', last)
    ]
    assert disk.names() == sorted([tmp('folder'), tmp('old'), 'best', 'marker', 'step'])


def test_job_without_a_marker(disk: Disk, tmp_path: Path) -> None:
    assert do(job(tmp_path, marker=None), None)['error'] is None
    assert disk.names() == ['best', 'step']


def test_dangling_link_is_replaced(tmp_path: Path) -> None:
    os.symlink('nowhere', tmp_path / 'a')
    replace_durably(str(tmp_path / 'a'), lambda file: file.write(b'x'))
    assert (tmp_path / 'a').read_text() == 'x'


def test_names_of_temporary_files_are_unique() -> None:
    for path, expected in ('/a/b.pth', '/a/.b.pth.mmtempo-tmp'), ('b.pth', '.b.pth.mmtempo-tmp'):
        names = {temporary_of(path) for _ in range(100)}
        assert len(names) == 100
        assert {without_owner(name) for name in names} == {expected}
