"""Writes that may fail without ending the training."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

LONGEST_LINE = 1 << 16  # bytes of a file's end that are searched for the last complete line


class WriteGuard:
    """Report the first failure of a series of writes, count the lost lines, report the recovery.

    What was not written is lost: it is dropped, not kept for the next attempt, so that memory
    stays constant and no line is written twice.

    Args:
        subject: The content of the writes, for messages.
        say: Logs a message.
    """

    def __init__(self, subject: str, say: Callable[[str], None]) -> None:
        self._subject, self._say = subject, say
        self._is_failing = False
        self._lost = 0

    def write(self, work: Callable[[], object], lines: int = 1) -> bool:
        """Run a write; return whether it succeeded.

        Args:
            work: Writes; an `OSError` is reported, any other error is raised.
            lines: How many lines are lost where it fails. Defaults to 1.
        """
        try:
            work()
        except OSError as error:
            self._lost += lines
            if not self._is_failing:
                self._is_failing = True
                file = f' {error.filename}' if error.filename else ''
                self._say(
                    f'{self._subject}: cannot write{file} ({error.strerror or error}); the '
                    f'training continues, and tries again with the next line{_remedy(error)}'
                )
            return False
        if self._is_failing:
            lost, self._lost, self._is_failing = self._lost, 0, False
            loss = f'; lines lost: {lost}' if lost else ''
            self._say(f'{self._subject}: written again{loss}')
        return True


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, getattr(errno, 'EDQUOT', None)):
        return '. Make room on the disk'
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return '. Bring the folder back'
    return ''  # for example of a network service


def append_whole(path: str, text: str) -> None:
    """Append to a file; where that fails, leave the file as it was."""
    with open(path, 'ab', buffering=0) as file:
        size, rest = file.tell(), memoryview(text.encode())
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise


def drop_cut_line(path: str) -> None:
    """Remove the start of a line that did not fit on the disk from the end of a file."""
    with contextlib.suppress(OSError), open(path, 'rb+') as file:
        start = max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE)
        file.seek(start)
        end = file.read().rfind(b'\n') + 1
        if end or not start:  # otherwise the file does not consist of lines
            file.truncate(start + end)
