"""State and result of one save, shared by its caller and the writer thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Save:
    """State and result of one save: files, marker and removals together.

    Attributes:
        paths: Paths of the files, in the order in which they are written.
        taken: Seconds for which starting the save blocked the training; set by the caller.
        fenced: Seconds for which the training waited in the fence.
        staged: Seconds until the state was copied.
        written: Size of all files in bytes; during the save, size of the current file so far.
        seconds: Seconds for which the files were written and synced.
        restarts: 1 if the writer process had died and was restarted before this save, else 0.
        fallback: Reason for which the training process wrote the files; None if the writer
            process did.
        kept: Path and reason of each old file that could not be removed.
        names: Names of the types and functions in the files; empty after a writer's first
            successful save.
        error: Error with which the save failed; None if it succeeded.
        reports: Number of progress reports.
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
    _after: Save | None = None  # the save that this one is waiting for

    @property
    def is_done(self) -> bool:
        """Whether the save has ended, with or without an error."""
        return self._done.is_set()

    @property
    def progress(self) -> int:
        """A number that changes with each progress of this save or of the one it waits for."""
        after = self._after
        return self.reports + (0 if after is None else after.progress)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the save has ended, at most `timeout` seconds; return whether it has ended."""
        return self._done.wait(timeout)

    def report(self, size: int) -> None:
        """Record progress.

        Args:
            size: Bytes of the current file that have been written.
        """
        self.reports, self.written = self.reports + 1, size

    def end(self, error: BaseException | None = None) -> None:
        """Record the end of the save; later calls have no effect."""
        if not self.is_done:
            self.error = error
            self._done.set()
