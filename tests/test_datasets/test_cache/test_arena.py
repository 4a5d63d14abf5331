"""Killed writers, full disks and damaged files never lead to a wrong sample."""

from __future__ import annotations

import errno
import mmap
import os
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from mmtempo.datasets.cache import arena
from mmtempo.datasets.cache.sample_cache import SharedSampleCache
from tests.testing.processes import in_child, kill_self, killed_in
from tests.testing.sample_caches import (
    SIDE,
    Caches,
    damage,
    is_right,
    put_some,
    right_ones,
    sample,
    size_of,
)

pytestmark = [
    pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are forked'),
    pytest.mark.usefixtures('own_temporary_folder'),
]


def write_half(cache: SharedSampleCache) -> None:
    write = os.write

    def half(descriptor: int, data: Any) -> int:
        if len(data) >= SIDE * SIDE:
            write(descriptor, data[: len(data) // 2])
            kill_self()
        return write(descriptor, data)

    arena.os = type('os', (), dict(vars(os), write=staticmethod(half)))  # type: ignore
    cache.put(1, sample(1))


def test_writer_killed_in_a_write_leaves_no_sample(caches: Caches) -> None:
    cache = caches()
    cache.put(0, sample(0))
    assert killed_in(write_half, cache)
    assert cache.get(1) is None
    assert is_right(cache.get(0), 0)
    cache.put(1, sample(1))  # the lock is free
    cache.put(2, sample(2))
    assert right_ones(cache, range(4)) == [0, 1, 2]
    assert cache.stats().used == 3 * size_of()


class DeadlyWords:
    """Control words that kill the process at the n-th change."""

    def __init__(self, words: memoryview, left: int) -> None:
        self.words, self.left = words, left

    def __getitem__(self, index: Any) -> Any:
        return self.words[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.left == 0:
            kill_self()
        self.left -= 1
        self.words[index] = value


def put_killed(cache: Any, changes: int) -> None:
    cache._arena._words = DeadlyWords(cache._arena._words, changes)
    cache.put(1, sample(1), identity=7)


@pytest.mark.parametrize('replaces', [False, True])
def test_writer_killed_between_words_leaves_no_wrong_sample(replaces: bool, tmp_path: Path) -> None:
    caches = Caches(None, str(tmp_path))
    for changes in range(8):
        cache = caches(key=f'{changes}')
        cache.put(0, sample(0))
        if replaces:
            cache.put(1, sample(5), identity=3)
        assert killed_in(put_killed, cache, changes) == (changes < 8)
        assert cache.get(1, identity=7) is None
        old = cache.get(1, identity=3)
        assert old is None or is_right(old, 5)
        for number in range(2, 5):
            cache.put(number, sample(number))
        cache.put(1, sample(1), identity=7)
        assert is_right(cache.get(1, identity=7), 1)
        assert right_ones(cache, range(5)) == [0, 2, 3, 4]
    assert not killed_in(put_killed, caches(key='none'), 8)


def test_full_budget_is_reported_once(caches: Caches) -> None:
    cache = caches(budget=3 * size_of() + 100)
    for _ in range(2):
        for number in range(8):
            cache.put(number, sample(number))
    assert right_ones(cache, range(8)) == [0, 1, 2]
    assert cache.stats().closed
    in_child(put_some, cache, range(8))
    assert len(caches.messages) == 1
    assert 'full with 3 of 8 samples' in caches.messages[0]
    assert str(cache.stats()) == 'cache: 3 of 8 samples, 12.9 KiB of 13.0 KiB, 38 % hits'


def test_large_sample_is_refused_and_smaller_ones_fit(caches: Caches) -> None:
    cache = caches(budget=20_000)
    cache.put(0, sample(0))
    for number in (1, 2):
        cache.put(number, sample(number, side=200))
    cache.put(3, sample(3))
    assert right_ones(cache, range(4)) == [0, 3]
    assert not cache.stats().closed
    assert len(caches.messages) == 1
    assert 'does not fit any more' in caches.messages[0]


def test_write_error_stops_adding(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = caches()
    cache.put(0, sample(0))

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(arena, 'write_all', fail)
    put_some(cache, range(1, 4))
    monkeypatch.undo()
    put_some(cache, range(1, 4))
    assert right_ones(cache, range(8)) == [0]
    assert len(caches.messages) == 1
    assert 'No space left on device' in caches.messages[0]
    assert cache.stats().closed


def test_full_file_system_stops_adding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real file system, with the limit by free space disabled."""
    folder = tmp_path / 'small'
    folder.mkdir()
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=200k', 'tmpfs', str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip('file systems cannot be mounted here')
    try:
        caches = Caches(str(folder), 'full')
        limited = caches()
        assert 'only' in caches.messages.pop()
        assert 0 < limited.stats().budget < 200_000
        limited.close()
        monkeypatch.setattr(SharedSampleCache, '_free', lambda self: None)
        cache = caches(40)
        put_some(cache, range(40))
        seen = right_ones(cache, range(40))
        assert 20 < len(seen) < 40
        assert seen == [*range(len(seen))]
        assert len(caches.messages) == 1
        assert 'No space left' in caches.messages[0]
        cache.close()
    finally:
        subprocess.run(['umount', '-l', str(folder)], check=True)


def test_budget_of_a_stored_cache_may_change(stored: Caches) -> None:
    cache = stored(budget='3MB')
    cache.put(5, sample(5, side=1200))
    assert cache.get(5)['img'].shape == (1200, 1200)
    assert cache.stats().budget == 3_000_000
    del cache
    cache = stored(budget=5000)
    assert right_ones(cache, range(8)) == [0, 1, 2, 3]
    cache.put(6, sample(6))
    assert cache.get(6) is None


@pytest.mark.parametrize('offset', [0, 5, 8, 17, 25, 34])
def test_damaged_header_starts_an_empty_cache(stored: Caches, offset: int) -> None:
    damage(stored.path, offset)
    cache = stored()
    assert len(stored.messages) == 1
    assert 'starting with an empty cache' in stored.messages[0]
    assert right_ones(cache, range(8)) == []
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == [*range(8)]


def test_file_of_a_former_version_starts_an_empty_cache(stored: Caches) -> None:
    damage(stored.path, 0, b'mmtempo1')
    cache = stored()
    assert len(stored.messages) == 1
    assert 'not a sample cache of this version; starting with an empty' in stored.messages[0]
    put_some(cache, range(8))
    assert right_ones(stored(), range(8)) == [*range(8)]


def test_truncated_file_loses_its_last_samples(stored: Caches) -> None:
    start = arena._start_of_data(8)
    os.truncate(stored.path, start + 2 * size_of() + 100)
    cache = stored()
    assert right_ones(cache, range(8)) == [0, 1]
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == [*range(8)]


@pytest.mark.parametrize('size', [0, 20, 5000])
def test_truncated_file_starts_an_empty_cache(stored: Caches, size: int) -> None:
    os.truncate(stored.path, size)
    cache = stored()
    assert len(stored.messages) == 1
    assert 'starting with an empty cache' in stored.messages[0]
    assert right_ones(cache, range(8)) == []
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == [*range(8)]


def test_damaged_entries_and_samples_are_misses(stored: Caches) -> None:
    """Damage a whole entry, bytes of a sample, and a word without a checksum."""
    index = arena._INDEX
    data = -(-(index + 64 * 8) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
    for word in range(6):
        damage(stored.path, index + 64 + 8 * word, struct.pack('Q', (1 << 40) + 64 * word + 1))
    damage(stored.path, data + 2 * size_of() + 3000)
    damage(stored.path, 8 * 9, bytes(8))  # the bytes in use
    cache = stored()
    assert right_ones(cache, range(8)) == [0, 3]
    assert len(stored.messages) == 1
    assert 'damaged entries are not used (1)' in stored.messages[0]
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == [*range(8)]


def test_checksums_are_verified_once_per_session(
    stored: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def crc32(data: Any, start: int = 0) -> int:
        calls.append(len(data))
        return zlib.crc32(data, start)

    fake = type('zlib_ng', (), dict(crc32=staticmethod(crc32)))
    monkeypatch.setattr(arena, 'zlib_ng', fake)
    cache = stored()
    for one in (cache, cache, stored()):
        assert right_ones(one, range(4)) == [0, 1, 2, 3]
    assert calls == [size_of()] * 4
