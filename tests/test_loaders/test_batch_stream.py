"""Tickets are a function of (seed, place), for any sampler, from any place on."""

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


class PairsOfAKind:
    """A batch sampler of somebody's own: of uneven batches, drawn from Python's generator."""

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
        own=RandomSampler(DATA),
    )
    sampler = samplers[kind]
    if kind == 'own':
        return BatchStream(sampler, PairsOfAKind(sampler), seed=3)
    return BatchStream(sampler, BatchSampler(sampler, 4, drop_last), seed=3)


def begin(
    kind: str, place: StreamPosition, count: int, **options: Any
) -> list[tuple[list[SampleRequest], StreamPosition]]:
    stream = stream_of(kind, **options).from_place(place, endless=True)
    return list(itertools.islice(stream, count))


@pytest.mark.parametrize('kind', ['default', 'infinite', 'sequential', 'random', 'own'])
def test_from_any_place_on(kind: str) -> None:
    seed_generators(1)
    whole = begin(kind, StreamPosition(), 30)
    for number in (0, 1, 4, 5, 6, 11, 17):
        seed_generators(number)  # whatever others draw
        assert begin(kind, whole[number][1], 12) == whole[number + 1 : number + 13]
    keys = [ticket.key for tickets, _ in whole for ticket in tickets]
    assert len(set(keys)) == len(keys)
    if kind != 'infinite':
        first = [ticket.sample for tickets, place in whole for ticket in tickets][:23]
        assert sorted(first) == list(DATA)


def test_the_order_is_stocks() -> None:
    whole = begin('default', StreamPosition(), 18)
    sampler = DefaultSampler(DATA, seed=3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = whole[6 * epoch : 6 * epoch + 6]
        assert [t.sample for tickets, _ in batches for t in tickets] == list(sampler)
        assert [place for _, place in batches] == [
            *[StreamPosition(epoch, n, 4 * n, 1) for n in range(1, 6)],
            StreamPosition(epoch + 1, 0, 0, 1),
        ]


def test_the_last_batch_is_dropped() -> None:
    whole = begin('default', StreamPosition(), 10, drop_last=True)
    assert [len(tickets) for tickets, _ in whole] == [4] * 10
    assert whole[4][1] == StreamPosition(1, 0, 0, 1)


def test_a_place_behind_the_end_is_the_next_epoch() -> None:
    """Of a run whose batches were smaller."""
    following = begin('default', StreamPosition(0, 22, 22), 1, drop_last=True)
    assert following == begin('default', StreamPosition(1), 1)


def test_no_batches_at_all() -> None:
    sampler = DefaultSampler(DATA, seed=3)
    stream = BatchStream(sampler, BatchSampler(sampler, 50, drop_last=True), seed=3)
    with pytest.raises(ValueError, match='gives no batches; see batch_size and drop_last'):
        next(stream.from_place(StreamPosition(), endless=True))


@pytest.mark.parametrize('kind', ['default', 'infinite'])
def test_another_number_of_processes(kind: str) -> None:
    """What follows is what would have followed, dealt to more of them."""
    samples = {}
    for processes, place in (
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
            batches = itertools.islice(stream.from_place(place, True), 8 // 2 // processes)
            found += [ticket for tickets, _ in batches for ticket in tickets]
        samples[processes] = sorted(found, key=lambda ticket: ticket.key)
    assert samples[1] == samples[2] == samples[4]
    assert len(samples[1]) == 8


def test_nobody_notices_that_an_order_is_drawn() -> None:
    seed_generators(1)
    state = torch.get_rng_state(), random.getstate()
    begin('own', StreamPosition(), 20)
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()


def test_batches_are_counted_in_those_of_now() -> None:
    """Of a run with twice as many processes, and of one with larger batches."""
    assert begin('own', StreamPosition(0, 2, 8, 2), 1)[0][1].batches == 5
    (_, behind), *_ = begin('default', StreamPosition(0, 1, 8), 1)
    assert (behind.batches, behind.samples) == (3, 12)


def test_a_place_with_nothing_left_is_the_next_epoch() -> None:
    stream = stream_of('default')
    assert stream.settled(StreamPosition(0, 5, 20)) == StreamPosition(0, 5, 20)
    assert stream.settled(StreamPosition(3, 8, 23)) == StreamPosition(4)
    assert stream_of('default', drop_last=True).settled(StreamPosition(3, 8, 20)) == StreamPosition(
        4
    )
    assert stream_of('infinite').settled(StreamPosition(0, 8, 99)) == StreamPosition(0, 8, 99)
