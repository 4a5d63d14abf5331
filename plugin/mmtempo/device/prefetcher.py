"""Hands out batches that are on the device already, each brought there one step ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from .streams import SideStream


class Source(Protocol):
    """Where batches come from."""

    def __next__(self) -> Any:
        """The next batch; waits for it."""

    def ready(self) -> bool:
        """Whether the next one is there without waiting."""


class _Staged(NamedTuple):
    batch: Any
    event: Any


class DevicePrefetcher(Iterator):
    """An iterator over staged batches, one batch ahead; the host never waits for the device.

    ::

        asked for batch        N                     N+1                   N+2
        host         N out, N+1 staged, step N | N+1 out, N+2 staged, step N+1 | ...
        side stream        |   copy N+1        |       |   copy N+2    |
        computing          |        step N             |       step N+1     ...

    A batch is staged before the step in front of it is given to the device, so that the two run
    side by side, also where something in the step waits for the device. If it has not come from
    the source by then, it is staged when it is asked for.

    What keeps each byte as long as it is read:

    - A batch is handed out behind its event: computing does not begin before its copy is done.
    - Each staging begins behind all that the device was given before. The allocator gives memory
      of the side stream to the side stream only, so that whatever is let go of, even in the
      middle of a step, is not written to before its last reader is done. That takes no
      `record_stream`, after which memory comes back late, and costs nothing: the step that runs
      beside the copy is given to the device after it.
    - The batch on the host stays in a slot of the side stream until its copy is done.

    An error, of the source or in staging, is raised when its batch is asked for, once.

    Args:
        source: Batches on the host; the caller closes it.
        stage: Starts copies of a batch, and what else prepares it, without waiting.
        side: Where that runs; it may serve one prefetcher after the other.
    """

    def __init__(self, source: Source, stage: Callable[[Any], Any], side: SideStream) -> None:
        self._source, self._stage, self._side = source, stage, side
        self._ahead: _Staged | Exception | None = None
        self._is_closed = False

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        following, self._ahead = self._ahead, None
        if following is None:
            following = self._fetch()
        if isinstance(following, Exception):
            self.close()
            try:
                raise following
            finally:
                del following  # or it would hold itself, and the batch with it
        self._side.hold(following.event)
        self._side.release()
        if self._source.ready():
            self._ahead = self._fetch()
        return following.batch

    def close(self) -> None:
        """Let go of what was staged; batches on the host leave when their copies are done."""
        self._is_closed, self._ahead = True, None
        self._side.release()

    def _fetch(self) -> _Staged | Exception:
        """The source's next batch, or what came instead: it has to wait for its turn."""
        try:
            return self._start(next(self._source))
        except Exception as error:
            return error

    def _start(self, batch: Any) -> _Staged:
        with self._side.beside():
            try:
                staged = self._stage(batch)
            except StopIteration as error:  # the loop would take it for the end of the batches
                raise RuntimeError('staging a batch raised StopIteration') from error
            finally:
                event = self._side.keep(batch)  # some copies may be on their way also if it fails
        return _Staged(staged, event)
