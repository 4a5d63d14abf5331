"""Buffer logged scalars between the device and the histories of the message hub."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmengine.logging import HistoryBuffer, MessageHub

from .bounded_history import BoundedHistory
from .nonfinite import NonFiniteWatch
from .scalar_rows import ScalarRows

KEY = 'mmtempo_scalars'
MOST_ROWS = 512


@dataclass
class LogWindow:
    """Histories at a log point, complete once the values sent for it have arrived."""

    ticket: int
    histories: OrderedDict[str, BoundedHistory]

    def settle(self) -> None:
        """Separate the values of this window from those that arrive later."""
        for key, history in self.histories.items():
            if history.fetch is not None:
                self.histories[key] = history.frozen()


class ScalarBuffer:
    """Values of training steps that are copied to the host together, into bounded histories.

    The message hub has it under `mmtempo_scalars`. Reading a history of the hub returns the right
    values at any time, and waits for values that have not arrived.

    Args:
        hub: The message hub whose histories to fill.
        watch: Checks each value that arrives.
        length: Returns the number of values to keep for a key.
        rows: Copies values to the host. Defaults to None: a new `ScalarRows`.
    """

    def __init__(
        self,
        hub: MessageHub,
        watch: NonFiniteWatch,
        length: Callable[[str], int],
        rows: ScalarRows | None = None,
    ) -> None:
        self._hub = hub
        self._watch = watch
        self._length = length
        self._rows = ScalarRows() if rows is None else rows
        self._known: dict[str, bool] = {}  # key -> whether it has a history
        self._sources: list[weakref.WeakMethod] = []
        self._later: set[str] = set()  # keys of `_sources`
        self._window: LogWindow | None = None
        # Not with update_info: a checkpoint would contain the key, and stock would warn about it.
        hub.runtime_info[KEY] = self

    def __reduce__(self) -> tuple[type, tuple]:
        # A copy of the hub, as a hook may make one, belongs to no training: it has None instead.
        return type(None), ()

    @staticmethod
    def of(hub: MessageHub) -> ScalarBuffer | None:
        """Return the buffer of a message hub, if it has one."""
        return hub.get_info(KEY)

    @property
    def iteration(self) -> int:
        """The last iteration, counted from 0. `runner.iter` may be ahead of it."""
        return self._hub.get_info('iter', 0)

    def note(self, key: str, value: Any, count: int = 1) -> None:
        """Log a value of the current iteration; `watch/...` keys are checked, not logged."""
        has_history = self._known.get(key)
        if has_history is None or (has_history and key not in self._hub.log_scalars):
            self._feed(key)
        self._rows.note(key, value, count)

    def note_later(self, keys: Iterable[str], source: Callable[[], dict[str, list]]) -> None:
        """Register a source of host values that is called only when histories are read.

        Args:
            keys: The keys of its values.
            source: A method that returns, by key, the values since its last call. Its object is
                referenced weakly.
        """
        known = weakref.WeakMethod(source)
        if known not in self._sources:
            self._sources.append(known)
        for key in keys:
            self._later.add(key)
            self._feed(key)

    def gather(self, creates: bool = True) -> None:
        """Take values from the registered sources; never waits.

        Args:
            creates: Whether to create histories that a hook has removed. False while the hub is
                being copied, which iterates over them. Defaults to True.
        """
        if not creates and not self._later <= self._hub.log_scalars.keys():
            return
        for known in self._sources:
            source = known()
            for key, values in source().items() if source is not None else ():
                if type(self._hub.log_scalars.get(key)) is not BoundedHistory:
                    self._feed(key)
                self._hub.log_scalars[key].extend(values, [1] * len(values))

    def seal(self, iteration: int) -> None:
        """End an iteration."""
        self._rows.seal(iteration)
        if len(self._rows) >= MOST_ROWS:  # rare log points: bound the memory
            self._deliver(self._rows.send() - 1, wait=True)
            self.gather()

    def send(self) -> LogWindow:
        """Start copying the values of ended iterations; return the window of this log point."""
        if self._window is not None:
            self.deliver(self._window, wait=True)
        # Values that came after the end of the iteration, but before this log point.
        self._rows.seal(self.iteration)
        self.gather()
        self.bound()
        self._window = LogWindow(self._rows.send(), OrderedDict(self._hub.log_scalars))
        for key, history in self._window.histories.items():
            if history.fetch is None or key in self._later:  # complete already
                self._window.histories[key] = history.frozen()
        return self._window

    def deliver(self, window: LogWindow, wait: bool = False) -> bool:
        """Add what has arrived for a window to its histories; return whether they are complete.

        Args:
            window: The window.
            wait: Whether to wait for all of its values. Defaults to False.
        """
        self._deliver(window.ticket, wait)
        return window is not self._window

    def fetch(self, wait: bool = True) -> None:
        """Start copying all noted values, and add those that have arrived to the histories.

        Args:
            wait: Whether to wait for all of them. Defaults to True.
        """
        self._rows.seal(self.iteration)
        self._deliver(self._rows.send(), wait)
        self.gather(creates=False)  # a window that is being written has these values already

    def close(self) -> None:
        """Fetch the remaining values and release the hub, which outlives the training."""
        self.fetch()
        self._sources.clear()
        for history in self._hub.log_scalars.values():
            if type(history) is BoundedHistory:
                history.fetch = history.defer = history.copied = None
        self._hub.runtime_info.pop(KEY, None)

    def check(self) -> None:
        """Report non-finite values among those that have arrived, or raise."""
        self._watch.check()

    def _deliver(self, ticket: int, wait: bool) -> None:
        window = self._window
        if window is not None:
            self._push(min(ticket, window.ticket), wait)
            if not self._rows.has_taken(window.ticket):
                return  # values that were sent later are not part of the window
            window.settle()
            self._window = None
        self._push(ticket, wait)

    def _push(self, ticket: int, wait: bool) -> None:
        for shipment in self._rows.take(ticket, wait):
            for iteration, values in shipment.values:
                self._watch.look(iteration, values)
            for key, (numbers, counts) in shipment.by_key.items():
                # Otherwise a hook has removed or replaced the history.
                if self._known[key] and type(self._hub.log_scalars.get(key)) is BoundedHistory:
                    self._hub.log_scalars[key].extend(numbers, counts)

    def _feed(self, key: str) -> None:
        """Create the history of a key at its first value, so that keys have the order of stock."""
        known = self._known.get(key)
        self._known[key] = not key.startswith('watch/')
        if not self._known[key]:
            return
        if key not in self._hub.log_scalars:
            if known:
                self.fetch()  # values until now belong to the history that a hook removed
            self._hub.update_scalar(key, 0.0)  # registers the key, so that checkpoints keep it
            self._hub.log_scalars[key] = BoundedHistory(self._length(key))
        self.bound()
        history = self._hub.log_scalars[key]
        history.fetch, history.defer = self.fetch, partial(self.note, key)
        history.copied = partial(self._copied, key)

    def _copied(self, key: str, live: BoundedHistory) -> HistoryBuffer:
        """Copy a history for a checkpoint; reading the copy waits for values in progress.

        Another thread may read it, so the copy references nothing that changes.
        """
        self.fetch(wait=False)
        copy, shipments = live.frozen(), self._rows.underway()
        if not shipments:
            return copy.plain()

        def arrive() -> None:
            copy.fetch = None
            for shipment in shipments:
                copy.extend(*shipment.by_key.get(key, ((), ())))

        copy.fetch = arrive
        return copy

    def bound(self) -> None:
        """Replace unbounded histories."""
        scalars = self._hub.log_scalars
        growing = [key for key, one in scalars.items() if type(one) is not BoundedHistory]
        if any(map(self._known.get, growing)):
            self.fetch()  # values until now belong to the history that a hook replaced
        for key in growing:
            if type(scalars[key]) is not BoundedHistory:
                scalars[key] = BoundedHistory(self._length(key), scalars[key])
                if self._known.get(key):
                    self._feed(key)
