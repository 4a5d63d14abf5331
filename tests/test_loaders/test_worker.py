"""Workers use one thread, record their sample, and end with the training."""

from __future__ import annotations

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
from tests.testing.orphaned_workers import is_running


class Threads(Dataset):
    """Samples that report the thread limits of libraries in the worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(
            threads=(cv2.getNumThreads(), torch.get_num_threads(), os.environ.get(THREADS[0]))
        )


@pytest.mark.parametrize('context', ['fork', pytest.param('spawn', marks=pytest.mark.slow)])
def test_libraries_in_a_worker_use_one_thread(context: str) -> None:
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
    # OpenCV reports 1 or 0 without a thread pool.
    assert {(*map(int, found),) for batch in loader for found in zip(*batch['threads'])} <= {
        (1, 1, 1),
        (0, 1, 1),
    }
    loader.close()
    assert cv2.getNumThreads() == 3
    assert os.environ.get(THREADS[0]) == before


def test_one_thread_each_restores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS[0], '7')
    monkeypatch.delenv(THREADS[1], raising=False)
    with one_thread_each():
        assert [os.environ[name] for name in THREADS] == ['1'] * 3
    assert os.environ[THREADS[0]] == '7'
    assert THREADS[1] not in os.environ


def test_status_reports_activities_and_first_failures() -> None:
    status = WorkerStatus(3)
    assert (status.activities(), status.failed()) == ([], [])
    status.begin(2, 17)
    status.begin(0, 5)
    (first, second) = status.activities()
    assert [(one.worker, one.index) for one in (first, second)] == [(2, 17), (0, 5)]
    assert first.seconds >= second.seconds >= 0
    assert first.process == os.getpid()
    status.fail(2)
    status.end(0)
    status.begin(2, 18)
    status.fail(2)
    assert (status.activities(), status.failed()) == ([], [17])
    status.clear()
    assert status.failed() == []


@pytest.mark.parametrize(('workers', 'rows'), [(0, 1), (1, 1), (3, 3)])
def test_status_has_a_row_for_each_process_that_makes_samples(workers: int, rows: int) -> None:
    assert WorkerStatus(workers).rows == rows


def test_pickled_status_shares_its_table() -> None:
    status = WorkerStatus(2)
    other = pickle.loads(ForkingPickler.dumps(status))
    other.begin(1, 6)
    assert status.is_busy()
    assert [one.index for one in status.activities()] == [6]
    status.end(1)
    assert not other.is_busy()


class Draws(Dataset):
    """Samples that are draws from the global generators."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[float, ...]:
        if index == 7:
            raise ValueError('there is no seventh')
        return random.random(), np.random.rand(), float(torch.rand(()))


def test_generators_are_saved_once_per_batch_without_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[int] = []
    states = worker.generator_states
    monkeypatch.setattr(worker, 'generator_states', lambda: kept.append(1) or states())
    made = worker.SeededDataset(Draws(), WorkerStatus(0))
    requests = [SampleRequest(index, (0, 0, index)) for index in range(8)]
    with seeded(5):
        before = Draws()[0]
    with seeded(5):
        batch = made.__getitems__(requests[:4])
        with pytest.raises(ValueError, match='seventh'):
            made.__getitems__(requests[6:])
        assert Draws()[0] == before
    assert len(kept) == 2
    # A sample is a function of its request, whichever batch it is in.
    assert batch[2:] == made.__getitems__(requests[2:4])
    assert len(set(batch)) == 4


def test_worker_init_fn_of_the_config_is_called() -> None:
    seen: list[int] = []
    code = os.fork()
    if code == 0:  # WorkerStart changes the signal handlers of its process
        WorkerStart(seen.append)(4)
        os._exit(seen != [4])
    assert os.waitpid(code, 0)[1] == 0


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
    """The training may be killed before or after its worker starts to watch it."""
    path = tmp_path / 'pid'
    code = 'import sys; from tests.testing.orphaned_workers import start_worker_and_die; '
    code += 'start_worker_and_die(*sys.argv[1:])'
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
