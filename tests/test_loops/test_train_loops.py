"""Training by prefetching loops: which batches it is given, however often it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from tests.testing.noisy import noisy, noisy_epochs, seen
from tests.testing.toy import train, weights

KINDS: dict[str, Callable[..., Config]] = dict(iterations=noisy, epochs=noisy_epochs)


@HOOKS.register_module()
class StopAt(Hook):
    """Asks the training to end, as a scheduler does."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter + 1 == self.iteration:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope='module', params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """A training that was never interrupted: its kind, what it was given, and its weights."""
    work = tmp_path_factory.mktemp(request.param)
    runner = train(KINDS[request.param](work))
    return request.param, seen(work), weights(runner)


@pytest.mark.parametrize('workers', [0, 1, 4])
def test_goes_on_as_if_nothing_had_been(workers: int, whole: tuple, tmp_path: Path) -> None:
    """In the middle of an epoch, with another number of workers than before."""
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


def test_goes_on_behind_stock(tmp_path: Path) -> None:
    """Whose loop leaves the place of an earlier training as it is."""
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
