"""From a stream of tickets to batches, in order; and what to say where none comes."""

from __future__ import annotations

import collections
import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mmtempo.system.limits import oom_kills

from .background_iterator import BackgroundIterator
from .batch_stream import SampleRequest, StreamPosition
from .shared_slabs import Packed, Pinned, SlabLease, SlabPool
from .worker import WorkerStatus, WorkerTiming
from .worker_errors import LoaderError, why_os_error, why_worker_died
from .worker_pool import WorkerPool

# What may come of a worker's death, and seconds until that itself is known.
LOST = (OSError, EOFError, RuntimeError)
SETTLED = 1.0
# In the text of what a sample or its collation raised in a worker.
FROM_WORKER = 'in DataLoader worker process'
# Seconds between looks whether the workers live.
LOOK_EVERY = 0.25
# What a sample's own description of itself is looked for under.
NAMES = ('img_path', 'token', 'img_id', 'seg_map_path')


@dataclass
class WaitStats:
    """What the training has waited for its batches.

    Attributes:
        batches: It was given.
        starved: Of them were not there when they were asked for.
        seconds: Waited for those.
    """

    batches: int = 0
    starved: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class BatchInfo:
    """How the training came by a batch.

    Attributes:
        samples: Their numbers in the data set.
        waited: Seconds, where it was not there.
        origin: What its worker says of it; None where none does.
    """

    samples: list[int]
    waited: float
    origin: WorkerTiming | None


class Pipeline:
    """An iterator over batches, fed from a stream by whoever takes them.

    The stream is drawn here, by the training's own thread, and not by that of the workers:
    samplers may draw from the global generators.

    Args:
        stream: Tickets of each batch, and the place behind it.
        pool: Makes batches of tickets.
        board: Where workers write what they are at.
        dataset: Whose samples are named in messages.
        timeout: Seconds to wait for a batch; 0 waits for good.
        name: The config's key, for messages.
        waiting: Is kept up to date.
        slabs: Memory for batches. Defaults to None: torch's own.
    """

    def __init__(
        self,
        stream: Iterator[tuple[list[SampleRequest], StreamPosition]],
        pool: WorkerPool,
        board: WorkerStatus,
        dataset: Any,
        timeout: float,
        name: str,
        waiting: WaitStats,
        slabs: SlabPool | None = None,
    ) -> None:
        self._stream, self._pool, self._board = stream, pool, board
        self._dataset, self._timeout, self._name = dataset, timeout, name
        self._waiting, self._slabs = waiting, slabs
        self._on_their_way: collections.deque[list[SampleRequest]] = collections.deque()
        self._places: collections.deque[StreamPosition] = collections.deque()
        self._deliveries: collections.deque[BatchInfo] = collections.deque()
        self._origin: WorkerTiming | None = None
        self._ended = False
        self._ooms = oom_kills()
        self._ahead = pool.ahead
        board.clear()
        self._given, self._source = pool.begin()
        self._give()

    def __iter__(self) -> Iterator[Any]:
        return self

    def ready(self) -> bool:
        """Whether the next batch is there."""
        return isinstance(self._source, BackgroundIterator) and self._source.ready()

    def __next__(self) -> Any:
        self._give()
        self._waiting.batches += 1
        start = None if self.ready() else time.perf_counter()
        try:
            batch = self._take()
        except StopIteration:
            self._waiting.batches -= 1
            raise
        waited = 0.0
        if start is not None:
            waited = time.perf_counter() - start
            self._waiting.starved += 1
            self._waiting.seconds += waited
        tickets = self._on_their_way.popleft()
        samples = [ticket.sample for ticket in tickets]
        self._deliveries.append(BatchInfo(samples, waited, self._origin))
        loan = _loan_of(tickets)
        if self._slabs is not None and loan is not None:
            self._slabs.done(loan)
        return batch

    def delivered(self) -> tuple[StreamPosition, BatchInfo]:
        """The place behind the batch that the training has been given now, and how that came."""
        return self._places.popleft(), self._deliveries.popleft()

    def close(self) -> None:
        self._pool.stop(abandon=bool(self._on_their_way))
        for tickets in self._on_their_way:
            loan = _loan_of(tickets)
            if self._slabs is not None and loan is not None:
                self._slabs.forget(loan)
        self._on_their_way.clear()

    def _give(self) -> None:
        # One more than the workers need: it may be on a device already.
        while not self._ended and len(self._places) <= self._ahead:
            tickets, place = next(self._stream, (None, None))
            if tickets is None or place is None:
                self._given.put(None)
                self._ended = True
                return
            if self._slabs is not None and tickets:
                tickets[0] = tickets[0]._replace(loan=self._slabs.lend())
            self._given.put(tickets)
            self._on_their_way.append(tickets)
            self._places.append(place)

    def _take(self) -> Any:
        try:
            if isinstance(self._source, BackgroundIterator):
                batch, self._origin = self._take_from(self._source), None
                if not isinstance(batch, (Packed, Pinned)):
                    return batch
                self._origin = batch.origin
                return batch.read()
            return next(self._source)
        except LoaderError:
            raise
        except Exception as error:
            # StopIteration out of a sample or its collation must not be taken for the end.
            if isinstance(error, StopIteration) and not self._on_their_way:
                raise
            # A batch that a dead worker has made cannot be fetched from it any more: the error is
            # one of a connection, or torch's, which knows less. After an error of a sample,
            # torch ends workers that do not persist.
            codes = {}
            if FROM_WORKER not in str(error):
                codes = self._pool.exit_codes(SETTLED if isinstance(error, LOST) else 0)
            raise LoaderError(self._why_dead(codes) if codes else self._why(error)) from error

    def _take_from(self, source: BackgroundIterator) -> Any:
        start = time.monotonic()
        while True:
            try:
                return source.take(LOOK_EVERY)
            except queue.Empty:
                codes = self._pool.exit_codes()
                # One that ends without an error may have been asked to; torch knows.
                if any(codes.values()):
                    raise LoaderError(self._why_dead(codes)) from None
                if self._timeout and time.monotonic() - start >= self._timeout:
                    raise LoaderError(self._why_late()) from None

    def _why_late(self) -> str:
        text = f'{self._name}: no batch for {self._timeout:g} seconds'
        doing = self._board.doing()
        if doing:
            text += '; ' + '; '.join(
                f'worker {one.worker} (process {one.process}) has been at '
                f'{self._called(one.index)} for {one.seconds:.0f} s'
                for one in doing[:4]
            )
        return (
            f'{text}. A file on a lost mount, or a lock held by a thread that was not forked; if '
            f'samples do take that long, set {self._name}.timeout (seconds, 0 waits for good)'
        )

    def _why(self, error: Exception) -> str:
        batch = [ticket.sample for ticket in (self._on_their_way or [[]])[0]]
        failed = [index for index in self._board.failed() if index in batch]
        what = self._called(failed[0]) if failed else f'the batch of samples {batch}'
        # Torch puts the worker's traceback before the message.
        lines = str(error).strip().splitlines() or ['']
        kind = type(error).__name__
        reason = lines[-1].removeprefix(kind).removeprefix(': ')
        text = f'{self._name}: {what}: {kind}: {reason}'.removesuffix(': ')
        limit = why_os_error(error)
        return f'{text}; {limit}' if limit else text

    def _why_dead(self, codes: dict[int, int]) -> str:
        doing = self._board.doing()
        # One that fails is the reason why the others end.
        pid, code = max(codes.items(), key=lambda one: one[1] != 0)
        at = [one for one in doing if one.process == pid]
        where = f' at {self._called(at[0].index)}' if at else ''
        number = f'worker {at[0].worker}' if at else 'a worker'
        why = why_worker_died(code, oom_before=self._ooms)
        return f'{self._name}: {number} (process {pid}) died{where}: {why}'

    def _called(self, index: int) -> str:
        """What a sample is called in a message."""
        info: Any = None
        if hasattr(self._dataset, 'get_data_info'):
            try:
                info = self._dataset.get_data_info(index)
            except Exception:  # whatever it is, the message is about something else
                info = None
        names = (
            [str(info[name]) for name in NAMES if name in info] if isinstance(info, dict) else []
        )
        return f'sample {index} ({names[0]})' if names else f'sample {index}'


def _loan_of(tickets: list[SampleRequest]) -> SlabLease | None:
    return tickets[0].loan if tickets else None
