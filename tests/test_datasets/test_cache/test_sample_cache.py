"""One copy of each sample for all processes, and never a wrong sample."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmtempo.datasets.cache import sample_cache
from mmtempo.datasets.cache.sample_cache import CacheStats, SharedSampleCache, parse_bytes
from tests.testing.processes import FORK, in_child
from tests.testing.sample_caches import Caches, is_right, put_some, right_ones, sample, size_of

pytestmark = [
    pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are forked'),
    pytest.mark.usefixtures('own_temporary_folder'),
]


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
def test_parse_bytes_of_numbers_and_units(text: Any, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize('text', [0, -1, True, '', 'GB', '2 XB', '0GB', None, 1.5, '-2GB'])
def test_parse_bytes_refuses_other_values(text: Any) -> None:
    with pytest.raises(ValueError, match="budget must be .* such as '2GB', found"):
        parse_bytes(text)


def test_wrong_arguments_are_refused(caches: Caches) -> None:
    cache = caches()
    for number in (-1, 8):
        with pytest.raises(IndexError, match=f'sample must be 0 to 7, found {number}'):
            cache.get(number)
        with pytest.raises(IndexError, match=f'sample must be 0 to 7, found {number}'):
            cache.put(number, sample(1))


def test_get_returns_what_was_put(caches: Caches) -> None:
    cache = caches()
    assert cache.get(3) is None
    cache.put(3, sample(3))
    found = cache.get(3)
    assert is_right(found, 3)
    assert list(found) == list(sample(3))
    assert cache.get(2) is None
    assert cache.stats() == CacheStats(1, 8, size_of(), 1_000_000, 1, 2, False)
    assert not caches.messages


def test_views_share_memory_and_are_read_only(caches: Caches) -> None:
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
    assert is_right(one, 3)  # a view stays valid
    assert cache.get(3) is None


def test_other_identity_is_a_miss_and_replaces_the_sample(caches: Caches) -> None:
    cache = caches()
    cache.put(3, sample(3), identity=1)
    old = cache.get(3, identity=1)
    assert cache.get(3, identity=2) is None
    cache.put(3, sample(4), identity=2)
    assert is_right(cache.get(3, identity=2), 4)
    assert cache.get(3, identity=1) is None
    assert is_right(old, 3)
    assert cache.stats().samples == 1


def test_samples_need_no_file_descriptor(caches: Caches) -> None:
    cache = caches()
    cache.put(0, sample(0))
    before = len(os.listdir('/proc/self/fd'))
    for number in range(8):
        cache.put(number, sample(number))
    found = [cache.get(number) for number in range(8)]
    assert len(os.listdir('/proc/self/fd')) == before
    assert all(is_right(one, number) for number, one in enumerate(found))


def unpickled(pipe: Any) -> None:
    cache = pickle.loads(pipe.recv())
    seen = right_ones(cache, range(8))
    put_some(cache, range(4, 8))
    pipe.send((seen, cache.stats().samples))


def test_forked_processes_share_samples(caches: Caches) -> None:
    cache = caches()
    in_child(put_some, cache, range(4))
    assert right_ones(cache, range(8)) == [0, 1, 2, 3]
    assert in_child(right_ones, cache, range(8)) == [0, 1, 2, 3]
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.samples) == (8, 8, 4)


def test_pickled_cache_opens_the_same_memory(caches: Caches) -> None:
    """The other process inherits nothing, like a spawned one."""
    here, there = FORK.Pipe()
    process = FORK.Process(target=unpickled, args=(there,))
    process.start()
    cache = caches(report=None)
    put_some(cache, range(4))
    here.send(pickle.dumps(cache))
    assert here.recv() == ([0, 1, 2, 3], 8)
    process.join()
    assert right_ones(cache, range(8)) == [*range(8)]


@pytest.mark.slow
@pytest.mark.parametrize('folder', [False, True])
def test_spawned_processes_share_samples(folder: bool, tmp_path: Path) -> None:
    cache = SharedSampleCache(8, '1MB', 'spawned', folder=str(tmp_path) if folder else None)
    put_some(cache, range(4))
    context = multiprocessing.get_context('spawn')
    with context.Pool(1) as pool:
        assert pool.apply(right_ones, (cache, range(8))) == [0, 1, 2, 3]
        pool.apply(put_some, (cache, range(4, 8)))
    assert right_ones(cache, range(8)) == [*range(8)]


def fill_and_check(cache: SharedSampleCache, seed: int, rounds: int) -> list[str]:
    """Return messages of the cache in this process, and the samples that are wrong."""
    problems: list[str] = []
    cache._report = problems.append
    order = np.random.RandomState(seed)
    for number in order.randint(cache.samples, size=rounds).tolist():
        found = cache.get(number)
        if found is None:
            cache.put(number, sample(number))
        elif not is_right(found, number):
            problems.append(f'sample {number} is wrong')
    return problems


@pytest.mark.parametrize('room', [10, 40])
def test_concurrent_writers_lose_and_repeat_nothing(caches: Caches, room: int) -> None:
    cache = caches(30, room * size_of())
    with FORK.Pool(3) as pool:
        jobs = [pool.apply_async(fill_and_check, (cache, seed, 300)) for seed in range(3)]
        problems = [problem for job in jobs for problem in job.get()]
    assert [problem.partition(' with')[0] for problem in problems] == (
        ['sample cache: full'] if room < 30 else []
    )
    stats = cache.stats()
    assert stats.hits + stats.misses == 900, caches.messages
    # No sample twice, and none lost.
    assert stats.samples == min(30, room)
    assert stats.used == stats.samples * size_of()


def test_counts_of_ended_processes_remain(caches: Caches) -> None:
    cache = caches()
    for _ in range(3):
        in_child(right_ones, cache, range(2))
    assert (cache.stats().hits, cache.stats().misses) == (0, 6)
    assert cache.stats().hit_rate == 0


def test_budget_is_limited_by_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(sample_cache, 'available_memory', lambda: 10_000)
    cache = SharedSampleCache(8, '1GB', 'much', report=messages.append)
    assert cache.stats().budget == 8_000
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == [0]
    assert messages[0] == (
        'budget: only 7.81 KiB of 954 MiB can be used, 80 % of the free space in memory'
    )


def test_unusable_folder_disables_the_cache(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    messages: list[str] = []
    cache = SharedSampleCache(8, '1MB', 'k', folder=str(tmp_path / 'file'), report=messages.append)
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == []
    assert cache.stats() == CacheStats(total=8)
    assert len(messages) == 1
    assert 'no sample cache' in messages[0]
    cache._report = print
    assert pickle.loads(pickle.dumps(cache)).get(1) is None


def test_lock_failure_disables_the_cache(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = caches()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, 'Too many open files')

    monkeypatch.setattr(cache._arena.file, 'locked', fail)
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == []
    assert len(caches.messages) == 1
    assert 'Too many open files' in caches.messages[0]


def test_folder_is_warm_after_a_restart(stored: Caches) -> None:
    cache = stored()
    assert cache.stats() == CacheStats(4, 8, 4 * size_of(), 1_000_000, 0, 0, False)
    assert right_ones(cache, range(8)) == [0, 1, 2, 3]
    put_some(cache, range(8))
    assert right_ones(cache, range(8)) == [*range(8)]
    assert not stored.messages


def test_file_in_use_keeps_its_session(stored: Caches) -> None:
    cache = stored()
    put_some(cache, range(8))
    right_ones(cache, range(8))
    assert stored().stats() == cache.stats()


def test_budget_of_the_first_process_applies(caches: Caches) -> None:
    first = caches(budget=20_000)
    assert caches(budget=20_000).stats().budget == 20_000
    assert not caches.messages
    assert caches(budget=30_000).stats().budget == first.stats().budget == 20_000
    assert caches.messages == [
        'budget: expected 29.3 KiB, found 19.5 KiB of the process that created the cache, which '
        'applies'
    ]


@pytest.mark.parametrize('current', [3, 4])
def test_mostly_stale_folder_is_cleared(tmp_path: Path, current: int) -> None:
    caches = Caches(str(tmp_path / 'cache'), 'stale')
    put_some(caches(identity_of=lambda number: 0), range(8))
    warm = caches(identity_of=lambda number: int(number >= current))
    kept = current == 4
    assert warm.stats().samples == (8 if kept else 0)
    assert (warm.stats().used == 0) != kept
    assert bool(caches.messages) != kept
    assert kept or ': cleared, as 21.6 KiB of 34.5 KiB belong' in caches.messages[0]
