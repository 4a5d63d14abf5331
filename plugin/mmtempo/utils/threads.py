"""Threads of the package: named, daemon, and without OpenMP worker threads."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

PREFIX = 'mmtempo-'
# OpenMP and MKL keep this number for each thread. Not every build of torch exports MKL's.
SETTERS = ('omp_set_num_threads', 'MKL_Set_Num_Threads_Local')


def use_one_thread() -> int:
    """Run torch operations of the calling thread on this thread alone.

    A second OpenMP team in the process makes libgomp count more threads than cores and stop
    spinning in every parallel region, also in the training's, until that team has ended.
    `torch.set_num_threads` would change later threads and the main thread's defaults as well.

    Returns:
        Intra-op threads that torch now has here: 1, unless torch is built without OpenMP. Such a
        build has one pool for all threads, so there is no second team either.
    """
    torch.get_num_threads()  # torch's lazy initialization of a thread would overwrite the setting
    for set_threads in _set_threads:
        set_threads(1)
    return torch.get_num_threads()


class HelperThread(threading.Thread):
    """A daemon thread in which torch operations use one intra-op thread.

    Args:
        name: Purpose of the thread; the thread is called `mmtempo-NAME`.
        target: The function to run in the thread.
        args: Positional arguments of `target`.

    Attributes:
        torch_threads: Intra-op threads that torch has in this thread; None before it has started.
    """

    def __init__(self, name: str, target: Callable[..., Any], *args: Any) -> None:
        super().__init__(name=PREFIX + name, target=target, args=args, daemon=True)
        self.torch_threads: int | None = None

    def run(self) -> None:
        self.torch_threads = use_one_thread()
        super().run()


def _find_setters() -> list[Callable[[int], Any]]:
    """Return the functions of every runtime that torch may be using."""
    if sys.platform == 'win32':
        libraries = ['libiomp5md.dll', 'vcomp140.dll']  # torch's wheels, then other builds
    else:
        # A preloaded runtime has precedence over the one that torch is linked with.
        libraries = [None, torch._C.__file__]
    found = []
    for library in libraries:
        with contextlib.suppress(OSError):
            symbols = ctypes.CDLL(library)
            found += [getattr(symbols, name) for name in SETTERS if hasattr(symbols, name)]
    return found


# At import, by the main thread: a worker that is forked meanwhile must not inherit dlopen's lock.
_set_threads = _find_setters()
