"""Work in processes that are forked; what they return comes through a pipe."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

FORK = multiprocessing.get_context('fork')
# A process group's threads wait for good, now and then, for a lock that was held at the fork.
SPAWN = multiprocessing.get_context('spawn')


def _run(pipe: Connection, function: Callable, args: tuple) -> None:
    pipe.send(function(*args))


def in_child(function: Callable, *args: Any, context: Any = FORK) -> Any:
    """What the function returns in a process of its own; SPAWN for what starts threads in it."""
    here, there = context.Pipe()
    process = context.Process(target=_run, args=(there, function, args), daemon=True)
    process.start()
    there.close()
    result = here.recv()
    process.join()
    assert process.exitcode == 0
    return result


def killed_in(function: Callable, *args: Any) -> bool:
    """Run it in a process; whether that was killed."""
    process = FORK.Process(target=function, args=args)
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
