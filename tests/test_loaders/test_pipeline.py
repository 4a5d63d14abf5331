"""Errors of samples and workers, and statistics of waits."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch

from mmtempo.loaders import LoaderError, PrefetchDataLoader, shared_slabs
from mmtempo.loaders.plan import LoaderPlan
from tests.testing.loaders import build_loader, epoch_batches, take_batches
from tests.testing.samples import Failing, Noisy, Taking


@pytest.mark.parametrize('workers', [0, 1])
def test_error_of_sample_names_the_sample(workers: int) -> None:
    loader = build_loader(Failing('raise'), num_workers=workers)
    with pytest.raises(LoaderError) as found:
        take_batches(loader, 6)
    assert str(found.value) == (
        'dataloader: sample 6 (pictures/6.png): ZeroDivisionError: no such pixel'
    )
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    loader.close()


@pytest.mark.parametrize('endless', [False, True])
@pytest.mark.parametrize('workers', [0, 1])
def test_stop_iteration_in_sample_is_an_error(workers: int, endless: bool) -> None:
    loader = build_loader(Failing('stop'), endless, num_workers=workers)
    with pytest.raises(LoaderError) as found:
        epoch_batches(loader)
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
def test_dead_worker_is_reported_with_sample_and_cause(how: str, why: str) -> None:
    loader = build_loader(Failing(how), num_workers=2)
    with pytest.raises(LoaderError, match=r'died at sample 6 \(pictures/6.png\)') as found:
        take_batches(loader, 6)
    assert why in str(found.value)
    loader.close()
    assert not [one for one in multiprocessing.active_children() if one in loader._pool._processes]


def test_hanging_sample_times_out_with_its_name() -> None:
    loader = build_loader(Failing('hang'), num_workers=2, timeout=1)
    with pytest.raises(
        LoaderError,
        match=r'no batch for 1 s; worker \d \(process \d+\) has spent \d+ s on sample 6 \(pictures',
    ):
        take_batches(loader, 6)
    workers = list(loader._pool._processes)
    loader.close()
    assert all(worker.exitcode is not None for worker in workers)


@pytest.mark.parametrize('error', [KeyboardInterrupt, ValueError])
def test_wait_for_a_batch_can_be_ended(error: type[BaseException]) -> None:
    """As by a signal to the training; an error of the save is not one of the loader."""
    loader = build_loader(Failing('hang'), num_workers=2)

    def end() -> None:
        raise error

    def take_all() -> None:
        while True:
            loader.take(on_wait=end)

    with pytest.raises(error):
        take_all()
    assert loader.place.samples <= 20  # at least the batch of sample 6 was not taken
    loader.close()


def test_loader_continues_after_an_error() -> None:
    """It raises the error again, and continues from the position that `seek` sets."""
    loader = build_loader(Failing('raise'), num_workers=1)
    with pytest.raises(LoaderError):
        take_batches(loader, 6)
    place = loader.place
    with pytest.raises(LoaderError):
        loader.take()
    loader.dataset.how = 'nothing'
    loader.close()
    loader.seek(place)
    good = build_loader(Failing('nothing'))
    good.seek(place)
    assert take_batches(loader, 3) == take_batches(good, 3)
    loader.close()


def test_waits_are_counted() -> None:
    loader = build_loader()
    take_batches(loader, 3)
    waits = loader.waiting
    assert (waits.batches, waits.starved, waits.starts) == (3, 3, 1)
    assert 0 < waits.starting < waits.seconds
    # No worker reports a timing, but the batches are made while the training waits.
    assert waits.samples == 12
    assert 0 < waits.made < waits.seconds
    last = loader.deliveries[-1]
    assert last.origin is None
    assert 0 < last.usual < waits.made


def test_workers_report_whether_they_wait_or_compute() -> None:
    # Where the kernel counts it, a worker that waits for a CPU does not wait for a disk.
    assert share_of_demand('sleep') < share_of_demand('spin')


def share_of_demand(how: str) -> float:
    """Return the share of the time in which workers need a CPU for samples that take 20 ms."""
    loader = build_loader(Taking(how), num_workers=2)
    take_batches(loader, 8)
    waits, infos = loader.waiting, list(loader.deliveries)
    loader.close()
    assert waits.samples == sum(len(info.samples) for info in infos) == 31
    origins = [info.origin for info in infos if info.origin is not None]
    assert len(origins) == 8
    assert waits.made == pytest.approx(sum(origin.seconds for origin in origins))
    assert waits.cpu == pytest.approx(sum(origin.cpu for origin in origins))
    assert waits.made > 31 * 0.02
    return waits.cpu / waits.made


def test_batch_tells_the_usual_time_of_a_sample_before_it() -> None:
    loader = build_loader(Taking('sleep', slow=9), num_workers=1)
    take_batches(loader, 6)
    infos = list(loader.deliveries)
    loader.close()
    made, samples = 0.0, 0
    for info in infos:
        assert info.origin is not None
        assert info.usual == pytest.approx(made / samples if samples else 0.0)
        assert (info.origin.slowest == 9) == (9 in info.samples)
        made, samples = made + info.origin.seconds, samples + len(info.samples)
    (slow,) = (info for info in infos if 9 in info.samples)
    assert slow.origin is not None
    assert 0.4 < slow.origin.slowest_seconds < slow.origin.seconds


@pytest.mark.parametrize('workers', [1, 2])
def test_first_batch_of_each_worker_counts_as_its_start(workers: int) -> None:
    loader = build_loader(Taking('sleep'), num_workers=workers)
    waits = loader.waiting
    for start in (1, 2):
        take_batches(loader, workers)
        started, seconds = waits.starting, waits.seconds
        take_batches(loader, 5)
        assert waits.starts == start
        assert waits.starting == started
        assert waits.seconds > seconds > 0
        loader.seek(loader.place)  # the requests in flight are discarded
    assert 0 < waits.starting < waits.seconds
    loader.close()


def test_workers_that_do_not_persist_start_with_each_epoch() -> None:
    loader = build_loader(num_workers=1, persistent_workers=False)
    take_batches(loader, 13)
    assert loader.waiting.starts == 3
    loader.close()


def test_slabs_that_workers_cannot_open_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where `/proc` hides other processes; forked workers inherit the replaced function."""

    def refuse(lease: Any) -> None:
        raise PermissionError(lease.path)

    monkeypatch.setattr(shared_slabs, '_map', refuse)
    loader = build_loader(num_workers=1, multiprocessing_context='fork')
    found = take_batches(loader, 9)
    assert loader._slabs is not None
    assert len(loader._slabs._maps) < 9
    loader.close()
    assert found == take_batches(build_loader(), 9)
