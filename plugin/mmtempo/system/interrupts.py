"""Turn SIGINT and SIGTERM into a flag that a training reads when its state is consistent."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# torchrun forwards a Ctrl-C to processes that have received it from the terminal already.
FORWARDED = 1.0 if 'TORCHELASTIC_RUN_ID' in os.environ else 0.0


class Interrupts:
    """Signal handlers that record the first signal; the earlier handler gets a second Ctrl-C.

    Args:
        is_wanted: Returns whether anything still reads `requested`. If not, the earlier handlers
            are restored and get the signal. It is called by the main thread, in a handler.
        on_second: Called before the earlier handler gets a second Ctrl-C.
        notice: What the first signal does, for a line on stderr; no line if empty.
            Defaults to ''.
        same: Seconds after the first signal in which a Ctrl-C counts as the same one, forwarded
            by the launcher: 1 s under torchrun, else 0.
        clock: Returns seconds; `time.monotonic` if not given.

    Attributes:
        requested: The first signal; None before it.
    """

    def __init__(
        self,
        is_wanted: Callable[[], bool],
        on_second: Callable[[], None],
        notice: str = '',
        same: float = FORWARDED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_wanted, self._on_second, self._notice = is_wanted, on_second, notice
        self._same, self._clock, self._at = same, clock, 0.0
        self._before: dict[signal.Signals, Any] = {}
        self._owner = os.getpid()
        self._has_ended = False
        self.requested: signal.Signals | None = None

    def install(self) -> None:
        """Install the handlers, in the main thread only; ignored signals stay ignored."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the earlier handlers."""
        self._has_ended = True
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, _still_valid(number, handler))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            # A forked process. Ctrl-C reaches the training as well, which still needs its workers.
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if not self._is_wanted():
            self._pass_on(number, frame)
        elif self.requested is None:
            self.requested, self._at = signal.Signals(number), self._clock()
            self._announce(self.requested)
            if number == signal.SIGTERM and hasattr(signal, 'SIGCHLD'):
                # torch would raise an error for workers that the same signal has terminated.
                signal.signal(signal.SIGCHLD, _ignore)
        elif number == signal.SIGINT and self._clock() - self._at >= self._same:
            self._on_second()
            self._pass_on(number, frame)

    def _announce(self, number: signal.Signals) -> None:
        """Print at once: the flag may be read after a long iteration only."""
        if self._notice:
            again = 'Ctrl-C again' if number == signal.SIGINT else 'Ctrl-C'
            # Not by `print`: the handler may have interrupted a write to the same stream.
            with contextlib.suppress(OSError):
                os.write(2, f'\n{number.name}: {self._notice}; {again} ends it at once\n'.encode())

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Restore the earlier handlers, and have the one of this signal act on it."""
        self.restore()
        earlier = _still_valid(signal.Signals(number), self._before[signal.Signals(number)])
        if callable(earlier):
            earlier(number, frame)
        else:  # the default: the signal ends the process
            signal.signal(number, earlier)
            signal.raise_signal(number)


def _still_valid(number: signal.Signals, handler: Any) -> Any:
    """Return the handler, or the earlier handler if it belongs to an ended `Interrupts`."""
    owner = getattr(handler, '__self__', None)
    while isinstance(owner, Interrupts) and owner._has_ended:
        handler = owner._before[number]
        owner = getattr(handler, '__self__', None)
    return handler


def _ignore(number: int, frame: FrameType | None) -> None:
    pass
