"""The worker processes of a loader: torch's, started and ended so that nothing hangs."""

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

# Batches in the training's own process, beside those that each worker has ahead.
AHEAD = 2
# Seconds that a worker has to end, before it is killed.
PATIENCE = 2.0


class RequestSampler:
    """A batch sampler over what it is given; None ends it. Without any batch until `open`."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin again, with nothing given yet."""
        self.batches: queue.SimpleQueue[list[SampleRequest] | None] = queue.SimpleQueue()
        self._is_open = False

    def open(self) -> None:
        """Let iterators made from now on wait for batches."""
        self._is_open = True

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches.get, None) if self._is_open else iter(())


class WorkerPool:
    """Runs torch's loader in a thread, over one feed after the other.

    Torch has the main thread interrupted wherever it is, within the optimizer if need be, when
    a worker dies. It does not where the loader is run by another thread: then the error comes
    with the batch.

    The workers are started by the caller, which is the main thread, over a feed that has no
    batches yet; the thread then begins over one that waits for them. A thread that forked would
    give its workers copies of what the main thread has open at that moment.

    Args:
        make: Makes torch's loader over a feed.
        is_busy: Whether a worker is at a sample.
    """

    def __init__(
        self, make: Callable[[RequestSampler], DataLoader], is_busy: Callable[[], bool]
    ) -> None:
        self._make, self._is_busy = make, is_busy
        self._feed = RequestSampler()
        self._loader: DataLoader | None = None
        self._background: BackgroundIterator | None = None
        self._processes: list[Any] = []
        self._iterator: weakref.ref[Any] | None = None  # torch's, which the thread holds
        self._early: tuple[queue.SimpleQueue, BackgroundIterator | Iterator[Any]] | None = None

    @property
    def ahead(self) -> int:
        """How many batches must have been given, before the first one comes."""
        loader = self._made()
        if not loader.num_workers:
            return 1
        return loader.num_workers * (loader.prefetch_factor or 1) + AHEAD + 2

    def begin(self) -> tuple[queue.SimpleQueue, BackgroundIterator | Iterator[Any]]:
        """Where to put tickets, and what gives their batches: an iterator, or one in a thread."""
        early, self._early = self._early, None
        if early is not None:
            return early
        loader = self._made()
        self._feed.renew()
        if not loader.num_workers:
            self._feed.open()
            return self._feed.batches, iter(loader)
        is_first = loader._iterator is None  # torch keeps it where its workers persist
        made: list[Any] = []  # of which the thread takes it, to let go of it at the end
        try:
            made.append(self._start(loader) if is_first else loader._iterator)
        except Exception as error:
            made.append(error)  # as a lack of processes; the thread raises it as any other

        def make() -> Iterator[Any]:
            iterator = made.pop()
            if isinstance(iterator, Exception):
                raise iterator
            iterator._reset(loader, first_iter=is_first)  # now it asks the feed for batches
            return iterator

        self._feed.open()
        self._background = BackgroundIterator(make, AHEAD, name='loader')
        return self._feed.batches, self._background

    def _start(self, loader: DataLoader) -> Any:
        """Torch's iterator, with new workers and no batches."""
        self._processes = []
        with one_thread_each(), _kept_sigchld():
            iterator = iter(loader)
            # Among `active_children` one that has died already would be missing.
            self._processes = list(getattr(iterator, '_workers', ()))
            _leave_to_us(iterator)
        self._iterator = weakref.ref(iterator)
        return iterator

    def start_early(self) -> None:
        """Start the workers now, though there are no tickets yet; the next `begin` has them."""
        if self._made().num_workers and self._background is None:
            self._early = self.begin()

    def exit_codes(self, timeout: float = 0) -> dict[int, int]:
        """Of those that have ended, by process ID.

        Args:
            timeout: Seconds to wait for the first one. Defaults to 0.
        """
        ended = wait([one.sentinel for one in self._processes], timeout)
        for process in self._processes:
            if process.sentinel in ended:
                process.join()  # its files are closed, and next it is a process no more
        found = {one.pid: one.exitcode for one in self._processes}
        return {pid: code for pid, code in found.items() if code is not None}

    def stop(self, abandon: bool = False) -> None:
        """Make no more batches; workers that persist wait for the next `begin`.

        Args:
            abandon: Whether batches are on their way: torch would wait for them, however long,
                before it begins again. Defaults to False.
        """
        background, self._background, self._early = self._background, None, None
        if background is None:
            return
        self._feed.batches.put(None)
        if abandon or self.exit_codes():
            self._kill()
            background.close(0)  # torch looks every few seconds whether its workers live
        elif not background.close(PATIENCE):
            self._kill()

    def close(self) -> None:
        """End the workers; those that are at a sample have a little time."""
        self.stop()
        end = time.monotonic() + PATIENCE
        while self._processes and self._is_busy() and time.monotonic() < end:
            time.sleep(0.01)
        if self._is_busy():
            self._kill()
        self._loader = None  # asks them to end, and waits
        for process in self._processes:
            process.join(PATIENCE)
        self._kill()

    def _made(self) -> DataLoader:
        if self._loader is None:
            self._loader = self._make(self._feed)
        return self._loader

    def _kill(self) -> None:
        iterator = None if self._iterator is None else self._iterator()
        if iterator is not None and self._processes:
            _disown(iterator)
        # SIGTERM they ignore: it is the training that decides.
        for process in self._processes:
            with contextlib.suppress(ValueError):  # closed already
                process.kill()
        for process in self._processes:
            process.join(PATIENCE)  # one that waits for a lost mount cannot even be killed
        self._processes = []
        self._loader = None


@contextlib.contextmanager
def _kept_sigchld() -> Iterator[None]:
    """Put torch's handler of SIGCHLD back as it was: its watch is not for our workers.

    Torch installs it once, with the first loader that has workers, where that is in the main
    thread; other loaders of this process shall still have it.
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
    """Have torch's iterator leave its workers alone, which are about to be killed.

    One that is killed may hold a lock, as that of `_workers_done_event`, for which torch's own
    shutdown would wait for ever.
    """
    iterator._shutdown = True
    pinning = getattr(iterator, '_pin_memory_thread_done_event', None)
    if pinning is not None:
        pinning.set()
    for index_queue in iterator._index_queues:
        index_queue.cancel_join_thread()
        index_queue.close()


def _leave_to_us(iterator: Any) -> None:
    """Torch's watch, which any other loader of this process turns on, interrupts the step."""
    if getattr(iterator, '_worker_pids_set', False):
        signal_handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
