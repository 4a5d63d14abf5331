"""Real signals to real trainings, which end with a checkpoint and resume exactly."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS, MODELS
from mmengine.runner import Runner

from tests.testing import forks
from tests.testing.common import MINI
from tests.testing.saving import (
    assert_same,
    files,
    marked,
    reached,
    resumed_at,
    saving,
    state,
    temporaries,
    through_tool,
    train,
)
from tests.testing.tool_commands import command, run, tiny
from tests.testing.toy import ToyDataset, ToyModel
from tests.testing.two_ranks import both, start_ranks

INT, TERM = signal.SIGINT, signal.SIGTERM
SAYS = 'the run ends after this iteration'


@MODELS.register_module()
class SignallingModel(ToyModel):
    """Model that sends a signal to its own process during an iteration.

    Args:
        at: Number of the forward pass of this mode, from 1.
        number: Number of the signal; 0 for none.
        mode: 'loss' for training, 'predict' for evaluation.
        waits: Whether to print a line and wait, so that the test can send a signal.
        stops_writer: Whether to stop the writer process first.
    """

    def __init__(
        self,
        at: int = 0,
        number: int = TERM,
        mode: str = 'loss',
        waits: bool = False,
        stops_writer: bool = False,
    ) -> None:
        super().__init__()
        self.at, self.number, self.mode = at, number, mode
        self.waits, self.stops_writer = waits, stops_writer
        self.calls = 0

    def forward(self, inputs: list, data_samples: Any = None, mode: str = 'tensor') -> Any:
        self.calls += mode == self.mode
        if mode == self.mode and self.calls == self.at:
            if self.stops_writer:
                (writer,) = forks.children_of(os.getpid())
                os.kill(writer, signal.SIGSTOP)
            os.kill(os.getpid(), self.number)
            if self.waits:
                print('IN FORWARD', flush=True)
                time.sleep(1)
        return super().forward(inputs, data_samples, mode)


@DATASETS.register_module()
class BlockingDataset(ToyDataset):
    """Dataset that sends a signal to the training at one sample.

    Args:
        at: Number of the sample, from 1, in the process that makes it.
        number: Number of the signal.
        work: Work dir of the training. Defaults to ''.
        returns: Whether the training itself makes this sample. Defaults to False: a worker begins
            it, and never returns it.
    """

    def __init__(self, at: int, number: int, work: str = '', returns: bool = False) -> None:
        super().__init__()
        self.at, self.number, self.work, self.calls = at, number, work, 0
        self.owner = self.process = os.getpid()
        self.returns = returns

    def __getitem__(self, index: int) -> dict:
        is_worker = os.getpid() != self.owner
        if os.getpid() != self.process:  # forked, perhaps after samples were made for a plan
            self.process, self.calls = os.getpid(), 0
        self.calls += 1
        if self.calls == self.at and is_worker != self.returns:
            # Wait until the batches loaded ahead have been trained on.
            while is_worker and reached(Path(self.work)) < self.at // 2:
                time.sleep(0.01)
            os.kill(self.owner, self.number)
            time.sleep(0 if self.returns else 1000)
        return super().__getitem__(index)


@HOOKS.register_module()
class SwappingHook(Hook):
    """Hook of a user that evaluates other weights."""

    def before_val_epoch(self, runner: Runner) -> None:
        runner.model.net[0].bias.data.add_(5)

    def after_val_epoch(self, runner: Runner, metrics: Any = None) -> None:
        runner.model.net[0].bias.data.sub_(5)


class Finalized:
    """Object whose finalizer sends a signal."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)


@HOOKS.register_module()
class FinalizingHook(Hook):
    """Hook that sends a signal in a finalizer, where Python drops any exception."""

    priority = 'LOWEST'

    def __init__(self, at: int, number: int) -> None:
        self.at, self.number = at, number

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if runner.iter + 1 == self.at:
            Finalized(self.number)


def model(at: int, number: int, **options: Any) -> dict:
    return {'model.type': 'SignallingModel', 'model.at': at, 'model.number': number} | {
        f'model.{key}': value for key, value in options.items()
    }


def data(at: int, number: int, work: Path, loop: str = 'PrefetchIterBasedTrainLoop') -> dict:
    """Return options of a training whose worker blocks at a sample."""
    options = dict(type='BlockingDataset', at=at, number=number, work=str(work))
    options = {f'train_dataloader.dataset.{key}': value for key, value in options.items()}
    workers = {'train_dataloader.num_workers': 1, 'train_dataloader.persistent_workers': True}
    return options | workers | {'train_cfg.type': loop}


def late_data(at: int, number: int) -> dict:
    """Return options of a stock training, which itself waits for a sample."""
    options = dict(type='BlockingDataset', at=at, number=number, returns=True)
    return {f'train_dataloader.dataset.{key}': value for key, value in options.items()}


def finalizer(at: int, number: int) -> dict:
    return model(0, number) | {
        'custom_hooks': [dict(type='FinalizingHook', at=at, number=int(number))]
    }


forks.MODULES.append(__name__)


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('undisturbed')
    forks.run(train, folder / 'log', work=str(folder / 'work'))
    return folder / 'work/iter_24.pth'


@pytest.fixture(scope='module')
def undisturbed_epochs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('undisturbed_epochs')
    forks.run(train, folder / 'log', work=str(folder / 'work'), epochs=True)
    return folder / 'work/epoch_3.pth'


CASES = {
    'forward': (model(8, INT), 8),
    'forward, terminated': (model(8, TERM), 8),
    'iteration that is saved': (model(9, TERM), 9),
    'finalizer': (finalizer(8, INT), 8),
    'finalizer, terminated': (finalizer(8, TERM), 8),
    'making a batch': (late_data(2 * 8 + 1, INT), 8),
    'making a batch, terminated': (late_data(2 * 8 + 1, TERM), 8),
    'evaluation': (model(4, INT, mode='predict') | {'train_cfg.val_interval': 5}, 10),
    'evaluation, terminated': (model(4, TERM, mode='predict'), 12),
    'evaluation of other weights': (
        model(3, TERM, mode='predict')
        | {'train_cfg.val_interval': 5, 'custom_hooks': [dict(type='SwappingHook')]},
        10,
    ),
}


@pytest.mark.parametrize('case', CASES)
def test_signal_ends_the_run_with_a_checkpoint(
    case: str, undisturbed: Path, tmp_path: Path
) -> None:
    options, iteration = CASES[case]
    number = options.get('model.number', options.get('train_dataloader.dataset.number'))
    work = tmp_path / 'work'
    text = forks.run(through_tool, tmp_path / 'log', 128 + number, work=str(work), **options)
    assert f'{signal.Signals(number).name}: stopped after {iteration} iterations.' in text
    assert f'newest checkpoint: {work}/iter_{iteration}.pth' in text
    assert 'Traceback' not in text
    assert marked(work).name == f'iter_{iteration}.pth'
    assert temporaries(work) == []
    if 'custom_hooks' in options:
        return  # these hooks change the training
    text = forks.run(train, tmp_path / 'log', work=str(work), resume=True)
    assert resumed_at(text) == iteration
    assert_same(marked(work), undisturbed)


@pytest.mark.parametrize('number', [INT, TERM])
@pytest.mark.parametrize(('split', 'iteration'), [('train', 8), ('val', 6)])
def test_signal_ends_the_wait_for_a_batch(
    split: str, iteration: int, number: int, undisturbed: Path, tmp_path: Path
) -> None:
    """The batch may never arrive; workers of a prefetching loop make it."""
    work = tmp_path / 'work'
    options = {
        key.replace('train_dataloader', f'{split}_dataloader'): value
        for key, value in data(2 * iteration + (split == 'train'), number, work).items()
    }
    options |= {'val_cfg.type': 'PrefetchValLoop', 'train_cfg.val_interval': 6}
    text = forks.run(through_tool, tmp_path / 'log', 128 + number, work=str(work), **options)
    assert f'stopped after {iteration} iterations' in text
    assert 'Traceback' not in text
    text = forks.run(train, tmp_path / 'log', work=str(work), resume=True)
    assert resumed_at(text) == iteration
    assert_same(marked(work), undisturbed)


@pytest.mark.parametrize('number', [INT, TERM])
def test_signal_to_all_processes_of_a_training(
    number: int, undisturbed: Path, tmp_path: Path
) -> None:
    """A terminal or a cluster manager also signals the workers and the writer."""
    work = tmp_path / 'work'
    options = model(8, 0, waits=True) | {'train_dataloader.num_workers': 1}
    child = forks.start(through_tool, tmp_path / 'log', work=str(work), **options)
    child.until(lambda: 'IN FORWARD' in child.text)
    (writer,) = child.writers()
    os.killpg(child.pid, number)
    os.kill(writer, number)
    assert child.wait() == 128 + number, child.text
    assert 'stopped after 8 iterations' in child.text
    assert 'Traceback' not in child.text
    text = forks.run(train, tmp_path / 'log', work=str(work), resume=True)
    assert resumed_at(text) == 8
    assert_same(marked(work), undisturbed)


def test_weights_swapped_for_an_evaluation_are_not_saved(tmp_path: Path) -> None:
    options, _ = CASES['evaluation of other weights']
    work = tmp_path / 'work'
    forks.run(through_tool, tmp_path / 'log', 143, work=str(work), **options)
    forks.run(
        train, tmp_path / 'log', work=str(tmp_path / 'other'),
        **{'train_cfg.max_iters': 10, 'train_cfg.val_interval': 100, 'custom_hooks': []},
    )  # fmt: skip
    found, expected = (state(folder / 'iter_10.pth') for folder in (work, tmp_path / 'other'))
    for name, weight in expected['state_dict'].items():
        torch.testing.assert_close(found['state_dict'][name], weight)  # adding 5 rounds


def test_second_interrupt_ends_the_run_at_once(undisturbed: Path, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    options = model(8, INT, stops_writer=True)
    child = forks.start(through_tool, tmp_path / 'log', work=str(work), **options)
    child.until(lambda: SAYS in child.text)
    (writer,) = child.writers()
    child.until(lambda: '(main) is waiting for the writer' in child.text or reached(work) == 8)
    child.send(INT)
    assert child.wait() == 130
    assert not Path(f'/proc/{writer}/exe').exists()
    assert 'Traceback' not in child.text
    text = forks.run(train, tmp_path / 'log', work=str(work), resume=True)
    assert resumed_at(text) in (3, 6)
    assert_same(marked(work), undisturbed)
    assert temporaries(work) == []


@pytest.mark.parametrize(('number', 'code'), [(INT, 130), (TERM, -TERM)])
def test_save_on_signal_false_keeps_the_default_handlers(
    number: int, code: int, tmp_path: Path
) -> None:
    options = {'default_hooks.checkpoint.save_on_signal': False} | model(8, number)
    text = forks.run(through_tool, tmp_path / 'log', code, work=str(tmp_path / 'work'), **options)
    assert SAYS not in text
    assert marked(tmp_path / 'work').name == 'iter_6.pth'


@pytest.mark.parametrize('number', [INT, TERM])
def test_signal_before_the_first_iteration_saves_nothing(number: int, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    options = data(1, number, work)
    text = forks.run(through_tool, tmp_path / 'log', 128 + number, work=str(work), **options)
    assert 'stopped after 0 iterations' in text
    assert files(work) == []


def test_signal_right_after_a_resume_saves_nothing(tmp_path: Path) -> None:
    work = tmp_path / 'work'
    forks.run(through_tool, tmp_path / 'log', 143, work=str(work), **model(8, TERM))
    before = marked(work).stat()
    options = data(1, TERM, work) | {'resume': True}
    text = forks.run(through_tool, tmp_path / 'log', 143, work=str(work), **options)
    assert 'stopped after 8 iterations' in text
    assert marked(work).stat() == before


def test_signal_within_an_epoch_repeats_it(tmp_path: Path) -> None:
    work = tmp_path / 'work'
    options = model(27, TERM)
    text = forks.run(through_tool, tmp_path / 'log', 143, work=str(work), epochs=True, **options)
    assert 'Epoch 2 is not complete; when resumed, it is repeated from its start.' in text
    assert marked(work).name == 'interrupted.pth'
    assert files(work) == ['best_score_epoch_1.pth', 'epoch_1.pth', 'interrupted.pth']
    text = forks.run(train, tmp_path / 'log', work=str(work), epochs=True, resume=True)
    assert 'resumed epoch: 1, iter: 20' in text
    assert reached(work) == 60
    assert marked(work).name == 'epoch_3.pth'
    assert [name for name in files(work) if 'best' not in name] == ['epoch_2.pth', 'epoch_3.pth']


@pytest.mark.parametrize(
    ('options', 'epoch'),
    [
        (model(40, TERM), 2),  # the last iteration of the epoch
        (late_data(41, TERM), 1),  # the first sample of an epoch: the loader starts again
        (model(4, TERM, mode='predict'), 2),
    ],
)
def test_signal_at_the_end_of_an_epoch(
    options: dict, epoch: int, undisturbed_epochs: Path, tmp_path: Path
) -> None:
    work = tmp_path / 'work'
    text = forks.run(through_tool, tmp_path / 'log', 143, work=str(work), epochs=True, **options)
    assert f'stopped after {20 * epoch} iterations' in text
    assert marked(work).name == f'epoch_{epoch}.pth'
    text = forks.run(train, tmp_path / 'log', work=str(work), epochs=True, resume=True)
    assert f'resumed epoch: {epoch}, iter: {20 * epoch}' in text
    assert_same(marked(work), undisturbed_epochs)


def test_signal_ends_the_wait_for_the_first_batch_of_an_epoch(
    undisturbed_epochs: Path, tmp_path: Path
) -> None:
    work = tmp_path / 'work'
    options = data(41, TERM, work, 'PrefetchEpochBasedTrainLoop')
    text = forks.run(through_tool, tmp_path / 'log', 143, work=str(work), epochs=True, **options)
    assert 'stopped after 20 iterations' in text
    assert marked(work).name == 'epoch_1.pth'
    text = forks.run(train, tmp_path / 'log', work=str(work), epochs=True, resume=True)
    assert 'resumed epoch: 1, iter: 20' in text
    assert_same(marked(work), undisturbed_epochs)


def interrupt_and_evaluate(work: str, **options: Any) -> None:
    runner = Runner.from_cfg(saving(Path(work), **options))
    with contextlib.suppress(KeyboardInterrupt):
        runner.train()
    print('EVALUATES', flush=True)
    runner.val()
    print('EVALUATED', flush=True)


def test_evaluation_by_hand_after_an_interrupt(tmp_path: Path) -> None:
    """In a notebook, the end that was raised is not raised again."""
    options = model(8, INT)
    text = forks.run(interrupt_and_evaluate, tmp_path / 'log', work=str(tmp_path / 'w'), **options)
    assert 'stopped after 8 iterations' in text
    assert 'EVALUATED' in text


def handlers() -> list:
    return [signal.getsignal(number) for number in (INT, TERM)]


def train_and_look(work: str) -> None:
    before = handlers()
    train(work)
    assert handlers() == before


def test_handlers_are_restored(tmp_path: Path) -> None:
    forks.run(train_and_look, tmp_path / 'log', work=str(tmp_path / 'work'))


@DATASETS.register_module()
class FailingDataset(ToyDataset):
    """Dataset that fails in iteration 9."""

    calls = 0

    def __getitem__(self, index: int) -> dict:
        self.calls += 1
        if self.calls == 17:
            raise OSError('no such sample')
        return super().__getitem__(index)


def fail_and_interrupt(work: str, keeps_runner: bool) -> None:
    before = handlers()
    cfg = saving(Path(work), **{'train_dataloader.dataset.type': 'FailingDataset'})
    kept = [Runner.from_cfg(cfg)]
    with contextlib.suppress(OSError):
        kept[0].train()
    if not keeps_runner:
        kept.clear()
    try:
        signal.raise_signal(INT)
    except KeyboardInterrupt:
        print('KeyboardInterrupt')
    assert handlers() == before
    signal.raise_signal(TERM)


@pytest.mark.parametrize('keeps_runner', [False, True])
def test_handlers_are_restored_after_a_failure(keeps_runner: bool, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    text = forks.run(
        fail_and_interrupt, tmp_path / 'log', -TERM, work=str(work), keeps_runner=keeps_runner
    )
    assert 'KeyboardInterrupt' in text
    assert 'stopped after' not in text
    assert files(work)[-1] == 'iter_6.pth'


@pytest.fixture(scope='module')
def undisturbed_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp('ranks') / 'work'
    both(start_ranks(work))
    return work / 'iter_24.pth'


@pytest.mark.parametrize(('to', 'number'), [([0, 1], TERM), ([1], INT)])
def test_processes_stop_at_the_same_iteration(
    to: list, number: int, undisturbed_ranks: Path, tmp_path: Path
) -> None:
    work = tmp_path / 'work'
    options = {rank: model(4 + rank, number) for rank in to}
    texts = both(start_ranks(work, options), 128 + number)
    at = int(marked(work).stem.removeprefix('iter_'))
    assert f'stopped after {at} iterations' in texts[0]
    assert 4 <= at <= 7  # exchanges at 1, 3 and 7, or more often on a slow machine
    assert ['newest checkpoint' in text for text in texts] == [True, False]
    texts = both(start_ranks(work, resume=True))
    assert [resumed_at(text) for text in texts] == [at, 0]  # only the main process logs
    assert_same(marked(work), undisturbed_ranks)
    assert temporaries(work) == []


def test_main_process_writes_the_files_of_stock(undisturbed_ranks: Path, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    options = {'default_hooks.checkpoint.type': 'CheckpointHook'}
    both(start_ranks(work, **options))
    assert files(work) == files(undisturbed_ranks.parent)
    for name in files(work):
        assert_same(work / name, undisturbed_ranks.parent / name)
    texts = [path.read_text() for path in sorted(undisturbed_ranks.parent.parent.glob('rank*.log'))]
    assert ['Saved iter_24.pth' in text for text in texts] == [True, False]


def test_processes_resume_from_the_same_file(undisturbed_ranks: Path, tmp_path: Path) -> None:
    work = Path(shutil.copytree(undisturbed_ranks.parent, tmp_path / 'work'))
    (work / 'last_checkpoint').write_text(str(work / 'iter_24.pth'))
    os.truncate(work / 'iter_24.pth', 1000)
    texts = both(start_ranks(work, resume=True))
    assert f'Checkpoint skipped on resume: {work}/iter_24.pth' in texts[0]
    assert resumed_at(texts[0]) == 21
    assert_same(marked(work), undisturbed_ranks)
    for name in files(work):
        os.truncate(work / name, 1000)
    texts = both(start_ranks(work, resume=True), code=1)
    assert 'ValueError: no checkpoint to resume from' in texts[0]


@pytest.mark.slow
def test_signal_ends_the_training_tool_with_a_checkpoint(bev_root: str, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    options = tiny(bev_root, work, 500) | {'train_dataloader.num_workers': 1}
    options['default_hooks.checkpoint.type'] = 'AsyncCheckpointHook'
    options['default_hooks.checkpoint.interval'] = 100
    process = subprocess.Popen(
        command('train.py', MINI, '--work-dir', work, options=options),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env=os.environ | {'PYTHONUNBUFFERED': '1'},
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if 'Iter(train) [  3/500]' in line:
            os.killpg(process.pid, TERM)
            break
    rest = process.stdout.read()
    assert process.wait() == 143, rest
    at = int(marked(work).stem.removeprefix('iter_'))
    assert f'newest checkpoint: {work}/iter_{at}.pth' in rest
    assert 'Traceback' not in rest
    options |= tiny(bev_root, work, at + 1)
    text = run('train.py', MINI, '--work-dir', work, '--resume', options=options)
    assert f'resumed epoch: 0, iter: {at}' in text
