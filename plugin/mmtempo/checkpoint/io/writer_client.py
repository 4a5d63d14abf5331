"""The writer process as the training sees it: started, asked, ended."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zlib_ng

from . import writer_process

# What `WriterClient.ask` raises when the process has ended.
DEAD = (EOFError, OSError, pickle.UnpicklingError)
# Seconds that the process has to end, before it is killed.
ENDING = 10.0


class WriterClient:
    """Starts `writer_process` and talks to it.

    To be constructed where no other thread forks, which is the main thread: a process that is
    forked between the creation of the pipes in `Popen` and their close has the write end of its
    error pipe, and `Popen` reads that pipe until every process has closed it.

    A process forked later closes its copies of the pipes at once, so that the writer sees the end
    of its input as soon as the training is gone.

    Attributes:
        pid: Its process ID.
        is_killed: Whether `kill` was called.
    """

    def __init__(self) -> None:
        # Without site and user packages, and apart from a Ctrl-C at the terminal.
        packages = str(Path(zlib_ng.__path__[0]).parent)
        self._process = subprocess.Popen(
            [sys.executable, '-I', '-S', writer_process.__file__, str(os.getpid()), packages],
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
        return self._process.poll() is not None

    def ask(self, job: dict, report: Callable[[int], Any]) -> dict:
        """Have a job done, and return the answer; one of `DEAD` if the process ends before.

        Args:
            job: As `writer_process.do` takes it.
            report: Called with the bytes of the current file, whenever some more are written.
        """
        pickle.dump(job, self._jobs)
        self._jobs.flush()
        while not isinstance(answer := pickle.load(self._answers), dict):
            report(answer)
        return answer

    def kill(self) -> None:
        self.is_killed = True
        self._process.kill()

    def close(self) -> int | None:
        """End the process; its exit code, or None if even a kill does not end it."""
        _open.discard(self)
        with contextlib.suppress(OSError):  # it has died, and what it had not read is of no use
            self._jobs.close()
        self._answers.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(ENDING)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a disk
            return self._process.wait(ENDING)
        return None

    def close_in_fork(self) -> None:
        """Close the pipes in a forked process.

        The numbers stay in use: this process has a copy of the file objects, which close them.
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
