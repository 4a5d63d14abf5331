"""Memory layout of a sample cache: header, counters, index, and the bytes of the samples."""

from __future__ import annotations

import mmap
import os
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from zlib_ng import zlib_ng

from mmtempo.utils.units import counted, percent, size

from .shared_file import SharedFile

# Its digit is the version of the records: pickles name modules of this package, so it must change
# when those move; files of other versions are replaced.
MAGIC = int.from_bytes(b'mmtempo3', 'little')
_MASK = (1 << 64) - 1
_FULL = 1
_STOPPED = 2
_TOO_LARGE = 4

# Words of the header. The first four never change, and the fifth is their checksum.
_MAGIC, _SAMPLES, _KEY, _TOKEN, _CHECK = range(5)
_HEADER = struct.Struct('=5Q')
_SESSION, _USED, _LIMIT, _STATE, _BUDGET = range(8, 13)
# Hits and misses: one cache line for each process, chosen by its ID. Only processes whose IDs are
# equal modulo this number share one; they lose a count where both add at the same moment.
_COUNTERS, _PROCESSES = 4096, 256
_HITS, _MISSES = range(2)
# The number of samples whose files are checked for changes at the start.
PROBED = 64
# The entry of a sample is one cache line of eight words.
_INDEX = _COUNTERS + 64 * _PROCESSES
_FIRST = _INDEX // 8
_OFFSET, _SIZE, _IDENTITY, _CRC, _CHECKSUM, _SEEN = range(6)


def _start_of_data(samples: int) -> int:
    """Return the offset of the data, from which a mapping may start."""
    return -(-(_INDEX + 64 * samples) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def _check_of(*words: int) -> int:
    """Return a checksum of words, never 0: that marks an empty entry."""
    return hash(words) & _MASK or 1


def fill_file(descriptor: int, samples: int, key: int) -> None:
    """Write an empty cache file.

    All of its control part is written: accessing a hole would raise SIGBUS on a full disk.
    """
    fixed = (MAGIC, samples, key, secrets.randbits(64))
    header = _HEADER.pack(*fixed, _check_of(*fixed))
    write_all(descriptor, [header, bytes(_start_of_data(samples) - len(header))], 0)


def reserve(descriptor: int, samples: int, room: int) -> None:
    """Extend the data part of a file to `room` bytes. No other process may use the file."""
    size = _start_of_data(samples) + room
    if os.fstat(descriptor).st_size < size:
        os.ftruncate(descriptor, size)


def problem_of(descriptor: int, samples: int, key: int) -> str | None:
    """Return why a file cannot be used, or None where it can."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    header = os.read(descriptor, _HEADER.size)
    if len(header) < _HEADER.size:
        return f'header is truncated to {len(header)} of {_HEADER.size} bytes'
    words = _HEADER.unpack(header)
    if words[_MAGIC] != MAGIC:
        return 'not a sample cache of this version'
    if words[_CHECK] != _check_of(*words[:_CHECK]):
        return 'header is damaged'
    if words[_SAMPLES] != samples or words[_KEY] != key:
        return 'the file belongs to other samples'
    found, expected = os.fstat(descriptor).st_size, _start_of_data(samples)
    if found < expected:
        return f'file is truncated to {found} bytes, less than {expected} without any samples'
    return None


def write_all(descriptor: int, parts: Sequence[bytes | memoryview], offset: int) -> None:
    """Write all parts from an offset on.

    By `write` instead of a mapping: a full disk is an OSError here, and SIGBUS there.
    """
    os.lseek(descriptor, offset, os.SEEK_SET)
    for part in parts:
        rest = memoryview(part).cast('B')
        while rest:
            rest = rest[os.write(descriptor, rest) :]


@dataclass(frozen=True)
class CacheStats:
    """Figures of a cache over all processes that use it.

    Attributes:
        samples: The number of samples in the cache.
        total: The number of samples of the data set.
        used: Bytes in use.
        budget: The maximum number of bytes.
        hits: How often a requested sample was in the cache.
        misses: How often it was not.
        closed: Whether no more samples are added.
    """

    samples: int = 0
    total: int = 0
    used: int = 0
    budget: int = 0
    hits: int = 0
    misses: int = 0
    closed: bool = True

    @property
    def hit_rate(self) -> float:
        """Share of hits, from 0 to 1; 0 without requests."""
        return self.hits / max(1, self.hits + self.misses)

    def __str__(self) -> str:
        return (
            f'cache: {self.samples} of {counted(self.total, "sample")}, {size(self.used)} of '
            f'{size(self.budget)}, {percent(self.hit_rate)} hits'
        )


class SampleArena:
    """Bytes of samples by number, in a file that several processes have open.

    Readers take no lock. A writer locks the file, writes the bytes to unused
    memory, then the entry, and last the checksum of the entry. Killed anywhere in between, it
    leaves an entry whose checksum is wrong and that no reader accepts; the kernel releases its
    lock.

    Samples are mapped read-only, so that nothing in a process, C code included, can change what
    other processes read.

    Args:
        file: The file, as written by `fill_file`.
    """

    def __init__(self, file: SharedFile) -> None:
        self.file = file
        file_size = os.fstat(file.descriptor).st_size
        with mmap.mmap(file.descriptor, 64, access=mmap.ACCESS_READ) as head:
            words = _HEADER.unpack_from(head)
        self.samples, self.token = words[_SAMPLES], words[_TOKEN]
        self._start = _start_of_data(self.samples)
        control = mmap.mmap(file.descriptor, self._start, access=mmap.ACCESS_WRITE)
        self._words = memoryview(control).cast('Q')
        # Aligned words of 8 bytes are read and written atomically.
        self._rows = np.frombuffer(control, np.uint64, 8 * self.samples, _INDEX).reshape(-1, 8)
        counts = np.frombuffer(control, np.uint64, 8 * _PROCESSES, _COUNTERS)
        self._counts = counts.reshape(-1, 8)
        data = mmap.mmap(
            file.descriptor, file_size - self._start, access=mmap.ACCESS_READ, offset=self._start
        )
        self._data = memoryview(data)
        self._address = np.frombuffer(data, np.uint8).ctypes.data

    # Setup, by one process at a time.

    def begin(self, budget: int, free: int | None) -> int:
        """Start a session with the samples in the file; return the number of damaged entries.

        Args:
            budget: The maximum number of bytes to use.
            free: Bytes available in addition to those in use; None where that is unknown.
        """
        with self.file.locked():
            rows = self._rows
            present = np.flatnonzero(rows[:, _CHECKSUM])
            wrong = [number for number in present.tolist() if self._entry(number) is None]
            rows[wrong] = 0
            live = rows[rows[:, _CHECKSUM] != 0]
            ends = live[:, _OFFSET] + live[:, _SIZE]
            self._words[_USED] = int(ends.max(initial=0))
            self._words[_BUDGET] = budget
            if free is not None:
                budget = min(budget, self.bytes_used + free)
            self._words[_LIMIT] = min(budget, len(self._data))
            self._words[_STATE] = 0
            self._counts[:] = 0
            # A crash of the machine may have lost bytes that had not reached the disk, so each
            # sample's checksum is verified once per session.
            self._words[_SESSION] = secrets.randbits(63) + 1
        return len(wrong)

    def clear_if_stale(self, is_current: Callable[[int, int], bool]) -> str | None:
        """Clear the cache if most of its bytes are stale; return the reason, or None.

        Without this, bytes of replaced samples and of changed files would never be freed.

        Args:
            is_current: Takes number and identity of a sample, returns whether the identity is
                that of its files. Called for `PROBED` samples only, as it accesses files.
        """
        with self.file.locked():
            rows, used = self._rows, self._words[_USED]
            present = np.flatnonzero(rows[:, _CHECKSUM])
            probed = present[:PROBED].tolist()
            sizes = rows[probed, _SIZE].astype(np.int64)
            current = [is_current(number, int(rows[number, _IDENTITY])) for number in probed]
            share = int(sizes[current].sum()) / max(1, int(sizes.sum()))
            reachable = share * int(rows[present, _SIZE].sum())
            if 2 * reachable >= used:
                return None
            rows[:] = 0
            self._words[_USED] = 0
        return f'{size(used - reachable)} of {size(used)} belong to samples that have changed'

    # Reading.

    def find(self, number: int, identity: int) -> memoryview | None:
        """Return a read-only view of the sample's bytes, or None."""
        found = self._look(number, identity)
        which = _HITS if found is not None else _MISSES
        self._words[_COUNTERS // 8 + 8 * (os.getpid() % _PROCESSES) + which] += 1
        return found

    def _entry(self, number: int) -> list[int] | None:
        """Return the words of an entry; None where it is empty, incomplete or damaged."""
        start = _FIRST + 8 * number
        words = self._words[start : start + 8].tolist()
        if words[_CHECKSUM] != _check_of(number, *words[:_CHECKSUM]):
            return None
        return words if words[_OFFSET] + words[_SIZE] <= len(self._data) else None

    def _look(self, number: int, identity: int) -> memoryview | None:
        words = self._entry(number)
        if words is None or words[_IDENTITY] != identity:
            return None
        found = self._data[words[_OFFSET] : words[_OFFSET] + words[_SIZE]]
        if words[_SEEN] != self._words[_SESSION]:
            if zlib_ng.crc32(found) != words[_CRC]:
                return None
            self._words[_FIRST + 8 * number + _SEEN] = self._words[_SESSION]
        return found

    def holds(self, address: int) -> bool:
        """Return whether an address of this process is in the mapping of the samples."""
        return 0 <= address - self._address < len(self._data)

    # Writing.

    def add(self, number: int, identity: int, parts: Sequence[bytes | memoryview]) -> str | None:
        """Add a sample if there is room; return a message for the log, once for all processes.

        Args:
            number: Number of the sample.
            identity: Identity of the files that the sample was made from.
            parts: Bytes of the sample, in total a multiple of 64.
        """
        if self.is_closed:
            return None
        needed = sum(map(len, parts))
        crc = 0
        if self.file.path is not None:  # memory does not outlive the session
            for part in parts:
                crc = zlib_ng.crc32(part, crc)
        with self.file.locked() as descriptor:
            # Another process may have added it meanwhile.
            if self.is_closed or self._look(number, identity) is not None:
                return None
            # Memory of replaced samples is not reused, as readers may still have views of it.
            offset = self._words[_USED]
            if offset + needed > self._words[_LIMIT]:
                return self._refuse(needed)
            try:
                write_all(descriptor, parts, self._start + offset)
            except OSError as error:
                self._words[_STATE] |= _STOPPED
                return f'cannot add a sample of {size(needed)} ({error}); no more samples are added'
            self._publish(number, [offset, needed, identity, crc])
        return None

    @property
    def is_closed(self) -> bool:
        """Whether no more samples are added."""
        return bool(self._words[_STATE] & (_STOPPED | _FULL))

    def _publish(self, number: int, words: list[int]) -> None:
        # Before the entry: no later writer may overwrite bytes that a valid entry refers to.
        self._words[_USED] = max(self._words[_USED], words[_OFFSET] + words[_SIZE])
        start = _FIRST + 8 * number
        self._words[start + _CHECKSUM] = 0
        for word, value in enumerate(words):
            self._words[start + word] = value
        self._words[start + _SEEN] = self._words[_SESSION]
        self._words[start + _CHECKSUM] = _check_of(number, *words)

    def _refuse(self, needed: int) -> str | None:
        """Record that a sample does not fit; return the message of the first refusal."""
        used = f'{size(self.bytes_used)} of {size(self.limit)} used'
        if 8 * needed > self.limit and 64 * (self.limit - self.bytes_used) > self.limit:
            # Smaller samples still fit.
            if self._words[_STATE] & _TOO_LARGE:
                return None
            self._words[_STATE] |= _TOO_LARGE
            return (
                f'a sample of {size(needed)} does not fit any more ({used}); it is computed at '
                'each draw, smaller samples are still added'
            )
        self._words[_STATE] |= _FULL
        return (
            f'full with {self.kept} of {counted(self.samples, "sample")} ({used}); the other '
            'samples are computed at each draw'
        )

    def stats(self) -> CacheStats:
        """Return the figures of the cache over all processes."""
        return CacheStats(
            samples=self.kept,
            total=self.samples,
            used=self.bytes_used,
            budget=self.limit,
            hits=int(self._counts[:, _HITS].sum()),
            misses=int(self._counts[:, _MISSES].sum()),
            closed=self.is_closed,
        )

    @property
    def kept(self) -> int:
        return int(np.count_nonzero(self._rows[:, _CHECKSUM]))

    @property
    def bytes_used(self) -> int:
        return self._words[_USED]

    @property
    def budget(self) -> int:
        """The budget of the first process, from which the limit was computed."""
        return self._words[_BUDGET]

    @property
    def limit(self) -> int:
        """The maximum number of bytes to use."""
        return self._words[_LIMIT]
