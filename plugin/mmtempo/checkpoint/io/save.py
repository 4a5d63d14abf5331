"""What became of one save of a checkpoint, as its owner and its writer see it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Save:
    """What became of one save: files, marker and removals together.

    Attributes:
        paths: The files, in the order they are written.
        taken: Seconds that the training spent on starting it, as its owner has found.
        fenced: Seconds that the training waited until its state was copied.
        staged: Seconds until its state was copied.
        written: Bytes of the files; while they are written, of the current one so far.
        seconds: What writing and syncing took.
        restarts: How many times the writer process was started again before this save.
        fallback: Why the training process took over this save; None if the writer did it.
        kept: Old files that could not be removed, and why.
        names: What types and functions the files name; of the first save only.
        error: Why it failed; None where it did not.
        reports: How many times there was progress.
    """

    paths: list[str]
    taken: float = 0.0
    fenced: float = 0.0
    staged: float = 0.0
    written: int = 0
    seconds: float = 0.0
    restarts: int = 0
    fallback: str | None = None
    kept: list[tuple[str, str]] = field(default_factory=list)
    names: frozenset[str] = frozenset()
    error: BaseException | None = None
    reports: int = 0
    _done: threading.Event = field(default_factory=threading.Event)
    _after: Save | None = None  # while it waits for that one

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def progress(self) -> int:
        """A figure that changes while there is progress, of this or of what it waits for."""
        after = self._after
        return self.reports + (0 if after is None else after.progress)

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it has ended, after at most these seconds; None waits without a limit."""
        return self._done.wait(timeout)

    def report(self, size: int) -> None:
        """Note progress.

        Args:
            size: Bytes of the current file that are written.
        """
        self.reports, self.written = self.reports + 1, size

    def end(self, error: BaseException | None = None) -> None:
        """Note how it ended; the first end counts."""
        if not self.is_done:
            self.error = error
            self._done.set()
