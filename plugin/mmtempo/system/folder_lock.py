"""Lock folders for one process; the kernel releases the locks when the process dies."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import sys
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

try:
    import fcntl
except ImportError:
    import msvcrt

NAME = '.mmtempo-lock'
PATIENCE = 2.0  # seconds that a killed process may need to exit
PAUSE = 0.05  # seconds between two attempts
BYTE = 1 << 30  # locked on Windows; far after the text, which stays readable


class FolderInUseError(ValueError):
    """Another process uses the folder; the message names the process."""


class FolderLock:
    """A lock on folders until `release`, garbage collection, or the end of the process.

    Each folder gets a file `.mmtempo-lock` that names the process; `release` removes it. Locks of
    one process on the same folder share it: consecutive trainings in a notebook, or parts of one
    training. A forked process does not hold the locks of its parent, so that a worker that outlives
    its killed parent blocks nothing.

    Args:
        folders: The folders; missing ones are created.
        patience: Seconds to wait for the holder to exit. Defaults to 2.0.

    Attributes:
        problems: Reasons why folders could not be locked, for example a file system without
            locks. Such folders are used without a lock.

    Raises:
        FolderInUseError: Another process holds one of the folders; none is locked then.
    """

    def __init__(self, folders: Iterable[str], patience: float = PATIENCE) -> None:
        self.problems: list[str] = []
        holds: list[_Held] = []
        # Runs also when the interpreter exits.
        self._end = weakref.finalize(self, _release, holds)
        try:
            for folder in dict.fromkeys(map(os.path.realpath, folders)):
                try:
                    holds.append(_acquire(folder, patience))
                except OSError as error:
                    self.problems.append(
                        f'{folder}: cannot be locked ({error.strerror}), so a second training '
                        'there would not be detected; do not start one'
                    )
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Unlock all folders; no-op after the first call."""
        self._end()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *error: Any) -> None:
        self.release()


@dataclass
class _Held:
    """A locked file; `count` locks of this process share it."""

    path: str
    file: int
    count: int = 0


_held: dict[str, _Held] = {}  # locks of this process, by the real path of the lock file


def _acquire(folder: str, patience: float) -> _Held:
    path = os.path.join(folder, NAME)
    held = _held.get(path)
    if held is None or not _is_file_of(held.file, path):
        held = _held[path] = _Held(path, _locked(folder, patience))
    held.count += 1
    return held


def _release(holds: list[_Held]) -> None:
    for held in holds:
        held.count -= 1
        if held.count == 0:
            if _held.get(held.path) is held:
                del _held[held.path]
            _remove(held.file, held.path)
    holds.clear()


def _remove(file: int, path: str) -> None:
    """Remove the lock file, before unlocking it where possible."""
    if os.name == 'nt':  # Windows cannot remove an open file
        os.close(file)
    with contextlib.suppress(OSError):
        if os.name == 'nt' or _is_file_of(file, path):
            os.remove(path)
    if os.name != 'nt':
        os.close(file)


def _locked(folder: str, patience: float) -> int:
    """Return the descriptor of the folder's locked file."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, NAME)
    end = time.monotonic() + patience
    while True:
        file, is_writable = _open(path)
        try:
            if _try_lock(file) and _is_file_of(file, path):  # otherwise its holder has removed it
                if is_writable:
                    _describe_self(file)
                return file
            if time.monotonic() >= end:
                raise FolderInUseError(
                    f'{folder} is in use by another training: {_description(path)}. Wait until it '
                    'has ended, stop it, or choose another work_dir (--work-dir)'
                )
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        time.sleep(PAUSE)


def _open(path: str) -> tuple[int, bool]:
    flags = getattr(os, 'O_BINARY', 0)
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o666), True
    except PermissionError as error:  # file of another user: read access is enough for a lock
        try:
            return os.open(path, flags | os.O_RDONLY), False
        except FileNotFoundError:
            raise error from None


def _try_lock(file: int) -> bool:
    if os.name == 'nt':
        os.lseek(file, BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # PermissionError: some network file systems
        return False
    return True


def _is_file_of(file: int, path: str) -> bool:
    """Return whether `path` still is the open file; it may have been removed or replaced."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False


def _describe_self(file: int) -> None:
    text = json.dumps(
        dict(
            pid=os.getpid(),
            host=socket.gethostname(),
            started=time.strftime('%Y-%m-%d %H:%M:%S'),
            command=shlex.join(sys.orig_argv),
        )
    )
    with contextlib.suppress(OSError):  # a full disk; the text is not needed for the lock
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, text.encode())


def _description(path: str) -> str:
    try:
        with open(path, encoding='utf-8') as file:
            who = json.load(file)
        return (
            f'process {who["pid"]} on {who["host"]}, which started there at {who["started"]} '
            f'({who["command"]})'
        )
    except (OSError, ValueError, TypeError, KeyError):
        return f'{path} does not name the process'


def _forget() -> None:
    """Close inherited locks, which an orphan would hold after the death of its parent."""
    for held in _held.values():
        with contextlib.suppress(OSError):
            os.close(held.file)  # the parent keeps the lock with its descriptor
        held.count = 0  # `_release` must not remove the parent's file
    _held.clear()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_forget)
