"""Map a position of the stream to batches of sample requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from mmengine.dataset import DefaultSampler
from torch.utils.data import BatchSampler, SequentialSampler

from mmtempo.datasets.samplers.epoch_sampler import EpochSampler
from mmtempo.datasets.samplers.resumable_infinite_sampler import ResumableInfiniteSampler
from mmtempo.utils.rng import IsolatedRNG

from .shared_slabs import SlabLease

# These samplers do not draw from the global generators.
PURE = (DefaultSampler, EpochSampler, ResumableInfiniteSampler, SequentialSampler)


class SampleRequest(NamedTuple):
    """A request to a worker for one sample.

    Attributes:
        sample: Index of the sample in the dataset.
        key: Seed, epoch, and position in the epoch; these determine the sample's randomness.
        lease: Memory for the batch, on its first request only. Defaults to None.
    """

    sample: int
    key: tuple[int, int, int]
    lease: SlabLease | None = None


@dataclass(frozen=True)
class StreamPosition:
    """A position of a stream: how much of it was delivered. A checkpoint stores it.

    Attributes:
        epoch: Current epoch; an infinite sampler stays in epoch 0.
        batches: Number of batches of this epoch that each process has received.
        samples: Number of samples of this epoch that all processes have received.
        processes: Number of processes.
    """

    epoch: int = 0
    batches: int = 0
    samples: int = 0
    processes: int = 1


class BatchStream:
    """A stream of batches of sample requests that starts at any position.

    The stream is a function of (seed, position) and does not depend on the workers::

        sampler --> batches of indices --> requests, each with its key --> workers

    Args:
        sampler: Sampler of this process's indices.
        batch_sampler: Batch sampler over `sampler`.
        seed: Seed of the samples' randomness, and of samplers that draw from the global
            generators.
        rank: Rank of this process. Defaults to 0.
        processes: Number of processes. Defaults to 1.
    """

    def __init__(
        self, sampler: Any, batch_sampler: Any, seed: int, rank: int = 0, processes: int = 1
    ) -> None:
        self._sampler, self._batch_sampler = sampler, batch_sampler
        self._seed, self._rank, self._processes = seed, rank, processes
        # Only torch's BatchSampler is known to use all samples in the sampler's order.
        self._is_plain = type(batch_sampler) is BatchSampler

    def batches_from(
        self, position: StreamPosition, endless: bool
    ) -> Iterator[tuple[list[SampleRequest], StreamPosition]]:
        """Yield the requests of each batch, and the position after it.

        Args:
            position: Position at which to start.
            endless: Whether to continue with the next epoch at the end of an epoch.
        """
        while True:
            after = None
            for requests, after in self._epoch(position):
                yield requests, after
            if not endless:
                return
            if after is None and position.batches == 0:
                raise ValueError('the sampler gives no batches; see batch_size and drop_last')
            # None: the start position was the end of its epoch.
            position = after or StreamPosition(position.epoch + 1, processes=self._processes)

    def _epoch(
        self, position: StreamPosition
    ) -> Iterator[tuple[list[SampleRequest], StreamPosition]]:
        for sampler in (self._sampler, self._batch_sampler):
            if hasattr(sampler, 'set_epoch'):
                sampler.set_epoch(position.epoch)
        done, number, batches = self._remaining_batches(position)
        following = next(batches, None)
        while following is not None:
            indices, following = following, next(batches, None)
            requests = []
            for index in indices:
                order = done * self._processes + self._rank
                requests.append(SampleRequest(index, (self._seed, position.epoch, order)))
                done += 1
            number += 1
            after = StreamPosition(position.epoch, number, done * self._processes, self._processes)
            if following is None:
                after = StreamPosition(position.epoch + 1, processes=self._processes)
            yield requests, after

    def normalized(self, position: StreamPosition) -> StreamPosition:
        """Return the position, or the next epoch's start where no batch of its epoch is left."""
        if not self._is_plain or isinstance(self._sampler, ResumableInfiniteSampler):
            return position
        left = len(self._sampler) - self._samples_before(position)
        is_over = left < (self._batch_sampler.batch_size if self._batch_sampler.drop_last else 1)
        if not position.samples or not is_over:
            return position
        return StreamPosition(position.epoch + 1, processes=self._processes)

    def _samples_before(self, position: StreamPosition) -> int:
        """Return how many samples of this process precede the position in its epoch."""
        return -(-position.samples // self._processes)

    def _remaining_batches(self, position: StreamPosition) -> tuple[int, int, Iterator[list[int]]]:
        """Return this process's sample and batch counts at the position, and later batches."""
        done = self._samples_before(position)
        if self._is_plain:
            if hasattr(self._sampler, 'skip'):
                self._sampler.skip(done)
                indices = self._drawn(self._sampler, position, 0)
            else:
                indices = self._drawn(self._sampler, position, done)
            number = done // self._batch_sampler.batch_size
            return done, number, _chunks(indices, self._batch_sampler)
        skipped = position.batches * position.processes // self._processes
        return done, skipped, self._drawn(self._batch_sampler, position, skipped)

    def _drawn(self, sampler: Any, position: StreamPosition, skipped: int) -> Iterator[Any]:
        """Iterate over a sampler such that its order is a function of (seed, epoch)."""
        if isinstance(sampler, PURE):
            yield from itertools.islice(iter(sampler), skipped, None)
            return
        isolated = IsolatedRNG(self._seed, position.epoch)
        with isolated:
            drawn = itertools.islice(iter(sampler), skipped, None)
        while True:
            with isolated:
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
