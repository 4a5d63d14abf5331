"""Run an iterator in a background thread."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from mmtempo.utils.threads import HelperThread


class NotReady(Exception):
    """The next item has not arrived within the time-out."""


class BackgroundIterator:
    """An iterator that a background thread advances a few items ahead of its consumer.

    ::

        iterator --> thread --> queue --> take()

    An exception of the iterator is raised by `take`, once, after the items that precede it.

    Args:
        make: Function that creates the iterator. It is called in the thread and must not start
            processes: a process forked from a thread inherits pipes and locks that other
            threads hold at that moment.
        depth: Number of items to fetch before the first is requested. Defaults to 2.
        name: Name of the thread, after the prefix `mmtempo-`. Defaults to 'background'.
    """

    def __init__(
        self, make: Callable[[], Iterator], depth: int = 2, name: str = 'background'
    ) -> None:
        self._items: queue.SimpleQueue = queue.SimpleQueue()
        self._room = threading.Semaphore(depth)
        self._closing = False
        self._ended = False
        self._thread = HelperThread(name, self._run, make)
        self._thread.start()

    def ready(self) -> bool:
        """Return whether `take` would return without waiting."""
        return self._ended or not self._items.empty()

    def take(self, timeout: float | None = None) -> Any:
        """Return the next item; raise StopIteration at the end.

        Args:
            timeout: Seconds to wait before `NotReady` is raised; None waits without limit.
                Defaults to None.
        """
        if self._ended:
            raise StopIteration
        try:
            item, error = self._items.get(timeout=timeout)
        except queue.Empty:
            raise NotReady from None
        if error is not None:
            self._ended = True
            try:
                raise error
            finally:
                del error  # breaks the cycle error -> traceback -> this frame -> error
        self._room.release()
        return item

    def close(self, timeout: float | None = None) -> bool:
        """Stop fetching items and return whether the thread has ended.

        Args:
            timeout: Seconds to wait for the thread; None waits without limit. Defaults to None.
        """
        self._closing = self._ended = True
        self._room.release()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, make: Callable[[], Iterator]) -> None:
        iterator: Iterator | None = None
        try:
            iterator = make()
            del make
            while True:
                self._room.acquire()
                if self._closing:
                    return
                self._items.put((next(iterator), None))
        except BaseException as error:  # StopIteration as well
            # Drop the iterator now: otherwise it lives as long as the traceback is referenced.
            iterator = None
            traceback.clear_frames(error.__traceback__)
            self._items.put((None, error))
