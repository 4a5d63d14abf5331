"""An iterator from sample requests to batches, with the errors of a loader."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from mmtempo.system.limits import oom_kills
from mmtempo.utils.phases import UNPACK, charged_to

from .background_iterator import BackgroundIterator, NotReady
from .batch_stream import SampleRequest, StreamPosition
from .shared_slabs import Packed, SlabPool
from .worker import WorkerStatus, WorkerTiming
from .worker_errors import LoaderError, why_os_error, why_worker_died
from .worker_pool import WorkerPool

# Exceptions that may follow from a worker's death, and seconds until its exit code is known.
LOST = (OSError, EOFError, RuntimeError)
SETTLE_TIME = 1.0
# Part of the message of exceptions that a sample or its collation raised in a worker.
FROM_WORKER = 'in DataLoader worker process'
CHECK_INTERVAL = 0.25  # seconds between checks whether the workers live
# Keys of a sample's data info that can name it in a message.
NAMES = ('img_path', 'token', 'img_id', 'seg_map_path')


@dataclass
class WaitStats:
    """How long the training has waited for batches.

    Attributes:
        batches: Number of batches that were delivered.
        starved: Number of these that were not ready when requested.
        seconds: Seconds of waiting for those.
        starts: How often the workers were started.
        starting: Seconds of waiting for their first batches.
        restarting: Seconds of ending and starting them, without that waiting.
        samples: Number of samples whose batches have a timing; the next two are of these.
        made: Seconds in which processes made these batches.
        cpu: Seconds of these in which they computed or waited for a CPU; the rest is waiting for
            a disk, the network or another process. Without workers, only those in which this
            process computed: the training's thread does not read the kernel's count of waits.
    """

    batches: int = 0
    starved: int = 0
    seconds: float = 0.0
    starts: int = 0
    starting: float = 0.0
    restarting: float = 0.0
    samples: int = 0
    made: float = 0.0
    cpu: float = 0.0

    @property
    def usual(self) -> float:
        """Mean seconds of a sample so far; 0 while unknown."""
        return self.made / self.samples if self.samples else 0.0

    def add(self, samples: int, made: float, cpu: float) -> None:
        """Add the timing of a batch."""
        self.samples, self.made, self.cpu = self.samples + samples, self.made + made, self.cpu + cpu


@dataclass(frozen=True)
class BatchInfo:
    """How a batch was made and delivered.

    Attributes:
        samples: Indices of its samples in the dataset.
        waited: Seconds that the training waited for it; 0 where it was ready.
        origin: Timing that its worker reports; None where none is reported.
        usual: Mean seconds of a sample before this batch; 0 while unknown.
    """

    samples: list[int]
    waited: float
    origin: WorkerTiming | None
    usual: float = 0.0


class Pipeline:
    """An iterator over batches, which requests further batches as it is advanced.

    The caller's thread, which is the main thread, draws from the stream, not the thread of the
    workers: samplers may draw from the global generators.

    Args:
        stream: Requests of each batch, and the position after it.
        pool: Workers that make the batches.
        status: Table in which workers record the sample that they are making.
        dataset: Dataset whose samples are named in messages.
        timeout: Seconds to wait for a batch; 0 waits without limit.
        name: The config's key of the dataloader, for messages.
        waits: Statistics to update with each batch.
        slabs: Reusable memory for batches. Defaults to None: torch's shared memory.
        is_training: Whether unpacking a batch is a phase of the training. Defaults to False.

    Attributes:
        on_wait: Function to call several times a second while workers make the next batch, or
            None. What it raises ends the wait.
    """

    def __init__(
        self,
        stream: Iterator[tuple[list[SampleRequest], StreamPosition]],
        pool: WorkerPool,
        status: WorkerStatus,
        dataset: Any,
        timeout: float,
        name: str,
        waits: WaitStats,
        slabs: SlabPool | None = None,
        is_training: bool = False,
    ) -> None:
        self._stream, self._pool, self._status = stream, pool, status
        self._dataset, self._timeout, self._name = dataset, timeout, name
        self._waits, self._slabs, self._is_training = waits, slabs, is_training
        waits.starts += 1
        # Each batch is in flight until it arrives, and then arrived until the training has it.
        self._in_flight: collections.deque[tuple[list[SampleRequest], StreamPosition]]
        self._arrived: collections.deque[tuple[StreamPosition, BatchInfo]]
        self._in_flight, self._arrived = collections.deque(), collections.deque()
        self._arrival = 0.0  # time at which the last batch arrived
        self._starting = status.rows  # batches that may be late because workers start
        self._ended = False
        self.on_wait: Callable[[], None] | None = None
        self._oom_kills = oom_kills()
        status.clear()
        self._requests, self._source = pool.begin()
        self._most_requested = pool.most_requested
        self._request_batches()

    def __iter__(self) -> Iterator[Any]:
        return self

    def ready(self) -> bool:
        """Return whether the next batch has arrived."""
        return isinstance(self._source, BackgroundIterator) and self._source.ready()

    def __next__(self) -> Any:
        self._request_batches()
        start = None if self.ready() else time.perf_counter()
        batch, timing = self._take()
        self._waits.batches += 1
        waited = 0.0
        if start is not None:
            waited = self._arrival - start
            self._waits.starved += 1
            self._waits.seconds += waited
            if self._starting > 0:
                self._waits.starting += waited
        self._starting -= 1
        requests, position = self._in_flight.popleft()
        samples = [request.sample for request in requests]
        self._arrived.append((position, BatchInfo(samples, waited, timing, self._waits.usual)))
        if timing is not None:
            self._waits.add(len(samples), timing.seconds, timing.cpu)
        return batch

    def delivered(self) -> tuple[StreamPosition, BatchInfo]:
        """Return the position after the batch that the training receives now, and its info.

        A device stage takes batches from this iterator before the training receives them.
        """
        return self._arrived.popleft()

    def close(self) -> None:
        """Stop the workers and discard outstanding batches."""
        self._pool.stop(abandon=bool(self._in_flight))
        for requests, _ in self._in_flight:
            self._discard_slab(requests)
        self._in_flight.clear()

    def _request_batches(self) -> None:
        most = self._most_requested - len(self._arrived)
        while not self._ended and len(self._in_flight) < most:
            requests, position = next(self._stream, (None, None))
            if requests is None or position is None:
                self._requests.put(None)
                self._ended = True
                return
            if self._slabs is not None and requests:
                requests[0] = requests[0]._replace(lease=self._slabs.lease())
            self._requests.put(requests)
            self._in_flight.append((requests, position))

    def _discard_slab(self, requests: list[SampleRequest]) -> None:
        lease = requests[0].lease if requests else None
        if self._slabs is not None and lease is not None:
            self._slabs.discard(lease)

    def _take(self) -> tuple[Any, WorkerTiming | None]:
        """Return the next batch, and its worker's timing where that is known."""
        start = time.monotonic()
        while True:
            try:
                return self._take_if_ready()
            except NotReady:
                # Not within `_take_if_ready`: what `on_wait` raises is no error of the loader.
                if self.on_wait is not None:
                    self.on_wait()
                self._check_workers(time.monotonic() - start)

    def _make(self, source: Iterator[Any]) -> Any:
        """Return the next batch of a loader without workers, made in this process."""
        start, cpu = time.perf_counter(), time.thread_time()
        batch = next(source)
        self._arrival = time.perf_counter()
        count = len(self._in_flight[0][0])
        self._waits.add(count, self._arrival - start, time.thread_time() - cpu)
        return batch

    def _take_if_ready(self) -> tuple[Any, WorkerTiming | None]:
        try:
            if not isinstance(self._source, BackgroundIterator):
                return self._make(self._source), None
            batch = self._source.take(CHECK_INTERVAL)
            self._arrival = time.perf_counter()
            if isinstance(batch, Packed):
                with charged_to(UNPACK) if self._is_training else nullcontext():
                    return batch.read(), batch.timing
            self._discard_slab(self._in_flight[0][0])  # its worker could not open the slab
            return batch, None
        except NotReady:
            raise
        except Exception as error:
            # A StopIteration of a sample or its collation is an error, not the end of the stream.
            if isinstance(error, StopIteration) and not self._in_flight:
                raise
            # A batch cannot be fetched from a worker that has died since: the error is then one
            # of a connection, or torch's, and the exit code tells more. After an error of a
            # sample, however, torch ends workers that do not persist.
            codes = {}
            if FROM_WORKER not in str(error):
                codes = self._pool.exit_codes(SETTLE_TIME if isinstance(error, LOST) else 0)
            text = self._death_message(codes) if codes else self._error_message(error)
            raise LoaderError(text) from error

    def _check_workers(self, waited: float) -> None:
        """Raise LoaderError if a worker has died or the next batch takes too long."""
        codes = self._pool.exit_codes()
        # Torch may have asked a worker to end; only an exit code other than 0 is a death.
        if any(codes.values()):
            raise LoaderError(self._death_message(codes)) from None
        if self._timeout and waited >= self._timeout:
            raise LoaderError(self._timeout_message()) from None

    def _timeout_message(self) -> str:
        text = f'{self._name}: no batch for {self._timeout:g} s'
        for one in self._status.activities()[:4]:
            text += (
                f'; worker {one.worker} (process {one.process}) has spent {one.seconds:.0f} s on '
                f'{self._describe_sample(one.index)}'
            )
        return (
            f'{text}. Check for files on a lost mount and for locks that were held at a fork; if '
            f'samples do take this long, raise {self._name}.timeout (seconds; 0 waits without '
            'limit)'
        )

    def _error_message(self, error: Exception) -> str:
        requests = self._in_flight[0][0] if self._in_flight else []
        batch = [request.sample for request in requests]
        failed = [index for index in self._status.failed() if index in batch]
        what = self._describe_sample(failed[0]) if failed else f'the batch of samples {batch}'
        # Torch puts the worker's traceback before the message.
        lines = str(error).strip().splitlines() or ['']
        kind = type(error).__name__
        reason = lines[-1].removeprefix(kind).removeprefix(': ')
        text = f'{self._name}: {what}: {kind}: {reason}'.removesuffix(': ')
        limit = why_os_error(error)
        return f'{text}; {limit}' if limit else text

    def _death_message(self, codes: dict[int, int]) -> str:
        activities = self._status.activities()
        # Torch ends the other workers, with exit code 0, because one has failed: name that one.
        pid, code = max(codes.items(), key=lambda one: one[1] != 0)
        at = [one for one in activities if one.process == pid]
        where = f' at {self._describe_sample(at[0].index)}' if at else ''
        number = f'worker {at[0].worker}' if at else 'a worker'
        why = why_worker_died(code, oom_before=self._oom_kills)
        return f'{self._name}: {number} (process {pid}) died{where}: {why}'

    def _describe_sample(self, index: int) -> str:
        info: Any = None
        if hasattr(self._dataset, 'get_data_info'):
            try:
                info = self._dataset.get_data_info(index)
            except Exception:  # must not hide the error that the message is about
                info = None
        names = (
            [str(info[name]) for name in NAMES if name in info] if isinstance(info, dict) else []
        )
        return f'sample {index} ({names[0]})' if names else f'sample {index}'
