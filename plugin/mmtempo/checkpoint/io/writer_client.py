"""Client of the writer process: starts it, sends it jobs, and ends it."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

from . import writer_process

# Exceptions that `WriterClient.ask` raises if the process has ended.
DEAD = (EOFError, OSError, pickle.UnpicklingError)
# Seconds that the process has to end before it is killed.
ENDING = 10.0


class WriterClient:
    """A process that runs `writer_process`, and the pipes to it.

    Construct it in the main thread, where no other thread forks at the same time: a process that
    is forked between the creation of the pipes in `Popen` and their close inherits the write end
    of the error pipe, and `Popen` reads that pipe until every process has closed it.

    A process that is forked later closes its copies of the pipes at once. Otherwise the writer
    would not see the end of its input when the training process ends.

    Attributes:
        pid: Process ID.
        is_killed: Whether `kill` was called.
    """

    def __init__(self) -> None:
        # -I and -S leave out user and site packages. In a new session, the process gets no SIGINT
        # from the terminal.
        self._process = subprocess.Popen(
            [sys.executable, '-I', '-S', writer_process.__file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs, self._answers = self._process.stdin, self._process.stdout
        self.pid, self.is_killed = self._process.pid, False
        _open.add(self)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def ask(self, job: dict, report: Callable[[int], Any]) -> dict:
        """Have the process do a job, and return its answer.

        Args:
            job: Job for `writer_process.do`.
            report: Called with the size of the current file in bytes whenever it has grown.

        Raises:
            One of `DEAD` if the process ends before it has answered.
        """
        pickle.dump(job, self._jobs)
        self._jobs.flush()
        while not isinstance(answer := pickle.load(self._answers), dict):
            report(answer)
        return answer

    def kill(self) -> None:
        """Kill the process; do not wait for its end."""
        self.is_killed = True
        self._process.kill()

    def close(self) -> int | None:
        """End the process; return its exit code, or None if not even a kill ends it."""
        _open.discard(self)
        with contextlib.suppress(OSError):  # the process has died before it has read everything
            self._jobs.close()
        self._answers.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(ENDING)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it is blocked by a disk
            return self._process.wait(ENDING)
        return None

    def close_in_fork(self) -> None:
        """Close the pipes in a forked process.

        The file descriptors are redirected and not closed, because the forked process has copies
        of the file objects, which will close these descriptors.
        """
        null = os.open(os.devnull, os.O_RDWR)
        for pipe in (self._jobs, self._answers):
            if not pipe.closed:
                os.dup2(null, pipe.fileno(), inheritable=False)
        os.close(null)


_open: weakref.WeakSet[WriterClient] = weakref.WeakSet()


def _close_in_fork() -> None:
    for client in list(_open):
        client.close_in_fork()


if hasattr(os, 'register_at_fork'):  # not on Windows
    os.register_at_fork(after_in_child=_close_in_fork)
