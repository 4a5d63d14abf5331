"""An evaluation that a signal has interrupted is repeated on resume, and its score counts."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from mmengine.registry import MODELS
from mmengine.runner import Runner

from mmtempo.evaluation.owed_evaluation import OWED
from tests.testing import forks
from tests.testing.saving import assert_same, files, marked, saving, state, through_tool, train
from tests.testing.toy import ToyModel
from tests.testing.two_ranks import both, start_ranks

forks.MODULES.append(__name__)


@MODELS.register_module()
class TerminatedModel(ToyModel):
    """A model that receives a SIGTERM in a forward pass.

    Args:
        at: Number of the forward pass, from 1, among those in `mode`.
        mode: 'loss' for training, 'predict' for evaluation.
    """

    def __init__(self, at: int, mode: str) -> None:
        super().__init__()
        self.at, self.mode, self.calls = at, mode, 0

    def forward(self, inputs: list, data_samples: Any = None, mode: str = 'tensor') -> Any:
        self.calls += mode == self.mode
        if mode == self.mode and self.calls == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().forward(inputs, data_samples, mode)


def loop(epochs: bool) -> dict:
    kind = 'Epoch' if epochs else 'Iter'
    return {'train_cfg.type': f'Prefetch{kind}BasedTrainLoop', 'epochs': epochs}


def terminated(at: int, mode: str) -> dict:
    return {'model.type': 'TerminatedModel', 'model.at': at, 'model.mode': mode}


def evaluations(text: str) -> list[tuple[str, float]]:
    """Return the evaluated iterations or epochs, and their scores."""
    found = re.findall(r'(?:Iter|Epoch)\(val\) \[?(\d*)\]?.*?score: ([\d.]+)', text)
    return [(number, float(score)) for number, score in found]


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Path, list]]:
    found = {}
    for epochs in (False, True):
        folder = tmp_path_factory.mktemp('whole')
        text = forks.run(train, folder / 'log', work=str(folder / 'work'), **loop(epochs))
        found[epochs] = (folder / 'work', evaluations(text))
    return found


CASES = {
    'within': (False, terminated(4, 'predict'), 12),
    'before': (False, terminated(12, 'loss'), 12),
    'not saved before': (False, terminated(4, 'predict') | {'train_cfg.val_interval': 5}, 10),
    'last one': (False, terminated(8, 'predict'), 24),
    'within, epochs': (True, terminated(4, 'predict'), 40),
    'before, epochs': (True, terminated(40, 'loss'), 40),
    'last one, epochs': (True, terminated(6, 'predict'), 60),
}


@pytest.mark.parametrize('case', CASES)
def test_resumed_run_repeats_the_evaluation(
    case: str, undisturbed: dict[bool, tuple[Path, list]], tmp_path: Path
) -> None:
    epochs, options, at = CASES[case]
    work, log = tmp_path / 'work', tmp_path / 'log'
    same = {key: value for key, value in options.items() if key.startswith('train_cfg')}
    whole, expected = undisturbed[epochs]
    if same:
        whole = tmp_path / 'whole'
        text = forks.run(train, log, work=str(whole), **loop(epochs), **same)
        expected = evaluations(text)
    first = forks.run(through_tool, log, 143, work=str(work), **loop(epochs), **options)
    assert f'stopped after {at} iterations' in first
    assert state(marked(work))['message_hub']['runtime_info'][OWED] == at
    second = forks.run(train, log, work=str(work), resume=True, **loop(epochs), **same)
    assert second.count('Evaluating after iteration') == 1
    assert evaluations(first) + evaluations(second) == expected
    assert files(work) == files(whole)  # with the best one
    assert_same(marked(work), marked(whole))
    if 'last' not in case:  # after the last evaluation only a new best is saved
        assert OWED not in state(marked(work))['message_hub']['runtime_info']


def test_complete_evaluation_is_not_repeated(tmp_path: Path) -> None:
    work, log = tmp_path / 'work', tmp_path / 'log'
    forks.run(through_tool, log, 143, work=str(work), **loop(False), **terminated(13, 'loss'))
    assert marked(work).name == 'iter_13.pth'
    text = forks.run(train, log, work=str(work), resume=True, **loop(False))
    assert 'Evaluating after' not in text
    assert len(evaluations(text)) == 2  # after 18 and 24


def test_stock_loop_logs_the_missing_evaluation(tmp_path: Path) -> None:
    work, log = tmp_path / 'work', tmp_path / 'log'
    forks.run(through_tool, log, 143, work=str(work), **terminated(4, 'predict'))
    text = forks.run(train, log, work=str(work), resume=True)
    assert 'The evaluation after iteration 12 is missing' in text
    assert 'IterBasedTrainLoop does not repeat it' in text
    assert len(evaluations(text)) == 2


def test_stock_hooks_resume_the_checkpoint(tmp_path: Path) -> None:
    work, log = tmp_path / 'work', tmp_path / 'log'
    forks.run(through_tool, log, 143, work=str(work), **terminated(4, 'predict'))
    forks.run(
        train,
        log,
        work=str(work),
        resume=True,
        **{'default_hooks.checkpoint.type': 'CheckpointHook'},
    )
    assert marked(work).name == 'iter_24.pth'


def test_signal_after_the_last_iteration_counts_no_epoch(tmp_path: Path) -> None:
    """An iteration-based loop has one epoch, which never completes."""
    work = tmp_path / 'work'
    runner = Runner.from_cfg(saving(work, **{'train_cfg.max_iters': 4}))
    reached: list[tuple] = []
    hook = next(hook for hook in runner.hooks if hasattr(hook, 'save_now'))
    hook._stop._stop = lambda runner, number, reached_: reached.append(reached_)
    at_end = type(
        'AtEnd', (type(hook).__mro__[2],), {'after_train_epoch': lambda *_: signal.raise_signal(15)}
    )()
    runner.register_hook(at_end, priority='LOW')
    runner.train()
    assert [tuple(one[:2]) for one in reached] == [(0, 4)]


def test_processes_stop_an_evaluation_together(tmp_path: Path) -> None:
    work = tmp_path / 'work'
    options = {'val_dataloader.batch_size': 1} | loop(False)
    texts = both(start_ranks(work, {1: terminated(24, 'predict')}, **options), 143)
    assert 'stopped after 12 iterations' in texts[0]
    assert ['newest checkpoint' in text for text in texts] == [True, False]
    texts = both(start_ranks(work, resume=True, **options))
    assert 'Evaluating after iteration 12' in texts[0]
    assert len(evaluations(texts[0])) == 3
