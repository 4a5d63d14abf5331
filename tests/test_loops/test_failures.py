"""A training that gets no more batches ends with an error and a checkpoint, and can go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.registry import DATASETS
from mmengine.runner import Runner

from mmtempo.loaders import LoaderError
from mmtempo.loops.training_batches import PLACE
from tests.testing.common import ROOT
from tests.testing.limits import in_small_shm
from tests.testing.noisy import NoisyDataset, noisy, noisy_epochs, seen
from tests.testing.toy import train, with_evaluation

SCRIPT = """
import sys, warnings
warnings.simplefilter('ignore')
from pathlib import Path
from tests.test_loops.test_failures import {name}
{name}(Path(sys.argv[1]))
"""


@DATASETS.register_module()
class Interrupted(NoisyDataset):
    """Fails, in whatever way, at the n-th sample that any process makes.

    Args:
        how: 'raise', 'stop' with a StopIteration, or 'die'.
        at: The sample.
        mark: A file that says that it has happened.
    """

    def __init__(self, how: str, at: int, mark: str) -> None:
        super().__init__()
        self.how, self.at, self.mark = how, at, mark

    def __getitem__(self, index: int) -> dict:
        if index == self.at and not os.path.exists(self.mark):
            Path(self.mark).touch()
            if self.how == 'die':
                os.kill(os.getpid(), signal.SIGKILL)
            raise StopIteration if self.how == 'stop' else ZeroDivisionError('no such pixel')
        return super().__getitem__(index)


@pytest.mark.parametrize('how', ['raise', 'stop', 'die'])
@pytest.mark.parametrize('kind', [noisy, noisy_epochs])
def test_nothing_is_lost(kind: Any, how: str, tmp_path: Path) -> None:
    train(kind(tmp_path / 'whole'))
    whole = seen(tmp_path / 'whole')
    cfg = kind(tmp_path / 'run', 2)
    # In the middle of the first epoch, which is the same for both.
    at = torch.randperm(40, generator=torch.Generator().manual_seed(3)).tolist()[26]
    mark = str(tmp_path / 'mark')
    cfg.train_dataloader.dataset = dict(type='Interrupted', how=how, at=at, mark=mark)
    with pytest.raises(LoaderError, match=f'sample {at}'):
        train(cfg)
    reached = max(seen(tmp_path / 'run'))
    runner = train(kind(tmp_path / 'run', 1, resume=True))
    assert seen(tmp_path / 'run') == whole
    log = ''.join(path.read_text() for path in (tmp_path / 'run').rglob('*.log'))
    # What a worker has made dies with it, if nobody has fetched it.
    assert 0 <= reached <= 26 // 3
    assert f'iter: {reached + 1}' in log  # and not one iteration is done again
    assert runner.message_hub.get_info(PLACE)['seed'] == 3


@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize('split', ['val', 'test'])
def test_stop_iteration_does_not_shorten_an_evaluation(
    split: str, workers: int, tmp_path: Path
) -> None:
    cfg = with_evaluation(noisy(tmp_path))
    cfg.val_dataloader.update(
        num_workers=workers,
        dataset=dict(type='Interrupted', how='stop', at=17, mark=str(tmp_path / 'mark')),
    )
    cfg.val_cfg = dict(type='PrefetchValLoop')
    if split == 'test':
        cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
        cfg.test_cfg = dict(type='PrefetchTestLoop')
    runner = Runner.from_cfg(cfg)
    with pytest.raises(LoaderError, match=f'{split}_dataloader: sample 17: StopIteration'):
        runner.val() if split == 'val' else runner.test()


def train_until_killed(work: Path) -> None:
    cfg = noisy(work, int(os.environ['WORKERS']), 60)
    cfg.custom_hooks.append(dict(type='KillAt', iteration=17))
    train(cfg)


@pytest.mark.parametrize('workers', [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 4))])
def test_kill_minus_nine(workers: int, tmp_path: Path) -> None:
    """What is done again after it is done on the same batches."""
    train(noisy(tmp_path / 'whole', 0, 30))
    command = [sys.executable, '-c', SCRIPT.format(name='train_until_killed'), tmp_path / 'run']
    env = dict(os.environ, WORKERS=str(workers), OMP_NUM_THREADS='1')
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    train(noisy(tmp_path / 'run', (workers + 1) % 3, 30, resume=True))
    assert seen(tmp_path / 'run') == seen(tmp_path / 'whole')


def train_large(work: Path) -> None:
    """Each batch takes 24 MB."""
    cfg = noisy(work, 3, 12)
    cfg.train_dataloader.dataset.type = 'LargeSamples'
    cfg.train_dataloader.collate_fn = dict(type='stack_collate')
    cfg.model.type = 'TakesAnything'
    train(cfg)


def test_a_small_shared_memory(tmp_path: Path) -> None:
    """As a container has that was not told otherwise; batches do not lie there."""
    command = [sys.executable, '-c', SCRIPT.format(name='train_large'), str(tmp_path)]
    done = in_small_shm(command, timeout=100, cwd=ROOT, env=dict(os.environ, OMP_NUM_THREADS='1'))
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-3000:]
    assert max(seen(tmp_path)) == 11
    assert '3 workers x 2 batches ahead' in text
