"""One copy of each sample, whoever made it, and never a wrong one."""

from __future__ import annotations

import errno
import mmap
import multiprocessing
import os
import pickle
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmtempo.datasets.cache import arena, sample_cache
from mmtempo.datasets.cache.sample_cache import CacheStats, SharedSampleCache, parse_bytes
from tests.testing.processes import FORK, in_child, kill_self, killed_in

pytestmark = pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are forked')
SIDE = 64  # an image of 4096 bytes, which takes 4096 and a little


def sample(number: int, side: int = SIDE) -> dict:
    image = np.full((side, side), number, np.uint8)
    return dict(img=image, name=f'sample {number}', matrix=np.eye(3) * number, none=None)


def is_right(found: Any, number: int) -> bool:
    expected = sample(number)
    return found is not None and all(
        np.array_equal(found[key], expected[key]) for key in ('img', 'matrix', 'name')
    )


class Caches:
    """Makes caches over one key."""

    def __init__(self, folder: str | None, key: str) -> None:
        self.folder, self.key = folder, key
        self.said: list[str] = []

    def __call__(self, samples: int = 8, budget: int | str = '1MB', **options: Any) -> Any:
        options = dict(folder=self.folder, key=self.key, report=self.said.append) | options
        return SharedSampleCache(samples, budget, **options)

    @property
    def path(self) -> Path:
        return next(Path(str(self.folder)).glob('*.cache'))


@pytest.fixture(params=['memory', 'folder'])
def caches(request: pytest.FixtureRequest, tmp_path: Path) -> Caches:
    folder = str(tmp_path / 'cache') if request.param == 'folder' else None
    return Caches(folder, str(tmp_path))


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'tmp').mkdir()
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'tmp'))


def size_of(number: int = 1) -> int:
    return sum(map(len, sample_cache.pack(sample(number))))


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        (5, 5),
        ('5', 5),
        ('2GB', 2_000_000_000),
        ('1.5 GiB', 3 << 29),
        ('3k', 3000),
        ('1 tb', 10**12),
    ],
)
def test_bytes(text: Any, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize('text', [0, -1, True, '', 'GB', '2 XB', '0GB', None, 1.5, '-2GB'])
def test_no_bytes(text: Any) -> None:
    with pytest.raises(ValueError, match="budget must be .* such as '2GB', found"):
        parse_bytes(text)


def test_wrong_arguments(caches: Caches) -> None:
    with pytest.raises(ValueError, match="'keep' or 'lru', found 'fifo'"):
        caches(policy='fifo')
    cache = caches()
    for number in (-1, 8):
        with pytest.raises(IndexError, match=f'samples 0 to 7, found {number}'):
            cache.get(number)
        with pytest.raises(IndexError, match=f'samples 0 to 7, found {number}'):
            cache.put(number, sample(1))


def test_gives_back_what_was_put(caches: Caches) -> None:
    cache = caches()
    assert cache.get(3) is None
    cache.put(3, sample(3))
    found = cache.get(3)
    assert is_right(found, 3)
    assert list(found) == list(sample(3))
    assert cache.get(2) is None
    assert cache.stats() == CacheStats(1, 8, size_of(), 1_000_000, 1, 2, False)
    assert not caches.said


def test_views_are_of_the_memory_and_read_only(caches: Caches) -> None:
    cache = caches()
    cache.put(3, sample(3))
    one, other = cache.get(3), cache.get(3)
    assert one['img'].ctypes.data == other['img'].ctypes.data
    assert one['img'].ctypes.data % 64 == 0
    assert cache.holds(one['img'].ctypes.data)
    assert not cache.holds(one['matrix'].ctypes.data)
    with pytest.raises(ValueError, match='read-only'):
        one['img'][0] = 0
    with pytest.raises(ValueError, match='cannot set WRITEABLE'):
        one['img'].setflags(write=True)
    copy = cache.get(3, copy=True)
    copy['img'][:] = 9
    assert is_right(cache.get(3), 3)
    cache.close()
    assert is_right(one, 3)  # a view outlives it
    assert cache.get(3) is None


def test_another_identity_is_a_miss_and_replaces(caches: Caches) -> None:
    cache = caches()
    cache.put(3, sample(3), identity=1)
    old = cache.get(3, identity=1)
    assert cache.get(3, identity=2) is None
    cache.put(3, sample(4), identity=2)
    assert is_right(cache.get(3, identity=2), 4)
    assert cache.get(3, identity=1) is None
    assert is_right(old, 3)
    assert cache.stats().samples == 1


def test_needs_no_descriptor_per_sample(caches: Caches) -> None:
    cache = caches()
    cache.put(0, sample(0))
    before = len(os.listdir('/proc/self/fd'))
    for number in range(8):
        cache.put(number, sample(number))
    found = [cache.get(number) for number in range(8)]
    assert len(os.listdir('/proc/self/fd')) == before
    assert all(is_right(one, number) for number, one in enumerate(found))


# Several processes.


def put_some(cache: SharedSampleCache, numbers: range) -> int:
    for number in numbers:
        cache.put(number, sample(number))
    return os.getpid()


def right_ones(cache: SharedSampleCache, numbers: range) -> list[int]:
    return [number for number in numbers if is_right(cache.get(number), number)]


def unpickled(pipe: Any) -> None:
    cache = pickle.loads(pipe.recv())
    seen = right_ones(cache, range(8))
    put_some(cache, range(4, 8))
    pipe.send((seen, cache.stats().samples))


def test_forked_processes_share(caches: Caches) -> None:
    cache = caches()
    in_child(put_some, cache, range(4))
    assert right_ones(cache, range(8)) == [0, 1, 2, 3]
    assert in_child(right_ones, cache, range(8)) == [0, 1, 2, 3]
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.samples) == (8, 8, 4)


def test_a_pickled_one_is_the_same(caches: Caches) -> None:
    """The other process inherits nothing, as one that is spawned."""
    here, there = FORK.Pipe()
    process = FORK.Process(target=unpickled, args=(there,))
    process.start()
    cache = caches(report=None)
    put_some(cache, range(4))
    here.send(pickle.dumps(cache))
    assert here.recv() == ([0, 1, 2, 3], 8)
    process.join()
    assert right_ones(cache, range(8)) == [*range(8)]


def test_ranks_find_it_by_its_key(caches: Caches) -> None:
    """Nothing is inherited but the key; and the one that made it may go first."""
    first, second = caches(), caches()
    put_some(first, range(4))
    assert right_ones(second, range(8)) == [0, 1, 2, 3]
    del first
    third = caches()
    assert right_ones(third, range(8)) == [0, 1, 2, 3]
    assert caches(key='another').stats().samples == 0
    assert not caches.said


@pytest.mark.slow
@pytest.mark.parametrize('folder', [False, True])
def test_spawned_processes_share(folder: bool, tmp_path: Path) -> None:
    cache = SharedSampleCache(8, '1MB', 'spawned', folder=str(tmp_path) if folder else None)
    put_some(cache, range(4))
    context = multiprocessing.get_context('spawn')
    with context.Pool(1) as pool:
        assert pool.apply(right_ones, (cache, range(8))) == [0, 1, 2, 3]
        pool.apply(put_some, (cache, range(4, 8)))
    assert right_ones(cache, range(8)) == [*range(8)]


def fill_and_check(cache: SharedSampleCache, seed: int, rounds: int) -> bool:
    order = np.random.RandomState(seed)
    for number in order.randint(cache.samples, size=rounds).tolist():
        found = cache.get(number)
        if found is None:
            cache.put(number, sample(number))
        elif not is_right(found, number):
            return False
    return True


@pytest.mark.parametrize('policy', ['keep', 'lru'])
def test_fill_at_the_same_time(policy: str, tmp_path: Path) -> None:
    """Under 'lru' with room for a third: what one reads the others write over."""
    caches = Caches(str(tmp_path) if policy == 'lru' else None, str(tmp_path))
    budget = 40 * size_of() if policy == 'keep' else 10 * size_of()
    cache = caches(30, budget, policy=policy)
    with FORK.Pool(3) as pool:
        jobs = [pool.apply_async(fill_and_check, (cache, seed, 300)) for seed in range(3)]
        assert all(job.get() for job in jobs)
    stats = cache.stats()
    assert stats.hits + stats.misses == 900
    # Nothing twice, and nothing lost.
    assert stats.samples == (30 if policy == 'keep' else 10)
    assert stats.used == stats.samples * size_of()


def test_counts_of_processes_that_are_gone_stay(caches: Caches) -> None:
    cache = caches()
    for _ in range(3):
        in_child(right_ones, cache, range(2))
    assert (cache.stats().hits, cache.stats().misses) == (0, 6)
    assert cache.stats().hit_rate == 0


# Killed.


def write_half(cache: SharedSampleCache) -> None:
    write = os.write

    def half(descriptor: int, data: Any) -> int:
        if len(data) >= SIDE * SIDE:
            write(descriptor, data[: len(data) // 2])
            kill_self()
        return write(descriptor, data)

    arena.os = type('os', (), dict(vars(os), write=staticmethod(half)))  # type: ignore
    cache.put(1, sample(1))


@pytest.mark.parametrize('policy', ['keep', 'lru'])
def test_killed_while_it_writes(caches: Caches, policy: str) -> None:
    cache = caches(policy=policy)
    cache.put(0, sample(0))
    assert killed_in(write_half, cache)
    assert cache.get(1) is None
    assert is_right(cache.get(0), 0)
    cache.put(1, sample(1))  # nobody holds a lock
    cache.put(2, sample(2))
    assert right_ones(cache, range(4)) == [0, 1, 2]
    assert cache.stats().used == 3 * size_of()


class DeadlyWords:
    """The control words, whose n-th change is the process's last."""

    def __init__(self, words: memoryview, left: int) -> None:
        self.words, self.left = words, left

    def __getitem__(self, place: Any) -> Any:
        return self.words[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        if self.left == 0:
            kill_self()
        self.left -= 1
        self.words[place] = value


def put_killed(cache: Any, changes: int) -> None:
    cache._arena._words = DeadlyWords(cache._arena._words, changes)
    cache.put(1, sample(1), identity=7)


@pytest.mark.parametrize('replaces', [False, True])
def test_killed_while_it_publishes(replaces: bool, tmp_path: Path) -> None:
    caches = Caches(None, str(tmp_path))
    for changes in range(9):
        cache = caches(key=f'{changes}')
        cache.put(0, sample(0))
        if replaces:
            cache.put(1, sample(5), identity=3)
        assert killed_in(put_killed, cache, changes) == (changes < 9)
        assert cache.get(1, identity=7) is None
        old = cache.get(1, identity=3)
        assert old is None or is_right(old, 5)
        for number in range(2, 5):
            cache.put(number, sample(number))
        cache.put(1, sample(1), identity=7)
        assert is_right(cache.get(1, identity=7), 1)
        assert right_ones(cache, range(5)) == [0, 2, 3, 4]
    assert not killed_in(put_killed, caches(key='none'), 9)


# Full.


def test_a_full_budget_is_said_once_and_stays(caches: Caches) -> None:
    cache = caches(budget=3 * size_of() + 100)
    for _ in range(2):
        for number in range(8):
            cache.put(number, sample(number))
    assert right_ones(cache, range(8)) == [0, 1, 2]
    assert cache.stats().closed
    in_child(put_some, cache, range(8))
    assert len(caches.said) == 1
    assert 'full with 3 of 8 samples' in caches.said[0]
    assert str(cache.stats()) == 'cache: 3 of 8 samples, 0.01 of 0.01 MB, 38 % hits'


def test_lru_evicts_the_least_recently_used(caches: Caches) -> None:
    cache = caches(budget=3 * size_of(), policy='lru')
    put_some(cache, range(3))
    views = [cache.get(number) for number in (1, 0, 2)]  # 1 is the oldest now
    cache.put(3, sample(3))
    assert right_ones(cache, range(8)) == [0, 2, 3]
    in_child(right_ones, cache, range(1))  # another process's use counts
    cache.put(4, sample(4))
    assert right_ones(cache, range(8)) == [0, 3, 4]
    # Who was given a sample keeps it.
    assert all(is_right(view, number) for view, number in zip(views, (1, 0, 2)))
    assert not caches.said


def test_lru_lets_no_one_write_over_what_is_read(
    caches: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = caches(budget=size_of(), policy='lru')
    cache.put(0, sample(0))
    writer = FORK.Process(target=put_some, args=(cache, range(1, 2)))

    def slowly(view: memoryview) -> bytearray:
        writer.start()
        writer.join(0.3)  # it waits, and would be done otherwise
        return bytearray(view)

    monkeypatch.setattr(arena, 'bytearray', slowly, raising=False)
    assert is_right(cache.get(0), 0)
    monkeypatch.undo()
    writer.join()
    assert right_ones(cache, range(2)) == [1]


def test_lru_makes_room_for_a_larger_one(caches: Caches) -> None:
    cache = caches(budget=4 * size_of(), policy='lru')
    put_some(cache, range(4))
    right_ones(cache, range(1))
    cache.put(5, sample(5, side=85))  # takes the place of two
    assert cache.get(5)['img'].shape == (85, 85)
    assert right_ones(cache, range(4)) == [0, 3]
    for _ in range(2):
        cache.put(6, sample(6, side=200))
    assert len(caches.said) == 1
    assert f'does not fit into {4 * size_of()} bytes' in caches.said[0]
    assert cache.stats().samples == 3


def test_no_space_left(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = caches()
    cache.put(0, sample(0))

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(arena, 'write_all', fail)
    put_some(cache, range(1, 4))
    monkeypatch.undo()
    put_some(cache, range(1, 4))
    assert right_ones(cache, range(8)) == [0]
    assert len(caches.said) == 1
    assert 'No space left on device' in caches.said[0]
    assert cache.stats().closed


def test_a_file_system_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one; what is there must not be believed to be enough, so that nobody looks."""
    folder = tmp_path / 'small'
    folder.mkdir()
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=200k', 'tmpfs', str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip('file systems cannot be mounted here')
    try:
        caches = Caches(str(folder), 'full')
        limited = caches()
        assert 'only' in caches.said.pop()
        assert 0 < limited.stats().budget < 200_000
        limited.close()
        monkeypatch.setattr(SharedSampleCache, '_free', lambda self: None)
        cache = caches(40)
        put_some(cache, range(40))
        seen = right_ones(cache, range(40))
        assert 20 < len(seen) < 40
        assert seen == [*range(len(seen))]
        assert len(caches.said) == 1
        assert 'No space left' in caches.said[0]
        cache.close()
    finally:
        subprocess.run(['umount', '-l', str(folder)], check=True)


def test_memory_that_is_not_free_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(sample_cache, 'available_memory', lambda: 10_000)
    cache = SharedSampleCache(8, '1GB', 'much', report=said.append)
    assert cache.stats().budget == 8_000
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == [0]
    assert 'only 8000 can be used, 80% of what is free in memory' in said[0]


def test_where_no_cache_can_be_made(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    said: list[str] = []
    cache = SharedSampleCache(8, '1MB', 'k', folder=str(tmp_path / 'file'), report=said.append)
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == []
    assert cache.stats() == CacheStats(total=8)
    assert len(said) == 1
    assert 'no sample cache' in said[0]
    cache._report = print
    assert pickle.loads(pickle.dumps(cache)).get(1) is None


def test_no_descriptor_left_to_lock_with(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = caches()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, 'Too many open files')

    monkeypatch.setattr(cache._arena.file, 'locked', fail)
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == []
    assert len(caches.said) == 1
    assert 'Too many open files' in caches.said[0]


# In a folder.


@pytest.fixture
def stored(tmp_path: Path) -> Caches:
    """Four samples in a file that nobody has open."""
    caches = Caches(str(tmp_path / 'cache'), 'stored')
    put_some(caches(), range(4))
    return caches


def test_warm_after_a_restart(stored: Caches) -> None:
    cache = stored()
    assert cache.stats() == CacheStats(4, 8, 4 * size_of(), 1_000_000, 0, 0, False)
    assert right_ones(cache, range(8)) == [0, 1, 2, 3]
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == [*range(8)]
    assert not stored.said


def test_nobody_else_can_read_it(stored: Caches) -> None:
    assert stored.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not hasattr(os, 'getuid') or os.getuid() != 0, reason='chown')
def test_a_file_of_somebody_else_is_refused(stored: Caches) -> None:
    os.chown(stored.path, 12345, 12345)
    cache = stored()
    assert right_ones(cache, range(8)) == []
    assert 'belongs to another user' in stored.said[0]


def test_budget_may_grow_and_shrink(stored: Caches) -> None:
    cache = stored(budget='3MB')
    cache.put(5, sample(5, side=1200))
    assert cache.get(5)['img'].shape == (1200, 1200)
    assert cache.stats().budget == 3_000_000
    del cache
    cache = stored(budget=5000)
    assert right_ones(cache, range(8)) == [0, 1, 2, 3]
    cache.put(6, sample(6))
    assert cache.get(6) is None


def damage(path: Path, place: int, value: bytes | None = None) -> None:
    """Where no value is given, that of the byte is another one than it was."""
    with open(path, 'r+b') as file:
        file.seek(place)
        other = bytes([file.read(1)[0] ^ 0xA5]) if value is None else value
        file.seek(place)
        file.write(other)


@pytest.mark.parametrize('place', [0, 5, 8, 17, 25, 34, 41])
def test_a_damaged_header_starts_afresh(stored: Caches, place: int) -> None:
    damage(stored.path, place)
    cache = stored()
    assert len(stored.said) == 1
    assert 'starting afresh' in stored.said[0]
    assert right_ones(cache, range(8)) == []
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == [*range(8)]


@pytest.mark.parametrize('size', [0, 20, 5000, 70_000])
def test_a_truncated_file_starts_afresh(stored: Caches, size: int) -> None:
    os.truncate(stored.path, size)
    cache = stored()
    assert len(stored.said) == 1
    assert 'starting afresh' in stored.said[0]
    assert right_ones(cache, range(8)) == []
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == [*range(8)]


def test_damaged_entries_and_samples_are_not_believed(stored: Caches) -> None:
    """All bytes of an entry, and some of a sample; also numbers that are not checked by any sum."""
    index = arena._INDEX
    data = -(-(index + 64 * 8) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
    for word in range(6):
        damage(stored.path, index + 64 + 8 * word, struct.pack('Q', (1 << 40) + 64 * word + 1))
    damage(stored.path, data + 2 * size_of() + 3000)
    damage(stored.path, 8 * 9, bytes(8))  # what is used
    cache = stored()
    assert right_ones(cache, range(8)) == [0, 3]
    assert len(stored.said) == 1
    assert '1 entries are damaged' in stored.said[0]
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == [*range(8)]


def test_samples_are_looked_at_once_a_session(
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


def test_a_file_in_use_is_not_begun_anew(stored: Caches) -> None:
    cache = stored()
    put_some(cache, range(8))
    right_ones(cache, range(8))
    assert stored().stats() == cache.stats()


def test_a_large_sample_is_refused_alone(caches: Caches) -> None:
    cache = caches(budget=20_000)
    cache.put(0, sample(0))
    for number in (1, 2):
        cache.put(number, sample(number, side=200))
    cache.put(3, sample(3))
    assert right_ones(cache, range(4)) == [0, 3]
    assert not cache.stats().closed
    assert len(caches.said) == 1
    assert 'does not fit any more' in caches.said[0]


def test_the_first_budget_holds(caches: Caches) -> None:
    first = caches(budget=20_000)
    assert caches(budget=20_000).stats().budget == 20_000
    assert not caches.said
    assert caches(budget=30_000).stats().budget == first.stats().budget == 20_000
    assert caches.said == [
        'budget of 30000 bytes: another process was first with 20000, which holds'
    ]


@pytest.mark.parametrize('current', [3, 4])
def test_what_is_mostly_stale_is_emptied(tmp_path: Path, current: int) -> None:
    caches = Caches(str(tmp_path / 'cache'), 'stale')
    put_some(caches(identity_of=lambda number: 0), range(8))
    warm = caches(identity_of=lambda number: int(number >= current))
    kept = current == 4
    assert warm.stats().samples == (8 if kept else 0)
    assert (warm.stats().used == 0) != kept
    assert bool(caches.said) != kept
