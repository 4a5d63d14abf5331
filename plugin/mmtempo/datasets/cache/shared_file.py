"""File that all processes of a node share by its name, in memory or in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator

if sys.platform == 'win32':
    import msvcrt
else:
    import fcntl

_FLAGS = os.O_RDWR | getattr(os, 'O_CLOEXEC', 0) | getattr(os, 'O_BINARY', 0)
_NO_LINK = getattr(os, 'O_NOFOLLOW', 0)
# Opening must not block where the path has become a pipe.
_FLAGS |= _NO_LINK | getattr(os, 'O_NONBLOCK', 0)
# Windows locks bytes against reading as well, so a byte after the end of any file is locked.
_FAR = 1 << 40


class SharedFile:
    """A file in memory only, or in a folder.

    A file in memory has no name: the kernel frees it when the last process that has it open ends
    in whatever way, and the size of `/dev/shm` does not limit it. Other processes of the same
    user open it by `/proc/<pid>/fd` of a process that has it, which `open_shared` looks up.

    Args:
        descriptor: Descriptor of the open file; this object closes it.
        path: Path of the file; None for a file in memory.
        temporary: Whether to remove the file together with this object. Defaults to False.
    """

    def __init__(self, descriptor: int, path: str | None, temporary: bool = False) -> None:
        self.descriptor = descriptor
        self.path = path
        gone = path if temporary else None
        self._finalizer = weakref.finalize(self, _end, descriptor, gone, os.getpid())

    @classmethod
    def at(cls, address: str) -> SharedFile:
        """Open the file of another process; raise OSError where it no longer exists."""
        in_memory = address.startswith('/proc/')
        # The entry in /proc is a link itself, so links must be followed there.
        descriptor = os.open(address, _FLAGS & ~_NO_LINK if in_memory else _FLAGS)
        try:
            _check_owner(descriptor, address)
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor, None if in_memory else address)

    @property
    def address(self) -> str:
        """Path by which another process opens the file."""
        return self.path or f'/proc/{os.getpid()}/fd/{self.descriptor}'

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Exclude other processes and threads; yield a descriptor to write with.

        Forked processes share an open file description, to which a lock belongs, so the file is
        opened anew. The kernel releases the lock when its process ends, in whatever way.
        """
        own = f'/proc/self/fd/{self.descriptor}'
        if self.path is not None and not os.path.exists(own):
            own = self.path
        descriptor = os.open(own, _FLAGS & ~_NO_LINK)
        try:
            if not os.path.samestat(os.fstat(descriptor), os.fstat(self.descriptor)):
                raise FileNotFoundError(f'{self.path}: the file has been replaced by another one')
            with _locked(descriptor):
                yield descriptor
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the descriptor; remove a temporary file."""
        self._finalizer()


@contextlib.contextmanager
def open_shared(
    name: str,
    folder: str | None,
    problem: Callable[[int], str | None],
    fill: Callable[[int], None],
    report: Callable[[str], None],
) -> Iterator[tuple[SharedFile, bool]]:
    """Find or create the file of a name; yield it and whether no other process has it open.

    Other processes that open the same name wait until the `with` block ends.

    Args:
        name: Name that all processes which share the file give.
        folder: Folder of the file; None for memory.
        problem: Takes the descriptor of a file that was found, returns why it cannot be used, or
            None.
        fill: Takes the descriptor of a new file, writes its content.
        report: Takes a message where a file that was found is not used.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
    label = f'mmtempo-{_user()}-{digest}'
    in_memory = folder is None and hasattr(os, 'memfd_create')
    home = tempfile.gettempdir() if folder is None else folder
    path = None if in_memory else os.path.join(home, f'{label}.cache')
    os.makedirs(home, exist_ok=True)
    # The first process creates the file under this lock. Its content lists the holders: process
    # and descriptor of each open.
    lock = os.open(os.path.join(home, f'{label}.lock'), _FLAGS | os.O_CREAT, 0o600)
    try:
        _check_owner(lock, os.path.join(home, f'{label}.lock'))
        with _locked(lock):
            holders = _read_holders(lock)
            file, others = _found(holders, label, path)
            wrong = None if file is None else problem(file.descriptor)
            if file is not None and wrong is not None:
                report(f'{path or "cache in memory"}: {wrong}; starting with an empty cache')
                file.close()
                file, others = None, []
            if file is None:
                file = _make(label, path, fill, temporary=folder is None)
            _write_holders(lock, [*others, (os.getpid(), file.descriptor)])
            yield file, not others
    finally:
        os.close(lock)


def _found(
    holders: list[tuple[int, int]], label: str, path: str | None
) -> tuple[SharedFile | None, list[tuple[int, int]]]:
    """Return the file if it exists, and the holders that still have it open."""
    file: SharedFile | None = None
    if path is not None:
        with contextlib.suppress(FileNotFoundError):
            file = SharedFile.at(path)
    alive = []
    for pid, descriptor in holders:
        link = f'/proc/{pid}/fd/{descriptor}'
        if file is not None and (pid, descriptor) == (os.getpid(), file.descriptor):
            continue  # an earlier open of this process, whose descriptor number was reused
        with contextlib.suppress(OSError):  # the process has ended, or the number is unused
            if path is None and f'memfd:{label}' in os.readlink(link):
                file = file or SharedFile.at(link)
            # Process and descriptor numbers are reused, so the file itself is compared.
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
    # Renamed when it is complete: a reader never finds a partial file under its path. Not by
    # `replace_file`, as the descriptor stays open and the file must be private (0o600).
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


def _read_holders(descriptor: int) -> list[tuple[int, int]]:
    os.lseek(descriptor, 0, os.SEEK_SET)
    lines = os.read(descriptor, 1 << 20).decode('ascii', 'replace').splitlines()
    pairs = [line.split() for line in lines]
    return [
        (int(pair[0]), int(pair[1]))
        for pair in pairs
        if len(pair) == 2 and all(part.isdigit() for part in pair)
    ]


def _write_holders(descriptor: int, holders: list[tuple[int, int]]) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, ''.join(f'{pid} {number}\n' for pid, number in holders).encode())


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    if sys.platform == 'win32':
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if sys.platform == 'win32':
            os.lseek(descriptor, _FAR, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
        else:
            # Closing does not suffice: a process forked meanwhile holds the same lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _user() -> int:
    return os.getuid() if hasattr(os, 'getuid') else 0


def _check_owner(descriptor: int, path: str) -> None:
    """Raise PermissionError for a file of another user: its content is unpickled."""
    if hasattr(os, 'getuid') and os.fstat(descriptor).st_uid != os.getuid():
        raise PermissionError(f'{path}: belongs to another user')


def _end(descriptor: int, path: str | None, owner: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
    if path is not None and os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.remove(path)
