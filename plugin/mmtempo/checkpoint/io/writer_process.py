"""The process that makes checkpoints durable. A program of the standard library, and zlib-ng.

It is run by its path: importing torch would cost it 200 MB and seconds. A process, and not a
thread, because a thread waits for Python's lock at every one of the thousand records of a
checkpoint: beside a training that is bound by Python its file takes four times as long to be
durable (the arm "ours, by a thread" of `benchmark.py checkpoint`). And a process can step back,
and be killed.

    trainer                                 this process
       memory shared by both  ------------>  the tensors of a checkpoint
       job, pickled, on stdin ------------>  what to write, and what may go after that
       <------- progress, and then the answer, pickled, on stdout
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
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows, which does not rename or remove a file that is open
    fcntl = None  # type: ignore[assignment]

TEMPORARY = '.mmtempo-tmp'  # ends the names of files that are not complete
STALE = 3600  # seconds after which a temporary file of another host counts as abandoned
FOLDER = 'archive'  # as torch names it where it is not given a file
ALIGNMENT = 64  # of tensors, as torch aligns them: they can be mapped
PAGE = mmap.PAGESIZE
PART = 1 << 26  # bytes that are written between two reports of progress
LARGE = 16 * PAGE  # from here on, a record lies in the file as it lies in the shared memory
# What a zip of before 1993 can say; else it says it behind.
SHORT, LONG = 0xFFFF, 0xFFFFFFFF
ZIP64_LIMIT = (1 << 31) - 1  # as Python's
NO_DATE = 0x21  # the first of January 1980
NICENESS = 19  # the training comes first
AUTOGROUP = '/proc/self/autogroup'  # of a session of its own, within which alone `nice` counts
PR_SET_PDEATHSIG = 1
# Some file systems of networks and virtual machines cannot sync a folder.
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)
checksum = zlib.crc32


def temporary_of(path: str) -> str:
    """Return a new name next to `path`: `.NAME.HOST-PID-RANDOM.mmtempo-tmp`."""
    folder, name = os.path.split(path)
    owner = f'{_host()}-{os.getpid()}-{os.urandom(4).hex()}'
    return os.path.join(folder, f'.{name}.{owner}{TEMPORARY}')


def _host() -> str:
    return f'{zlib.crc32(socket.gethostname().encode()):08x}'


@contextlib.contextmanager
def new_temporary(path: str) -> Iterator[str]:
    """Make an empty file next to `path`, locked while the block runs; remove what is left of it.

    `remove_abandoned` of any process spares it for as long as it is locked.
    """
    name, held = _create(path)
    try:
        if fcntl is None:
            os.close(held)
        yield name
    except BaseException:
        with contextlib.suppress(OSError):  # the folder has gone
            os.remove(name)
        raise
    finally:
        if fcntl is not None:
            os.close(held)


def _create(path: str) -> tuple[str, int]:
    while True:
        name = temporary_of(path)
        held = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is None:
            return name, held
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(name):
                return name, held
        except BlockingIOError:
            pass
        except OSError:  # no locks here: `remove_abandoned` cannot lock it either
            return name, held
        os.close(held)  # another process took it for abandoned before it was locked


def remove_abandoned(path: str) -> bool:
    """Remove a temporary file or folder unless a live process may use it; whether it was removed.

    The kernel frees a lock when its holder dies, however it dies. Some network file systems lock
    within one host only, so a file of another host must be untouched for `STALE` seconds as well.
    """
    is_of_this_host = f'.{_host()}-' in os.path.basename(path)
    is_free = fcntl is None  # on Windows the removal itself fails while the file is open
    try:
        with contextlib.ExitStack() as stack:
            if fcntl is not None:
                file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                stack.callback(os.close, file)
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    is_free = True
                except BlockingIOError:
                    return False
                except OSError:
                    pass  # no locks here
            is_stale = time.time() - os.stat(path).st_mtime > STALE
            if not (is_stale or (is_of_this_host and is_free)):
                return False
            remove(path)
    except OSError:  # of another user, or removed meanwhile
        return False
    return True


class DirectFile:
    """A file written past the page cache, which would cost a copy, and other files their place.

    Large parts of shared memory that lie there as in the file, page by page, are written from
    there; anything else through a buffer. It is written once, from its start to its end, which
    is `flush`. Where the file system has no such files, an OSError.

    Args:
        path: An empty file.
    """

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CLOEXEC
        self._file = os.open(path, flags | os.O_DIRECT)
        self._position = 0
        self._buffer = memoryview(mmap.mmap(-1, LARGE))  # begins where a page does
        self._kept = 0  # bytes in it

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(self, *error: Any) -> None:
        os.close(self._file)

    def fileno(self) -> int:
        return self._file

    def tell(self) -> int:
        return self._position

    def write(self, content: bytes | memoryview) -> int:
        left = memoryview(content)
        if isinstance(left.obj, mmap.mmap) and len(left) >= LARGE:
            first = -self._position % PAGE
            self._keep(left[:first])
            self._write_kept()
            count = (len(left) - first) // PAGE * PAGE
            self._write(left[first : first + count], self._position)
            self._position += count
            left = left[first + count :]
        self._keep(left)
        return len(content)

    def flush(self) -> None:
        self._write_kept()
        os.ftruncate(self._file, self._position)  # the last page is longer

    def _keep(self, content: memoryview) -> None:
        while content:
            part = content[: LARGE - self._kept]
            self._buffer[self._kept : self._kept + len(part)] = part
            self._kept += len(part)
            self._position += len(part)
            content = content[len(part) :]
            if self._kept == LARGE:
                self._write_kept()

    def _write_kept(self) -> None:
        size = -(-self._kept // PAGE) * PAGE
        self._write(self._buffer[:size], self._position - self._kept)
        self._kept = 0

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
    """Open an empty file: as a `DirectFile` where the file system has such, else as usual."""
    if hasattr(os, 'O_DIRECT'):
        with contextlib.suppress(OSError):  # any other error, the usual way raises again
            return DirectFile(path)
    return open(path, 'r+b')


class Archive:
    """Writes a zip as `torch.save` does: stored, aligned, with the CRC-32 of each record.

    From its start to its end, with few writes: Python's own writer goes back to each header, and
    takes longer for a thousand records than they take to be written.

    Args:
        file: Open for writing.
        report: Called with the size that the file has reached, after each part of it.
    """

    def __init__(self, file: BinaryIO, report: Callable[[int], Any]) -> None:
        self._file, self._report = file, report
        self._small: list[bytes | memoryview] = []  # not written yet
        self._size = 0
        self._entries: list[bytes] = []

    def add(self, name: str, content: bytes | memoryview, place: int, alignment: int) -> None:
        """Write a record.

        Args:
            name: Of the record.
            content: Of the record.
            place: Where it begins is to be this but for a multiple of `alignment`.
            alignment: In bytes.
        """
        start, size, encoded = self._size, len(content), name.encode()
        crc = checksum(content)
        sizes = struct.pack('<HHQQ', 1, 16, size, size) if size > ZIP64_LIMIT else b''
        header = 30 + len(encoded) + len(sizes) + 4
        padding = (place - start - header) % alignment
        extra = sizes + struct.pack('<2sH', b'FB', padding) + b'Z' * padding
        version, short = (45, LONG) if sizes else (20, size)
        common = struct.pack('<5H3L', version, 0, 0, 0, NO_DATE, crc, short, short)
        lengths = struct.pack('<HH', len(encoded), len(extra))
        self._write(b'PK\3\4' + common + lengths + encoded + extra)
        self._write(content)
        self._entries.append(_entry(common, encoded, start, size))

    def end(self) -> None:
        """Write the table of contents."""
        start, table = self._size, b''.join(self._entries)
        count = len(self._entries)
        self._write(table)
        end = self._size
        if start > ZIP64_LIMIT or count >= SHORT:
            figures = struct.pack('<QHHLLQQQQ', 44, 45, 45, 0, 0, count, count, len(table), start)
            self._write(b'PK\6\6' + figures)
            self._write(b'PK\6\7' + struct.pack('<LQL', 0, end, 1))
        least = min(count, SHORT), min(count, SHORT), min(len(table), LONG), min(start, LONG)
        self._write(b'PK\5\6' + struct.pack('<HHHHLLH', 0, 0, *least, 0))
        self._write_small()

    def _write(self, content: bytes | memoryview) -> None:
        if len(content) < LARGE:
            self._small.append(content)
            self._size += len(content)
            return
        self._write_small()
        whole = memoryview(content)
        for start in range(0, len(whole), PART):
            part = whole[start : start + PART]
            self._file.write(part)
            self._size += len(part)
            self._report(self._size)

    def _write_small(self) -> None:
        self._file.write(b''.join(self._small))
        self._small.clear()


def _entry(common: bytes, name: bytes, start: int, size: int) -> bytes:
    """Of the table of contents; `common` is what a record's own header has as well."""
    long = [size, size] if size > ZIP64_LIMIT else []
    if start > ZIP64_LIMIT:
        long.append(start)
    extra = struct.pack(f'<HH{len(long)}Q', 1, 8 * len(long), *long) if long else b''
    lengths = struct.pack('<HHHHHL', len(name), len(extra), 0, 0, 0, 0)
    place = struct.pack('<L', LONG if start > ZIP64_LIMIT else start)
    made_by = struct.pack('<H', 45)
    return b'PK\1\2' + made_by + common + lengths + place + name + extra


def ignore(size: int) -> None:
    """Report to no one."""


def write_archive(
    file: BinaryIO,
    records: list,
    memory: memoryview | None,
    report: Callable[[int], Any] = ignore,
) -> None:
    """Write records as `torch.save` does.

    Args:
        file: Open for writing.
        records: Name and content of each; bytes, or offset and size in `memory`.
        memory: The shared memory; None where no record lies in it.
        report: Called with the size that the file has reached. Defaults to ignore.
    """
    archive = Archive(file, report)
    for name, content in records:
        alignment, place = ALIGNMENT, 0
        if isinstance(content, tuple):
            offset, size = content
            assert memory is not None
            content = memory[offset : offset + size]
            if size >= LARGE:
                alignment, place = PAGE, offset
        archive.add(f'{FOLDER}/{name}', content, place, alignment)
    archive.end()


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
    """Write a temporary file, sync it, rename it to `path`, sync the folder; return its bytes.

    At any moment `path` is the old file or the new one, whole.
    """
    found = _replace(path, write)
    sync_folder(os.path.dirname(path))
    return found.st_size


def _replace(path: str, write: Any) -> os.stat_result:
    """Return what tells the new file from one that another process puts in its place."""
    with new_temporary(path) as temporary:
        with open_to_write(temporary) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        found = os.stat(temporary)
        os.replace(temporary, path)
    return found


def remove(path: str) -> None:
    """A file, or a folder as DeepSpeed saves."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.isfile(path):
        os.remove(path)


def do(job: dict, memory: memoryview | None, report: Callable[[int], Any] = ignore) -> dict:
    """Write files, then the marker, then remove what they replace.

    Each is durable before the next begins.

    Args:
        job: `files`, each a path and its records, `marker` and `remove`.
        memory: Where records lie that are given by offset and size.
        report: Called with the size that the current file has reached. Defaults to ignore.
    """
    start = time.perf_counter()
    written = 0
    added = []
    try:
        for path, records in job['files']:
            is_new = not os.path.exists(path)
            write = functools.partial(write_archive, records=records, memory=memory, report=report)
            found = _replace(path, write)
            written += found.st_size
            if is_new:
                added.append((path, found))
            sync_folder(os.path.dirname(path))
            report(0)  # synced, which may take as long as writing
        if job['marker'] is not None:
            path, text = job['marker']
            _replace(path, lambda file: file.write(text.encode()))
            added.clear()  # it names them
            sync_folder(os.path.dirname(path))
    except Exception as error:
        # A save is complete or undone: a file that no other one names is lost anyway.
        for name, own in added:
            with contextlib.suppress(OSError):  # the first reason is the one that is reported
                if os.path.samestat(os.stat(name), own):  # not what another process put there
                    remove(name)
        number, text = getattr(error, 'errno', None), getattr(error, 'strerror', None)
        return dict(error=(type(error).__name__, number, text or str(error), path))
    kept = []
    for path in job['remove']:
        try:
            # Renamed first: what a kill leaves of it is known as a leftover.
            aside = temporary_of(path)
            if os.path.exists(path):
                os.replace(path, aside)
                remove(aside)
        except FileNotFoundError:
            pass  # another process has removed it
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
    global checksum
    sys.path.append(folder)
    from zlib_ng import zlib_ng

    checksum = zlib_ng.crc32


def main() -> None:
    _die_with(int(sys.argv[1]))
    _step_back()
    _use_zlib_ng(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM):  # the training decides when this ends
        signal.signal(number, signal.SIG_IGN)
    area, memory = None, None
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer

    def send(message: Any) -> None:
        with contextlib.suppress(OSError):  # the training has gone; what was begun is finished
            pickle.dump(message, answers)
            answers.flush()

    while True:
        try:
            job = pickle.load(jobs)
        except EOFError:
            return
        if job['area'] != area:
            area, memory = job['area'], _open(job['area'] and job['area'][0])
        send(do(job, memory, send))


if __name__ == '__main__':
    main()
