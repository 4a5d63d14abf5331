"""Batches that are there before they are needed, from any place of the stream on."""

from __future__ import annotations

import collections
import copy
import functools
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from .batch_stream import BatchStream, StreamPosition
from .pipeline import BatchInfo, Pipeline, WaitStats
from .plan import LoaderPlan
from .shared_slabs import SlabPool
from .worker import SeededDataset, SlabCollate, WorkerStart, WorkerStatus
from .worker_pool import RequestSampler, WorkerPool

Stage = Callable[[Iterator], Iterator]
LAST = 64  # batches of which it is kept how they came


class PrefetchDataLoader(DataLoader):
    """A `DataLoader` whose stream of batches has a position and resumes there.

    ::

        BatchStream --tickets--> workers (torch's) --batches--> thread --> [device] --> training
          seed, place             seeded per sample              2 ahead     1 ahead

    Every sample is made with the randomness of its ticket, so that batches are the same for any
    number of workers. `place` counts what the training was given, not what is on its way;
    `seek` goes to any place without making a sample.

    The prefetching loops call `take` (training) or `batches` (evaluation), which move the
    position. A `for` loop over the loader reads a stream apart from it, with its own workers, so
    that a hook or a script which looks at batches takes none away from the training.

    It is a `DataLoader` for `isinstance` only: nothing of torch's constructor runs.

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

    sampler: Any
    batch_sampler: Any
    collate_fn: Any
    worker_init_fn: Any

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
        # Not torch's constructor: it would make a loader of its arguments.
        self.dataset, self.sampler, self.batch_sampler = dataset, sampler, batch_sampler
        self.batch_size = getattr(batch_sampler, 'batch_size', None)
        self.drop_last = getattr(batch_sampler, 'drop_last', False)
        self.plan = plan
        self.num_workers, self.prefetch_factor = plan.num_workers, plan.prefetch_factor
        self.pin_memory = plan.pin_memory
        self.persistent_workers = plan.persistent_workers
        self.collate_fn, self.timeout, self.name = collate_fn, timeout, name
        self.worker_init_fn = start or WorkerStart()
        self.multiprocessing_context = context if plan.num_workers else None
        self.generator, self.pin_memory_device = None, ''
        self.seed, self.rank, self.processes = seed, rank, processes
        self.place = StreamPosition(processes=processes)
        self.waiting = WaitStats()
        self.deliveries: collections.deque[BatchInfo] = collections.deque(maxlen=LAST)
        self.endless, self.is_closed = endless, False
        self._stage: Stage | None = None
        self._board = WorkerStatus(plan.num_workers)
        arguments: dict[str, Any] = dict(
            collate_fn=collate_fn,
            pin_memory=plan.pin_memory,
            worker_init_fn=self.worker_init_fn,
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
        self._slabs: SlabPool | None = None
        if plan.num_workers and batch_bytes and SlabPool.work_here():
            self._slabs = SlabPool(batch_bytes)
            arguments['collate_fn'] = SlabCollate(collate_fn or default_collate, seeded)
        self._pool = WorkerPool(
            functools.partial(_torch_loader, seeded, arguments), self._board.is_busy
        )
        self._pipeline: Pipeline | None = None
        self._batches: Iterator[Any] = iter(())
        self._has_delivered = False  # since the pipeline was begun
        self._options: dict[str, Any] = dict(
            rank=rank,
            processes=processes,
            collate_fn=collate_fn,
            start=start,
            batch_bytes=batch_bytes,
            timeout=timeout,
            context=context,
            name=name,
        )
        self._apart: PrefetchDataLoader | None = None  # of the last `for` loop, if workers persist
        # Before multiprocessing itself waits for its processes, at the end of this one.
        self._end = Finalize(self, self._pool.close, exitpriority=100)

    @property
    def delivery(self) -> BatchInfo | None:
        """How the last batch came; None before there was one."""
        return self.deliveries[-1] if self.deliveries else None

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __setattr__(self, name: str, value: Any) -> None:
        # Torch's refuses the samplers once hooks of mmdet have set its flag of initialization.
        object.__setattr__(self, name, value)

    def __iter__(self) -> Any:
        """Iterate over an epoch from its start, whatever the position, which stays.

        It is the epoch of the batch that was taken last; where none was, that of the sampler, as a
        script has set it by `set_epoch`.
        """
        epoch = self.place.epoch
        if not self.endless or self.place == StreamPosition(processes=self.processes):
            epoch = getattr(self.sampler, 'epoch', 0)
        elif self.place.batches == 0 and self.deliveries:
            epoch -= 1  # it has ended, and no batch of the next one was taken
        loader = self._stream_apart()
        loader.seek(StreamPosition(epoch, processes=self.processes), self.seed)
        try:
            while True:
                try:
                    batch = loader.take()
                except StopIteration:
                    return
                yield batch
        finally:
            if self._apart is None and self.persistent_workers and self._pipeline is None:
                loader._drop()
                self._apart = loader
            else:
                loader.close()

    def batches(self) -> Iterator[Any]:
        """Iterate over all batches from the start, with the loader's own workers; moves `place`."""
        self.seek(StreamPosition(processes=self.processes))
        while True:
            try:
                batch = self.take()
            except StopIteration:
                return
            yield batch

    def take(self) -> Any:
        """Return the next batch; StopIteration at the end, which an endless one does not have."""
        try:
            return self._take()
        except StopIteration:
            if not self.endless:
                raise
        # The workers end with the epoch: the next ones see what has become of the data set.
        if not self._has_delivered:
            raise ValueError(f'{self.name}: the sampler gives no batches')
        self._drop()
        try:
            return self._take()
        except StopIteration:
            raise ValueError(f'{self.name}: the sampler gives no batches') from None

    def _take(self) -> Any:
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
        self._has_delivered = True
        return batch

    def seek(self, place: StreamPosition, seed: int | None = None) -> None:
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
        self.place = self._stream().settled(place) if self.endless else place

    def start_early(self) -> None:
        """Start the workers before the place is known, as while a checkpoint is loaded."""
        if self._pipeline is None and self._spans_epochs:
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
        self._close_apart()
        self.is_closed = True
        if self._slabs is not None:
            self._slabs.close()

    @property
    def _iterator(self) -> Any:
        """None is set by hooks that exchange transforms, of which workers have a copy."""
        return self._pipeline

    @_iterator.setter
    def _iterator(self, value: Any) -> None:
        self.close()

    def _begin(self) -> None:
        self.is_closed = self._has_delivered = False
        self._close_apart()  # one set of workers at a time
        self._pipeline = Pipeline(
            self._stream().from_place(self.place, self._spans_epochs),
            self._pool,
            self._board,
            self.dataset,
            self.timeout,
            self.name,
            self.waiting,
            self._slabs,
        )
        self._batches = self._stage(self._pipeline) if self._stage else self._pipeline

    @property
    def _spans_epochs(self) -> bool:
        """Whether the next epoch's first batches are made during the last ones of this.

        Not with `persistent_workers=False`: hooks may change the data set between epochs.
        """
        return self.endless and (self.persistent_workers or not self.num_workers)

    def _stream_apart(self) -> PrefetchDataLoader:
        """Return a loader of the same batches with another position."""
        loader, self._apart = self._apart, None
        sampler, batch_sampler = _copied(self.sampler, self.batch_sampler, self.dataset)
        if loader is None:
            return PrefetchDataLoader(
                self.dataset, sampler, batch_sampler, self.plan, self.seed, **self._options
            )
        loader.sampler, loader.batch_sampler = sampler, batch_sampler
        return loader

    def _close_apart(self) -> None:
        loader, self._apart = self._apart, None
        if loader is not None:
            loader.close()

    def _stream(self) -> BatchStream:
        return BatchStream(self.sampler, self.batch_sampler, self.seed, self.rank, self.processes)

    def _drop(self) -> None:
        pipeline, self._pipeline, self._batches = self._pipeline, None, iter(())
        if pipeline is not None:
            pipeline.close()


def _copied(sampler: Any, batch_sampler: Any, dataset: Any) -> tuple[Any, Any]:
    """Copy samplers with all that they keep, as lists and generators, but not the data."""
    data = (dataset, *(getattr(sampler, name, None) for name in ('dataset', 'data_source')))
    try:
        return copy.deepcopy((sampler, batch_sampler), {id(one): one for one in data})
    except Exception:  # of a user, with what cannot be copied
        shallow, batches = copy.copy(sampler), copy.copy(batch_sampler)
        if getattr(batches, 'sampler', None) is sampler:
            batches.sampler = shallow
        return shallow, batches


class _Loader(DataLoader):
    """Torch's."""

    def check_worker_number_rationality(self) -> None:
        """The plan has said it already."""


def _torch_loader(
    dataset: SeededDataset, arguments: dict[str, Any], feed: RequestSampler
) -> DataLoader:
    return _Loader(dataset, batch_sampler=feed, **arguments)
