"""Worker processes whose training is killed; importable by spawned processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

from mmtempo.loaders.worker import WorkerStart


def outlive_training(path: str, when: str) -> None:
    """Run `WorkerStart` in a worker, before or after its training has ended, then sleep."""
    training = multiprocessing.parent_process()
    assert training is not None
    if when == 'after':
        WorkerStart()(0)
    Path(path).write_text(str(os.getpid()))
    training.join()
    while os.getppid() == training.pid:  # its files are closed before it is reaped
        time.sleep(0.01)
    if when == 'before':
        WorkerStart()(0)
    time.sleep(600)


def start_worker_and_die(method: str, path: str, when: str) -> None:
    """Start a worker, wait for its process ID in a file, and kill this process."""
    context = multiprocessing.get_context(method)
    context.Process(target=outlive_training, args=(path, when)).start()
    while not Path(path).exists() or not Path(path).read_text():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False
