"""The batches of a training, also of one that was interrupted or failed and is resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

import tests.testing.interrupted_training  # noqa: F401  (registers StopAt and Interrupted)
from mmtempo.loaders import LoaderError, build_prefetch_dataloader
from mmtempo.loops.training_batches import PLACE
from tests.testing.common import ROOT
from tests.testing.limits import in_small_shm
from tests.testing.loader_hooks import LOOPS, of_epochs
from tests.testing.noisy import noisy, noisy_epochs, seen
from tests.testing.toy import train, weights, with_evaluation

KINDS: dict[str, Callable[..., Config]] = dict(iterations=noisy, epochs=noisy_epochs)
SCRIPT = """
import sys, warnings
warnings.simplefilter('ignore')
from pathlib import Path
from tests.test_loops.test_training_batches import {name}
{name}(Path(sys.argv[1]))
"""


@pytest.fixture(scope='module', params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """Return kind, batches and weights of an uninterrupted training."""
    work = tmp_path_factory.mktemp(request.param)
    runner = train(KINDS[request.param](work))
    return request.param, seen(work), weights(runner)


@pytest.mark.parametrize('workers', [0, 1, 4])
def test_resumed_training_equals_an_uninterrupted_one(
    workers: int, whole: tuple, tmp_path: Path
) -> None:
    """Resume within an epoch, with another number of workers."""
    kind, given, trained = whole
    cfg = KINDS[kind](tmp_path, workers)
    cfg.custom_hooks.append(dict(type='StopAt', iteration=19))
    with pytest.raises(SystemExit):
        train(cfg)
    assert max(seen(tmp_path)) == 18
    runner = train(KINDS[kind](tmp_path, (workers + 1) % 3, resume=True))
    assert seen(tmp_path) == given
    for key, value in weights(runner).items():
        assert torch.equal(value, trained[key]), key


def test_position_keeps_the_names_of_version_0_1(tmp_path: Path) -> None:
    """Their checkpoints resume in the middle of an epoch only as long as no name changes."""
    train(noisy(tmp_path, **{'default_hooks.checkpoint': dict(by_epoch=False, interval=15)}))
    hub = torch.load(tmp_path / 'iter_15.pth', weights_only=False)['message_hub']
    assert hub['runtime_info']['train_loader_place'] == dict(
        epoch=0, batches=15, samples=45, processes=1, seed=3, iter=15, per_iteration=3
    )


def test_resume_after_stock_ignores_the_outdated_position(tmp_path: Path) -> None:
    """Stock's loop keeps the position that an earlier training has left in the message hub."""
    work, again = tmp_path / 'work', tmp_path / 'again'
    by_epoch = {'default_hooks.checkpoint': dict(by_epoch=True, interval=1)}
    train(noisy_epochs(work, epochs=1, **by_epoch))
    stock = {'train_cfg.type': 'EpochBasedTrainLoop', **by_epoch}
    train(noisy_epochs(work, epochs=2, resume=True, **stock))
    runner = train(noisy_epochs(work, epochs=3, resume=True, **by_epoch))
    assert runner.iter == 21
    assert list(seen(work)) == list(range(21))
    train(noisy_epochs(again, epochs=3))
    assert [seen(work)[n] for n in range(14, 21)] == [seen(again)[n] for n in range(14, 21)]


@pytest.mark.parametrize('how', ['raise', 'stop', 'die'])
@pytest.mark.parametrize('kind', [noisy, noisy_epochs])
def test_failed_sample_loses_no_iteration(kind: Any, how: str, tmp_path: Path) -> None:
    train(kind(tmp_path / 'whole'))
    whole = seen(tmp_path / 'whole')
    cfg = kind(tmp_path / 'run', 2)
    # Within the first epoch, whose order is the same for both kinds.
    at = torch.randperm(40, generator=torch.Generator().manual_seed(3)).tolist()[26]
    mark = str(tmp_path / 'mark')
    cfg.train_dataloader.dataset = dict(type='Interrupted', how=how, at=at, mark=mark)
    with pytest.raises(LoaderError, match=f'sample {at}'):
        train(cfg)
    reached = max(seen(tmp_path / 'run'))
    runner = train(kind(tmp_path / 'run', 1, resume=True))
    assert seen(tmp_path / 'run') == whole
    log = ''.join(path.read_text() for path in (tmp_path / 'run').rglob('*.log'))
    # Batches of a worker that were not fetched are lost with it.
    assert 0 <= reached <= 26 // 3
    assert f'iter: {reached + 1}' in log  # no iteration is repeated
    assert runner.message_hub.get_info(PLACE)['seed'] == 3


@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize('split', ['val', 'test'])
def test_stop_iteration_of_a_dataset_does_not_shorten_an_evaluation(
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
def test_killed_training_resumes_with_the_same_batches(workers: int, tmp_path: Path) -> None:
    """Iterations after the last checkpoint are repeated on the same batches."""
    train(noisy(tmp_path / 'whole', 0, 30))
    command = [sys.executable, '-c', SCRIPT.format(name='train_until_killed'), tmp_path / 'run']
    env = dict(os.environ, WORKERS=str(workers), OMP_NUM_THREADS='1')
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    train(noisy(tmp_path / 'run', (workers + 1) % 3, 30, resume=True))
    assert seen(tmp_path / 'run') == seen(tmp_path / 'whole')


def train_large(work: Path) -> None:
    """Train on batches of 24 MiB."""
    cfg = noisy(work, 3, 12)
    cfg.train_dataloader.dataset.type = 'LargeSamples'
    cfg.train_dataloader.collate_fn = dict(type='stack_collate')
    cfg.model.type = 'TakesAnything'
    train(cfg)


def test_training_works_with_small_shared_memory(tmp_path: Path) -> None:
    """A container has 64 MiB by default; batches are in other memory."""
    command = [sys.executable, '-c', SCRIPT.format(name='train_large'), str(tmp_path)]
    done = in_small_shm(command, timeout=100, cwd=ROOT, env=dict(os.environ, OMP_NUM_THREADS='1'))
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-3000:]
    assert max(seen(tmp_path)) == 11
    assert '3 workers x 2 batches ahead' in text


@pytest.mark.parametrize('loop', [0, 2], ids=['epochs', 'iterations'])
def test_built_loader_gives_the_same_batches(tmp_path: Path, loop: int) -> None:
    cfg = of_epochs(tmp_path, 'ours', [])
    if loop:
        cfg.train_cfg = dict(type=LOOPS['ours'][loop], max_iters=50)
        cfg.default_hooks.checkpoint.update(by_epoch=False, interval=50)
    plain = train(cfg.copy())
    runner = Runner.from_cfg(cfg)
    loader = build_prefetch_dataloader(cfg.train_dataloader, seed=runner.seed)
    runner._train_dataloader = loader
    runner.train()
    assert runner.iter == plain.iter == (50 if loop else 60)
    assert runner.seen == plain.seen
