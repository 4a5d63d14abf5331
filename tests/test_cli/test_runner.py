"""Checks of the device, resuming, and the Runner that is built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import RUNNERS

from mmtempo.cli import runner
from mmtempo.cli.config import enable_amp
from mmtempo.cli.run import LaunchError
from mmtempo.cli.runner import (
    LAUNCHER_NEEDS,
    build_runner,
    check_device,
    lock_folders,
    prefer_float32_on_cpu,
    set_resume,
)
from mmtempo.system.folder_lock import FolderInUseError
from tests.testing.command_line import load
from tests.testing.common import MINI


def test_stock_mixed_precision_needs_a_gpu() -> None:
    cfg = load(str(MINI))
    enable_amp(cfg)
    check_device(cfg, training=True)  # SparseAmpOptimWrapper computes in bfloat16
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    with pytest.raises(
        LaunchError, match='needs a GPU(.|\n)*SparseAmpOptimWrapper, computes in bfl'
    ):
        check_device(cfg, training=True)
    check_device(cfg, training=False)  # testing builds no optimizer
    cfg.optim_wrapper.type = 'mmengine.AmpOptimWrapper'
    with pytest.raises(LaunchError, match='needs a GPU'):
        check_device(cfg, training=True)


@pytest.mark.parametrize('launcher', ['slurm', 'mpi'])
def test_launcher_for_gpus_is_an_error_without_one(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = load(str(MINI), '--launcher', launcher)
    with pytest.raises(LaunchError, match='not set'):
        check_device(cfg, training=True)
    for name in LAUNCHER_NEEDS[launcher]:
        monkeypatch.setenv(name, '1')
    with pytest.raises(LaunchError, match=f'--launcher {launcher} needs a GPU'):
        check_device(cfg, training=True)


def test_launcher_without_its_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('RANK', raising=False)
    cfg = load(str(MINI), '--launcher', 'pytorch')
    with pytest.raises(LaunchError, match=r'RANK, .*not set; start it with'):
        check_device(cfg, training=True)


@pytest.mark.parametrize(
    ('has_bfloat16', 'options', 'kind'),
    [
        (False, [], 'SparseOptimWrapper'),
        (True, [], 'SparseAmpOptimWrapper'),
        (None, [], 'SparseAmpOptimWrapper'),
        (False, ['optim_wrapper.dtype=bfloat16'], 'SparseAmpOptimWrapper'),
    ],
)
def test_policy_does_not_emulate_bfloat16(
    has_bfloat16: bool | None,
    options: list[str],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(runner, 'cpu_has_bfloat16', lambda: has_bfloat16)
    options = ['train_dataloader.num_workers=0', *options]
    cfg = load(str(MINI), '--tempo', 'balanced', '--cfg-options', *options)
    capsys.readouterr()
    before = cfg.to_dict()
    check_device(cfg, training=True)
    assert cfg.to_dict() == before
    prefer_float32_on_cpu(cfg)
    assert cfg.optim_wrapper.type == kind
    assert ('loss_scale' in cfg.optim_wrapper) == (kind == 'SparseAmpOptimWrapper')
    printed = capsys.readouterr().err
    assert ('SparseAmpOptimWrapper -> SparseOptimWrapper' in printed) == (cfg.to_dict() != before)


def test_mixed_precision_without_a_policy_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, 'cpu_has_bfloat16', lambda: False)
    cfg = load(str(MINI))
    enable_amp(cfg)
    prefer_float32_on_cpu(cfg)
    assert cfg.optim_wrapper.type == 'SparseAmpOptimWrapper'


def test_mixed_precision_stays_with_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, 'cpu_has_bfloat16', lambda: False)
    monkeypatch.setattr(runner, 'has_accelerator', lambda: True)
    cfg = load(str(MINI), '--tempo', 'balanced')
    prefer_float32_on_cpu(cfg)
    assert cfg.optim_wrapper.type == 'SparseAmpOptimWrapper'


@pytest.mark.parametrize(
    ('resume', 'expected'),
    [(None, (False, None)), ('auto', (True, None)), ('a.pth', (True, 'a.pth'))],
)
def test_resume_sets_the_keys_of_the_runner(resume: str | None, expected: tuple) -> None:
    cfg = load(str(MINI))
    set_resume(cfg, resume)
    assert (cfg.resume, cfg.load_from) == expected


def test_resume_takes_the_newest_checkpoint_that_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = load(str(MINI))
    cfg.work_dir = str(tmp_path)
    for iteration in (1, 2, 3):
        torch.save(
            dict(meta=dict(iter=iteration), message_hub={}), tmp_path / f'iter_{iteration}.pth'
        )
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_3.pth'))
    set_resume(cfg, 'auto')
    assert cfg.load_from is None  # stock finds it by the marker
    damaged = tmp_path / 'iter_3.pth'
    damaged.write_bytes(damaged.read_bytes()[:-9])
    set_resume(cfg, 'auto')
    assert cfg.load_from == str(tmp_path / 'iter_2.pth')
    printed = capsys.readouterr().err
    assert 'iter_3.pth: it is not a complete zip file' in printed
    assert f'using {tmp_path}/iter_2.pth, the newest checkpoint that is whole' in printed


def test_first_process_locks_the_folders_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = load(str(MINI), '--work-dir', str(tmp_path / 'work'), '--launcher', 'pytorch')
    for rank, locks in (('1', False), ('0', True)):
        monkeypatch.setenv('RANK', rank)
        with lock_folders(cfg):
            assert (tmp_path / 'work/.mmtempo-lock').is_file() == locks
    assert not (tmp_path / 'work/.mmtempo-lock').exists()


def test_folder_in_use_is_a_launch_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folders: list[str]) -> None:
        raise FolderInUseError(f'{folders[0]} is in use')

    monkeypatch.setattr(runner, 'FolderLock', refuse)
    with pytest.raises(LaunchError, match=f'{tmp_path} is in use'):
        lock_folders(load(str(MINI), '--work-dir', str(tmp_path)))


class OtherRunner:
    """Runner of another package."""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg

    @classmethod
    def from_cfg(cls, cfg: Config) -> OtherRunner:
        return cls(cfg)


def test_runner_type_of_the_config_is_built() -> None:
    cfg = load(str(MINI))
    cfg.runner_type = 'OtherRunner'
    RUNNERS.register_module(module=OtherRunner)
    try:
        assert isinstance(build_runner(cfg), OtherRunner)
    finally:
        RUNNERS.module_dict.pop('OtherRunner')
