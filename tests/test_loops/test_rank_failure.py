"""If one process fails, the others name it, and rank 0 saves the last whole iteration."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from mmengine.registry import DATASETS, MODELS

from tests.testing import forks
from tests.testing.saving import assert_same, files, marked, resumed_at
from tests.testing.toy import ToyDataset, ToyModel
from tests.testing.two_ranks import both, start_ranks

forks.MODULES.append(__name__)
AT = 8  # number of the iteration that fails, from 1


@DATASETS.register_module()
class FailingSample(ToyDataset):
    """A dataset that fails at one of its samples.

    Args:
        at: Number of the sample, from 1, in the order in which this process makes them.
        how: 'raise' or 'die'.
    """

    def __init__(self, at: int, how: str = 'raise') -> None:
        super().__init__()
        self.at, self.how, self.calls = at, how, 0

    def __getitem__(self, index: int) -> dict:
        self.calls += 1
        if self.calls == self.at:
            if self.how == 'die':
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError('no such pixel')
        return super().__getitem__(index)


@MODELS.register_module()
class FailingModel(ToyModel):
    """A model that fails in a forward pass of the training.

    Args:
        at: Number of the forward pass, from 1.
    """

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def forward(self, inputs: list, data_samples: Any = None, mode: str = 'tensor') -> Any:
        if mode == 'loss' and self.seen + 1 == self.at:
            raise ZeroDivisionError('no such loss')
        return super().forward(inputs, data_samples, mode)


def loop(epochs: bool = False) -> dict:
    kind = 'Epoch' if epochs else 'Iter'
    options = {
        'train_cfg.type': f'Prefetch{kind}BasedTrainLoop',
        'default_hooks.runtime_info.type': 'SparseRuntimeInfoHook',
    }
    return options | ({'epochs': True} if epochs else {})


def failing_data(how: str) -> dict:
    loader = 'train_dataloader.dataset'
    return {f'{loader}.type': 'FailingSample', f'{loader}.at': 2 * AT - 1, f'{loader}.how': how}


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp('whole') / 'work'
    both(start_ranks(work, **loop()))
    return work / 'iter_24.pth'


FAILURES = {
    'no sample': (failing_data('raise'), 'rank 1 failed: LoaderError: '),
    'killed': (failing_data('die'), 'another process has left without a message'),
    'model': (
        {'model.type': 'FailingModel', 'model.at': AT},
        'rank 1 failed: ZeroDivisionError: no such loss',
    ),
}


@pytest.mark.parametrize('failure', FAILURES)
def test_rank_0_saves_the_last_whole_iteration(
    failure: str, undisturbed: Path, tmp_path: Path
) -> None:
    options, message = FAILURES[failure]
    work = tmp_path / 'work'
    children = start_ranks(work, {1: options}, **loop())
    codes, texts = [child.wait() for child in children], [child.text for child in children]
    assert codes == [1, -signal.SIGKILL if failure == 'killed' else 1], '\n'.join(texts)
    assert f'train.py (rank 0): stopped: {message}' in texts[0]
    assert f'newest checkpoint: {work}/iter_{AT - 1}.pth' in texts[0]
    assert 'Traceback' not in texts[0].split('stopped: ')[0]
    assert marked(work).name == f'iter_{AT - 1}.pth'
    texts = both(start_ranks(work, resume=True, **loop()))
    assert resumed_at(texts[0]) == AT - 1
    assert_same(marked(work), undisturbed)


def test_failure_of_rank_0_is_shown_once(tmp_path: Path) -> None:
    work = tmp_path / 'work'
    texts = both(start_ranks(work, {0: failing_data('raise')}, **loop()), code=1)
    assert 'train.py (rank 0): stopped: ' in texts[0]
    assert f'newest checkpoint: {work}/iter_{AT - 1}.pth' in texts[0]
    assert 'Traceback' not in texts[1]
    assert 'stopped' not in texts[1]


def test_nonfinite_weights_are_not_saved(tmp_path: Path) -> None:
    work = tmp_path / 'work'
    bad = {'model.nan_at': [AT], 'default_hooks.logger.interval': AT}
    texts = both(start_ranks(work, {1: bad}, **loop()), code=1)
    assert 'Non-finite values' in ''.join(texts)
    assert ''.join(texts).count('Traceback') == 0
    assert [name for name in files(work) if 'best' not in name] == ['iter_3.pth', 'iter_6.pth']
