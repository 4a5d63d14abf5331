"""The worker processes of a loader: torch's, with a start and an end that cannot hang."""

from __future__ import annotations

import contextlib
import queue
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from .background_iterator import BackgroundIterator
from .batch_stream import SampleRequest
from .worker import one_thread_each

AHEAD = 2  # batches that wait in the training process, after those that each worker makes ahead
HELD = 2  # by a device stage: one for the present step, one for the next
GRACE_PERIOD = 2.0  # seconds that a worker has to end before it is killed


class RequestSampler:
    """A batch sampler that yields the requests put into its queue, until it receives None.

    Iterators that are created before `open` is called are empty.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start with a new, empty queue, closed."""
        self.batches: queue.SimpleQueue[list[SampleRequest] | None] = queue.SimpleQueue()
        self._is_open = False

    def open(self) -> None:
        """Let iterators that are created from now on wait for requests."""
        self._is_open = True

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches.get, None) if self._is_open else iter(())


class WorkerPool:
    """A torch loader that runs in a background thread.

    When a worker dies, torch interrupts the main thread wherever it is, for example inside the
    optimizer step. It does not where another thread runs the loader: then the error comes with
    the batch.

    The caller, which is the main thread, starts the workers, over a sampler that is still empty;
    the thread then iterates over one that waits for requests. Workers forked from the thread
    would inherit what the main thread has open at that moment.

    Args:
        make: Function that creates the torch loader over the argument `batch_sampler`.
        is_busy: Function that returns whether a worker is making a sample.
    """

    def __init__(self, make: Callable[..., DataLoader], is_busy: Callable[[], bool]) -> None:
        self._make, self._is_busy = make, is_busy
        self._sampler = RequestSampler()
        self._loader: DataLoader | None = None
        self._background: BackgroundIterator | None = None
        self._processes: list[Any] = []
        self._iterator: weakref.ref[Any] | None = None  # torch's, which the thread holds
        self._early: tuple[queue.SimpleQueue, BackgroundIterator | Iterator[Any]] | None = None

    @property
    def most_requested(self) -> int:
        """Number of batches to request ahead of the training, so that none waits for a request."""
        loader = self._made()
        if not loader.num_workers:
            return HELD
        # Torch waits for a further request before it returns a batch.
        return loader.num_workers * (loader.prefetch_factor or 1) + 1 + AHEAD + HELD

    def begin(self) -> tuple[queue.SimpleQueue, BackgroundIterator | Iterator[Any]]:
        """Begin a stream of batches, with new workers or with those that persist.

        Returns:
            The queue for requests, and the source of their batches: a plain iterator without
            workers, else one that a thread runs.
        """
        early, self._early = self._early, None
        if early is not None:
            return early
        loader = self._made()
        self._sampler.reset()
        if not loader.num_workers:
            self._sampler.open()
            return self._sampler.batches, iter(loader)
        is_first = loader._iterator is None  # torch keeps it where its workers persist
        made: list[Any] = []  # the thread pops it, and so holds the only reference in the end
        try:
            made.append(self._start(loader) if is_first else loader._iterator)
        except Exception as error:
            made.append(error)  # such as a lack of processes; the thread raises it as any other

        def make() -> Iterator[Any]:
            iterator = made.pop()
            if isinstance(iterator, Exception):
                raise iterator
            iterator._reset(loader, first_iter=is_first)  # from here on it waits for requests
            return iterator

        self._sampler.open()
        self._background = BackgroundIterator(make, AHEAD, name='loader')
        return self._sampler.batches, self._background

    def _start(self, loader: DataLoader) -> Any:
        """Start new workers and return torch's iterator, without any batches yet."""
        self._processes = []
        with one_thread_each(), _kept_sigchld():
            iterator = iter(loader)
            # Not `active_children`: it omits a worker that has died already.
            self._processes = list(getattr(iterator, '_workers', ()))
            _unwatch(iterator)
        self._iterator = weakref.ref(iterator)
        return iterator

    def start_early(self) -> None:
        """Start the workers now, before there are requests; the next `begin` uses them."""
        if self._made().num_workers and self._background is None:
            self._early = self.begin()

    def exit_codes(self, timeout: float = 0) -> dict[int, int]:
        """Return the exit codes of workers that have ended, by process ID.

        Args:
            timeout: Seconds to wait for the first one. Defaults to 0.
        """
        ended = wait([one.sentinel for one in self._processes], timeout)
        for process in self._processes:
            if process.sentinel in ended:
                process.join()  # the sentinel reports closed files, shortly before the exit
        found = {one.pid: one.exitcode for one in self._processes}
        return {pid: code for pid, code in found.items() if code is not None}

    def stop(self, abandon: bool = False) -> None:
        """Make no more batches; persistent workers wait for the next `begin`.

        Args:
            abandon: Whether requested batches are outstanding. Torch would wait for them, however
                long, before it begins again, so the workers are killed. Defaults to False.
        """
        background, self._background, self._early = self._background, None, None
        if background is None:
            return
        self._sampler.batches.put(None)
        if abandon or self.exit_codes():
            self._kill()
            background.close(0)  # torch checks every few seconds whether its workers live
        elif not background.close(GRACE_PERIOD):
            self._kill()

    def close(self) -> None:
        """End the workers; those that are making a sample get `GRACE_PERIOD` seconds."""
        self.stop()
        end = time.monotonic() + GRACE_PERIOD
        while self._processes and self._is_busy() and time.monotonic() < end:
            time.sleep(0.01)
        if self._is_busy():
            self._kill()
        self._loader = None  # its finalizer asks the workers to end, and waits
        for process in self._processes:
            process.join(GRACE_PERIOD)
        self._kill()

    def _made(self) -> DataLoader:
        if self._loader is None:
            self._loader = self._make(batch_sampler=self._sampler)
        return self._loader

    def _kill(self) -> None:
        iterator = None if self._iterator is None else self._iterator()
        if iterator is not None and self._processes:
            _disown(iterator)
        # Workers ignore SIGTERM, so that only the training ends them: use SIGKILL.
        for process in self._processes:
            with contextlib.suppress(ValueError):  # closed already
                process.kill()
        for process in self._processes:
            process.join(GRACE_PERIOD)  # a worker that waits for a lost mount cannot be killed
        self._processes = []
        self._loader = None


@contextlib.contextmanager
def _kept_sigchld() -> Iterator[None]:
    """Restore the handler of SIGCHLD: torch must not watch our workers.

    Torch installs its handler once, with the first loader that has workers, in the main thread;
    other loaders of this process still need to install it.
    """
    was_set = signal_handling._SIGCHLD_handler_set
    before = signal.getsignal(signal.SIGCHLD) if hasattr(signal, 'SIGCHLD') else None
    try:
        yield
    finally:
        if before is not None and signal_handling._SIGCHLD_handler_set and not was_set:
            signal.signal(signal.SIGCHLD, before)
            signal_handling._SIGCHLD_handler_set = False


def _disown(iterator: Any) -> None:
    """Prevent torch's iterator from shutting down workers that are about to be killed.

    A killed worker may hold a lock, such as that of `_workers_done_event`, and torch's shutdown
    would wait for it forever.
    """
    iterator._shutdown = True
    pinning = getattr(iterator, '_pin_memory_thread_done_event', None)
    if pinning is not None:
        pinning.set()
    for index_queue in iterator._index_queues:
        index_queue.cancel_join_thread()
        index_queue.close()


def _unwatch(iterator: Any) -> None:
    """Remove our workers from torch's watch, which would interrupt the main thread.

    Any other loader of this process enables the watch.
    """
    if getattr(iterator, '_worker_pids_set', False):
        signal_handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
