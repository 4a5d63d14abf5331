"""What runs in the worker processes of a loader, and what they tell of themselves."""

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

from mmtempo.utils.rng import generator_states, seed_generators, set_generator_states
from mmtempo.utils.threads import HelperThread

from .batch_stream import SampleRequest
from .shared_slabs import Packed, SlabLease, pack

IDLE, BUSY = range(2)
STATE, INDEX, SINCE, PROCESS, FAILED = range(5)
NONE = -1
LOOK_EVERY = 1.0  # seconds
THREADS = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS')


@dataclass(frozen=True)
class Doing:
    """What a worker is at, or was when it ended.

    Attributes:
        worker: Its number.
        process: Its process ID.
        index: The sample in the data set.
        seconds: How long it has been at it.
    """

    worker: int
    process: int
    index: int
    seconds: float


class WorkerStatus:
    """Where workers write what they are at; still legible when they are dead.

    Args:
        workers: How many; without any, the training's own process writes.
    """

    def __init__(self, workers: int) -> None:
        # Shared by its handle also with spawned workers. One row each, so that nobody waits.
        self._memory = torch.zeros(max(workers, 1), 5, dtype=torch.int64).share_memory_()
        # Numbers are written through numpy: to torch each is an operation, of ten times the cost.
        self._rows = self._memory.numpy()
        self.clear()

    def __getstate__(self) -> dict:
        return dict(_memory=self._memory)

    def __setstate__(self, state: dict) -> None:
        self._memory = state['_memory']
        self._rows = self._memory.numpy()

    def clear(self) -> None:
        """Nobody has begun."""
        self._rows[:, STATE] = IDLE
        self._rows[:, FAILED] = NONE

    def begin(self, worker: int, index: int) -> None:
        row = self._rows[worker]
        row[INDEX], row[SINCE], row[PROCESS] = index, time.monotonic_ns(), os.getpid()
        row[STATE] = BUSY

    def fail(self, worker: int) -> None:
        """Only the first is kept: batches come in order, and so do their errors."""
        row = self._rows[worker]
        if row[FAILED] == NONE:
            row[FAILED] = row[INDEX]
        row[STATE] = IDLE

    def end(self, worker: int) -> None:
        self._rows[worker, STATE] = IDLE

    def doing(self) -> list[Doing]:
        """Of those that are at a sample; the longest first."""
        now = time.monotonic_ns()
        found = [
            Doing(worker, process, index, (now - since) / 1e9)
            for worker, (state, index, since, process, _) in enumerate(self._rows.tolist())
            if state != IDLE
        ]
        return sorted(found, key=lambda one: -one.seconds)

    def is_busy(self) -> bool:
        """Whether any is at a sample."""
        return bool((self._rows[:, STATE] == BUSY).any())

    def failed(self) -> list[int]:
        """Samples that raised an error, the first one of each worker."""
        return [index for index in self._rows[:, FAILED].tolist() if index != NONE]


class WorkerTiming(NamedTuple):
    """Who has made a batch, and what took long.

    Attributes:
        worker: Its number.
        seconds: For all samples.
        slowest: The sample that took longest.
        slowest_seconds: For that one.
    """

    worker: int
    seconds: float
    slowest: int
    slowest_seconds: float


class SlabCollate:
    """A collate function whose batches lie in the slab that their first ticket has brought.

    Args:
        make: The collate function.
        dataset: Which has seen the tickets.
    """

    def __init__(self, make: Callable[[list], Any], dataset: SeededDataset) -> None:
        self._make, self._dataset = make, dataset

    def __call__(self, samples: list) -> Any:
        loan, self._dataset.loan = self._dataset.loan, None
        if loan is None:
            return self._make(samples)
        origin, packed = self._dataset.origin(), pack(loan, self._make, samples)
        if isinstance(packed, Packed):  # where that failed, it is the batch itself
            packed.origin = origin
        return packed


class SeededDataset(Dataset):
    """Makes samples of tickets: with the randomness of their key, whichever process does it.

    Args:
        dataset: The data set.
        board: Where is written which sample is being made.
    """

    def __init__(self, dataset: Any, board: WorkerStatus) -> None:
        self.dataset = dataset
        self._board = board
        self.loan: SlabLease | None = None
        self._took: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, tickets: Sequence[SampleRequest]) -> list[Any]:
        """Those of a batch."""
        if get_worker_info() is not None:
            return [self[ticket] for ticket in tickets]
        # The model draws in this process. To put its generators aside and back takes half a
        # millisecond, numpy's most of it: once a batch, not once a sample.
        states = generator_states()
        try:
            return [self[ticket] for ticket in tickets]
        finally:
            set_generator_states(states)

    def __getitem__(self, ticket: SampleRequest) -> Any:
        worker = get_worker_info()
        number = 0 if worker is None else worker.id
        self._board.begin(number, ticket.sample)
        if ticket.loan is not None:
            self.loan = ticket.loan
        start = time.perf_counter()
        try:
            seed_generators(*ticket.key)
            sample = self.dataset[ticket.sample]
        except Exception:
            self._board.fail(number)
            raise
        self._board.end(number)
        if self.loan is not None:
            self._took.append((time.perf_counter() - start, ticket.sample))
        return sample

    def origin(self) -> WorkerTiming | None:
        """Of the samples since the last time it was asked; in a worker."""
        took, self._took = self._took, []
        worker = get_worker_info()
        if worker is None or not took:
            return None
        seconds, slowest = max(took)
        return WorkerTiming(worker.id, sum(one for one, _ in took), slowest, seconds)


class WorkerStart:
    """What a worker does first.

    Args:
        then: The config's own `worker_init_fn`. Defaults to None.
        only_first_warns: Whether warnings of all other workers are dropped. Defaults to False.
    """

    def __init__(
        self, then: Callable[[int], None] | None = None, only_first_warns: bool = False
    ) -> None:
        self._then = then
        self._only_first_warns = only_first_warns

    def __call__(self, worker: int) -> None:
        # A Ctrl-C at the terminal, or a scheduler's SIGTERM, goes to the whole group; the
        # training ends its iteration and saves, and then ends its workers.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        HelperThread('parent-watch', _end_with_training).start()
        # The workers are the parallelism. Under spawn nothing of the parent's setting is left.
        cv2.setNumThreads(0)
        cv2.ocl.setUseOpenCL(False)
        torch.set_num_threads(1)
        if self._only_first_warns and worker:
            warnings.simplefilter('ignore')
        if self._then is not None:
            self._then(worker)


def _end_with_training() -> None:
    """End this worker once the training has ended; torch checks only between two batches.

    The sentinel also tells of a training that ended before this thread began, and of one whose
    workers have a fork server as parent. The parent's ID tells of it where another child of the
    training has inherited the sentinel's pipe.
    """
    training, parent = multiprocessing.parent_process(), os.getppid()
    if training is None:  # no worker
        return
    while not wait([training.sentinel], LOOK_EVERY) and os.getppid() == parent:
        pass
    os._exit(1)


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Libraries that processes started inside load have one thread; they read it at their start."""
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
