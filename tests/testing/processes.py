"""Functions that run in a child process and return their result through a pipe."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

FORK = multiprocessing.get_context('fork')
# For functions that start threads, as a process group does: a fork copies locks that other
# threads hold, and waiting for such a lock never ends.
SPAWN = multiprocessing.get_context('spawn')


def _run(pipe: Connection, function: Callable, args: tuple) -> None:
    pipe.send(function(*args))


def in_child(function: Callable, *args: Any, context: Any = FORK) -> Any:
    """Run a function in a child process and return its result; pass SPAWN if it starts threads."""
    here, there = context.Pipe()
    process = context.Process(target=_run, args=(there, function, args), daemon=True)
    process.start()
    there.close()
    result = here.recv()
    process.join()
    assert process.exitcode == 0
    return result


def killed_in(function: Callable, *args: Any) -> bool:
    """Run a function in a child process and return whether SIGKILL ended it."""
    process = FORK.Process(target=function, args=args)
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
