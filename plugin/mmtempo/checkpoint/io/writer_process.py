"""Program that writes checkpoints durably; it imports the standard library only.

It is run by its path, because importing torch would cost 200 MB of memory and seconds of start-up
time. It is a process and not a thread, because a thread has to acquire the GIL for each of the
thousand records of a checkpoint: during a training that is bound by Python, a file takes four
times as long to become durable. A process can also run at a lower priority, and can be killed.

    training process                        writer process
       memory shared by both  ------------>  tensors of a checkpoint
       job, pickled, on stdin ------------>  files to write, and files to remove after that
       <------- progress in bytes, and then the answer, pickled, on stdout
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
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows, which refuses to rename or remove an open file
    fcntl = None  # type: ignore[assignment]

TEMPORARY = '.mmtempo-tmp'  # suffix of the names of incomplete files
STALE = 3600  # seconds without a change after which another host's temporary file is abandoned
FOLDER = 'archive'  # torch's name for the archive when it is given no path
ALIGNMENT = 64  # bytes; as in torch's files, so that tensors can be memory-mapped
PART = 1 << 26  # bytes that are written between two syncs
ZIP64_FIELD = 20  # bytes that the header of a record above `zipfile.ZIP64_LIMIT` is longer
NICENESS = 19  # lowest priority, because the training comes first
AUTOGROUP = '/proc/self/autogroup'  # of this session; `nice` counts only within it
PR_SET_PDEATHSIG = 1
# Errors of network and virtual machine file systems that cannot sync a folder.
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)


def temporary_of(path: str) -> str:
    """Return a unique path in the folder of `path`: `.NAME.HOST-PID-RANDOM.mmtempo-tmp`."""
    folder, name = os.path.split(path)
    owner = f'{_host()}-{os.getpid()}-{os.urandom(4).hex()}'
    return os.path.join(folder, f'.{name}.{owner}{TEMPORARY}')


def _host() -> str:
    return f'{zlib.crc32(socket.gethostname().encode()):08x}'


@contextlib.contextmanager
def new_temporary(path: str) -> Iterator[str]:
    """Create an empty file in the folder of `path` and lock it while the block runs.

    While it is locked, `remove_abandoned` of any process keeps it. If the block raises, the file
    is removed; otherwise the block has to rename it.
    """
    name, lock = _create(path)
    try:
        if fcntl is None:
            os.close(lock)
        yield name
    except BaseException:
        with contextlib.suppress(OSError):  # the folder was removed
            os.remove(name)
        raise
    finally:
        if fcntl is not None:
            os.close(lock)


def _create(path: str) -> tuple[str, int]:
    while True:
        name = temporary_of(path)
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is None:
            return name, lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(name):
                return name, lock
        except BlockingIOError:
            pass
        except OSError:  # no locks on this file system: `remove_abandoned` cannot lock it either
            return name, lock
        os.close(lock)  # another process removed it as abandoned before it was locked


def remove_abandoned(path: str) -> bool:
    """Remove a temporary file or folder unless a live process may use it; return whether it did.

    The kernel releases a lock when its holder ends for any reason. Some network file systems lock
    within one host only, so a file of another host must also be unchanged for `STALE` seconds.
    """
    is_of_this_host = f'.{_host()}-' in os.path.basename(path)
    is_free = fcntl is None  # Windows: the removal itself fails while the file is open
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
                    pass  # no locks on this file system
            is_stale = time.time() - os.stat(path).st_mtime > STALE
            if not (is_stale or (is_of_this_host and is_free)):
                return False
            remove(path)
    except OSError:  # another user's file, or removed in the meantime
        return False
    return True


def ignore(size: int) -> None:
    """Ignore a progress report."""


def write_archive(
    file: BinaryIO,
    records: list,
    memory: memoryview | None,
    report: Callable[[int], Any] = ignore,
) -> None:
    """Write records as `torch.save` does: stored, aligned, with the CRC-32 of each record.

    Args:
        file: A file that is open for writing.
        records: Name and content of each record; the content is bytes, or offset and size of a
            part of `memory`.
        memory: The shared memory; None if no record is there.
        report: Called with the size of the file in bytes after each part of it; `ignore` unless
            given.
    """
    synced = 0
    with zipfile.ZipFile(file, 'w') as archive:
        for name, content in records:
            if isinstance(content, tuple):
                start, size = content
                assert memory is not None
                content = memory[start : start + size]
            info = zipfile.ZipInfo(f'{FOLDER}/{name}')
            is_long = len(content) > zipfile.ZIP64_LIMIT
            header = 30 + len(info.filename) + 4 + ZIP64_FIELD * is_long
            padding = -(file.tell() + header) % ALIGNMENT
            info.extra = struct.pack('<2sH', b'FB', padding) + b'Z' * padding
            with archive.open(info, 'w', force_zip64=is_long) as record:
                for start in range(0, len(content), PART):
                    record.write(content[start : start + PART])
                    if file.tell() - synced >= PART:
                        sync(file)
                        synced = file.tell()
                        report(synced)
            info.extra = b''  # the table of contents needs no padding


def sync(file: BinaryIO) -> None:
    """Make the content of a file durable, and drop it from the page cache.

    The cache would otherwise evict pages that the training reads again, such as its samples.
    """
    file.flush()
    os.fsync(file.fileno())
    if hasattr(os, 'posix_fadvise'):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sync_folder(path: str) -> None:
    """Make renames within a folder durable; no-op where folders cannot be opened."""
    if not hasattr(os, 'O_DIRECTORY'):
        return  # Windows cannot open a folder to sync it
    folder = os.open(path or '.', os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(folder)


def replace_durably(path: str, write: Any) -> int:
    """Write a temporary file, sync it, rename it to `path`, sync the folder; return its size.

    At any moment `path` is the complete old file or the complete new one.
    """
    status = _replace(path, write)
    sync_folder(os.path.dirname(path))
    return status.st_size


def _replace(path: str, write: Any) -> os.stat_result:
    """Replace a file without syncing its folder; return its status, which identifies the file."""
    with new_temporary(path) as temporary:
        with open(temporary, 'r+b') as file:
            write(file)
            sync(file)
        status = os.stat(temporary)
        os.replace(temporary, path)
    return status


def remove(path: str) -> None:
    """Remove a file, or a folder as DeepSpeed saves."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.isfile(path):
        os.remove(path)


def do(job: dict, memory: memoryview | None, report: Callable[[int], Any] = ignore) -> dict:
    """Write files, then the marker, then remove files; each is durable before the next begins.

    Args:
        job: `files` (paths and records), `marker` (path and text, or None), `remove` (paths).
        memory: The shared memory; None if no record is there.
        report: Called with the size of the current file in bytes; `ignore` unless given.

    Returns:
        `error` (type, number, text and path, or None); without an error also `written` (size of
        all files in bytes) and `kept` (path and reason of each file that could not be removed).
    """
    written = 0
    added = []
    try:
        for path, records in job['files']:
            is_new = not os.path.exists(path)
            write = functools.partial(write_archive, records=records, memory=memory, report=report)
            status = _replace(path, write)
            written += status.st_size
            if is_new:
                added.append((path, status))
            sync_folder(os.path.dirname(path))
            report(0)  # also counts as progress: a sync may take as long as writing
        if job['marker'] is not None:
            path, text = job['marker']
            _replace(path, lambda file: file.write(text.encode()))
            added.clear()  # the marker names them, so that they must stay
            sync_folder(os.path.dirname(path))
    except Exception as error:
        # A save is complete or undone: no hook would ever remove a file that no marker names.
        for name, status in added:
            with contextlib.suppress(OSError):  # the first error is the one that is reported
                if os.path.samestat(os.stat(name), status):  # another process may have replaced it
                    remove(name)
        number, text = getattr(error, 'errno', None), getattr(error, 'strerror', None)
        return dict(error=(type(error).__name__, number, text or str(error), path))
    kept = []
    for path in job['remove']:
        try:
            # Renamed first, so that a partial removal is recognized as a leftover after a kill.
            aside = temporary_of(path)
            if os.path.exists(path):
                os.replace(path, aside)
                remove(aside)
        except FileNotFoundError:
            pass  # another process has removed it
        except OSError as error:
            kept.append((path, error.strerror))
    return dict(error=None, written=written, kept=kept)


def _die_with(parent: int) -> None:
    """End with the training process: a later write could disturb the next run of the training."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.name == 'posix' and os.getppid() != parent:  # it ended before the call
        sys.exit()


def _lower_priority() -> None:
    """Use only processor time that the training does not use."""
    if hasattr(os, 'nice'):
        os.nice(NICENESS)
    with contextlib.suppress(OSError), open(AUTOGROUP, 'w') as file:
        file.write(str(NICENESS))


def _open(path: str | None) -> memoryview | None:
    if path is None:
        return None
    with open(path, 'r+b') as file:
        return memoryview(mmap.mmap(file.fileno(), 0))


def main() -> None:
    _die_with(int(sys.argv[1]))
    _lower_priority()
    # Schedulers signal all processes of a job, but the training decides when this one ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    address, memory = None, None
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer

    def send(message: Any) -> None:
        with contextlib.suppress(OSError):  # the training has ended; complete the current job
            pickle.dump(message, answers)
            answers.flush()

    while True:
        try:
            job = pickle.load(jobs)
        except EOFError:
            return
        if job['buffer'] != address:  # the buffer was reallocated
            address = job['buffer']
            memory = _open(address and address[0])
        send(do(job, memory, send))


if __name__ == '__main__':
    main()
