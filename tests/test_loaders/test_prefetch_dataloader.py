"""The same batches whoever makes them; and what happens when nobody does."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from mmtempo.loaders import (
    LoaderError,
    PrefetchDataLoader,
    StreamPosition,
    build_prefetch_dataloader,
)
from mmtempo.loaders.plan import LoaderPlan
from mmtempo.utils.rng import generator_states
from tests.testing.common import ROOT
from tests.testing.limits import low_nofile
from tests.testing.samples import Failing, Noisy, Shifted


def build(dataset: Any = None, endless: bool = True, **options: Any) -> PrefetchDataLoader:
    cfg: dict[str, Any] = dict(
        dataset=dataset or Noisy(),
        sampler=dict(type='DefaultSampler', shuffle=True),
        batch_size=4,
        num_workers=0,
    )
    return build_prefetch_dataloader({**cfg, **options}, seed=3, endless=endless)


def taken(loader: PrefetchDataLoader, count: int) -> list[list]:
    return [[one.tolist() for one in loader.take()['inputs']] for _ in range(count)]


def of_epoch(loader: PrefetchDataLoader) -> list[list]:
    return [[one.tolist() for one in batch['inputs']] for batch in loader]


SAMPLERS = [
    dict(type='InfiniteSampler'),
    dict(type='DefaultSampler', shuffle=True),
    # Draws from torch's global generator.
    torch.utils.data.RandomSampler(Noisy()),
]


@pytest.mark.parametrize('sampler', SAMPLERS, ids=['infinite', 'default', 'random'])
def test_any_number_of_workers_makes_the_same_batches(sampler: Any) -> None:
    alone = build(sampler=sampler)
    expected = taken(alone, 9)
    place, following = alone.place, taken(alone, 8)
    for workers, context in ((1, 'fork'), (3, 'fork')):
        loader = build(sampler=sampler, num_workers=workers, multiprocessing_context=context)
        assert taken(loader, 9) == expected
        assert loader.place == place
        loader.close()
        again = build(sampler=sampler, num_workers=workers)
        again.seek(place)
        assert taken(again, 8) == following
        again.close()
    drawn = [sample for batch in expected + following for sample in map(tuple, batch)]
    assert len(set(drawn)) == len(drawn)  # each epoch has other randomness


def test_spawned_workers_make_the_same_batches() -> None:
    alone, spawned = build(), build(num_workers=1, multiprocessing_context='spawn')
    assert taken(alone, 9) == taken(spawned, 9)
    spawned.close()


def test_nobody_notices_what_samples_draw() -> None:
    """Not the model, which draws from the same generators in this process."""
    before = generator_states()
    for workers in (0, 1):
        loader = build(num_workers=workers, sampler=SAMPLERS[2])
        taken(loader, 8)
        loader.close()
    after = generator_states()
    assert before[0] == after[0]
    assert np.array_equal(before[1][1], after[1][1])
    assert torch.equal(before[2], after[2])


@pytest.mark.parametrize('workers', [0, 2])
def test_an_evaluation_is_the_same_each_time(workers: int) -> None:
    loader = build(endless=False, num_workers=workers)
    first = of_epoch(loader)
    assert len(first) == len(loader) == 6
    assert [len(batch) for batch in first] == [4] * 5 + [3]
    iterator = iter(loader)
    next(iterator)  # and then given up
    assert of_epoch(loader) == first
    pids = {one.pid for one in loader._pool._processes}
    assert of_epoch(loader) == first
    assert {one.pid for one in loader._pool._processes} == pids
    loader.close()


def test_epochs_of_a_training_follow_without_a_new_start() -> None:
    loader = build(num_workers=2)
    taken(loader, 6)
    assert loader.place == StreamPosition(1, 0, 0)
    pids = {one.pid for one in loader._pool._processes}
    taken(loader, 6)
    assert {one.pid for one in loader._pool._processes} == pids
    loader.close()


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('sampler', SAMPLERS[1:], ids=['default', 'random'])
def test_for_loop_takes_nothing_from_the_training(sampler: Any, workers: int) -> None:
    expected = taken(build(sampler=sampler), 14)
    loader = build(sampler=sampler, num_workers=workers)
    iterator = iter(loader)  # before the first batch, and kept
    next(iterator)
    found = taken(loader, 3)
    epoch = of_epoch(loader)  # within an epoch: the whole of it
    assert epoch == expected[:6]
    found += taken(loader, 3)
    assert loader.place == StreamPosition(1, 0, 0)
    assert of_epoch(loader) == expected[:6]  # between two: that which has ended
    found += taken(loader, 8)
    assert found == expected
    assert len(list(iterator)) == 5
    loader.close()
    assert not multiprocessing.active_children()


class Growing(torch.utils.data.BatchSampler):
    """Keeps what is left of the samples, and a generator, between its epochs."""

    def __init__(self) -> None:
        super().__init__(torch.utils.data.SequentialSampler(Noisy()), 4, False)
        self.generator, self.left = torch.Generator().manual_seed(1), []

    def __iter__(self) -> Any:
        for index in self.sampler:
            self.left.insert(int(torch.randint(9, (), generator=self.generator)), index)
            if len(self.left) == self.batch_size:
                batch, self.left[:] = list(self.left), []
                yield batch


def test_for_loop_leaves_the_state_of_samplers_alone() -> None:
    expected = taken(build(batch_sampler=Growing()), 12)
    loader = build(batch_sampler=Growing())
    found = taken(loader, 2)
    next(iter(loader))
    assert found + taken(loader, 10) == expected


@pytest.mark.parametrize('workers', [0, 2])
def test_for_loop_within_a_for_loop(workers: int) -> None:
    loader = build(endless=False, num_workers=workers)
    expected = of_epoch(loader)
    outer = []
    for batch in loader.batches():
        outer.append([one.tolist() for one in batch['inputs']])
        next(iter(loader))
    assert outer == expected
    assert [of_epoch(loader) for _ in iter(range(2))] == [expected, expected]
    loader.close()
    assert not multiprocessing.active_children()


def test_for_loop_follows_set_epoch_of_a_script() -> None:
    loader, orders = build(), []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        orders.append(of_epoch(loader))
    assert orders == [taken(build(), 6), taken(build(), 12)[6:]]


@pytest.mark.parametrize('persistent', [False, True])
def test_workers_that_do_not_persist_see_the_data_set_of_their_epoch(persistent: bool) -> None:
    dataset = Shifted()
    loader = build(dataset, num_workers=2, persistent_workers=persistent)
    seen = []
    for epoch in range(3):
        dataset.shift = 100 * epoch
        batches = [loader.take()['inputs'] for _ in range(len(loader))]
        seen.append(min(int(one[0]) for batch in batches for one in batch))
        assert loader.place == StreamPosition(epoch + 1)
    assert seen == ([0, 0, 0] if persistent else [0, 100, 200])
    loader.close()


def test_loader_of_workers_that_do_not_persist_resumes_anywhere() -> None:
    expected = taken(build(), 15)
    for start in (2, 6, 11):
        loader = build(num_workers=1, persistent_workers=False)
        loader.seek(StreamPosition(start // 6, start % 6, 4 * (start % 6)))
        assert taken(loader, 15 - start) == expected[start:]
        loader.close()


def test_sampler_without_batches_is_an_error() -> None:
    for options in (dict(num_workers=0), dict(num_workers=1, persistent_workers=False)):
        loader = build(batch_size=24, drop_last=True, **options)
        with pytest.raises(ValueError, match='gives no batches'):
            loader.take()
        loader.close()


def test_is_a_dataloader_also_after_hooks_of_mmdet() -> None:
    loader = build()
    assert isinstance(loader, torch.utils.data.DataLoader)
    loader._DataLoader__initialized = True
    loader.batch_size = 2  # torch's own refuses that
    assert loader.multiprocessing_context is None


def test_other_processes_and_batch_sizes_go_on_in_the_same_stream() -> None:
    """Four processes of two samples after two of four."""
    streams = {}
    for processes, size in ((2, 4), (4, 2)):
        for rank in range(processes):
            loader = build(batch_size=size)
            loader.sampler.rank, loader.sampler.world_size = rank, processes
            loader.sampler.num_samples = -(-23 // processes)
            loader.sampler.total_size = loader.sampler.num_samples * processes
            loader.rank, loader.processes = rank, processes
            if processes == 4:
                loader.seek(StreamPosition(0, batches=1, samples=8, processes=2))
            streams[processes, rank] = taken(loader, 4)
    second = [sample for rank in range(2) for sample in streams[2, rank][1]]
    after = [sample for rank in range(4) for sample in streams[4, rank][0]]
    # Samples with the randomness that they would have had.
    assert sorted(second) == sorted(after)


def test_workers_leave_signals_to_the_training() -> None:
    """A scheduler's SIGTERM goes to all processes; the training still needs batches."""
    loader = build(num_workers=2)
    expected = taken(build(), 12)
    assert taken(loader, 2) == expected[:2]
    workers = list(loader._pool._processes)
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
        os.kill(worker.pid, signal.SIGINT)
    assert taken(loader, 10) == expected[2:]
    loader.close()
    assert all(worker.exitcode is not None for worker in workers)
    assert not set(multiprocessing.active_children()) & set(workers)


@pytest.mark.parametrize('workers', [0, 1])
def test_a_sample_that_raises(workers: int) -> None:
    loader = build(Failing('raise'), num_workers=workers)
    with pytest.raises(LoaderError) as found:
        taken(loader, 6)
    assert str(found.value) == (
        'dataloader: sample 6 (pictures/6.png): ZeroDivisionError: no such pixel'
    )
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    loader.close()


@pytest.mark.parametrize('endless', [False, True])
@pytest.mark.parametrize('workers', [0, 1])
def test_stop_iteration_in_sample_is_an_error(workers: int, endless: bool) -> None:
    loader = build(Failing('stop'), endless, num_workers=workers)
    with pytest.raises(LoaderError) as found:
        of_epoch(loader)
    assert str(found.value) == 'dataloader: sample 6 (pictures/6.png): StopIteration'
    assert isinstance(found.value.__cause__, StopIteration)
    loader.close()


def stopping_collate(samples: list) -> Any:
    next(iter(()))


@pytest.mark.parametrize('batch_bytes', [0, 1000])
@pytest.mark.parametrize('workers', [0, 1])
def test_stop_iteration_in_collate_is_an_error(workers: int, batch_bytes: int) -> None:
    loader = PrefetchDataLoader(
        Noisy(),
        sampler := torch.utils.data.SequentialSampler(Noisy()),
        torch.utils.data.BatchSampler(sampler, 4, drop_last=False),
        LoaderPlan(workers, 2 if workers else None),
        seed=3,
        collate_fn=stopping_collate,
        batch_bytes=batch_bytes,
        name='val_dataloader',
    )
    text = r'val_dataloader: the batch of samples \[0, 1, 2, 3\]: StopIteration$'
    with pytest.raises(LoaderError, match=text):
        list(loader)
    loader.close()


@pytest.mark.parametrize(('how', 'why'), [('die', 'SIGKILL'), ('exit', 'exit code 3')])
def test_a_worker_that_dies(how: str, why: str) -> None:
    loader = build(Failing(how), num_workers=2)
    with pytest.raises(LoaderError, match=r'died at sample 6 \(pictures/6.png\)') as found:
        taken(loader, 6)
    assert why in str(found.value)
    loader.close()
    assert not [one for one in multiprocessing.active_children() if one in loader._pool._processes]


def test_a_sample_that_hangs() -> None:
    loader = build(Failing('hang'), num_workers=2, timeout=1)
    with pytest.raises(LoaderError, match=r'no batch for 1 seconds; worker \d .*pictures/6.png'):
        taken(loader, 6)
    workers = list(loader._pool._processes)
    loader.close()
    assert all(worker.exitcode is not None for worker in workers)


def test_other_loaders_do_not_interrupt_the_step() -> None:
    """Torch's handler is there as soon as any loader of torch's has had a worker."""
    list(torch.utils.data.DataLoader(Noisy(), num_workers=1))
    assert callable(signal.getsignal(signal.SIGCHLD))
    loader = build(num_workers=2)
    expected = taken(build(), 2)
    assert taken(loader, 1) == expected[:1]
    for process in loader._pool._processes:
        process.kill()
    for process in loader._pool._processes:
        process.join()  # here an interrupt would come
    with pytest.raises(LoaderError, match='SIGKILL'):
        taken(loader, 20)
    loader.close()


def test_an_error_can_be_gone_past() -> None:
    """After it, the loader goes on where it was told to."""
    loader = build(Failing('raise'), num_workers=1)
    with pytest.raises(LoaderError):
        taken(loader, 6)
    place = loader.place
    with pytest.raises(LoaderError):
        loader.take()
    loader.dataset.how = 'nothing'
    loader.close()
    loader.seek(place)
    good = build(Failing('nothing'))
    good.seek(place)
    assert taken(loader, 3) == taken(good, 3)
    loader.close()


def test_hooks_that_exchange_transforms_reach_the_workers() -> None:
    """As mmdet's do: they set `_iterator` to None where workers persist."""
    loader = build(Failing('nothing'), num_workers=1)
    taken(loader, 2)
    loader.dataset.how = 'raise'
    loader._iterator = None
    with pytest.raises(LoaderError):
        taken(loader, 12)
    loader.close()


def test_waiting_is_counted() -> None:
    loader = build()
    taken(loader, 3)
    assert (loader.waiting.batches, loader.waiting.starved) == (3, 3)


def test_random_state_of_python_is_not_shared_by_workers() -> None:
    random.seed(1)
    first = taken(build(num_workers=1), 2)
    random.seed(2)
    assert taken(build(num_workers=1), 2) == first


FEW_FILES = """
import sys, warnings
warnings.simplefilter('ignore')
from tests.test_loaders.test_prefetch_dataloader import build, taken
loader = build(num_workers=3)
print(taken(loader, 12) == taken(build(), 12), loader.num_workers)
loader.close()
"""


@pytest.mark.parametrize(
    ('hard', 'workers', 'said'),
    [(4096, 3, 'open files: 48 -> 4096'), (80, 1, 'open files: at most 80 (hard limit)')],
)
def test_few_open_files(hard: int, workers: int, said: str) -> None:
    """More, where that is allowed; else fewer workers."""
    env = dict(os.environ, OMP_NUM_THREADS='1')
    done = low_nofile(
        [sys.executable, '-c', FEW_FILES], soft=48, hard=hard, cwd=ROOT, env=env, timeout=60
    )
    text = done.stdout + done.stderr
    assert f'True {workers}' in text, text[-3000:]
    assert said in text


def test_workers_can_start_before_the_place_is_known() -> None:
    expected = taken(build(), 9)
    loader = build(num_workers=2)
    loader.start_early()
    pids = children_of_the_pool(loader)
    loader.seek(StreamPosition(0, 4, 16))
    assert taken(loader, 5) == expected[4:]
    assert {one.pid for one in loader._pool._processes} == pids
    loader.close()
    unused = build(num_workers=1)
    unused.start_early()
    workers = children_of_the_pool(unused)
    unused.close()
    assert not {one.pid for one in multiprocessing.active_children()} & workers
    assert taken(unused, 9) == expected
    unused.close()


def children_of_the_pool(loader: PrefetchDataLoader) -> set[int]:
    found = {one.pid for one in multiprocessing.active_children()}
    assert len(found) >= loader.num_workers
    return found


def test_lock_of_a_killed_worker_holds_nothing_up() -> None:
    """Torch's shutdown waits for it; a worker that is killed at the wrong moment keeps it."""
    loader = build(
        Failing('raise'), num_workers=1, sampler=dict(type='DefaultSampler', shuffle=False)
    )
    loader.take()
    assert loader._pipeline is not None
    while not loader._pipeline.ready():  # the error of the next batch, after which all is dropped
        time.sleep(0.01)
    assert loader._pool._iterator is not None
    iterator = loader._pool._iterator()
    assert iterator is not None
    iterator._workers_done_event._cond.acquire()
    del iterator
    errors: list[BaseException] = []

    def take() -> None:
        try:
            loader.take()
        except LoaderError as error:
            errors.append(error)

    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    taking.join(60)
    assert not taking.is_alive()
    assert 'no such pixel' in str(errors[0])
    loader.close()


def test_a_seed_of_the_samplers_own_stays() -> None:
    sampler = dict(type='DefaultSampler', shuffle=True, seed=99)
    whole = build(sampler=sampler)
    taken(whole, 9)
    place, following = whole.place, taken(whole, 5)
    again = build(sampler=sampler)
    again.seek(place, seed=3)
    assert taken(again, 5) == following


LEFT_ALONE = """
import os, sys, tempfile
folder = tempfile.TemporaryDirectory()  # what is cleared up at exit, in this order
from tests.test_loaders.test_prefetch_dataloader import build, taken
loader = build(num_workers=2)
taken(loader, 2)
print(*(one.pid for one in loader._pool._processes), flush=True)
if sys.argv[1] == 'die':
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize('how', ['die', pytest.param('end', marks=pytest.mark.slow)])
def test_no_worker_outlives_its_training(how: str) -> None:
    command = [sys.executable, '-W', 'ignore', '-c', LEFT_ALONE, how]
    env = dict(os.environ, OMP_NUM_THREADS='1')
    done = subprocess.run(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == (-signal.SIGKILL if how == 'die' else 0)
    pids = done.stdout.decode().splitlines()[-1].split()
    assert len(pids) == 2
    end = time.monotonic() + 30
    while any(os.path.exists(f'/proc/{pid}') for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.05)
