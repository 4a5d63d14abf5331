"""Batches that are there before they are needed, from any place of the stream on."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from ..core.slabs import Slabs
from .batch_stream import BatchStream, Place
from .pipeline import Delivery, Pipeline, Waiting
from .preflight import LoaderPlan
from .worker import Board, InSlab, SeededDataset, WorkerStart
from .worker_pool import Feed, WorkerPool

Stage = Callable[[Iterator], Iterator]
LAST = 64  # batches of which it is kept how they came


class PrefetchDataLoader:
    """Stands where torch's `DataLoader` does, for loops that want to go on where they ended.

    ::

        BatchStream --tickets--> workers (torch's) --batches--> thread --> [device] --> training
          seed, place             seeded per sample              2 ahead     1 ahead

    Every sample is made with the randomness of its ticket, so that batches are the same for any
    number of workers. `place` counts what the training was given, not what is on its way;
    `seek` goes to any place without making a sample.

    Args:
        dataset: The data set.
        sampler: Of the samples of this process.
        batch_sampler: Makes batches of it.
        plan: Workers, batches ahead, pinning.
        seed: Of all randomness.
        rank: Of this process. Defaults to 0.
        processes: How many there are. Defaults to 1.
        endless: Whether epoch follows on epoch, as in training, with the next one's first
            batches made during the last ones of this. Defaults to False.
        collate_fn: Makes a batch of samples. Defaults to None: torch's.
        start: What each worker does first. Defaults to None.
        batch_bytes: What a batch takes, for memory that is used again; 0: new memory for each.
            Defaults to 0.
        timeout: Seconds to wait for a batch of the workers, before it is an error; 0 waits for
            good. Defaults to 600.
        context: How workers are started, as 'fork' or 'spawn'. Defaults to None: as
            multiprocessing is set.
        name: The config's key, for messages. Defaults to 'dataloader'.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Any,
        batch_sampler: Any,
        plan: LoaderPlan,
        seed: int,
        rank: int = 0,
        processes: int = 1,
        endless: bool = False,
        collate_fn: Callable[[list], Any] | None = None,
        start: WorkerStart | None = None,
        batch_bytes: int = 0,
        timeout: float = 600,
        context: Any = None,
        name: str = 'dataloader',
    ) -> None:
        self.dataset, self.sampler, self.batch_sampler = dataset, sampler, batch_sampler
        self.batch_size = getattr(batch_sampler, 'batch_size', None)
        self.drop_last = getattr(batch_sampler, 'drop_last', False)
        self.plan = plan
        self.num_workers, self.prefetch_factor = plan.num_workers, plan.prefetch_factor
        self.pin_memory = plan.pin_memory
        # There is no end at which they could go; hooks that exchange transforms look at it.
        self.persistent_workers = plan.persistent_workers or (endless and plan.num_workers > 0)
        self.collate_fn, self.timeout, self.name = collate_fn, timeout, name
        self.seed, self.rank, self.processes = seed, rank, processes
        self.place = Place(processes=processes)
        self.waiting = Waiting()
        self.deliveries: collections.deque[Delivery] = collections.deque(maxlen=LAST)
        self._endless, self.is_closed = endless, False
        self._stage: Stage | None = None
        self._board = Board(plan.num_workers)
        arguments: dict[str, Any] = dict(
            collate_fn=collate_fn,
            pin_memory=plan.pin_memory,
            worker_init_fn=start or WorkerStart(),
            generator=torch.Generator(),  # it draws a number that nobody needs
        )
        if plan.num_workers:
            arguments.update(
                num_workers=plan.num_workers,
                prefetch_factor=plan.prefetch_factor,
                persistent_workers=self.persistent_workers,
                multiprocessing_context=context,
            )
        seeded = SeededDataset(dataset, self._board)
        self._slabs: Slabs | None = None
        if plan.num_workers and batch_bytes and Slabs.work_here():
            self._slabs = Slabs(batch_bytes)
            arguments['collate_fn'] = InSlab(collate_fn or default_collate, seeded)
        self._pool = WorkerPool(
            functools.partial(_torch_loader, seeded, arguments), self._board.is_busy
        )
        self._pipeline: Pipeline | None = None
        self._batches: Iterator[Any] = iter(())
        # Before multiprocessing itself waits for its processes, at the end of this one.
        self._end = Finalize(self, self._pool.close, exitpriority=100)

    @property
    def delivery(self) -> Delivery | None:
        """How the last batch came; None before there was one."""
        return self.deliveries[-1] if self.deliveries else None

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch; where it is not endless, all of it."""
        if not self._endless:
            self.seek(Place(processes=self.processes))
        epoch = self.place.epoch
        while self.place.epoch == epoch:
            try:
                batch = self.take()
            except StopIteration:
                return
            yield batch

    def take(self) -> Any:
        """The next batch; StopIteration at the end, which an endless one does not have."""
        if self._pipeline is None:
            self._begin()
        assert self._pipeline is not None
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            self._drop()  # the next one begins where this has failed
            raise
        self.place, delivery = self._pipeline.delivered()
        self.deliveries.append(delivery)
        return batch

    def seek(self, place: Place, seed: int | None = None) -> None:
        """Go on behind a place; what is on its way is thrown away.

        Args:
            place: How far the stream was delivered.
            seed: Of the stream. Defaults to None: as it was.
        """
        self._drop()
        if seed is not None:
            for sampler in (self.sampler, self.batch_sampler):
                if getattr(sampler, 'seed', None) == self.seed:  # else it is the config's own
                    sampler.seed = seed
            self.seed = seed
        self.place = self._stream().settled(place) if self._endless else place

    def start_early(self) -> None:
        """Start the workers before the place is known, as while a checkpoint is loaded."""
        if self._pipeline is None:
            self._pool.start_early()

    def stage_with(self, stage: Stage | None) -> None:
        """Bring batches to a device.

        Args:
            stage: Makes an iterator over batches there of one over batches here; what it takes
                from also has `ready`. None leaves them on the host.
        """
        self._stage = stage

    def close(self) -> None:
        """End the workers; the next batch starts them again, at the same place."""
        self._drop()
        self._pool.close()
        self.is_closed = True
        if self._slabs is not None:
            self._slabs.close()

    @property
    def _iterator(self) -> Any:
        """None is set by hooks that exchange transforms, of which workers have a copy."""
        return self._pipeline

    @_iterator.setter
    def _iterator(self, value: None) -> None:
        self.close()

    def _begin(self) -> None:
        self.is_closed = False
        self._pipeline = Pipeline(
            self._stream().from_place(self.place, self._endless),
            self._pool,
            self._board,
            self.dataset,
            self.timeout,
            self.name,
            self.waiting,
            self._slabs,
        )
        self._batches = self._stage(self._pipeline) if self._stage else self._pipeline

    def _stream(self) -> BatchStream:
        return BatchStream(self.sampler, self.batch_sampler, self.seed, self.rank, self.processes)

    def _drop(self) -> None:
        pipeline, self._pipeline, self._batches = self._pipeline, None, iter(())
        if pipeline is not None:
            pipeline.close()


class _Loader(DataLoader):
    """Torch's."""

    def check_worker_number_rationality(self) -> None:
        """The plan has said it already."""


def _torch_loader(dataset: SeededDataset, arguments: dict[str, Any], feed: Feed) -> DataLoader:
    return _Loader(dataset, batch_sampler=feed, **arguments)
