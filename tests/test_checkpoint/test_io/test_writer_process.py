"""Content and order of writes: at any moment the disk has the complete old or new files."""

from __future__ import annotations

import ast
import errno
import fcntl
import mmap
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
    LARGE,
    PAGE,
    TEMPORARY,
    DirectFile,
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


def test_imports_the_standard_library_and_zlib_ng_only() -> None:
    """It is run without site packages; the path of zlib-ng is an argument."""
    with open(writer_process.__file__) as file:
        tree = ast.parse(file.read())
    names = {
        (name.name if isinstance(node, ast.Import) else str(node.module)).partition('.')[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    assert {name.partition('.')[0] for name in names} <= {*sys.stdlib_module_names, 'zlib_ng'}


@pytest.mark.parametrize('limit', [writer_process.ZIP64_LIMIT, 1000])
def test_records_are_aligned_with_and_without_zip64(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header of a record above 2 GiB is longer; here above 1000 bytes."""
    monkeypatch.setattr(writer_process, 'ZIP64_LIMIT', limit)
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


@pytest.fixture
def memory() -> memoryview:
    shared = mmap.mmap(-1, 16 * LARGE)
    shared[:] = random.Random(0).randbytes(len(shared))
    return memoryview(shared)


def large_and_small(memory: memoryview) -> list[tuple[str, Any]]:
    sizes = [LARGE, 3, LARGE - 1, LARGE + 1, 2 * LARGE + PAGE, 0, PAGE, 3 * LARGE + 77]
    records: list[tuple[str, Any]] = [('data.pkl', b'pickled' * PAGE)]  # not in the shared memory
    offset = 0
    for number, size in enumerate(sizes):
        records.append((f'data/{number}', (offset, size)))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return [*records, ('large', bytes(memory[:LARGE])), ('version', b'3\n')]


def test_direct_file_is_the_same_as_a_regular_one(memory: memoryview, tmp_path: Path) -> None:
    """And most of it is written from the shared memory, without a copy."""
    written = []
    original = os.pwrite

    def pwrite(file: int, content: memoryview, position: int) -> int:
        written.append((content.obj is memory.obj, len(content)))
        return original(file, content, position)

    records = large_and_small(memory)
    with open(tmp_path / 'usual', 'wb') as file:
        write_archive(file, records, memory)
    (tmp_path / 'direct').touch()
    with DirectFile(str(tmp_path / 'direct')) as direct, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, 'pwrite', pwrite)
        write_archive(direct, records, memory)
        direct.flush()
    assert (tmp_path / 'direct').read_bytes() == (tmp_path / 'usual').read_bytes()
    # The first and the last page of a record contain parts of other records.
    in_place = sum(size for is_in_place, size in written if is_in_place)
    large = [content[1] for _, content in records if isinstance(content, tuple)]
    large = [size for size in large if size >= LARGE]
    assert sum(large) - 2 * PAGE * len(large) <= in_place <= sum(large)
    assert check_archive(str(tmp_path / 'direct')) is None


@pytest.mark.parametrize('refuses', ['open', 'pwrite'])
def test_file_system_without_direct_files(
    refuses: str, memory: memoryview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system refuses O_DIRECT when the file is opened, or at the first write."""
    original = getattr(os, refuses)
    refused = []

    def refusing(file: Any, *args: Any) -> Any:
        direct = args[0] if refuses == 'open' else fcntl.fcntl(file, fcntl.F_GETFL)
        if direct & os.O_DIRECT:
            refused.append(file)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return original(file, *args)

    monkeypatch.setattr(os, refuses, refusing)
    records = large_and_small(memory)
    path = str(tmp_path / 'a')
    replace_durably(path, lambda file: write_archive(file, records, memory))
    assert len(refused) == 1
    assert check_archive(path) is None
    with zipfile.ZipFile(path) as archive:
        for name, (offset, size) in (one for one in records if isinstance(one[1], tuple)):
            assert archive.read(f'archive/{name}') == bytes(memory[offset : offset + size])


def test_partial_writes_are_continued(
    memory: memoryview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.pwrite
    monkeypatch.setattr(os, 'pwrite', lambda file, content, at: original(file, content[:PAGE], at))
    records = large_and_small(memory)
    path = str(tmp_path / 'a')
    replace_durably(path, lambda file: write_archive(file, records, memory))
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
