"""The process that makes checkpoints durable. A program of the standard library alone.

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

# Nobody else's: what is left of an earlier crash is known by it.
TEMPORARY = '.mmtempo-tmp'
FOLDER = 'archive'  # as torch names it where it is not given a file
ALIGNMENT = 64  # of tensors, as torch aligns them: they can be mapped
NICENESS = 19  # the training comes first
AUTOGROUP = '/proc/self/autogroup'  # of a session of its own, within which alone `nice` counts
PR_SET_PDEATHSIG = 1
# Some file systems of networks and virtual machines cannot sync a folder.
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)


def temporary_of(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f'.{name}{TEMPORARY}')


def write_archive(file: BinaryIO, records: list, memory: memoryview | None) -> None:
    """Write a zip as `torch.save` does: stored, aligned, with the CRC-32 of each record.

    Args:
        file: Open for writing.
        records: Name and content of each; bytes, or offset and size in `memory`.
        memory: The shared memory; None where no record lies in it.
    """
    with zipfile.ZipFile(file, 'w', zipfile.ZIP_STORED) as archive:
        for name, content in records:
            if isinstance(content, tuple):
                offset, size = content
                assert memory is not None
                content = memory[offset : offset + size]
            info = zipfile.ZipInfo(f'{FOLDER}/{name}')
            info.file_size = len(content)
            is_large = len(content) * 1.05 > zipfile.ZIP64_LIMIT
            header = 30 + len(info.filename) + 4 + (20 if is_large else 0)
            padding = -(file.tell() + header) % ALIGNMENT
            info.extra = b'FB' + padding.to_bytes(2, 'little') + b'Z' * padding
            with archive.open(info, 'w', force_zip64=is_large) as record:
                record.write(content)


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
        with open(temporary, 'wb') as file:
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


def main() -> None:
    _die_with(int(sys.argv[1]))
    _step_back()
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
