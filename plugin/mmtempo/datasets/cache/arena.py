"""The memory of a sample cache: a header, counters, an index, and the samples' bytes."""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import time
from collections.abc import Callable, Sequence

import numpy as np
from zlib_ng import zlib_ng

from .counters import SIZE as COUNTERS_SIZE
from .counters import ProcessCounters
from .shared_file import SharedFile

MAGIC = int.from_bytes(b'mmtempo1', 'little')
_MASK = (1 << 64) - 1
_FULL = 1
_STOPPED = 2
_TOO_LARGE = 4

# Words of the header. The first ones never change, and the sixth says whether they are right.
_MAGIC, _SAMPLES, _ROOM, _KEY, _TOKEN, _CHECK = range(6)
_SESSION, _USED, _LIMIT, _STATE, _BUDGET = range(8, 13)
_COUNTERS = 4096
# Of so many samples the files are looked at, at the start.
ASKED = 64
# A sample's entry is one cache line.
_INDEX = _COUNTERS + COUNTERS_SIZE
_FIRST = _INDEX // 8
_OFFSET, _SIZE, _IDENTITY, _CRC, _RIGHT, _SEEN, _TICK = range(7)


def _start_of_data(samples: int) -> int:
    """Where it can be mapped by itself."""
    return -(-(_INDEX + 64 * samples) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def _check_of(*words: int) -> int:
    """Never 0, which is what an empty entry has."""
    return hash(words) & _MASK or 1


def fill_file(descriptor: int, samples: int, room: int, key: int) -> None:
    """Make an empty file. Its first part is written and not left as a hole: no SIGBUS later."""
    start = _start_of_data(samples)
    fixed = (MAGIC, samples, room, key, secrets.randbits(64))
    header = struct.pack('=6Q', *fixed, _check_of(*fixed))
    write_all(descriptor, [header, bytes(start - len(header))], 0)
    os.ftruncate(descriptor, start + room)


def grow_file(file: SharedFile, room: int) -> None:
    """Have room for more; for who is alone."""
    with file.locked() as descriptor:
        words = struct.unpack('=6Q', os.read(descriptor, 48))
        if room > words[_ROOM]:
            fixed = (*words[:_ROOM], room, *words[_ROOM + 1 : _CHECK])
            os.ftruncate(descriptor, _start_of_data(words[_SAMPLES]) + room)
            write_all(descriptor, [struct.pack('=6Q', *fixed, _check_of(*fixed))], 0)


def problem_of(descriptor: int, samples: int, key: int) -> str | None:
    """Why a file cannot be used; None where it can."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    header = os.read(descriptor, 48)
    if len(header) < 48:
        return f'it ends after {len(header)} bytes'
    words = struct.unpack('=6Q', header)
    if words[_MAGIC] != MAGIC:
        return 'it is no sample cache, or one of another version'
    if words[_CHECK] != _check_of(*words[:_CHECK]):
        return 'its header is damaged'
    if words[_SAMPLES] != samples or words[_KEY] != key:
        return 'it is of other samples'
    size, expected = os.fstat(descriptor).st_size, _start_of_data(samples) + words[_ROOM]
    if size < expected:
        return f'it is truncated: {size} instead of {expected} bytes'
    return None


def write_all(descriptor: int, parts: Sequence[bytes | memoryview], offset: int) -> None:
    """By `write`: memory or disk that is not there is an OSError here, and never a SIGBUS."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    for part in parts:
        rest = memoryview(part).cast('B')
        while rest:
            rest = rest[os.write(descriptor, rest) :]


class SampleArena:
    """Bytes of samples by number, in a file that several processes have open.

    Readers take no lock (but under 'lru'). A writer locks the file, writes the bytes where nothing
    is, then the entry, and last what says that the entry is right; killed anywhere in between,
    it leaves an entry that nobody believes, and the kernel releases its lock.

    Samples are mapped read-only, so that nothing in a process, C code included, can change what
    the others read.

    Args:
        file: The file, as `fill_file` makes it.
        lru: Whether the least recently used make room. Then a sample is given as a copy.
            Defaults to False: what is full stays as it is.
    """

    def __init__(self, file: SharedFile, lru: bool = False) -> None:
        self.file, self.lru = file, lru
        size = os.fstat(file.descriptor).st_size
        with mmap.mmap(file.descriptor, 64, access=mmap.ACCESS_READ) as head:
            words = struct.unpack_from('=6Q', head)
        self.samples, self.token = words[_SAMPLES], words[_TOKEN]
        self._start = _start_of_data(self.samples)
        control = mmap.mmap(file.descriptor, self._start, access=mmap.ACCESS_WRITE)
        self._words = memoryview(control).cast('Q')
        # Aligned words of 8 bytes are written and read as a whole.
        self._rows = np.frombuffer(control, np.uint64, 8 * self.samples, _INDEX).reshape(-1, 8)
        counters = memoryview(control)[_COUNTERS:_INDEX]
        self._counters = ProcessCounters(counters, file.locked)
        data = mmap.mmap(
            file.descriptor, size - self._start, access=mmap.ACCESS_READ, offset=self._start
        )
        self._data = memoryview(data)
        self._address = np.frombuffer(data, np.uint8).ctypes.data

    # What one process at a time does, at the start.

    def begin(self, budget: int, free: int | None) -> int:
        """Start anew with what is there; how many entries were damaged.

        Args:
            budget: Bytes to use at most.
            free: Bytes that the folder has, beyond those of the file; None for unknown.
        """
        with self.file.locked():
            rows = self._rows
            known = np.flatnonzero(rows[:, _RIGHT])
            wrong = [number for number in known.tolist() if self._entry(number) is None]
            rows[wrong] = 0
            rows[:, _TICK] = 0
            live = rows[rows[:, _RIGHT] != 0]
            ends = live[:, _OFFSET] + live[:, _SIZE]
            self._words[_USED] = int(ends.max(initial=0))
            self._words[_BUDGET] = budget
            if free is not None:
                budget = min(budget, self.bytes_used + free)
            self._words[_LIMIT] = min(budget, len(self._data))
            self._words[_STATE] = 0
            self._counters.clear()
            # What was written before is looked at once more before it is believed: the machine
            # may have gone down since, with some of it not yet on the disk.
            self._words[_SESSION] = secrets.randbits(63) + 1
        return len(wrong)

    def clear_if_stale(self, is_current: Callable[[int, int], bool]) -> str | None:
        """Forget everything if most of it is of no use; why, if so.

        What has been replaced, or is of files that have changed, is never given free otherwise.

        Args:
            is_current: Takes a number and an identity. Asked of some: it looks at files.
        """
        with self.file.locked():
            rows, used = self._rows, self._words[_USED]
            known = np.flatnonzero(rows[:, _RIGHT])
            asked = known[:ASKED].tolist()
            sizes = rows[asked, _SIZE].astype(np.int64)
            good = [is_current(number, int(rows[number, _IDENTITY])) for number in asked]
            share = int(sizes[good].sum()) / max(1, int(sizes.sum()))
            reachable = share * int(rows[known, _SIZE].sum())
            if 2 * reachable >= used:
                return None
            rows[:] = 0
            self._words[_USED] = 0
        return f'{used - int(reachable)} of {used} bytes are of samples that have changed'

    # Reading.

    def find(self, number: int, identity: int) -> memoryview | None:
        """The sample's bytes, read-only and not copied; a copy under 'lru'."""
        if self.lru:
            # A writer may put another sample there: it waits for the copy.
            with self.file.locked(shared=True):
                found = self._look(number, identity)
                if found is not None:
                    self._words[_FIRST + 8 * number + _TICK] = time.monotonic_ns()
                    found = memoryview(bytearray(found))
        else:
            found = self._look(number, identity)
        self._counters.add(1 if found is None else 0)
        return found

    def _entry(self, number: int) -> list[int] | None:
        """Words of the entry; None where there is none, or one that is not right (yet)."""
        place = _FIRST + 8 * number
        words = self._words[place : place + 8].tolist()
        if words[_RIGHT] != _check_of(number, *words[:_RIGHT]):
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
        """Whether an address of this process is one of a sample."""
        return 0 <= address - self._address < len(self._data)

    # Writing.

    def add(self, number: int, identity: int, parts: Sequence[bytes | memoryview]) -> str | None:
        """Keep a sample, if there is room; what there is to say of it, once for all processes.

        Args:
            number: Which sample.
            identity: Of what it was made from.
            parts: Its bytes, in all a multiple of 64.
        """
        if self.is_closed:
            return None
        size = sum(map(len, parts))
        crc = 0
        if self.file.path is not None:  # what is in memory does not outlive the session
            for part in parts:
                crc = zlib_ng.crc32(part, crc)
        with self.file.locked() as descriptor:
            # Another process may have been faster.
            if self.is_closed or self._look(number, identity) is not None:
                return None
            offset = self._make_room(size)
            if offset is None:
                return self._refuse(size)
            try:
                write_all(descriptor, parts, self._start + offset)
            except OSError as error:
                self._words[_STATE] |= _STOPPED
                return f'a sample of {size} bytes could not be kept ({error}); no more are'
            self._publish(number, [offset, size, identity, crc])
        return None

    @property
    def is_closed(self) -> bool:
        """Whether no more samples are kept."""
        return bool(self._words[_STATE] & (_STOPPED if self.lru else _STOPPED | _FULL))

    def _publish(self, number: int, words: list[int]) -> None:
        # First this, then the entry: what it names is not written over, whatever happens.
        self._words[_USED] = max(self._words[_USED], words[_OFFSET] + words[_SIZE])
        place = _FIRST + 8 * number
        self._words[place + _RIGHT] = 0
        for word, value in enumerate(words):
            self._words[place + word] = value
        self._words[place + _SEEN] = self._words[_SESSION]
        self._words[place + _TICK] = time.monotonic_ns()
        self._words[place + _RIGHT] = _check_of(number, *words)

    def _make_room(self, size: int) -> int | None:
        if not self.lru:
            # What is replaced leaves a gap: others may still look at what was there.
            offset = self._words[_USED]
            return offset if offset + size <= self._words[_LIMIT] else None
        if size > self._words[_LIMIT]:
            return None
        rows = self._rows
        while True:
            live = rows[rows[:, _RIGHT] != 0]
            live = live[np.argsort(live[:, _OFFSET])]
            starts = np.append(live[:, _OFFSET], np.uint64(self._words[_LIMIT])).astype(np.int64)
            starts = starts.clip(max=self._words[_LIMIT])
            ends = np.append(np.uint64(0), live[:, _OFFSET] + live[:, _SIZE]).astype(np.int64)
            gaps = np.flatnonzero(starts - ends >= size)
            if len(gaps):
                return int(ends[gaps[0]])
            ticks = np.where(rows[:, _RIGHT] != 0, rows[:, _TICK], np.uint64(_MASK))
            rows[int(ticks.argmin()), _RIGHT] = 0

    def _refuse(self, size: int) -> str | None:
        if self.lru:
            said, self._words[_STATE] = self._words[_STATE], self._words[_STATE] | _FULL
            if said & _FULL:
                return None
            return f'a sample of {size} bytes does not fit into {self.limit} bytes'
        if 8 * size > self.limit and 64 * (self.limit - self.bytes_used) > self.limit:
            # There is room for smaller ones.
            said, self._words[_STATE] = self._words[_STATE], self._words[_STATE] | _TOO_LARGE
            if said & _TOO_LARGE:
                return None
            return (
                f'a sample of {size} bytes does not fit any more ({self.bytes_used} of '
                f'{self.limit} bytes are full) and is made anew each time; smaller ones are kept'
            )
        self._words[_STATE] |= _FULL
        return (
            f'{self.bytes_used} of {self.limit} bytes are full with {self.kept} of {self.samples} '
            'samples, which stay; the others are made anew each time'
        )

    @property
    def hits(self) -> int:
        return self._counters.total(0)

    @property
    def misses(self) -> int:
        return self._counters.total(1)

    @property
    def kept(self) -> int:
        return int(np.count_nonzero(self._rows[:, _RIGHT]))

    @property
    def bytes_used(self) -> int:
        if not self.lru:
            return self._words[_USED]
        return int(self._rows[self._rows[:, _RIGHT] != 0, _SIZE].sum())

    @property
    def budget(self) -> int:
        """What the limit was made from: that of the first process."""
        return self._words[_BUDGET]

    @property
    def limit(self) -> int:
        """Bytes that may be used."""
        return self._words[_LIMIT]
