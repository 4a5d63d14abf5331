"""Cache of samples of which all processes of a node share one copy."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mmtempo.system.limits import available_memory
from mmtempo.utils.checks import is_whole
from mmtempo.utils.units import percent
from mmtempo.utils.units import size as size_text

from .arena import CacheStats, SampleArena, fill_file, problem_of, reserve
from .packing import pack, unpack
from .shared_file import SharedFile, open_shared

# Share of the free memory or disk space; the rest is for other uses, such as checkpoints.
SHARE_OF_FREE = 0.8
UNITS = {'': 1, 'K': 10**3, 'M': 10**6, 'G': 10**9, 'T': 10**12}


def parse_bytes(size: int | str, name: str = 'budget') -> int:
    """Return the number of bytes of 2_000_000_000, '2GB' or '1.5 GiB'.

    Args:
        size: The number of bytes, or a string with a unit.
        name: The config key, for the error message. Defaults to 'budget'.
    """
    if isinstance(size, int) and is_whole(size):
        return size
    match = re.fullmatch(r'\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*', str(size), re.IGNORECASE)
    if isinstance(size, str) and match:
        unit = UNITS[match[2].upper()]
        if match[3]:
            unit = 1 << (10 * 'KMGT'.index(match[2].upper()) + 10) if match[2] else 1
        if float(match[1]) * unit >= 1:
            return int(float(match[1]) * unit)
    raise ValueError(f"{name} must be a number of bytes above 0 or such as '2GB', found {size!r}")


class SharedSampleCache:
    """One copy of each sample for all processes of a node, up to a budget.

    Ranks and other processes that give the same key (and folder) share it, and so do workers,
    forked or spawned: a pickled cache is only the address of the memory. Without a folder it is in
    memory (Linux: a file without a name, which `/dev/shm` does not limit and which ends with the
    last process; elsewhere a temporary file). With a folder it survives a restart.

    Arrays of 1024 bytes or more are returned as read-only views of the memory, so the cost of a
    hit does not depend on the sample's size. Tensors are copied, as torch has no read-only
    tensors.

    The cache is filled once, and no sample is evicted. With a new permutation every epoch and room
    for a fraction f of the samples it hits f of them, which is optimal. Eviction of the least
    recently used would hit f + (1 - f) ln(1 - f): 15 % instead of 50 % with f = 0.5, because it
    evicts what the next epoch needs first. With independent draws of any weights it would keep the
    most recent distinct draws, which are distributed as the first ones: the hit rate is the same.

    A full budget, and missing memory or disk space, are no errors: one of the processes reports
    it once, and no more samples are added.

    Example::

        cache = SharedSampleCache(samples=1000, budget='2GB', key='train, decoded')
        sample = cache.get(7)
        if sample is None:
            sample = decode(7)
            cache.put(7, sample)

    Args:
        samples: The number of samples; they are numbered from 0.
        budget: The maximum number of bytes, or a string such as '2GB'.
        key: Name that distinguishes this cache from others; it must contain all that the samples
            depend on.
        folder: Folder of the file, on a local disk. Its content is unpickled, so no other user
            may have write access; files of other users are refused. Files of other keys are left
            for their owner to remove. Defaults to None: memory.
        report: Takes messages; pickled with the cache. Defaults to None: Python's logging.
        identity_of: Returns the current identity of a sample, see `get`. At the start a folder
            most of which belongs to changed samples is cleared. Not stored. Defaults to None.
    """

    def __init__(
        self,
        samples: int,
        budget: int | str,
        key: str,
        folder: str | None = None,
        report: Callable[[str], None] | None = None,
        identity_of: Callable[[int], int] | None = None,
    ) -> None:
        self.samples, self.budget, self.folder = samples, parse_bytes(budget), folder
        # Another version of Python or numpy may pickle or hash differently.
        self.key = f'{key}\n{samples} {sys.version_info[:2]} {np.__version__}'
        digest = hashlib.blake2b(self.key.encode(), digest_size=8).digest()
        self._number = int.from_bytes(digest, 'big')
        self._report = report or logging.getLogger('mmtempo').warning
        self._arena: SampleArena | None = None
        self._open(identity_of)

    def _open(self, identity_of: Callable[[int], int] | None = None) -> None:
        try:
            with open_shared(
                self.key,
                self.folder,
                partial(problem_of, samples=self.samples, key=self._number),
                partial(fill_file, samples=self.samples, key=self._number),
                self._report,
            ) as (file, alone):
                if alone:
                    reserve(file.descriptor, self.samples, self.budget)
                arena = SampleArena(file)
                if alone:
                    self._begin(arena, identity_of)
                elif arena.budget != self.budget:
                    self._report(
                        f'budget: expected {size_text(self.budget)}, found '
                        f'{size_text(arena.budget)} of the process that created the cache, which '
                        'applies'
                    )
        except (OSError, ValueError) as error:
            self._report(f'no sample cache: {error}; every sample is computed at each draw')
        else:
            self._arena = arena

    def _begin(self, arena: SampleArena, identity_of: Callable[[int], int] | None = None) -> None:
        damaged = arena.begin(self.budget, self._free())
        if identity_of is not None:
            stale = arena.clear_if_stale(lambda number, stored: identity_of(number) == stored)
            if stale is not None:
                self._report(f'{arena.file.path}: cleared, as {stale}')
        if damaged:
            self._report(f'{arena.file.path}: damaged entries are not used ({damaged})')
        if arena.limit < self.budget:
            self._report(
                f'budget: only {size_text(arena.limit)} of {size_text(self.budget)} can be used, '
                f'{percent(SHARE_OF_FREE)} of the free space in {self.folder or "memory"}'
            )

    def _free(self) -> int | None:
        free = available_memory() if self.folder is None else shutil.disk_usage(self.folder).free
        return None if free is None else int(SHARE_OF_FREE * free)

    def get(self, number: int, identity: int = 0, copy: bool = False) -> Any:
        """Return a sample, or None.

        Args:
            number: Number of the sample.
            identity: Below 2**64; must equal that of `put`. It changes with the files that the
                sample is made from. Defaults to 0.
            copy: Whether to return arrays that may be written. Defaults to False.
        """
        if self._arena is None:
            return None
        self._check(number)
        record = None
        try:
            record = self._arena.find(number, identity)
        except OSError as error:
            self._give_up(error)
        if record is None:
            return None
        return unpack(memoryview(bytearray(record)) if copy else record)

    def put(self, number: int, sample: Any, identity: int = 0) -> None:
        """Add a sample if there is room and it is not in the cache; see `get`."""
        if self._arena is None or self._arena.is_closed:
            return
        self._check(number)
        parts = pack(sample)
        try:
            message = self._arena.add(number, identity, parts)
        except OSError as error:
            self._give_up(error)
        else:
            if message is not None:
                self._report(f'sample cache: {message}')

    def _check(self, number: int) -> None:
        if not 0 <= number < self.samples:
            raise IndexError(f'sample must be 0 to {self.samples - 1}, found {number}')

    def _give_up(self, error: OSError) -> None:
        """Continue without the cache, as when no file descriptor is left for the lock."""
        self._report(f'sample cache: {error}; process {os.getpid()} continues without it')
        self._arena = None

    def holds(self, address: int) -> bool:
        """Return whether an address is in the memory of the cache."""
        return self._arena is not None and self._arena.holds(address)

    def stats(self) -> CacheStats:
        """Return the figures of the cache over all processes."""
        return CacheStats(total=self.samples) if self._arena is None else self._arena.stats()

    def close(self) -> None:
        """Release the memory; views of samples stay valid."""
        if self._arena is not None:
            self._arena.file.close()
            self._arena = None

    def __getstate__(self) -> dict:
        state = self.__dict__ | {'_arena': None}
        if self._arena is not None:
            state['_arena'] = (self._arena.file.address, self._arena.token)
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__ |= state | {'_arena': None}
        if state['_arena'] is None:
            return
        self._arena = self._attached(*state['_arena'])
        if self._arena is None:  # the process has ended, or ran on another machine
            self._open()

    def _attached(self, address: str, token: int) -> SampleArena | None:
        try:
            file = SharedFile.at(address)
            if problem_of(file.descriptor, self.samples, self._number) is None:
                arena = SampleArena(file)
                if arena.token == token:
                    return arena
        except OSError:
            return None
        file.close()
        return None
