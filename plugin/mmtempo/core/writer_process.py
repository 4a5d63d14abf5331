"""The process that makes checkpoints durable. A program of the standard library, and zlib-ng.

It is run by its path: importing torch would cost it 200 MB and seconds. A process, and not a
thread, because a thread waits for Python's lock at every one of the thousand records of a
checkpoint: beside a training that is bound by Python its file takes four times as long to be
durable (the arm "ours, by a thread" of `benchmark.py checkpoint`). And a process can step back,
and be killed.

    trainer                                 this process
       memory shared by both  ------------>  the tensors of a checkpoint
       job, pickled, on stdin ------------>  what to write, and what may go after that
       <--------- answer, pickled, on stdout
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import pickle
import shutil
import signal
import sys
import time
import zipfile
from typing import Any, BinaryIO

with contextlib.suppress(ImportError):  # Windows
    import fcntl

# Nobody else's: what is left of an earlier crash is known by it.
TEMPORARY = '.mmtempo-tmp'
FOLDER = 'archive'  # as torch names it where it is not given a file
ALIGNMENT = 64  # of tensors, as torch aligns them: they can be mapped
PAGE = mmap.PAGESIZE
FLUSH_EVERY = 32  # records
LARGE = 16 * PAGE  # from here on, a record lies in the file as it lies in the shared memory
NICENESS = 19  # the training comes first
AUTOGROUP = '/proc/self/autogroup'  # of a session of its own, within which alone `nice` counts
PR_SET_PDEATHSIG = 1
# Some file systems of networks and virtual machines cannot sync a folder.
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)


def temporary_of(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f'.{name}{TEMPORARY}')


class DirectFile:
    """A file written past the page cache, which would cost a copy, and other files their place.

    What lies in shared memory at the same place of a page as in the file is written from there;
    anything else is kept until `flush`, behind which nobody may go back. Where the file system
    has no such files, an OSError.

    Args:
        path: Is made, or made empty.
    """

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(path, flags | os.O_DIRECT, 0o666)
        self._position = self._size = 0
        self._pages: dict[int, bytearray] = {}  # not written in place, by their number
        self._is_flushed = True
        self._buffer = memoryview(mmap.mmap(-1, LARGE))  # begins where a page does

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(self, *error: Any) -> None:
        os.close(self._file)

    def fileno(self) -> int:
        return self._file

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        self._position = position
        return position

    def write(self, content: bytes | memoryview) -> int:
        left = memoryview(content)
        self._is_flushed = False
        is_in_place = isinstance(left.obj, mmap.mmap) and len(left) >= LARGE
        while left:
            number, start = divmod(self._position, PAGE)
            if is_in_place and start == 0 and len(left) >= PAGE:
                count = len(left) // PAGE * PAGE
                self._write(left[:count], self._position)
            else:
                count = min(PAGE - start, len(left))
                page = self._pages.setdefault(number, bytearray(PAGE))
                page[start : start + count] = left[:count]
            self._position += count
            left = left[count:]
        self._size = max(self._size, self._position)
        return len(content)

    def flush(self) -> None:
        if self._is_flushed:
            return
        start, end = 0, 0  # of the pages that lie in the buffer, one after the other
        for number, page in sorted(self._pages.items()):
            if end - start == len(self._buffer) // PAGE or number != end:
                self._write(self._buffer[: (end - start) * PAGE], start * PAGE)
                start = end = number
            place = (end - start) * PAGE
            self._buffer[place : place + PAGE] = page
            end += 1
        self._write(self._buffer[: (end - start) * PAGE], start * PAGE)
        os.ftruncate(self._file, self._size)  # the last page is longer
        last = self._size // PAGE  # goes on
        self._pages = {last: self._pages[last]} if last in self._pages else {}
        self._is_flushed = True

    def _write(self, pages: memoryview, position: int) -> None:
        while pages:
            try:
                count = os.pwrite(self._file, pages, position)
            except OSError as error:
                flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
                if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                    raise
                # It takes no such writes after all, or a limit is within a page: as usual, then.
                fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~os.O_DIRECT)
                continue
            pages, position = pages[count:], position + count


def open_to_write(path: str) -> Any:
    """A `DirectFile` where there can be one, else a usual file."""
    if hasattr(os, 'O_DIRECT'):
        with contextlib.suppress(OSError):  # what else is wrong, the other one tells
            return DirectFile(path)
    return open(path, 'wb')


def write_archive(file: BinaryIO, records: list, memory: memoryview | None) -> None:
    """Write a zip as `torch.save` does: stored, aligned, with the CRC-32 of each record.

    Args:
        file: Open for writing.
        records: Name and content of each; bytes, or offset and size in `memory`.
        memory: The shared memory; None where no record lies in it.
    """
    with zipfile.ZipFile(file, 'w', zipfile.ZIP_STORED) as archive:
        for number, (name, content) in enumerate(records):
            alignment, place = ALIGNMENT, 0
            if isinstance(content, tuple):
                offset, size = content
                assert memory is not None
                content = memory[offset : offset + size]
                if size >= LARGE:
                    alignment, place = PAGE, offset
            info = zipfile.ZipInfo(f'{FOLDER}/{name}')
            info.file_size = len(content)
            is_large = len(content) * 1.05 > zipfile.ZIP64_LIMIT
            header = 30 + len(info.filename) + 4 + (20 if is_large else 0)
            padding = (place - file.tell() - header) % alignment
            info.extra = b'FB' + padding.to_bytes(2, 'little') + b'Z' * padding
            with archive.open(info, 'w', force_zip64=is_large) as record:
                record.write(content)
            if number % FLUSH_EVERY == 0:
                file.flush()  # it may keep in memory what it has not written


def sync_folder(path: str) -> None:
    """Make a rename in it durable, where folders can be opened."""
    if not hasattr(os, 'O_DIRECTORY'):
        return  # Windows: a rename is as durable as it gets
    folder = os.open(path or '.', os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(folder)


def replace_durably(path: str, write: Any) -> int:
    """Write beside `path`, sync, rename over it, sync the folder; returns the bytes written.

    At any moment `path` is the old file or the new one, whole.
    """
    size = _replace(path, write)
    sync_folder(os.path.dirname(path))
    return size


def _replace(path: str, write: Any) -> int:
    temporary = temporary_of(path)
    try:
        with open_to_write(temporary) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # it was not there, or the folder has gone
            os.remove(temporary)
        raise
    return size


def remove(path: str) -> None:
    """A file, or a folder as DeepSpeed saves."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.isfile(path):
        os.remove(path)


def do(job: dict, memory: memoryview | None) -> dict:
    """Files, then the marker, then what they replace: each is durable before the next begins."""
    start = time.perf_counter()
    written = 0
    added = []
    try:
        for path, records in job['files']:
            if not os.path.exists(path):
                added.append(path)
            write = functools.partial(write_archive, records=records, memory=memory)
            written += replace_durably(path, write)
        if job['marker'] is not None:
            path, text = job['marker']
            _replace(path, lambda file: file.write(text.encode()))
            added.clear()  # it names them
            sync_folder(os.path.dirname(path))
    except Exception as error:
        # All of a save is there, or nothing of it: a file that no other one names is lost anyway.
        for name in added:
            with contextlib.suppress(OSError):  # the first reason is the one that is reported
                remove(name)
        number, text = getattr(error, 'errno', None), getattr(error, 'strerror', None)
        return dict(error=(type(error).__name__, number, text or str(error), path))
    kept = []
    for path in job['remove']:
        try:
            # First aside: what a kill leaves of it is known as a leftover.
            if os.path.exists(path):
                os.replace(path, temporary_of(path))
            remove(temporary_of(path))
        except OSError as error:
            kept.append((path, error.strerror))
    return dict(error=None, written=written, seconds=time.perf_counter() - start, kept=kept)


def _die_with(parent: int) -> None:
    """A writer that outlives its training could publish into the next run of it."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.name == 'posix' and os.getppid() != parent:
        sys.exit()


def _step_back() -> None:
    """Use what the training leaves of the processors."""
    if hasattr(os, 'nice'):
        os.nice(NICENESS)
    with contextlib.suppress(OSError), open(AUTOGROUP, 'w') as file:
        file.write(str(NICENESS))


def _open(path: str | None) -> memoryview | None:
    if path is None:
        return None
    with open(path, 'r+b') as file:
        return memoryview(mmap.mmap(file.fileno(), 0))


def _use_zlib_ng(folder: str) -> None:
    """Its CRC-32 is zlib's in a fifth of the time, which the training's threads have then."""
    sys.path.append(folder)
    from zlib_ng import zlib_ng

    vars(zipfile)['crc32'] = zlib_ng.crc32  # nobody else uses it in this process


def main() -> None:
    _die_with(int(sys.argv[1]))
    _step_back()
    _use_zlib_ng(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM):  # the training decides when this ends
        signal.signal(number, signal.SIG_IGN)
    area, memory = None, None
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            job = pickle.load(jobs)
        except EOFError:
            return
        if job is None:
            return
        if job['area'] != area:
            area, memory = job['area'], _open(job['area'] and job['area'][0])
        pickle.dump(do(job, memory), answers)
        answers.flush()


if __name__ == '__main__':
    main()
