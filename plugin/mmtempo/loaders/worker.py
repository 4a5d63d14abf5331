"""Code that runs in the worker processes of a loader, and the status that they share."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import cv2
import torch
from torch.utils.data import Dataset, get_worker_info

from mmtempo.system.process_counters import cpu_demand
from mmtempo.utils.rng import generator_states, seed_generators, set_generator_states
from mmtempo.utils.threads import HelperThread

from .batch_stream import SampleRequest
from .shared_slabs import Packed, SlabLease, pack

IDLE, BUSY = range(2)
STATE, INDEX, SINCE, PROCESS, FAILED = range(5)  # columns of a worker's row
NONE = -1
CHECK_INTERVAL = 1.0  # seconds
THREADS = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS')


@dataclass(frozen=True)
class WorkerActivity:
    """The sample that a worker is making, or was making when it died.

    Attributes:
        worker: Number of the worker.
        process: Process ID of the worker.
        index: Index of the sample in the dataset.
        seconds: Seconds since the worker has started on it.
    """

    worker: int
    process: int
    index: int
    seconds: float


class WorkerStatus:
    """A table in shared memory of what each worker does; it outlives the workers.

    Args:
        workers: Number of workers; with 0, the training process has the only row.
    """

    def __init__(self, workers: int) -> None:
        # Spawned workers receive its handle. Each worker has its row, so no lock is needed.
        self._memory = torch.zeros(max(workers, 1), 5, dtype=torch.int64).share_memory_()
        # Writing an element through numpy takes a tenth of the time of a torch operation.
        self._rows = self._memory.numpy()
        self.clear()

    def __getstate__(self) -> dict:
        return dict(_memory=self._memory)

    def __setstate__(self, state: dict) -> None:
        self._memory = state['_memory']
        self._rows = self._memory.numpy()

    @property
    def rows(self) -> int:
        """Number of processes that make samples."""
        return len(self._rows)

    def clear(self) -> None:
        """Reset all workers to idle, without failed samples."""
        self._rows[:, STATE] = IDLE
        self._rows[:, FAILED] = NONE

    def begin(self, worker: int, index: int) -> None:
        """Record that a worker has started on a sample."""
        row = self._rows[worker]
        row[INDEX], row[SINCE], row[PROCESS] = index, time.monotonic_ns(), os.getpid()
        row[STATE] = BUSY

    def fail(self, worker: int) -> None:
        """Record that the present sample raised an error; only a worker's first one is kept.

        Batches arrive in order, so the first error is the one that the training sees.
        """
        row = self._rows[worker]
        if row[FAILED] == NONE:
            row[FAILED] = row[INDEX]
        row[STATE] = IDLE

    def end(self, worker: int) -> None:
        """Record that a worker has finished its sample."""
        self._rows[worker, STATE] = IDLE

    def activities(self) -> list[WorkerActivity]:
        """Return what each busy worker does, longest first."""
        now = time.monotonic_ns()
        found = [
            WorkerActivity(worker, process, index, (now - since) / 1e9)
            for worker, (state, index, since, process, _) in enumerate(self._rows.tolist())
            if state != IDLE
        ]
        return sorted(found, key=lambda one: -one.seconds)

    def is_busy(self) -> bool:
        """Return whether any worker is making a sample."""
        return bool((self._rows[:, STATE] == BUSY).any())

    def failed(self) -> list[int]:
        """Return the indices of samples that raised an error, the first one of each worker."""
        return [index for index in self._rows[:, FAILED].tolist() if index != NONE]


class WorkerTiming(NamedTuple):
    """Which worker has made a batch, and how long it took.

    Attributes:
        worker: Number of the worker.
        seconds: Seconds for the batch.
        cpu: Seconds of these in which the worker computed or waited for a CPU.
        slowest: Index of the sample that took longest.
        slowest_seconds: Seconds for that sample.
    """

    worker: int
    seconds: float
    cpu: float
    slowest: int
    slowest_seconds: float


class SlabCollate:
    """A collate function that writes a batch to the slab of its first request.

    Args:
        make: Collate function to wrap.
        dataset: Dataset that receives the requests, and with them the lease of the slab.
    """

    def __init__(self, make: Callable[[list], Any], dataset: SeededDataset) -> None:
        self._make, self._dataset = make, dataset

    def __call__(self, samples: list) -> Any:
        lease, self._dataset.lease = self._dataset.lease, None
        if lease is None:
            return self._make(samples)
        packed = pack(lease, self._make, samples)
        timing = self._dataset.take_timing()
        if isinstance(packed, Packed):  # without access to the slab, it is the plain batch
            packed.timing = timing
        return packed


class SeededDataset(Dataset):
    """A dataset indexed by requests, which seeds the generators with the key of each request.

    A sample is therefore the same in whichever process it is made.

    Args:
        dataset: Dataset to wrap.
        status: Table in which to record the sample that is being made.
    """

    def __init__(self, dataset: Any, status: WorkerStatus) -> None:
        self.dataset = dataset
        self._status = status
        self.lease: SlabLease | None = None
        self._times: list[tuple[float, int]] = []
        self._began: tuple[float, float] | None = None  # time and CPU time of the present batch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, requests: Sequence[SampleRequest]) -> list[Any]:
        """Return the samples of a batch; restore the global generators in the training process."""
        if get_worker_info() is not None:
            return [self[request] for request in requests]
        # The model draws from the same generators. Saving and restoring them takes 0.5 ms,
        # mostly for numpy, so it is done once per batch and not once per sample.
        states = generator_states()
        try:
            return [self[request] for request in requests]
        finally:
            set_generator_states(states)

    def __getitem__(self, request: SampleRequest) -> Any:
        worker = get_worker_info()
        number = 0 if worker is None else worker.id
        self._status.begin(number, request.sample)
        if request.lease is not None:
            self.lease = request.lease
        start = time.perf_counter()
        self._began = self._began or (start, cpu_demand())
        try:
            seed_generators(*request.key)
            sample = self.dataset[request.sample]
        except Exception:
            self._status.fail(number)
            self._times, self._began = [], None
            raise
        self._status.end(number)
        if self.lease is not None:
            self._times.append((time.perf_counter() - start, request.sample))
        return sample

    def take_timing(self) -> WorkerTiming | None:
        """Return and reset the timing of the samples since the last call; None outside workers."""
        times, self._times = self._times, []
        began, self._began = self._began, None
        worker = get_worker_info()
        if worker is None or began is None or not times:
            return None
        made, cpu = time.perf_counter() - began[0], cpu_demand() - began[1]
        seconds, slowest = max(times)
        return WorkerTiming(worker.id, made, cpu, slowest, seconds)


class WorkerStart:
    """The `worker_init_fn` of a loader.

    Args:
        then: The `worker_init_fn` of the config, called last. Defaults to None.
        only_first_warns: Whether to ignore warnings in all workers but the first. Defaults to
            False.
    """

    def __init__(
        self, then: Callable[[int], None] | None = None, only_first_warns: bool = False
    ) -> None:
        self._then = then
        self._only_first_warns = only_first_warns

    def __call__(self, worker: int) -> None:
        # Ctrl-C and a scheduler's SIGTERM reach the whole process group. The training needs its
        # workers until it has completed its iteration and saved; then it ends them itself.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        HelperThread('parent-watch', _end_with_training).start()
        # One thread per worker process. A spawned worker inherits none of the parent's settings.
        cv2.setNumThreads(0)
        cv2.ocl.setUseOpenCL(False)
        torch.set_num_threads(1)
        if self._only_first_warns and worker:
            warnings.simplefilter('ignore')
        if self._then is not None:
            self._then(worker)


def _end_with_training() -> None:
    """End this worker once the training process has ended; torch checks only between batches.

    The sentinel also reports a training that ended before this thread started, and one whose
    workers are children of a fork server. The parent's ID is checked as well, because another
    child of the training may have inherited the sentinel's pipe and keep it open.
    """
    training, parent = multiprocessing.parent_process(), os.getppid()
    if training is None:  # not a worker process
        return
    while not wait([training.sentinel], CHECK_INTERVAL) and os.getppid() == parent:
        pass
    os._exit(1)


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Limit numeric libraries to one thread in processes that are started inside this block.

    The libraries read these environment variables when they are loaded.
    """
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, '1'))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
