"""An iterator that is gone through in a thread of its own."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from mmtempo.utils.threads import HelperThread


class BackgroundIterator:
    """Takes from an iterator in a thread, a few items ahead of who asks for them.

    ::

        iterator --> thread --> queue --> take()

    What the iterator raises is raised by `take`, once, after the items that came first.

    Args:
        make: Makes the iterator, in the thread. It starts no process: a fork in a thread gets
            what the other threads hold at that moment, as pipes and locks.
        depth: How many items are taken before the first is asked for. Defaults to 2.
        name: Of the thread, after `mmtempo-`. Defaults to 'background'.
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
        """Whether `take` would return at once."""
        return self._ended or not self._items.empty()

    def take(self, timeout: float | None = None) -> Any:
        """The next item; StopIteration at the end.

        Args:
            timeout: Seconds after which `queue.Empty` is raised. Defaults to None.
        """
        if self._ended:
            raise StopIteration
        item, error = self._items.get(timeout=timeout)
        if error is not None:
            self._ended = True
            try:
                raise error
            finally:
                del error  # it would hold this frame, which holds it
        self._room.release()
        return item

    def close(self, timeout: float | None = None) -> bool:
        """Take no more; whether the thread has ended, within so many seconds."""
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
        except BaseException as error:  # the end is an error as well
            # The iterator goes now: not with the last who holds the traceback.
            iterator = None
            traceback.clear_frames(error.__traceback__)
            self._items.put((None, error))
