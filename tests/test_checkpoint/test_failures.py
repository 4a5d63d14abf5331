"""Failures of disks, folders and the writer process, and their effects on the training."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmengine.runner import Runner

from tests.testing import forks
from tests.testing.common import ROOT
from tests.testing.saving import (
    assert_same,
    files,
    marked,
    steps,
    temporaries,
    through_tool,
    train,
    with_writer,
)
from tests.testing.toy import ToyDataset

NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
MARK = 'END OF LISTING'


@HOOKS.register_module()
class MeddlingHook(Hook):
    """Hook that manipulates the disk just before the checkpoint of an iteration.

    Args:
        acts: Method and its arguments, by the number of the iteration.
    """

    priority = 'LOW'

    def __init__(self, acts: dict) -> None:
        self.acts = {int(iteration): act for iteration, act in acts.items()}

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        act = self.acts.get(runner.iter + 1)
        if act is None:
            return
        for hook in runner.hooks:  # leave an earlier save alone
            if type(hook).__name__ == 'AsyncCheckpointHook':
                hook._saver._writer.wait()
        name, *words = act
        getattr(self, name)(*words)

    def limit(self) -> None:
        """Limit the size of files that the writer process can write."""
        self._set_limit((1000, resource.RLIM_INFINITY))

    def unlimit(self) -> None:
        self._set_limit(NO_LIMIT)

    def _set_limit(self, limit: tuple) -> None:
        (writer,) = forks.children_of(os.getpid())
        resource.prlimit(writer, resource.RLIMIT_FSIZE, limit)

    def fill(self, path: str) -> None:
        with open(path, 'wb', buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(512))

    def remove(self, path: str) -> None:
        os.remove(path)

    def run(self, *words: str) -> None:
        subprocess.run(words, check=True)

    def rename(self, path: str, other: str) -> None:
        os.rename(path, other)

    def put_file(self, path: str, other: str) -> None:
        os.rename(path, other)
        Path(path).write_text('no folder')

    def put_back(self, path: str, other: str) -> None:
        os.remove(path)
        os.rename(other, path)

    def kill_writer(self) -> None:
        (writer,) = forks.children_of(os.getpid())
        os.kill(writer, signal.SIGKILL)
        os.waitid(os.P_PID, writer, os.WEXITED | os.WNOWAIT)

    def signal(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def meddling(acts: dict, **options: Any) -> dict:
    """Return options of a training with these acts, which evaluates at its end only."""
    hooks = [dict(type='EMAHook'), dict(type='Tell'), dict(type='MeddlingHook', acts=acts)]
    return {'custom_hooks': hooks, 'train_cfg.val_interval': 1000} | options


forks.MODULES.append(__name__)


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('undisturbed')
    forks.run(train, folder / 'log', work=str(folder / 'work'), **meddling({}))
    return folder / 'work/iter_24.pth'


def attributes_can_be_set(folder: Path) -> bool:
    if shutil.which('chattr') is None:
        return False
    done = [subprocess.run(['chattr', f'{sign}i', folder], capture_output=True) for sign in '+-']
    return all(one.returncode == 0 for one in done)


def assert_one_save_failed(text: str, folder: Path, undisturbed: Path, reason: str) -> None:
    """Assert that one save failed with one line, between two saves that succeeded."""
    failures = [line for line in text.splitlines() if ' failed: ' in line]
    assert len(failures) == 1, text
    assert ' - ERROR - ' in failures[0]
    assert ' saving iter_6.pth failed: ' in failures[0]
    assert reason in failures[0]
    assert 'The files before it are untouched; the next save is at its usual time' in failures[0]
    assert text.index('Saved iter_3.pth') < text.index(failures[0]) < text.index('Saved iter_9.pth')
    assert steps(folder) == [21, 24]
    assert temporaries(folder) == []
    assert_same(folder / 'iter_24.pth', undisturbed)


def assert_ended_with(says: str, text: str) -> None:
    (line,) = [line for line in text.splitlines() if line.startswith('train.py: error: ')]
    assert says in line


def test_file_size_limit_fails_one_save(undisturbed: Path, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    options = meddling({5: ['limit'], 8: ['unlimit']})
    text = forks.run(train, tmp_path / 'log', work=str(work), **options)
    assert_one_save_failed(text, work, undisturbed, 'File too large')


def test_last_good_file_is_kept_after_a_failure(tmp_path: Path) -> None:
    """Until a save succeeds, the marker names the last good file, which is the newest."""
    work = tmp_path / 'work'
    options = meddling({5: ['limit'], 8: ['kill_writer']}, **{'train_cfg.max_iters': 10})
    options['default_hooks.checkpoint.save_last'] = False
    options['default_hooks.checkpoint.interval'] = 4
    options['custom_hooks'][2]['acts'] = {7: ['limit'], 10: ['signal']}
    text = forks.run(through_tool, tmp_path / 'log', 1, work=str(work), **options)
    assert text.count(' failed: ') == 2
    assert_ended_with('saving iter_10.pth failed: ', text)
    assert files(work) == ['iter_4.pth']
    assert marked(work).name == 'iter_4.pth'
    assert temporaries(work) == []


def test_full_disk_fails_one_save(undisturbed: Path, small_disk: Path, tmp_path: Path) -> None:
    out = small_disk / 'work'
    options = meddling({5: ['fill', f'{small_disk}/all'], 8: ['remove', f'{small_disk}/all']})
    options['default_hooks.checkpoint.out_dir'] = str(small_disk)
    text = forks.run(train, tmp_path / 'log', work=str(tmp_path / 'work'), **options)
    assert_one_save_failed(text, out, undisturbed, 'No space left on device')
    assert not [line for line in text.splitlines() if 'exceed the free disk space' in line]


def test_too_small_disk_fails_each_save(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / 'all').write_bytes(bytes(399 << 10))
    options = meddling({}, **{'default_hooks.checkpoint.out_dir': str(small_disk)})
    text = forks.run(through_tool, tmp_path / 'log', 1, work=str(tmp_path / 'work'), **options)
    shortage = '4 checkpoints of about 848 B exceed the free disk space by 3.31 KiB'
    assert f'{small_disk}/work: {shortage}' in text
    for iteration in range(3, 25, 3):
        assert text.count(f'saving iter_{iteration}.pth failed: ') == 1
    assert_ended_with('saving best_score_iter_24.pth failed: ', text)
    assert 'No space left on device' in text
    assert 'Traceback' not in text
    assert list((small_disk / 'work').iterdir()) == []


def test_read_only_folder_fails_one_save(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / 'out/work'
    if not attributes_can_be_set(tmp_path):
        pytest.skip('attributes of files cannot be set here')
    options = meddling({5: ['run', 'chattr', '+i', str(out)], 8: ['run', 'chattr', '-i', str(out)]})
    options['default_hooks.checkpoint.out_dir'] = str(tmp_path / 'out')
    text = forks.run(train, tmp_path / 'log', work=str(tmp_path / 'work'), **options)
    assert_one_save_failed(text, out, undisturbed, 'Operation not permitted')


@pytest.mark.parametrize(
    ('away', 'back', 'reason'),
    [('rename', 'rename', 'No such file'), ('put_file', 'put_back', 'Not a directory')],
)
def test_folder_that_is_missing_for_a_while_fails_one_save(
    away: str, back: str, reason: str, undisturbed: Path, tmp_path: Path
) -> None:
    out, other = str(tmp_path / 'out'), str(tmp_path / 'other')
    places = (other, out) if back == 'rename' else (out, other)
    options = meddling({5: [away, out, other], 8: [back, *places]})
    options['default_hooks.checkpoint.out_dir'] = out
    text = forks.run(train, tmp_path / 'log', work=str(tmp_path / 'work'), **options)
    assert_one_save_failed(text, tmp_path / 'out/work', undisturbed, reason)


def test_failure_of_the_last_save_fails_the_run(tmp_path: Path) -> None:
    work = tmp_path / 'work'
    options = meddling({22: ['limit']})
    text = forks.run(through_tool, tmp_path / 'log', 1, work=str(work), **options)
    assert_ended_with('saving best_score_iter_24.pth, iter_24.pth failed: ', text)
    assert 'Traceback' not in text
    assert steps(work) == [18, 21]
    assert marked(work).name == 'iter_21.pth'
    assert temporaries(work) == []


def test_on_error_raise_ends_the_run(tmp_path: Path) -> None:
    work = tmp_path / 'work'
    options = meddling({5: ['limit']}, **{'default_hooks.checkpoint.on_error': 'raise'})
    text = forks.run(through_tool, tmp_path / 'log', 1, work=str(work), **options)
    assert 'train.py: error: saving iter_6.pth failed: ' in text
    assert 'Saving checkpoint at 12' not in text
    assert steps(work) == [3]


def test_failed_best_save_restores_the_score(tmp_path: Path) -> None:
    """Hook and hub are as before, so the next best file is saved and replaces the old one."""
    work = tmp_path / 'work'
    options = meddling({17: ['limit'], 20: ['unlimit']}, **{'train_cfg.val_interval': 6})
    text = forks.run(train, tmp_path / 'log', work=str(work), **options)
    assert 'saving best_score_iter_18.pth, iter_18.pth failed: ' in text
    assert files(work) == ['best_score_iter_6.pth', 'iter_21.pth', 'iter_24.pth']
    text = forks.run(train, tmp_path / 'log', work=str(work), resume=True,
                     **{'train_cfg.max_iters': 31})  # fmt: skip
    assert files(work) == ['best_score_iter_31.pth', 'iter_30.pth', 'iter_31.pth']


def test_writer_killed_while_idle(undisturbed: Path, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    text = forks.run(train, tmp_path / 'log', work=str(work), **meddling({5: ['kill_writer']}))
    assert text.count('had ended and was started again') == 1
    assert ' failed: ' not in text
    assert steps(work) == [21, 24]
    assert_same(marked(work), undisturbed)


def train_and_kill(work: str, killed: list, delay: float = 0.0, **options: Any) -> None:
    with_writer(f'{work}.steps', tuple(killed), delay=delay)
    train(work, **options)


@pytest.mark.parametrize('step', [2, 5])
def test_writer_killed_during_a_save(step: int, undisturbed: Path, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    text = forks.run(
        train_and_kill, tmp_path / 'log', work=str(work), killed=[step, 60], **meddling({})
    )
    assert text.count('ended with exit code -9; the training wrote this save itself') == 2
    assert text.count('had ended and was started again') == 2
    assert ' failed: ' not in text
    assert steps(work) == [21, 24]
    assert temporaries(work) == []
    assert_same(marked(work), undisturbed)


def test_writer_killed_during_each_of_two_saves(undisturbed: Path, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    # The first save has eight steps; those of the training process are not counted.
    text = forks.run(
        train_and_kill, tmp_path / 'log', work=str(work), killed=[10, 12], **meddling({})
    )
    for name in ('iter_6.pth', 'iter_9.pth'):
        (line,) = [line for line in text.splitlines() if f' Saved {name}' in line]
        before = text[: text.index(line)].splitlines()[-1]
        assert 'ended with exit code -9; the training wrote this save itself' in before
    assert ' failed: ' not in text
    assert steps(work) == [21, 24]
    assert temporaries(work) == []
    assert_same(marked(work), undisturbed)


def test_writer_killed_while_the_training_cannot_write(undisturbed: Path, tmp_path: Path) -> None:
    out, other = str(tmp_path / 'out'), str(tmp_path / 'other')
    options = meddling({5: ['rename', out, other], 8: ['rename', other, out]})
    options['default_hooks.checkpoint.out_dir'] = out
    text = forks.run(
        train_and_kill, tmp_path / 'log', work=str(tmp_path / 'work'), killed=[9], **options
    )
    assert_one_save_failed(text, tmp_path / 'out/work', undisturbed, 'No such file')
    assert text.count('ended with exit code -9') == 1


@DATASETS.register_module()
class LeavingDataset(ToyDataset):
    """Dataset that ends the training while it loads iteration 7, when iteration 6 is being saved.

    Args:
        how: 'error' or 'exit'.
    """

    calls = 0

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def __getitem__(self, index: int) -> dict:
        self.calls += 1
        if self.calls == 13:
            print(json.dumps(os.listdir(os.environ['WRITER_STEPS'].removesuffix('.steps'))))
            print(MARK, flush=True)
            if self.how == 'exit':
                sys.exit(3)
            raise OSError('no such sample')
        return super().__getitem__(index)


def leave(work: str, how: str, **options: Any) -> None:
    with_writer(f'{work}.steps', delay=0.02)
    options |= {'train_dataloader.dataset.type': 'LeavingDataset'}
    options |= {'train_dataloader.dataset.how': 'exit' if how == 'exit' else 'error'}
    if how != 'caught':
        train(work, **options)
        return
    with contextlib.suppress(OSError):
        train(work, **options)


@pytest.mark.parametrize(('how', 'code'), [('error', 1), ('exit', 3), ('caught', 0)])
def test_save_in_progress_is_finished_when_the_training_fails(
    how: str, code: int, tmp_path: Path
) -> None:
    work = tmp_path / 'work'
    text = forks.run(leave, tmp_path / 'log', code, work=str(work), how=how, **meddling({}))
    then = json.loads(text[: text.index(MARK)].strip().splitlines()[-1])
    assert 'iter_6.pth' not in then
    assert marked(work).name == 'iter_6.pth'
    assert temporaries(work) == []


@pytest.mark.slow
def test_save_in_progress_is_finished_at_interpreter_exit(tmp_path: Path) -> None:
    work = tmp_path / 'work'
    code = (
        'from tests.test_checkpoint.test_failures import leave, meddling\n'
        f'leave({str(work)!r}, "caught", **meddling({{}}))\n'
    )
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert marked(work).name == 'iter_6.pth'
    assert temporaries(work) == []
