"""Work in processes that are forked; what they return comes through a pipe."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

FORK = multiprocessing.get_context('fork')


def _run(pipe: Connection, function: Callable, args: tuple) -> None:
    pipe.send(function(*args))


def in_child(function: Callable, *args: Any) -> Any:
    """What the function returns in a process of its own."""
    here, there = FORK.Pipe()
    process = FORK.Process(target=_run, args=(there, function, args))
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
