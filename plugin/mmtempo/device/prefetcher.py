"""Prefetch batches to the device, one step ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from .streams import SideStream


class Source(Protocol):
    """The source of batches on the host."""

    def __next__(self) -> Any:
        """Return the next batch; wait for it."""

    def ready(self) -> bool:
        """Return whether the next batch is available without waiting."""


class _Staged(NamedTuple):
    batch: Any
    event: Any


class DevicePrefetcher(Iterator):
    """An iterator over staged batches, one batch ahead, without synchronization.

    ::

        requested batch        N                     N+1                   N+2
        host         N out, N+1 staged, step N | N+1 out, N+2 staged, step N+1 | ...
        side stream        |   copy N+1        |       |   copy N+2    |
        main stream        |        step N             |       step N+1     ...

    Batch N+1 is staged before step N is launched, so that copy and step overlap, also where a part
    of the step synchronizes. A batch that the source does not have by then is staged when it is
    requested.

    Lifetime of the memory:

    - The main stream waits for the event of a batch before it uses the batch, so computation never
      starts before the copy is complete.
    - Each staging waits for everything launched before it. The allocator reuses memory of the side
      stream on the side stream only, so memory that is freed, even within a step, is not
      overwritten before its last reader is done. This needs no `record_stream`, which would delay
      the reuse, and costs nothing: the step that overlaps with the copy is launched after it.
    - The batch on the host is referenced by the side stream until its copy is complete.

    An error of the source or of staging is raised once, when its batch is requested.

    Args:
        source: Batches on the host. The caller closes it.
        stage: Starts copying and preparing a batch, without synchronization.
        side: The stream for that; prefetchers may use it one after the other.
    """

    def __init__(self, source: Source, stage: Callable[[Any], Any], side: SideStream) -> None:
        self._source, self._stage, self._side = source, stage, side
        self._ahead: _Staged | Exception | None = None

    def __next__(self) -> Any:
        following, self._ahead = self._ahead, None
        if following is None:
            following = self._fetch()
        if isinstance(following, Exception):
            self._side.release()  # the last time, if the batches have ended
            try:
                raise following
            finally:
                del following  # breaks a reference cycle that would keep the batch
        self._side.make_current_wait(following.event)
        self._side.release()
        if self._source.ready():
            self._ahead = self._fetch()
        return following.batch

    def _fetch(self) -> _Staged | Exception:
        """Return the next batch, staged, or the error to raise when it is requested."""
        try:
            return self._start(next(self._source))
        except Exception as error:
            return error

    def _start(self, batch: Any) -> _Staged:
        with self._side.overlapped():
            try:
                staged = self._stage(batch)
            except StopIteration as error:  # would end the loop as if there were no more batches
                raise RuntimeError('staging a batch raised StopIteration') from error
            finally:
                event = self._side.keep(batch)  # also on failure: copies may be in progress
        return _Staged(staged, event)
