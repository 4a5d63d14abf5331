"""Batches are the same for any number of workers and from any position."""

from __future__ import annotations

import multiprocessing
import random
from typing import Any

import numpy as np
import pytest
import torch

from mmtempo.loaders import LoaderError, StreamPosition
from mmtempo.utils.rng import generator_states
from tests.testing.loaders import build_loader, epoch_batches, take_batches
from tests.testing.samples import Failing, Noisy, Shifted

SAMPLERS = [
    dict(type='InfiniteSampler'),
    dict(type='DefaultSampler', shuffle=True),
    # It draws from torch's global generator.
    torch.utils.data.RandomSampler(Noisy()),
]


@pytest.mark.parametrize('sampler', SAMPLERS, ids=['infinite', 'default', 'random'])
def test_batches_do_not_depend_on_number_of_workers(sampler: Any) -> None:
    alone = build_loader(sampler=sampler)
    expected = take_batches(alone, 9)
    position, following = alone.place, take_batches(alone, 8)
    for workers, context in ((1, 'fork'), (3, 'fork')):
        loader = build_loader(sampler=sampler, num_workers=workers, multiprocessing_context=context)
        assert take_batches(loader, 9) == expected
        assert loader.place == position
        loader.close()
        again = build_loader(sampler=sampler, num_workers=workers)
        again.seek(position)
        assert take_batches(again, 8) == following
        again.close()
    drawn = [sample for batch in expected + following for sample in map(tuple, batch)]
    assert len(set(drawn)) == len(drawn)  # randomness differs between epochs


def test_spawned_workers_make_the_same_batches() -> None:
    alone, spawned = build_loader(), build_loader(num_workers=1, multiprocessing_context='spawn')
    assert take_batches(alone, 9) == take_batches(spawned, 9)
    spawned.close()


def test_samples_keep_the_global_generators() -> None:
    """The model draws from the same generators in this process."""
    before = generator_states()
    for workers in (0, 1):
        loader = build_loader(num_workers=workers, sampler=SAMPLERS[2])
        take_batches(loader, 8)
        loader.close()
    after = generator_states()
    assert before[0] == after[0]
    assert np.array_equal(before[1][1], after[1][1])
    assert torch.equal(before[2], after[2])


@pytest.mark.parametrize('workers', [0, 2])
def test_evaluation_batches_repeat(workers: int) -> None:
    loader = build_loader(endless=False, num_workers=workers)
    first = epoch_batches(loader)
    assert len(first) == len(loader) == 6
    assert [len(batch) for batch in first] == [4] * 5 + [3]
    iterator = iter(loader)
    next(iterator)  # and then abandoned
    assert epoch_batches(loader) == first
    pids = {one.pid for one in loader._pool._processes}
    assert epoch_batches(loader) == first
    assert {one.pid for one in loader._pool._processes} == pids
    loader.close()


def test_persistent_workers_serve_consecutive_epochs() -> None:
    loader = build_loader(num_workers=2)
    take_batches(loader, 6)
    assert loader.place == StreamPosition(1, 0, 0)
    pids = {one.pid for one in loader._pool._processes}
    take_batches(loader, 6)
    assert {one.pid for one in loader._pool._processes} == pids
    loader.close()


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('sampler', SAMPLERS[1:], ids=['default', 'random'])
def test_for_loop_takes_no_batches_from_the_training(sampler: Any, workers: int) -> None:
    expected = take_batches(build_loader(sampler=sampler), 14)
    loader = build_loader(sampler=sampler, num_workers=workers)
    iterator = iter(loader)  # before the first batch; it stays open
    next(iterator)
    found = take_batches(loader, 3)
    epoch = epoch_batches(loader)  # within an epoch: all of its batches
    assert epoch == expected[:6]
    found += take_batches(loader, 3)
    assert loader.place == StreamPosition(1, 0, 0)
    assert epoch_batches(loader) == expected[:6]  # between two epochs: the one that has ended
    found += take_batches(loader, 8)
    assert found == expected
    assert len(list(iterator)) == 5
    loader.close()
    assert not multiprocessing.active_children()


class Growing(torch.utils.data.BatchSampler):
    """A batch sampler that keeps remaining samples and a generator between epochs."""

    def __init__(self) -> None:
        super().__init__(torch.utils.data.SequentialSampler(Noisy()), 4, False)
        self.generator, self.left = torch.Generator().manual_seed(1), []

    def __iter__(self) -> Any:
        for index in self.sampler:
            self.left.insert(int(torch.randint(9, (), generator=self.generator)), index)
            if len(self.left) == self.batch_size:
                batch, self.left[:] = list(self.left), []
                yield batch


def test_for_loop_keeps_the_state_of_samplers() -> None:
    expected = take_batches(build_loader(batch_sampler=Growing()), 12)
    loader = build_loader(batch_sampler=Growing())
    found = take_batches(loader, 2)
    next(iter(loader))
    assert found + take_batches(loader, 10) == expected


@pytest.mark.parametrize('workers', [0, 2])
def test_for_loop_within_a_for_loop(workers: int) -> None:
    loader = build_loader(endless=False, num_workers=workers)
    expected = epoch_batches(loader)
    outer = []
    for batch in loader.batches():
        outer.append([one.tolist() for one in batch['inputs']])
        next(iter(loader))
    assert outer == expected
    assert [epoch_batches(loader) for _ in iter(range(2))] == [expected, expected]
    loader.close()
    assert not multiprocessing.active_children()


def test_for_loop_follows_set_epoch_of_a_script() -> None:
    loader, orders = build_loader(), []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        orders.append(epoch_batches(loader))
    assert orders == [take_batches(build_loader(), 6), take_batches(build_loader(), 12)[6:]]


@pytest.mark.parametrize('persistent', [False, True])
def test_workers_that_do_not_persist_see_changes_of_the_dataset(persistent: bool) -> None:
    dataset = Shifted()
    loader = build_loader(dataset, num_workers=2, persistent_workers=persistent)
    seen = []
    for epoch in range(3):
        dataset.shift = 100 * epoch
        batches = [loader.take()['inputs'] for _ in range(len(loader))]
        seen.append(min(int(one[0]) for batch in batches for one in batch))
        assert loader.place == StreamPosition(epoch + 1)
    assert seen == ([0, 0, 0] if persistent else [0, 100, 200])
    loader.close()


def test_loader_of_workers_that_do_not_persist_resumes_anywhere() -> None:
    expected = take_batches(build_loader(), 15)
    for start in (2, 6, 11):
        loader = build_loader(num_workers=1, persistent_workers=False)
        loader.seek(StreamPosition(start // 6, start % 6, 4 * (start % 6)))
        assert take_batches(loader, 15 - start) == expected[start:]
        loader.close()


def test_sampler_without_batches_is_an_error() -> None:
    for options in (dict(num_workers=0), dict(num_workers=1, persistent_workers=False)):
        loader = build_loader(batch_size=24, drop_last=True, **options)
        with pytest.raises(ValueError, match='gives no batches'):
            loader.take()
        loader.close()


def test_is_a_dataloader_also_after_hooks_of_mmdet() -> None:
    loader = build_loader()
    assert isinstance(loader, torch.utils.data.DataLoader)
    loader._DataLoader__initialized = True
    loader.batch_size = 2  # torch's own refuses that
    assert loader.multiprocessing_context is None


def test_stream_continues_with_other_processes_and_batch_size() -> None:
    """Four processes with batches of two follow two processes with batches of four."""
    streams = {}
    for processes, size in ((2, 4), (4, 2)):
        for rank in range(processes):
            loader = build_loader(batch_size=size)
            loader.sampler.rank, loader.sampler.world_size = rank, processes
            loader.sampler.num_samples = -(-23 // processes)
            loader.sampler.total_size = loader.sampler.num_samples * processes
            loader.rank, loader.processes = rank, processes
            if processes == 4:
                loader.seek(StreamPosition(0, batches=1, samples=8, processes=2))
            streams[processes, rank] = take_batches(loader, 4)
    second = [sample for rank in range(2) for sample in streams[2, rank][1]]
    after = [sample for rank in range(4) for sample in streams[4, rank][0]]
    # The same samples, with the same randomness.
    assert sorted(second) == sorted(after)


def test_hooks_that_replace_transforms_restart_the_workers() -> None:
    """Do what mmdet's YOLOXModeSwitchHook does where workers persist."""
    loader = build_loader(Failing('nothing'), num_workers=1)
    take_batches(loader, 2)
    loader.dataset.how = 'raise'
    loader._DataLoader__initialized = False
    loader._iterator = None
    assert loader._iterator is None
    loader._DataLoader__initialized = True
    with pytest.raises(LoaderError):
        take_batches(loader, 12)
    loader.close()


def test_batches_do_not_depend_on_python_random_state() -> None:
    random.seed(1)
    first = take_batches(build_loader(num_workers=1), 2)
    random.seed(2)
    assert take_batches(build_loader(num_workers=1), 2) == first


def test_seek_keeps_a_seed_that_the_config_sets_for_the_sampler() -> None:
    sampler = dict(type='DefaultSampler', shuffle=True, seed=99)
    whole = build_loader(sampler=sampler)
    take_batches(whole, 9)
    position, following = whole.place, take_batches(whole, 5)
    again = build_loader(sampler=sampler)
    again.seek(position, seed=3)
    assert take_batches(again, 5) == following
