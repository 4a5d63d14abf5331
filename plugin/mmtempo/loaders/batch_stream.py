"""Which samples a batch holds, and with which randomness they are made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from mmengine.dataset import DefaultSampler
from torch.utils.data import BatchSampler, SequentialSampler

from mmtempo.datasets.samplers.epoch_sampler import EpochSampler
from mmtempo.datasets.samplers.resumable_infinite_sampler import ResumableInfiniteSampler
from mmtempo.utils.rng import IsolatedRNG

from .shared_slabs import SlabLease

# They draw from generators of their own, if at all.
PURE = (DefaultSampler, EpochSampler, ResumableInfiniteSampler, SequentialSampler)


class SampleRequest(NamedTuple):
    """One sample to be made.

    Attributes:
        sample: Its number in the data set.
        key: Seed, epoch, and place in it: what its randomness is a function of.
        loan: Memory for its batch, on the first of that. Defaults to None.
    """

    sample: int
    key: tuple[int, int, int]
    loan: SlabLease | None = None


@dataclass(frozen=True)
class StreamPosition:
    """How far a stream has been delivered; all a checkpoint needs to know.

    Attributes:
        epoch: Which is being delivered; an endless sampler has one only.
        batches: Of it, to each process.
        samples: Of it, to all processes.
        processes: How many there are.
    """

    epoch: int = 0
    batches: int = 0
    samples: int = 0
    processes: int = 1

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class BatchStream:
    """Batches of tickets from any place on: a function of (seed, place), whoever makes the samples.

    ::

        sampler --> batches of indices --> tickets, each with its key --> workers

    Args:
        sampler: Of the samples of this process.
        batch_sampler: Makes batches of it.
        seed: Of the samples' randomness, and of samplers that draw from the global generators.
        rank: Of this process.
        processes: How many there are.
    """

    def __init__(
        self, sampler: Any, batch_sampler: Any, seed: int, rank: int = 0, processes: int = 1
    ) -> None:
        self._sampler, self._batch_sampler = sampler, batch_sampler
        self._seed, self._rank, self._processes = seed, rank, processes
        # Other batch samplers may use the samples in another order, or leave some out.
        self._is_plain = type(batch_sampler) is BatchSampler

    def from_place(
        self, place: StreamPosition, endless: bool
    ) -> Iterator[tuple[list[SampleRequest], StreamPosition]]:
        """Batches, each with the place behind it.

        Args:
            place: Where to begin.
            endless: Whether the next epoch follows at the end of one.
        """
        while True:
            behind = None
            for tickets, behind in self._epoch(place):
                yield tickets, behind
            if not endless:
                return
            if behind is None and place.batches == 0:
                raise ValueError('the sampler gives no batches; see batch_size and drop_last')
            # None: all of it had been delivered when this began.
            place = behind or StreamPosition(place.epoch + 1, processes=self._processes)

    def _epoch(self, place: StreamPosition) -> Iterator[tuple[list[SampleRequest], StreamPosition]]:
        for sampler in (self._sampler, self._batch_sampler):
            if hasattr(sampler, 'set_epoch'):
                sampler.set_epoch(place.epoch)
        done, number, batches = self._batches(place)
        following = next(batches, None)
        while following is not None:
            indices, following = following, next(batches, None)
            tickets = []
            for index in indices:
                position = done * self._processes + self._rank
                tickets.append(SampleRequest(index, (self._seed, place.epoch, position)))
                done += 1
            number += 1
            behind = StreamPosition(place.epoch, number, done * self._processes, self._processes)
            if following is None:
                behind = StreamPosition(place.epoch + 1, processes=self._processes)
            yield tickets, behind

    def settled(self, place: StreamPosition) -> StreamPosition:
        """The same place, but at the next epoch's start where nothing of this one is left."""
        if not self._is_plain or isinstance(self._sampler, ResumableInfiniteSampler):
            return place
        left = len(self._sampler) - self._done(place)
        is_over = left < (self._batch_sampler.batch_size if self._batch_sampler.drop_last else 1)
        if not place.samples or not is_over:
            return place
        return StreamPosition(place.epoch + 1, processes=self._processes)

    def _done(self, place: StreamPosition) -> int:
        """Samples of this process that are behind the place."""
        return -(-place.samples // self._processes)

    def _batches(self, place: StreamPosition) -> tuple[int, int, Iterator[list[int]]]:
        """Samples and batches of this process behind the place, and the batches that follow."""
        done = self._done(place)
        if self._is_plain:
            if hasattr(self._sampler, 'skip'):
                self._sampler.skip(done)
                indices = self._drawn(self._sampler, place, 0)
            else:
                indices = self._drawn(self._sampler, place, done)
            number = done // self._batch_sampler.batch_size
            return done, number, _chunks(indices, self._batch_sampler)
        skipped = place.batches * place.processes // self._processes
        return done, skipped, self._drawn(self._batch_sampler, place, skipped)

    def _drawn(self, sampler: Any, place: StreamPosition, skipped: int) -> Iterator[Any]:
        """What the sampler gives in the place's epoch, as a function of (seed, epoch)."""
        if isinstance(sampler, PURE):
            yield from itertools.islice(iter(sampler), skipped, None)
            return
        apart = IsolatedRNG(self._seed, place.epoch)
        with apart:
            drawn = itertools.islice(iter(sampler), skipped, None)
        while True:
            with apart:
                try:
                    item = next(drawn)
                except StopIteration:
                    return
            yield item


def _chunks(indices: Iterator[int], batch_sampler: BatchSampler) -> Iterator[list[int]]:
    size = batch_sampler.batch_size
    while True:
        chunk = list(itertools.islice(indices, size))
        if not chunk or (batch_sampler.drop_last and len(chunk) < size):
            return
        yield chunk
