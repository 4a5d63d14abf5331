"""Workers have one thread each, and say what they are at."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from mmtempo.loaders import build_prefetch_dataloader, worker
from mmtempo.loaders.batch_stream import SampleRequest
from mmtempo.loaders.worker import THREADS, WorkerStart, WorkerStatus, one_thread_each
from mmtempo.utils.rng import seeded
from tests.testing.common import ROOT


class Threads(Dataset):
    """What libraries in this process may use."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(
            threads=(cv2.getNumThreads(), torch.get_num_threads(), os.environ.get(THREADS[0]))
        )


@pytest.mark.parametrize('context', ['fork', pytest.param('spawn', marks=pytest.mark.slow)])
def test_one_thread_each(context: str) -> None:
    cv2.setNumThreads(3)
    before = os.environ.get(THREADS[0])
    loader = build_prefetch_dataloader(
        dict(
            dataset=Threads(),
            sampler=dict(type='DefaultSampler'),
            batch_size=2,
            num_workers=1,
            multiprocessing_context=context,
        ),
        seed=0,
    )
    # OpenCV says 1 or 0 for none of its own.
    assert {(*map(int, found),) for batch in loader for found in zip(*batch['threads'])} <= {
        (1, 1, 1),
        (0, 1, 1),
    }
    loader.close()
    assert cv2.getNumThreads() == 3
    assert os.environ.get(THREADS[0]) == before


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS[0], '7')
    monkeypatch.delenv(THREADS[1], raising=False)
    with one_thread_each():
        assert [os.environ[name] for name in THREADS] == ['1'] * 3
    assert os.environ[THREADS[0]] == '7'
    assert THREADS[1] not in os.environ


def test_the_board() -> None:
    board = WorkerStatus(3)
    assert (board.doing(), board.failed()) == ([], [])
    board.begin(2, 17)
    board.begin(0, 5)
    (first, second) = board.doing()
    assert [(one.worker, one.index) for one in (first, second)] == [(2, 17), (0, 5)]
    assert first.seconds >= second.seconds >= 0
    assert first.process == os.getpid()
    board.fail(2)
    board.end(0)
    board.begin(2, 18)
    board.fail(2)
    assert (board.doing(), board.failed()) == ([], [17])
    board.clear()
    assert board.failed() == []


def test_the_board_is_one_for_all_processes() -> None:
    board = WorkerStatus(2)
    other = pickle.loads(ForkingPickler.dumps(board))
    other.begin(1, 6)
    assert board.is_busy()
    assert [one.index for one in board.doing()] == [6]
    board.end(1)
    assert not other.is_busy()


class Draws(Dataset):
    """What the global generators give."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[float, ...]:
        if index == 7:
            raise ValueError('there is no seventh')
        return random.random(), np.random.rand(), float(torch.rand(()))


def test_without_workers_generators_are_kept_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    states = worker.generator_states
    monkeypatch.setattr(worker, 'generator_states', lambda: kept.append(1) or states())
    made = worker.SeededDataset(Draws(), WorkerStatus(0))
    tickets = [SampleRequest(index, (0, 0, index)) for index in range(8)]
    with seeded(5):
        before = Draws()[0]
    with seeded(5):
        batch = made.__getitems__(tickets[:4])
        with pytest.raises(ValueError, match='seventh'):
            made.__getitems__(tickets[6:])
        assert Draws()[0] == before
    assert len(kept) == 2
    # Each is of its own ticket, whichever batch it is in.
    assert batch[2:] == made.__getitems__(tickets[2:4])
    assert len(set(batch)) == 4


def test_a_start_of_ones_own() -> None:
    seen: list[int] = []
    code = os.fork()
    if code == 0:  # it changes what the process does with signals
        WorkerStart(seen.append)(4)
        os._exit(seen != [4])
    assert os.waitpid(code, 0)[1] == 0


def outlive_training(path: str, when: str) -> None:
    """Start as a worker does, before or after the training has ended."""
    training = multiprocessing.parent_process()
    assert training is not None
    if when == 'after':
        WorkerStart()(0)
    Path(path).write_text(str(os.getpid()))
    training.join()
    while os.getppid() == training.pid:  # its files are closed first
        time.sleep(0.01)
    if when == 'before':
        WorkerStart()(0)
    time.sleep(600)


def end_without_worker(method: str, path: str, when: str) -> None:
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


@pytest.mark.parametrize(
    ('method', 'when'),
    [
        ('fork', 'before'),
        ('fork', 'after'),
        ('forkserver', 'before'),
        pytest.param('forkserver', 'after', marks=pytest.mark.slow),
        pytest.param('spawn', 'before', marks=pytest.mark.slow),
        pytest.param('spawn', 'after', marks=pytest.mark.slow),
    ],
)
def test_worker_ends_with_training(method: str, when: str, tmp_path: Path) -> None:
    """Also where the training is killed before its worker has looked for it."""
    path = tmp_path / 'pid'
    code = 'import sys; from tests.test_loaders import test_worker as here; '
    code += 'here.end_without_worker(*sys.argv[1:])'
    done = subprocess.run([sys.executable, '-c', code, method, path, when], cwd=ROOT, timeout=100)
    assert done.returncode == -signal.SIGKILL
    pid = int(path.read_text())
    end = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    is_orphan = is_running(pid)
    if is_orphan:
        os.kill(pid, signal.SIGKILL)
    assert not is_orphan
