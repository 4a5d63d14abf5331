"""One file for all processes of a node that ask for the same name."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

if sys.platform == 'win32':
    import msvcrt
else:
    import fcntl

_FLAGS = os.O_RDWR | getattr(os, 'O_CLOEXEC', 0) | getattr(os, 'O_BINARY', 0)
_NO_LINK = getattr(os, 'O_NOFOLLOW', 0)
# What has meanwhile become a pipe must not be waited for.
_FLAGS |= _NO_LINK | getattr(os, 'O_NONBLOCK', 0)
# Windows locks bytes, and keeps others from reading them: one that no file has.
_FAR = 1 << 40


@dataclass(frozen=True)
class Address:
    """Where another process finds the file: a descriptor of a process, or a path."""

    pid: int
    descriptor: int
    path: str | None


class SharedFile:
    """A file that lives in memory only, or in a folder.

    In memory it has no name: the kernel frees it when the last process that has it open is gone,
    however that ended, and it is not limited by the size of `/dev/shm`. Other processes of the
    same user find it by way of `/proc/<pid>/fd` of one that has it (`open_shared` knows which).

    Args:
        descriptor: The open file, which this takes over.
        path: Its name; None for one in memory.
        temporary: Whether the file is removed with this object. Defaults to False.
    """

    def __init__(self, descriptor: int, path: str | None, temporary: bool = False) -> None:
        self.descriptor = descriptor
        self.path = path
        gone = path if temporary else None
        self._finalizer = weakref.finalize(self, _end, descriptor, gone, os.getpid())

    @classmethod
    def at(cls, address: Address) -> SharedFile:
        """The file that another process has; OSError where it is no longer there."""
        path = address.path or f'/proc/{address.pid}/fd/{address.descriptor}'
        # What stands in /proc is a link, to a file whose name is of no importance.
        flags = _FLAGS if address.path else _FLAGS & ~_NO_LINK
        descriptor = os.open(path, flags)
        try:
            _check_owner(descriptor, path)
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor, address.path)

    @property
    def address(self) -> Address:
        return Address(os.getpid(), self.descriptor, self.path)

    @contextlib.contextmanager
    def locked(self, shared: bool = False) -> Iterator[int]:
        """Keep other processes and threads out; gives a descriptor to write with.

        A lock belongs to an *open* of the file, and forked processes share those: so this opens
        it anew. The kernel releases it when its process ends, in whatever way.
        """
        own = f'/proc/self/fd/{self.descriptor}'
        if self.path is not None and not os.path.exists(own):
            own = self.path
        descriptor = os.open(own, _FLAGS & ~_NO_LINK)
        try:
            if not os.path.samestat(os.fstat(descriptor), os.fstat(self.descriptor)):
                raise FileNotFoundError(f'{self.path} has been replaced by another file')
            with _lock(descriptor, shared):
                yield descriptor
        finally:
            os.close(descriptor)

    def close(self) -> None:
        self._finalizer()


@contextlib.contextmanager
def open_shared(
    name: str,
    folder: str | None,
    problem: Callable[[int], str | None],
    fill: Callable[[int], None],
    report: Callable[[str], None],
) -> Iterator[tuple[SharedFile, bool]]:
    """Find the file of this name or make it; also says whether nobody else is known to have it.

    Others who look for it wait until the `with` ends.

    Args:
        name: What processes that want the same file have in common.
        folder: Where it lies; None for memory.
        problem: Says what is wrong with a file that was found; None for nothing.
        fill: Makes the content of a new file, given its descriptor.
        report: Is told why a file that was found is not used.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
    label = f'mmtempo-{_user()}-{digest}'
    in_memory = folder is None and hasattr(os, 'memfd_create')
    home = tempfile.gettempdir() if folder is None else folder
    path = None if in_memory else os.path.join(home, f'{label}.cache')
    os.makedirs(home, exist_ok=True)
    # Who is first makes it, the others wait; who has it open is listed here.
    door = os.open(os.path.join(home, f'{label}.lock'), _FLAGS | os.O_CREAT, 0o600)
    try:
        _check_owner(door, os.path.join(home, f'{label}.lock'))
        with _lock(door):
            holders = _read_holders(door)
            file, others = _found(holders, label, path)
            wrong = None if file is None else problem(file.descriptor)
            if file is not None and wrong is not None:
                report(f'{path or "the cache in memory"} is not used: {wrong}; starting afresh')
                file.close()
                file, others = None, []
            if file is None:
                file = _make(label, path, fill, temporary=folder is None)
            _write_holders(door, [*others, (os.getpid(), file.descriptor)])
            yield file, not others
    finally:
        os.close(door)


def _found(
    holders: list[tuple[int, int]], label: str, path: str | None
) -> tuple[SharedFile | None, list[tuple[int, int]]]:
    """The file, if there is one, and who has it open."""
    file: SharedFile | None = None
    if path is not None:
        with contextlib.suppress(FileNotFoundError):
            file = SharedFile.at(Address(os.getpid(), -1, path))
    alive = []
    for pid, descriptor in holders:
        link = f'/proc/{pid}/fd/{descriptor}'
        if file is not None and (pid, descriptor) == (os.getpid(), file.descriptor):
            continue  # this process had it before, and was given the same number again
        with contextlib.suppress(OSError):  # gone, or nothing of ours
            if path is None and f'memfd:{label}' in os.readlink(link):
                file = file or SharedFile.at(Address(pid, descriptor, None))
            # A number is given anew to another process, and a descriptor to another file.
            if file is not None and os.path.samestat(os.stat(link), os.fstat(file.descriptor)):
                alive.append((pid, descriptor))
    return file, alive


def _make(label: str, path: str | None, fill: Callable[[int], None], temporary: bool) -> SharedFile:
    if path is None:
        file = SharedFile(os.memfd_create(label), None)
        try:
            fill(file.descriptor)
        except OSError:
            file.close()
            raise
        return file
    # Under its name there is never half a file.
    unfinished = f'{path}.new'
    with contextlib.suppress(FileNotFoundError):
        os.remove(unfinished)
    descriptor = os.open(unfinished, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fill(descriptor)
        os.replace(unfinished, path)
    except OSError:
        os.close(descriptor)
        os.remove(unfinished)
        raise
    return SharedFile(descriptor, path, temporary)


def _read_holders(door: int) -> list[tuple[int, int]]:
    os.lseek(door, 0, os.SEEK_SET)
    lines = os.read(door, 1 << 20).decode('ascii', 'replace').splitlines()
    pairs = [line.split() for line in lines]
    return [
        (int(pair[0]), int(pair[1]))
        for pair in pairs
        if len(pair) == 2 and all(part.isdigit() for part in pair)
    ]


def _write_holders(door: int, holders: list[tuple[int, int]]) -> None:
    os.lseek(door, 0, os.SEEK_SET)
    os.ftruncate(door, 0)
    os.write(door, ''.join(f'{pid} {descriptor}\n' for pid, descriptor in holders).encode())


@contextlib.contextmanager
def _lock(descriptor: int, shared: bool = False) -> Iterator[None]:
    if sys.platform == 'win32':
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        if sys.platform == 'win32':
            os.lseek(descriptor, _FAR, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
        else:
            # Closing is not enough: a process forked meanwhile has it open, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _user() -> int:
    return os.getuid() if hasattr(os, 'getuid') else 0


def _check_owner(descriptor: int, path: str) -> None:
    """What is read here may be unpickled: it must not come from somebody else."""
    if hasattr(os, 'getuid') and os.fstat(descriptor).st_uid != os.getuid():
        raise PermissionError(f'{path} belongs to another user')


def _end(descriptor: int, path: str | None, owner: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
    if path is not None and os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.remove(path)
