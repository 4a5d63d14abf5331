"""Disk space, leftovers of a crash, and trainings that are saved as stock saves them."""

from __future__ import annotations

import fcntl
import shutil
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import LocalBackend
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmtempo.checkpoint import directory as folder
from mmtempo.checkpoint.io.writer_process import temporary_of
from mmtempo.utils import units
from tests.testing import saving

Usage = namedtuple('Usage', 'total used free')


def built(work: Path, **options: Any) -> Runner:
    """Return a runner that is about to train."""
    cfg = saving.saving(work, **options)
    runner = Runner.from_cfg(cfg)
    runner._train_loop = runner.build_train_loop(runner._train_loop)
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    return runner


def hook_of(runner: Runner) -> Any:
    return next(hook for hook in runner.hooks if type(hook).__name__ == 'AsyncCheckpointHook')


def log_of(runner: Runner) -> str:
    return '\n'.join(path.read_text() for path in Path(runner.work_dir).rglob('*.log'))


@pytest.mark.parametrize(
    ('options', 'files'),
    [
        ({}, 2 + 1 + 1),  # kept, best, and the one being written
        ({'save_best': None}, 2 + 1),
        ({'save_best': ['score', 'other'], 'rule': 'greater'}, 2 + 2 + 1),
        ({'max_keep_ckpts': -1}, 8 + 1),  # 24 iterations, every third
        ({'max_keep_ckpts': -1, 'interval': -1}, 1 + 1),  # the last one only
    ],
)
def test_expected_disk_space_is_that_of_kept_files_plus_one(
    options: dict, files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {f'default_hooks.checkpoint.{key}': value for key, value in options.items()}
    runner = built(tmp_path / 'work', **options)
    hook = hook_of(runner)
    hook.out_dir = str(tmp_path / 'out')
    size = folder.expected_size(runner, True)
    # Weights, their statistics, and the momentum of the weights.
    weights = sum(value.nbytes for value in runner.model.parameters())
    assert size == sum(value.nbytes for value in runner.model.state_dict().values()) + weights
    for free, is_enough in ((files * size, True), (files * size - 1, False)):
        monkeypatch.setattr(shutil, 'disk_usage', lambda path, free=free: Usage(free, 0, free))
        folder.prepare(runner, hook)
        warns = f'{tmp_path}/out: {files} checkpoints of about {units.size(size)} exceed' in (
            log_of(runner)
        )
        assert warns is not is_enough


def test_existing_files_need_no_further_disk_space(tmp_path: Path) -> None:
    runner = built(tmp_path / 'work')
    hook = hook_of(runner)
    hook.out_dir = runner.work_dir
    for number, expected in enumerate([4, 3, 2, 1, 1]):
        assert folder._number_of_files(runner, hook) == expected
        (tmp_path / f'work/iter_{number}.pth').touch()


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    runner = built(tmp_path / 'work')
    hook = hook_of(runner)
    hook.out_dir = str(tmp_path / 'out')
    (tmp_path / 'out').mkdir()
    left = [
        temporary_of(f'{tmp_path}/{name}') for name in ('out/iter_3.pth', 'work/last_checkpoint')
    ]
    others = [
        f'{tmp_path}/out/{name}' for name in ('iter_3.pth', '.iter_3.pth.tmp', 'my.mmtempo-tmp')
    ]
    for name in left + others:
        Path(name).touch()
    folder.prepare(runner, hook)
    assert not [name for name in left if Path(name).exists()]
    assert all(Path(name).exists() for name in others)
    for name in left:
        assert f'removed leftovers of an interrupted save: {Path(name).name}' in log_of(runner)


def trained(work: Path, length: int, resume: bool = False, **options: Any) -> str:
    """Train, and return the log of this training."""
    options = {'train_cfg.max_iters': length, 'resume': resume} | options
    runner = Runner.from_cfg(saving.saving(work, **options))
    runner.train()
    return log_of(runner)


class Blocked(Hook):
    """Hook that keeps a file locked, as a killed writer that its disk blocks, until iteration 2."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open('w')
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter == 1:
            assert self.path.exists()
            self._file.close()


def test_leftover_of_a_writer_that_ends_late_is_removed_at_the_end(tmp_path: Path) -> None:
    runner = Runner.from_cfg(saving.saving(tmp_path / 'work', **{'train_cfg.max_iters': 3}))
    left = Path(temporary_of(f'{tmp_path}/work/iter_3.pth'))
    runner.register_hook(Blocked(left))
    runner.train()
    assert not left.exists()
    assert f'removed leftovers of an interrupted save: {left.name}' in log_of(runner)


def test_only_files_that_retention_had_selected_are_removed(tmp_path: Path) -> None:
    work = tmp_path / 'work'
    trained(work, 3)
    for name in ('iter_3.pth', 'iter_3_mine.pth', 'iter_03.pth'):
        shutil.copy(work / 'iter_3.pth', tmp_path / name)
    trained(work, 9, resume=True)
    assert saving.steps(work) == [6, 9]
    # As after a kill between marker and removal, with copies and files of other origin.
    for path in tmp_path.glob('*.pth'):
        shutil.copy(path, work)
    shutil.copy(work / 'iter_9.pth', work / 'iter_1.pth')  # retention has not selected it
    torch.save({}, work / 'iter_2.pth')
    shutil.copy(tmp_path / 'iter_3.pth', work / 'iter_30.pth')  # newer than all that are kept
    before = set(saving.files(work))
    log = trained(work, 10, resume=True)
    assert f'{work}/iter_3.pth: removed, since an interrupted save left more than' in log
    # The new file, and the one that it replaces.
    assert set(saving.files(work)) == before - {'iter_3.pth', 'iter_6.pth'} | {'iter_10.pth'}


def test_warning_names_checkpoints_of_an_earlier_training(tmp_path: Path) -> None:
    work = tmp_path / 'work'
    says = 'found 3 checkpoints of an earlier training (iter_3.pth, iter_6.pth, iter_9.pth); this'
    keep_all = {'default_hooks.checkpoint.max_keep_ckpts': -1}
    assert 'of an earlier training' not in trained(work, 9, **keep_all)
    assert 'of an earlier training' not in trained(work, 9, resume=True, **keep_all)
    assert f'{work}: {says}' in trained(work, 3, **keep_all)
    assert saving.steps(work) == [3, 6, 9]


@pytest.mark.parametrize(
    ('out_dir', 'expected'), [(None, '{work}'), ('{work}', '{work}'), ('{out}', '{out}/work')]
)
def test_folder_is_that_of_stock(out_dir: Any, expected: str, tmp_path: Path) -> None:
    places = dict(work=tmp_path / 'work', out=tmp_path / 'out')
    out_dir = out_dir and out_dir.format(**places)
    options = {'default_hooks.checkpoint.out_dir': out_dir, 'train_cfg.max_iters': 3}
    cfg = saving.saving(tmp_path / 'work', **options)
    runner = Runner.from_cfg(cfg)
    assert folder.resolved(runner, out_dir) == expected.format(**places)
    runner.train()
    assert hook_of(runner).out_dir == expected.format(**places)
    assert (Path(expected.format(**places)) / 'iter_3.pth').is_file()


@pytest.mark.parametrize('template', ['latest.pth', '{}/model.pth', 'sub/latest.pth'])
def test_templates_without_a_number_match_no_file(template: str, tmp_path: Path) -> None:
    """Stock allows one file that each save replaces, or a folder for each save."""
    options = {'default_hooks.checkpoint.filename_tmpl': template}
    runner = built(tmp_path / 'work', **options)
    hook = hook_of(runner)
    hook.out_dir = str(tmp_path / 'out')
    hook.save_best = []
    folder.prepare(runner, hook)
    assert folder._steps(hook) == {}


@pytest.mark.parametrize(
    ('template', 'names'),
    [
        ('latest.pth', ['latest.pth']),
        ('{}/model.pth', ['3/model.pth', '6/model.pth']),
        ('at/{}.pth', ['at/3.pth', 'at/6.pth']),
    ],
)
def test_files_have_the_names_of_stock(template: str, names: list, tmp_path: Path) -> None:
    """Save one file that each save replaces, or files in subfolders."""
    for kind in ('CheckpointHook', 'AsyncCheckpointHook'):
        work = tmp_path / kind / 'work'
        options = dict(type=kind, filename_tmpl=template, max_keep_ckpts=-1, save_best=None)
        options = {f'default_hooks.checkpoint.{key}': value for key, value in options.items()}
        saving.train(str(work), **{'train_cfg.max_iters': 6}, **options)
        found = sorted(path.relative_to(work).as_posix() for path in work.rglob('*.pth'))
        assert found == names, kind
        assert saving.state(saving.marked(work))['meta']['iter'] == 6
        assert not (work / '{}').exists()


def test_folder_that_cannot_be_created_fails_at_the_start(tmp_path: Path) -> None:
    (tmp_path / 'out').write_text('no folder')
    cfg = saving.saving(
        tmp_path / 'work', **{'default_hooks.checkpoint.out_dir': str(tmp_path / 'out')}
    )
    with pytest.raises(OSError, match='out'):
        Runner.from_cfg(cfg).train()


class OwnRunner(Runner):
    """Runner with another `save_checkpoint`."""

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super().save_checkpoint(*args, **kwargs)


def test_other_runners_are_saved_as_stock_does(tmp_path: Path) -> None:
    cfg: Config = saving.saving(tmp_path / 'work', **{'train_cfg.max_iters': 6})
    runner = OwnRunner.from_cfg(cfg)
    runner.train()
    reason = 'OwnRunner does not save with Runner.save_checkpoint'
    assert f'{reason}; checkpoints are saved as CheckpointHook does' in log_of(runner)
    assert saving.marked(tmp_path / 'work').name == 'iter_6.pth'


class Sharded(torch.nn.Module):
    pass


def test_reasons_to_save_as_stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = built(tmp_path / 'work')
    backend = LocalBackend()
    assert folder.why_stock(runner, backend) is None
    assert folder.why_stock(runner, object()) == ('the folder is not local (file backend object)')
    optimizer = runner.optim_wrapper.optimizer
    runner.optim_wrapper.optimizer = SimpleNamespace()
    assert folder.why_stock(runner, backend) == ('SimpleNamespace has no register_step_pre_hook')
    runner.optim_wrapper.optimizer = optimizer
    runner.model = Sharded()
    monkeypatch.setattr(folder, 'is_model_wrapper', lambda model: True)
    assert folder.why_stock(runner, backend) == 'Sharded may hold only a part of the model'
