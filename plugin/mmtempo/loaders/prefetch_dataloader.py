"""A dataloader that prefetches batches and resumes at any position of its stream."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import time
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
from .worker_pool import WorkerPool

Stage = Callable[[Iterator], Iterator]
LAST = 64  # batches whose `BatchInfo` is kept


class PrefetchDataLoader(DataLoader):
    """A `DataLoader` whose stream of batches has a position and resumes there.

    ::

        BatchStream --requests--> workers (torch's) --batches--> thread --> [device] --> training
          seed, position           seeded per sample              2 ahead     1 ahead

    The randomness of a sample is determined by its request, so batches are the same for any
    number of workers. `place` counts batches that the training has received, not those in
    flight; `seek` moves to any position without making samples.

    The prefetching loops call `take` (training) or `batches` (evaluation), which move the
    position. A `for` loop over the loader reads a separate stream with its own workers, so that
    a hook or script that inspects batches takes none from the training.

    The class derives from `DataLoader` for `isinstance` only: torch's constructor is not called.

    Args:
        dataset: Dataset of the samples.
        sampler: Sampler of this process's indices.
        batch_sampler: Batch sampler over `sampler`.
        plan: Workers, batches ahead, and pinning.
        seed: Seed of all randomness.
        rank: Rank of this process. Defaults to 0.
        processes: Number of processes. Defaults to 1.
        endless: Whether epochs follow each other without end, as in training; the first batches
            of an epoch are then made during the last ones of the epoch before. Defaults to False.
        collate_fn: Function that makes a batch of samples. Defaults to None: torch's default.
        start: Function that each worker calls first, with its number. Defaults to None.
        batch_bytes: Expected bytes of a batch, for reusable memory; 0 allocates memory for each
            batch. Defaults to 0.
        timeout: Seconds without a batch of the workers before an error is raised; 0 waits
            without limit. Defaults to 600.
        context: Start method of workers, such as 'fork' or 'spawn', or a context of
            multiprocessing. Defaults to None: the default of multiprocessing.
        name: The config's key of the dataloader, for messages. Defaults to 'dataloader'.

    Attributes:
        place: Position after the last batch that was taken.
        waiting: Statistics of the waits for batches.
        deliveries: Infos of the last 64 batches.
        stage: Function from an iterator over batches on the host, which also has the method
            `ready`, to one over batches on a device. None leaves batches on the host.
        batches_per_iteration: Number of batches of an iteration, for the length of the loader.
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
        # Torch's constructor is not called: it would create samplers of its arguments.
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
        self.batches_per_iteration = 1
        self._batch_bytes = batch_bytes
        self._set_up(endless)

    def _set_up(self, endless: bool) -> None:
        """Create the position, and the workers, which start with the first batch."""
        self.endless, self.is_closed = endless, False
        self.place = StreamPosition(processes=self.processes)
        self.waiting = WaitStats()
        self.deliveries: collections.deque[BatchInfo] = collections.deque(maxlen=LAST)
        self.stage: Stage | None = None
        self._status = WorkerStatus(self.num_workers)
        seeded = SeededDataset(self.dataset, self._status)
        collate_fn: Any = self.collate_fn
        self._slabs: SlabPool | None = None
        if self.num_workers and self._batch_bytes and SlabPool.is_supported():
            self._slabs = SlabPool(self._batch_bytes)
            collate_fn = SlabCollate(collate_fn or default_collate, seeded)
        make = functools.partial(
            _Loader,
            seeded,
            collate_fn=collate_fn,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            multiprocessing_context=self.multiprocessing_context,
            pin_memory=self.pin_memory,
            worker_init_fn=self.worker_init_fn,
            generator=torch.Generator(),  # else torch draws its base seed from the global one
        )
        self._pool = WorkerPool(make, self._status.is_busy)
        self._pipeline: Pipeline | None = None
        self._batches: Iterator[Any] = iter(())
        self._separate: PrefetchDataLoader | None = None  # of the last `for` loop, to use again
        # At exit of this process, run before multiprocessing joins its children.
        self._end = Finalize(self, self._pool.close, exitpriority=100)

    def __len__(self) -> int:
        """Return the number of iterations of an epoch."""
        return -(-len(self.batch_sampler) // self.batches_per_iteration)

    def __setattr__(self, name: str, value: Any) -> None:
        # Torch's method refuses to set samplers once hooks of mmdet have set `__initialized`.
        object.__setattr__(self, name, value)

    def __iter__(self) -> Any:
        """Iterate over one epoch from its start, without moving the position.

        It is the epoch of the batch that was taken last; before the first batch, the epoch of the
        sampler, which a script may have set by `set_epoch`.
        """
        epoch = self.place.epoch
        if not self.endless or not self.deliveries:
            epoch = getattr(self.sampler, 'epoch', 0)
        elif self.place.batches == 0:
            epoch -= 1  # no batch of the new epoch was taken
        loader = self._separate_loader()
        try:
            yield from loader.batches(epoch=epoch)
        finally:
            if self._separate is None and self.persistent_workers and self._pipeline is None:
                loader._stop_pipeline()
                self._separate = loader
            else:
                loader.close()

    def batches(self, on_wait: Callable[[], None] | None = None, epoch: int = 0) -> Iterator[Any]:
        """Iterate over an epoch from its start, with this loader's workers; moves `place`.

        Args:
            on_wait: As in `take`. Defaults to None.
            epoch: Number of the epoch. Defaults to 0.
        """
        self.seek(StreamPosition(epoch, processes=self.processes))
        while True:
            try:
                batch = self.take(on_wait)
            except StopIteration:
                return
            yield batch

    def take(self, on_wait: Callable[[], None] | None = None) -> Any:
        """Return the next batch; raise StopIteration at the end unless the loader is endless.

        Args:
            on_wait: Function to call several times a second while workers make the batch; what it
                raises ends the wait. Defaults to None.
        """
        try:
            return self._take(on_wait)
        except StopIteration:
            if not self.endless:
                raise
        # Workers that do not persist end with the epoch: new ones see changes of the dataset.
        with self._restarting():
            self._stop_pipeline()
        try:
            return self._take(on_wait)
        except StopIteration:
            raise ValueError(f'{self.name}: the sampler gives no batches') from None

    def _take(self, on_wait: Callable[[], None] | None) -> Any:
        if self._pipeline is None:
            with self._restarting():
                self._begin()
        assert self._pipeline is not None
        self._pipeline.on_wait = on_wait
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            self._stop_pipeline()  # the next call starts at the batch that failed
            raise
        self.place, info = self._pipeline.delivered()
        self.deliveries.append(info)
        return batch

    @contextlib.contextmanager
    def _restarting(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.waiting.restarting += time.perf_counter() - start

    def seek(self, place: StreamPosition, seed: int | None = None) -> None:
        """Continue after a position of the stream, and discard batches in flight.

        Args:
            place: Position after the last batch that was delivered.
            seed: Seed of the stream. Defaults to None: the present one.
        """
        self._stop_pipeline()
        if seed is not None:
            for sampler in (self.sampler, self.batch_sampler):
                if getattr(sampler, 'seed', None) == self.seed:  # else the config has set it
                    sampler.seed = seed
            self.seed = seed
        self.place = self._stream().normalized(place) if self.endless else place

    def start_early(self) -> None:
        """Start the workers before the position is known, for example while a checkpoint loads."""
        if self._pipeline is None and self._spans_epochs:
            self._pool.start_early()

    def close(self) -> None:
        """End the workers; the next batch starts them again, at the same position."""
        self._stop_pipeline()
        self._pool.close()
        self._close_separate()
        self.is_closed = True
        if self._slabs is not None:
            self._slabs.close()

    @property
    def _iterator(self) -> Any:
        """Pipeline, under the name that torch gives to the iterator of persistent workers."""
        return self._pipeline

    @_iterator.setter
    def _iterator(self, value: Any) -> None:
        # Hooks set it to None, as mmdet's YOLOXModeSwitchHook, so that workers copy the dataset
        # anew. They know a `DataLoader` only, and torch has no public method for it.
        self.close()

    def _begin(self) -> None:
        self.is_closed = False
        self._close_separate()  # so that only one set of workers runs
        self._pipeline = Pipeline(
            self._stream().batches_from(self.place, self._spans_epochs),
            self._pool,
            self._status,
            self.dataset,
            self.timeout,
            self.name,
            self.waiting,
            self._slabs,
            is_training=self.endless,
        )
        self._batches = self.stage(self._pipeline) if self.stage else self._pipeline

    @property
    def _spans_epochs(self) -> bool:
        """Whether the next epoch's first batches are made during the last ones of this epoch.

        They are not with `persistent_workers=False`: hooks may change the dataset in between.
        """
        return self.endless and (self.persistent_workers or not self.num_workers)

    def _separate_loader(self) -> PrefetchDataLoader:
        """Return a loader of the same batches with another position."""
        loader, self._separate = self._separate, None
        if loader is None:
            loader = copy.copy(self)
            loader._set_up(endless=False)
        loader.seed = self.seed
        samplers = _copied(self.sampler, self.batch_sampler, self.dataset)
        loader.sampler, loader.batch_sampler = samplers
        return loader

    def _close_separate(self) -> None:
        loader, self._separate = self._separate, None
        if loader is not None:
            loader.close()

    def _stream(self) -> BatchStream:
        return BatchStream(self.sampler, self.batch_sampler, self.seed, self.rank, self.processes)

    def _stop_pipeline(self) -> None:
        pipeline, self._pipeline, self._batches = self._pipeline, None, iter(())
        if pipeline is not None:
            pipeline.close()


def _copied(sampler: Any, batch_sampler: Any, dataset: Any) -> tuple[Any, Any]:
    """Copy samplers with their state, such as lists and generators, but not the dataset."""
    data = (dataset, *(getattr(sampler, name, None) for name in ('dataset', 'data_source')))
    try:
        return copy.deepcopy((sampler, batch_sampler), {id(one): one for one in data})
    except Exception:  # a custom sampler with state that cannot be copied
        shallow, batches = copy.copy(sampler), copy.copy(batch_sampler)
        if getattr(batches, 'sampler', None) is sampler:
            batches.sampler = shallow
        return shallow, batches


class _Loader(DataLoader):
    """A torch loader without the warning about the number of workers."""

    def check_worker_number_rationality(self) -> None:
        """Do nothing: the plan warns about this already."""
