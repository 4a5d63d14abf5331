"""Requests are a function of (seed, position), for any sampler, from any position."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from mmengine.dataset import DefaultSampler
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from mmtempo.loaders import ResumableInfiniteSampler, StreamPosition
from mmtempo.loaders.batch_stream import BatchStream, SampleRequest
from mmtempo.utils.rng import seed_generators

DATA = range(23)


class RandomSizes:
    """A custom batch sampler with batches of random size, drawn from Python's generator."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        indices = list(self.sampler)
        while indices:
            size = random.randint(1, 4)
            yield indices[:size]
            del indices[:size]

    def __len__(self) -> int:
        return 9


def stream_of(kind: str, drop_last: bool = False) -> BatchStream:
    samplers: dict[str, Any] = dict(
        default=DefaultSampler(DATA, seed=3),
        infinite=ResumableInfiniteSampler(DATA, seed=3),
        sequential=SequentialSampler(DATA),
        random=RandomSampler(DATA),
        custom=RandomSampler(DATA),
    )
    sampler = samplers[kind]
    if kind == 'custom':
        return BatchStream(sampler, RandomSizes(sampler), seed=3)
    return BatchStream(sampler, BatchSampler(sampler, 4, drop_last), seed=3)


def begin(
    kind: str, position: StreamPosition, count: int, **options: Any
) -> list[tuple[list[SampleRequest], StreamPosition]]:
    stream = stream_of(kind, **options).batches_from(position, endless=True)
    return list(itertools.islice(stream, count))


@pytest.mark.parametrize('kind', ['default', 'infinite', 'sequential', 'random', 'custom'])
def test_stream_continues_from_any_position(kind: str) -> None:
    seed_generators(1)
    whole = begin(kind, StreamPosition(), 30)
    for number in (0, 1, 4, 5, 6, 11, 17):
        seed_generators(number)  # other draws must have no effect
        assert begin(kind, whole[number][1], 12) == whole[number + 1 : number + 13]
    keys = [request.key for requests, _ in whole for request in requests]
    assert len(set(keys)) == len(keys)
    if kind != 'infinite':
        first = [request.sample for requests, position in whole for request in requests][:23]
        assert sorted(first) == list(DATA)


def test_order_is_that_of_stock() -> None:
    whole = begin('default', StreamPosition(), 18)
    sampler = DefaultSampler(DATA, seed=3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = whole[6 * epoch : 6 * epoch + 6]
        assert [request.sample for requests, _ in batches for request in requests] == list(sampler)
        assert [position for _, position in batches] == [
            *[StreamPosition(epoch, n, 4 * n, 1) for n in range(1, 6)],
            StreamPosition(epoch + 1, 0, 0, 1),
        ]


def test_incomplete_last_batch_is_dropped() -> None:
    whole = begin('default', StreamPosition(), 10, drop_last=True)
    assert [len(requests) for requests, _ in whole] == [4] * 10
    assert whole[4][1] == StreamPosition(1, 0, 0, 1)


def test_position_after_the_end_continues_with_next_epoch() -> None:
    """Such a position may come from a run with smaller batches."""
    following = begin('default', StreamPosition(0, 22, 22), 1, drop_last=True)
    assert following == begin('default', StreamPosition(1), 1)


def test_sampler_without_batches_is_an_error() -> None:
    sampler = DefaultSampler(DATA, seed=3)
    stream = BatchStream(sampler, BatchSampler(sampler, 50, drop_last=True), seed=3)
    with pytest.raises(ValueError, match='gives no batches; see batch_size and drop_last'):
        next(stream.batches_from(StreamPosition(), endless=True))


@pytest.mark.parametrize('kind', ['default', 'infinite'])
def test_stream_continues_with_another_number_of_processes(kind: str) -> None:
    """The same samples with the same keys follow, distributed over more processes."""
    samples = {}
    for processes, position in (
        (1, StreamPosition(0, 2, 8)),
        (2, StreamPosition(0, 2, 8)),
        (4, StreamPosition(0, 2, 8)),
    ):
        found = []
        for rank in range(processes):
            sampler: Any = stream_of(kind)._sampler
            sampler.rank, sampler.world_size = rank, processes
            sampler.num_samples = sampler.total_size = 24 // processes
            sampler.total_size = 24
            stream = BatchStream(sampler, BatchSampler(sampler, 2, False), 3, rank, processes)
            batches = itertools.islice(stream.batches_from(position, True), 8 // 2 // processes)
            found += [request for requests, _ in batches for request in requests]
        samples[processes] = sorted(found, key=lambda request: request.key)
    assert samples[1] == samples[2] == samples[4]
    assert len(samples[1]) == 8


def test_drawing_an_order_keeps_the_global_generators() -> None:
    seed_generators(1)
    state = torch.get_rng_state(), random.getstate()
    begin('custom', StreamPosition(), 20)
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()


def test_batches_are_counted_in_the_present_size() -> None:
    """The position comes from a run with twice the processes, or with larger batches."""
    assert begin('custom', StreamPosition(0, 2, 8, 2), 1)[0][1].batches == 5
    (_, after), *_ = begin('default', StreamPosition(0, 1, 8), 1)
    assert (after.batches, after.samples) == (3, 12)


def test_position_at_the_end_of_an_epoch_is_normalized() -> None:
    stream = stream_of('default')
    assert stream.normalized(StreamPosition(0, 5, 20)) == StreamPosition(0, 5, 20)
    assert stream.normalized(StreamPosition(3, 8, 23)) == StreamPosition(4)
    assert stream_of('default', drop_last=True).normalized(
        StreamPosition(3, 8, 20)
    ) == StreamPosition(4)
    assert stream_of('infinite').normalized(StreamPosition(0, 8, 99)) == StreamPosition(0, 8, 99)
