"""What a training logs, between the device, the message hub and whoever reads it."""

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
    """The histories as they are at a log point, complete once all sent for it has arrived."""

    ticket: int
    histories: OrderedDict[str, BoundedHistory]

    def settle(self) -> None:
        """Keep what has arrived by now apart from what will."""
        for key, history in self.histories.items():
            if history.fetch is not None:
                self.histories[key] = history.frozen()


class ScalarBuffer:
    """Values of the training step that leave the device together, into bounded histories.

    It lies in the message hub under `mmtempo_scalars`. Whoever reads a history of the hub gets
    the right values at any time, and waits for them where they have not arrived.

    Args:
        hub: Whose histories it fills.
        watch: Looks at each value that arrives.
        length: How many values the history of a key has to keep.
        rows: Brings values to the host. Defaults to None: new ones.
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
        self._known: dict[str, bool] = {}  # by key whether it has a history
        self._sources: list[weakref.WeakMethod] = []
        self._later: set[str] = set()  # keys of theirs
        self._window: LogWindow | None = None
        # Not by update_info: a checkpoint would name the key, and stock complain of it.
        hub.runtime_info[KEY] = self

    def __reduce__(self) -> tuple[type, tuple]:
        # A copy of the hub, as a user's hook makes one, belongs to no training: None stands there.
        return type(None), ()

    @staticmethod
    def of(hub: MessageHub) -> ScalarBuffer | None:
        """The one that a hub's training uses, if any."""
        return hub.get_info(KEY)

    @property
    def iteration(self) -> int:
        """Number of the last iteration, from 0; `runner.iter` may count it already."""
        return self._hub.get_info('iter', 0)

    def note(self, key: str, value: Any, count: int = 1) -> None:
        """Log a value of the current iteration; keys `watch/...` are looked at only."""
        has_history = self._known.get(key)
        if has_history is None or (has_history and key not in self._hub.log_scalars):
            self._feed(key)
        self._rows.note(key, value, count)

    def note_later(self, keys: Iterable[str], source: Callable[[], dict[str, list]]) -> None:
        """Ask for values of the host's own when histories are to be read, not once an iteration.

        Args:
            keys: Of the values.
            source: Gives, by key, those that have come since it was asked last; a method, whose
                object is not kept for it.
        """
        known = weakref.WeakMethod(source)
        if known not in self._sources:
            self._sources.append(known)
        for key in keys:
            self._later.add(key)
            self._feed(key)

    def gather(self, creates: bool = True) -> None:
        """Ask who notes later; waits for nothing.

        Args:
            creates: Whether to make histories anew that a hook has taken away; not while a copy
                of the hub goes through them, which a read may be part of. Defaults to True.
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
        if len(self._rows) >= MOST_ROWS:  # nobody logs, or rarely: memory stays what it is
            self._deliver(self._rows.send() - 1, wait=True)
            self.gather()

    def send(self) -> LogWindow:
        """Start the copy of all that ended iterations noted: what is logged at this point."""
        if self._window is not None:
            self.arrived(self._window, wait=True)
        # What came after the end of the iteration, but before this line.
        self._rows.seal(self.iteration)
        self.gather()
        self.bound()
        self._window = LogWindow(self._rows.send(), OrderedDict(self._hub.log_scalars))
        for key, history in self._window.histories.items():
            if history.fetch is None or key in self._later:  # nothing of it is on its way
                self._window.histories[key] = history.frozen()
        return self._window

    def arrived(self, window: LogWindow, wait: bool = False) -> bool:
        """Whether the histories of a window are complete."""
        self._deliver(window.ticket, wait)
        return window is not self._window

    def fetch(self, wait: bool = True) -> None:
        """Start the copy of all that was noted, and take in what has arrived.

        Args:
            wait: Whether to wait until all of it has. Defaults to True.
        """
        self._rows.seal(self.iteration)
        self._deliver(self._rows.send(), wait)
        self.gather(
            creates=False
        )  # a window that is being written has its own values of these already

    def close(self) -> None:
        """Bring what is left, and let go: the hub outlives the training."""
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
                return  # what was sent later is no part of the window
            window.settle()
            self._window = None
        self._push(ticket, wait)

    def _push(self, ticket: int, wait: bool) -> None:
        arrived: dict[str, tuple[list, list]] = {}
        for iteration, values in self._rows.take(ticket, wait):
            self._watch.look(iteration, values)
            for key, value, count in values:
                found = arrived.get(key)
                if found is None:
                    found = arrived[key] = ([], [])
                found[0].append(value)
                found[1].append(count)
        for key, (numbers, counts) in arrived.items():
            # Else a hook has taken the history away, or replaced it by another one.
            if self._known[key] and type(self._hub.log_scalars.get(key)) is BoundedHistory:
                self._hub.log_scalars[key].extend(numbers, counts)

    def _feed(self, key: str) -> None:
        """Give a key its history, in the order that keys appear, as stock does."""
        known = self._known.get(key)
        self._known[key] = not key.startswith('watch/')
        if not self._known[key]:
            return
        if key not in self._hub.log_scalars:
            if known:
                self.fetch()  # values until now belong to the history that a hook took away
            self._hub.update_scalar(key, 0.0)  # makes it a key that checkpoints keep
            self._hub.log_scalars[key] = BoundedHistory(self._length(key))
        self.bound()
        history = self._hub.log_scalars[key]
        history.fetch = self.fetch
        history.defer = lambda value, count: self.note(key, value, count)
        history.copied = partial(self._copied, key)

    def _copied(self, key: str, live: BoundedHistory) -> HistoryBuffer:
        """Copy a history for a checkpoint; its reader waits for what is on its way.

        That may be another thread, so the copy refers to nothing that changes.
        """
        self.fetch(wait=False)
        copy, arrivals = live.frozen(), self._rows.underway()
        if not arrivals.shipments:
            return copy.plain()

        def arrive() -> None:
            copy.fetch = None
            copy.extend(*arrivals.of(key))

        copy.fetch = arrive
        return copy

    def bound(self) -> None:
        """Replace histories that grow."""
        scalars = self._hub.log_scalars
        growing = [key for key, one in scalars.items() if type(one) is not BoundedHistory]
        if any(map(self._known.get, growing)):
            self.fetch()  # values until now belong to the history that a hook has replaced
        for key in growing:
            if type(scalars[key]) is not BoundedHistory:
                scalars[key] = BoundedHistory(self._length(key), scalars[key])
                if self._known.get(key):
                    self._feed(key)
