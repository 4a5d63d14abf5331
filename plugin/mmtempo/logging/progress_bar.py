"""A progress bar below the log in a terminal."""

from __future__ import annotations

import io
import logging
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

_shown: weakref.WeakSet[ProgressBar] = weakref.WeakSet()


def close_bars() -> None:
    """Close all bars, before a failed run prints its error."""
    for bar in list(_shown):
        bar.close()


class ProgressBar:
    """A bar with iterations, speed and remaining time, drawn by the training thread.

    While it is shown, log lines for the terminal are printed above it.

    Args:
        total: Number of iterations of the training.
        logger: The logger whose lines are printed above the bar.
        console: The console to draw on. Defaults to None: standard output.
        clock: Returns seconds.
        period: Minimum seconds between two refreshes. Defaults to 0.5.
    """

    def __init__(
        self,
        total: int,
        logger: logging.Logger,
        console: Console | None = None,
        clock: Callable[[], float] = time.perf_counter,
        period: float = 0.5,
    ) -> None:
        self._clock, self._period = clock, period
        self._drawn, self._done = clock(), -1
        self._rate: float | None = None
        console = Console() if console is None else console
        self._progress = Progress(
            TextColumn('{task.fields[stage]}'),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn('{task.fields[speed]}'),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),
        )
        self._task = self._progress.add_task('', total=total, stage='train', speed='')
        self._redirected: list[tuple[logging.StreamHandler, object]] = []
        for handler in logger.handlers:
            stream = getattr(handler, 'stream', None)
            if isinstance(handler, logging.StreamHandler) and _is_shown(stream):
                self._redirected.append((handler, stream))
                handler.setStream(_Above(console))
        self._progress.start()
        # No hook runs after a failure, and the terminal would stay without a cursor.
        self._close = weakref.finalize(self, _close, self._progress, self._redirected)
        _shown.add(self)

    def advance(self, done: int, seconds_left: Callable[[], float | None]) -> None:
        """Note an iteration, and redraw if `period` has passed."""
        now = self._clock()
        if self._done < 0:  # start of a measurement, also after a pause
            self._drawn, self._done = now, done
        if now - self._drawn < self._period:
            return
        rate = (done - self._done) / (now - self._drawn)
        self._rate = rate if self._rate is None else 0.8 * self._rate + 0.2 * rate
        self._drawn, self._done = now, done
        speed = f'{self._rate:.2f} it/s'
        left = seconds_left()
        if left is not None:
            hours, seconds = divmod(int(left), 3600)
            speed += f', {hours}:{seconds // 60:02}:{seconds % 60:02} left'
        self._progress.update(self._task, completed=done, stage='train', speed=speed)
        self._progress.refresh()

    def stage(self, name: str) -> None:
        """Show the name of another activity, such as an evaluation."""
        self._done = -1
        self._progress.update(self._task, stage=name)
        self._progress.refresh()

    def close(self) -> None:
        """Remove the bar and restore the streams of the log handlers."""
        self._close()


def _is_shown(stream: Any) -> bool:
    """Return whether the stream writes to the terminal."""
    return stream is sys.stdout or (stream is sys.stderr and sys.stderr.isatty())


class _Above(io.TextIOBase):
    """A stream that prints complete lines above the bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = ''

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split('\n')
        for line in lines:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        return len(text)


def _close(progress: Progress, redirected: list) -> None:
    progress.stop()
    for handler, stream in redirected:
        handler.setStream(stream)
