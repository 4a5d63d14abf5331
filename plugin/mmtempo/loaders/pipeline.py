"""An iterator from sample requests to batches, with the errors of a loader."""

from __future__ import annotations

import collections
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mmtempo.system.limits import oom_kills
from mmtempo.utils.phases import UNPACK, charged_to

from .background_iterator import BackgroundIterator
from .batch_stream import SampleRequest, StreamPosition
from .shared_slabs import Packed, Pinned, SlabLease, SlabPool
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
        samples: Number of samples whose workers report a timing; the next two are of these.
        made: Seconds that workers took for them.
        cpu: CPU seconds of these; the rest is waiting.
    """

    batches: int = 0
    starved: int = 0
    seconds: float = 0.0
    starts: int = 0
    starting: float = 0.0
    samples: int = 0
    made: float = 0.0
    cpu: float = 0.0


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
    ) -> None:
        self._stream, self._pool, self._status = stream, pool, status
        self._dataset, self._timeout, self._name = dataset, timeout, name
        self._waits, self._slabs = waits, slabs
        waits.starts += 1
        self._in_flight: collections.deque[list[SampleRequest]] = collections.deque()
        self._positions: collections.deque[StreamPosition] = collections.deque()
        self._infos: collections.deque[BatchInfo] = collections.deque()
        self._timing: WorkerTiming | None = None
        self._arrived = 0.0  # time at which the last batch arrived
        self._starting = status.rows  # batches that are late because workers start
        self._ended = False
        self.on_wait: Callable[[], None] | None = None
        self._oom_kills = oom_kills()
        self._ahead = pool.ahead
        status.clear()
        self._requests, self._source = pool.begin()
        self._request_batches()

    def __iter__(self) -> Iterator[Any]:
        return self

    def ready(self) -> bool:
        """Return whether the next batch has arrived."""
        return isinstance(self._source, BackgroundIterator) and self._source.ready()

    def __next__(self) -> Any:
        self._request_batches()
        self._waits.batches += 1
        start = None if self.ready() else time.perf_counter()
        try:
            batch = self._take()
        except StopIteration:
            self._waits.batches -= 1
            raise
        waited = 0.0
        if start is not None:
            waited = self._arrived - start
            self._waits.starved += 1
            self._waits.seconds += waited
            if self._starting > 0:
                self._waits.starting += waited
        self._starting -= 1
        requests = self._in_flight.popleft()
        samples = [request.sample for request in requests]
        usual = self._waits.made / self._waits.samples if self._waits.samples else 0.0
        self._infos.append(BatchInfo(samples, waited, self._timing, usual))
        if self._timing is not None:
            self._waits.samples += len(samples)
            self._waits.made += self._timing.seconds
            self._waits.cpu += self._timing.cpu
        lease = _lease_of(requests)
        if self._slabs is not None and lease is not None:
            self._slabs.finish(lease)
        return batch

    def delivered(self) -> tuple[StreamPosition, BatchInfo]:
        """Return the position after the batch that the training receives now, and its info.

        A device stage takes batches from this iterator before the training receives them.
        """
        return self._positions.popleft(), self._infos.popleft()

    def close(self) -> None:
        """Stop the workers and discard outstanding batches."""
        self._pool.stop(abandon=bool(self._in_flight))
        for requests in self._in_flight:
            lease = _lease_of(requests)
            if self._slabs is not None and lease is not None:
                self._slabs.discard(lease)
        self._in_flight.clear()

    def _request_batches(self) -> None:
        # One more than the workers need, since one batch may already be on a device.
        while not self._ended and len(self._positions) <= self._ahead:
            requests, position = next(self._stream, (None, None))
            if requests is None or position is None:
                self._requests.put(None)
                self._ended = True
                return
            if self._slabs is not None and requests:
                requests[0] = requests[0]._replace(lease=self._slabs.lease())
            self._requests.put(requests)
            self._in_flight.append(requests)
            self._positions.append(position)

    def _take(self) -> Any:
        start = time.monotonic()
        while True:
            try:
                return self._take_if_ready()
            except _NotReady:
                # Not within `_take_if_ready`: what `on_wait` raises is no error of the loader.
                if self.on_wait is not None:
                    self.on_wait()
                self._check_workers(time.monotonic() - start)

    def _take_if_ready(self) -> Any:
        try:
            if isinstance(self._source, BackgroundIterator):
                batch, self._timing = _taken_from(self._source), None
                self._arrived = time.perf_counter()
                if not isinstance(batch, (Packed, Pinned)):
                    return batch
                self._timing = batch.timing
                with charged_to(UNPACK):
                    return batch.read()
            batch = next(self._source)
            self._arrived = time.perf_counter()
            return batch
        except _NotReady:
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
        batch = [request.sample for request in (self._in_flight or [[]])[0]]
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


def _lease_of(requests: list[SampleRequest]) -> SlabLease | None:
    return requests[0].lease if requests else None


class _NotReady(Exception):
    """The next batch has not arrived yet."""


def _taken_from(source: BackgroundIterator) -> Any:
    try:
        return source.take(CHECK_INTERVAL)
    except queue.Empty:
        raise _NotReady from None
