"""Start and end of worker processes: signals, locks, and the death of the training."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from mmtempo.loaders import LoaderError, PrefetchDataLoader, StreamPosition
from tests.testing.common import ROOT
from tests.testing.loaders import build_loader, take_batches
from tests.testing.samples import Failing, Noisy


def test_workers_ignore_sigterm_and_sigint() -> None:
    """A scheduler sends SIGTERM to all processes, and the training still needs batches."""
    loader = build_loader(num_workers=2)
    expected = take_batches(build_loader(), 12)
    assert take_batches(loader, 2) == expected[:2]
    workers = list(loader._pool._processes)
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
        os.kill(worker.pid, signal.SIGINT)
    assert take_batches(loader, 10) == expected[2:]
    loader.close()
    assert all(worker.exitcode is not None for worker in workers)
    assert not set(multiprocessing.active_children()) & set(workers)


def test_dead_worker_does_not_interrupt_the_main_thread() -> None:
    """Torch installs its signal handler with the first torch loader that has workers."""
    list(torch.utils.data.DataLoader(Noisy(), num_workers=1))
    assert callable(signal.getsignal(signal.SIGCHLD))
    loader = build_loader(num_workers=2)
    expected = take_batches(build_loader(), 2)
    assert take_batches(loader, 1) == expected[:1]
    for process in loader._pool._processes:
        process.kill()
    for process in loader._pool._processes:
        process.join()  # torch would interrupt here
    with pytest.raises(LoaderError, match='SIGKILL'):
        take_batches(loader, 20)
    loader.close()


def test_workers_can_start_before_the_position_is_known() -> None:
    others = {one.pid for one in multiprocessing.active_children()}  # of earlier tests
    expected = take_batches(build_loader(), 9)
    loader = build_loader(num_workers=2)
    loader.start_early()
    pids = child_pids(loader) - others
    loader.seek(StreamPosition(0, 4, 16))
    assert take_batches(loader, 5) == expected[4:]
    assert {one.pid for one in loader._pool._processes} == pids
    loader.close()
    unused = build_loader(num_workers=1)
    unused.start_early()
    workers = child_pids(unused)
    unused.close()
    assert not {one.pid for one in multiprocessing.active_children()} & workers
    assert take_batches(unused, 9) == expected
    unused.close()


def child_pids(loader: PrefetchDataLoader) -> set[int]:
    found = {one.pid for one in multiprocessing.active_children()}
    assert len(found) >= loader.num_workers
    return found


def test_lock_of_a_killed_worker_does_not_block_shutdown() -> None:
    """Torch's shutdown waits for a lock that a killed worker may still hold."""
    loader = build_loader(
        Failing('raise'), num_workers=1, sampler=dict(type='DefaultSampler', shuffle=False)
    )
    loader.take()
    assert loader._pipeline is not None
    while (
        not loader._pipeline.ready()
    ):  # the next batch's error, after which the workers are killed
        time.sleep(0.01)
    assert loader._pool._iterator is not None
    iterator = loader._pool._iterator()
    assert iterator is not None
    iterator._workers_done_event._cond.acquire()
    del iterator
    errors: list[BaseException] = []

    def take() -> None:
        try:
            loader.take()
        except LoaderError as error:
            errors.append(error)

    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    taking.join(60)
    assert not taking.is_alive()
    assert 'no such pixel' in str(errors[0])
    loader.close()


ABANDONED = """
import os, sys, tempfile
folder = tempfile.TemporaryDirectory()  # created first, so that it is removed last at exit
from tests.testing.loaders import build_loader, take_batches
loader = build_loader(num_workers=2)
take_batches(loader, 2)
print(*(one.pid for one in loader._pool._processes), flush=True)
if sys.argv[1] == 'die':
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize('how', ['die', pytest.param('end', marks=pytest.mark.slow)])
def test_no_worker_outlives_its_training(how: str) -> None:
    command = [sys.executable, '-W', 'ignore', '-c', ABANDONED, how]
    env = dict(os.environ, OMP_NUM_THREADS='1')
    done = subprocess.run(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == (-signal.SIGKILL if how == 'die' else 0)
    pids = done.stdout.decode().splitlines()[-1].split()
    assert len(pids) == 2
    end = time.monotonic() + 30
    while any(os.path.exists(f'/proc/{pid}') for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.05)
