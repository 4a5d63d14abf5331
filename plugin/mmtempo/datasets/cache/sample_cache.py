"""Samples that all processes of a node share one copy of."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mmtempo.system.limits import available_memory

from .arena import SampleArena, fill_file, grow_file, problem_of
from .packing import pack, unpack
from .shared_file import Address, SharedFile, open_shared

# Of what is free; the rest is for everybody else, checkpoints included.
SHARE_OF_FREE = 0.8
UNITS = {'': 1, 'K': 10**3, 'M': 10**6, 'G': 10**9, 'T': 10**12}


def parse_bytes(size: int | str, name: str = 'budget') -> int:
    """Bytes of 2_000_000_000, '2GB' or '1.5 GiB'; ValueError names what was given."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = re.fullmatch(r'\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*', str(size), re.IGNORECASE)
    if isinstance(size, str) and match:
        unit = UNITS[match[2].upper()]
        if match[3]:
            unit = 1 << (10 * 'KMGT'.index(match[2].upper()) + 10) if match[2] else 1
        if float(match[1]) * unit >= 1:
            return int(float(match[1]) * unit)
    raise ValueError(f"{name} must be a number of bytes above 0 or such as '2GB', found {size!r}")


@dataclass(frozen=True)
class CacheStats:
    """What a cache has done so far, over all processes that use it.

    Attributes:
        samples: Kept.
        total: Samples that there are.
        used: Bytes that are taken.
        budget: Bytes that may be.
        hits: How often a sample was there.
        misses: How often it was not.
        closed: Whether no more are kept.
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
        """From 0 to 1; 0 where nothing was asked for."""
        return self.hits / max(1, self.hits + self.misses)

    def __str__(self) -> str:
        unit, name = (1e9, 'GB') if self.budget >= 1e9 else (1e6, 'MB')
        return (
            f'cache: {self.samples} of {self.total} samples, {self.used / unit:.2f} of '
            f'{self.budget / unit:.2f} {name}, {self.hit_rate:.0%} hits'.replace('%', ' %')
        )


class SharedSampleCache:
    """One copy of each sample for all processes of a node, up to a budget.

    Ranks and other processes that give the same key (and folder) share it, and so do workers,
    forked or spawned: pickled, it is only where to find the memory. Without a folder it lives in
    memory (Linux: a file without a name, which `/dev/shm` does not limit and which is gone with
    the last process; elsewhere a temporary file). With one it is there after a restart, too.

    Arrays of 1024 bytes or more come back as read-only views of the memory: a hit costs the
    same whatever the sample's size. Tensors are copied, since torch knows none that are
    read-only, and so is everything under 'lru', where the place may be given to another sample.

    `policy='keep'` fills it once and never evicts. With a new permutation every epoch and room
    for a fraction f of the samples this hits f of them, the best that there is, while 'lru'
    hits only f + (1 - f) ln(1 - f): it evicts what the next epoch wants first. With f = 0.5
    that is 50 % against 15 %. 'lru' is for samplers that prefer some samples to others.

    A budget that is full, or memory or disk that is not there, is no error: `report` is told
    once, by one of the processes, and samples are not kept any more.

    Example::

        cache = SharedSampleCache(samples=1000, budget='2GB', key='train, decoded')
        sample = cache.get(7)
        if sample is None:
            sample = decode(7)
            cache.put(7, sample)

    Args:
        samples: How many there are; they are numbered from 0.
        budget: Bytes, or such as '2GB'.
        key: What tells this cache from others; whatever the samples depend on belongs into it.
        folder: Where the file lies; for a local disk. What it holds is unpickled, so nobody
            else may write there; files of other users are refused. Caches of other keys are left
            there for their owner to remove. Defaults to None: memory.
        policy: 'keep' or 'lru'. Defaults to 'keep'.
        report: Takes messages; pickled with the cache. Defaults to None: Python's logging.
        identity_of: The identity that a sample has now, see `get`: a folder most of which is of
            samples that have changed is emptied at the start. Not kept. Defaults to None.
    """

    def __init__(
        self,
        samples: int,
        budget: int | str,
        key: str,
        folder: str | None = None,
        policy: str = 'keep',
        report: Callable[[str], None] | None = None,
        identity_of: Callable[[int], int] | None = None,
    ) -> None:
        if policy not in ('keep', 'lru'):
            raise ValueError(f"policy must be 'keep' or 'lru', found {policy!r}")
        self.samples, self.budget, self.folder = samples, parse_bytes(budget), folder
        self.policy = policy
        # Another Python may pickle, and hash, in another way.
        self.key = f'{key}\n{policy} {samples} {sys.version_info[:2]} {np.__version__}'
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
                partial(fill_file, samples=self.samples, room=self.budget, key=self._number),
                self._report,
            ) as (file, alone):
                if alone:
                    grow_file(file, self.budget)
                arena = SampleArena(file, self.policy == 'lru')
                if alone:
                    self._begin(arena, identity_of)
                elif arena.budget != self.budget:
                    self._report(
                        f'budget of {self.budget} bytes: another process was first with '
                        f'{arena.budget}, which holds'
                    )
        except (OSError, ValueError) as error:
            self._report(f'no sample cache: {error}; every sample is made anew each time')
        else:
            self._arena = arena

    def _begin(self, arena: SampleArena, identity_of: Callable[[int], int] | None = None) -> None:
        damaged = arena.begin(self.budget, self._free())
        if identity_of is not None and self.policy == 'keep':
            stale = arena.clear_if_stale(lambda number, found: identity_of(number) == found)
            if stale is not None:
                self._report(f'{arena.file.path} starts afresh: {stale}')
        if damaged:
            self._report(f'{arena.file.path}: {damaged} entries are damaged and not used')
        if arena.limit < self.budget:
            self._report(
                f'budget of {self.budget} bytes: only {arena.limit} can be used, '
                f'{SHARE_OF_FREE:.0%} of what is free in {self.folder or "memory"}'
            )

    def _free(self) -> int | None:
        free = available_memory() if self.folder is None else shutil.disk_usage(self.folder).free
        return None if free is None else int(SHARE_OF_FREE * free)

    def get(self, number: int, identity: int = 0, copy: bool = False) -> Any:
        """The sample, or None.

        Args:
            number: Which one.
            identity: Must be what it was put with, below 2**64: a file that has changed, say.
                Defaults to 0.
            copy: Whether the caller wants to write into it. Defaults to False.
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
        return unpack(memoryview(bytearray(record)) if copy and record.readonly else record)

    def put(self, number: int, sample: Any, identity: int = 0) -> None:
        """Keep a sample, if there is room and nobody has yet; see `get`."""
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
            raise IndexError(f'there are samples 0 to {self.samples - 1}, found {number}')

    def _give_up(self, error: OSError) -> None:
        """No descriptor is left to lock with, say: the training goes on."""
        self._report(f'sample cache: {error}; process {os.getpid()} goes on without it')
        self._arena = None

    def holds(self, address: int) -> bool:
        """Whether the memory at an address is the cache's."""
        return self._arena is not None and self._arena.holds(address)

    def stats(self) -> CacheStats:
        arena = self._arena
        if arena is None:
            return CacheStats(total=self.samples)
        return CacheStats(
            samples=arena.kept,
            total=self.samples,
            used=arena.bytes_used,
            budget=arena.limit,
            hits=arena.hits,
            misses=arena.misses,
            closed=arena.is_closed,
        )

    def close(self) -> None:
        """Let go of the memory; views of samples keep their part of it."""
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
        if self._arena is None:  # the process that had it is gone, or on another machine
            self._open()

    def _attached(self, address: Address, token: int) -> SampleArena | None:
        try:
            file = SharedFile.at(address)
            if problem_of(file.descriptor, self.samples, self._number) is None:
                arena = SampleArena(file, self.policy == 'lru')
                if arena.token == token:
                    return arena
        except OSError:
            return None
        file.close()
        return None
