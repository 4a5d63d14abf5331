"""Configs as the flags of a tool change them, and errors for mistakes in the flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.optim import AmpOptimWrapper, OptimWrapper

from mmtempo.cli.config import (
    enable_amp,
    enable_auto_scale_lr,
    enable_pictures,
    enable_tta,
    keep_predictions,
    resolve_config_path,
)
from mmtempo.cli.run import LaunchError
from mmtempo.cli.runner import check_device
from mmtempo.optim import SparseOptimWrapper
from tests.testing.command_line import FCN, load
from tests.testing.common import MINI, ROOT
from tests.testing.mmseg_configs import PSPNET


def test_flags_override_the_config() -> None:
    cfg = load(str(MINI), '--work-dir', 'w', '--cfg-options', 'train_cfg.max_iters=7')
    assert cfg.work_dir == 'w'
    assert cfg.train_cfg.max_iters == 7
    assert load(str(MINI)).work_dir == f'work_dirs/{MINI.stem}'


@pytest.mark.parametrize('suffix', ['', '.py'])
def test_config_of_an_installed_package_is_found(suffix: str) -> None:
    cfg = load(f'{FCN}{suffix}')
    assert cfg.model.decode_head.type == 'FCNHead'
    assert cfg.work_dir == 'work_dirs/fcn_r18-d8_4xb2-80k_cityscapes-512x1024'


def test_config_of_mmtempo_is_found_by_package_name() -> None:
    path = resolve_config_path(f'mmtempo::lss_swin/{MINI.name}')
    assert Path(path).samefile(MINI)


def test_mistyped_path_suggests_the_right_one() -> None:
    wrong = str(MINI).replace('synthetic', 'syntetic')
    with pytest.raises(LaunchError, match=f'did you mean {MINI}'):
        resolve_config_path(wrong)
    with pytest.raises(LaunchError, match='folder configs/lss does not exist'):
        resolve_config_path('configs/lss/x.py')
    with pytest.raises(LaunchError, match="package 'mmnothing' is not installed"):
        resolve_config_path('mmnothing::x/y.py')


def test_mistyped_option_suggests_the_right_one(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(LaunchError, match='has no optim_wraper; did you mean optim_wrapper'):
        load(str(MINI), '--cfg-options', 'optim_wraper.optimizer.lr=1')
    load(str(MINI), '--cfg-options', 'optim_wrapper.optimizer.lrr=1')
    printed = ''.join(capsys.readouterr())
    assert 'so it is added; did you mean optim_wrapper.optimizer.lr?' in printed


@pytest.mark.parametrize(
    'option',
    [
        'randomness.seed=3',
        'find_unused_parameters=True',
        'compile=True',
        'optim_wrapper.clip_grad.max_norm=1',
        'train_pipeline.0.type=X',
    ],
)
def test_new_keys_with_an_effect_are_accepted(option: str) -> None:
    load(str(MINI), '--cfg-options', option)


def test_amp_replaces_the_wrapper_once() -> None:
    cfg = load(str(MINI))
    enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'SparseAmpOptimWrapper'
    assert cfg.optim_wrapper.loss_scale == 'dynamic'
    enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'SparseAmpOptimWrapper'
    cfg.optim_wrapper.type = 'MyWrapper'
    with pytest.raises(LaunchError, match='found MyWrapper'):
        enable_amp(cfg)


@pytest.mark.parametrize(
    ('kind', 'amp'),
    [
        (OptimWrapper, 'AmpOptimWrapper'),
        ('mmengine.OptimWrapper', 'AmpOptimWrapper'),
        ('mmengine.optim.OptimWrapper', 'AmpOptimWrapper'),
        (SparseOptimWrapper, 'SparseAmpOptimWrapper'),
        (AmpOptimWrapper, AmpOptimWrapper),
    ],
)
def test_amp_finds_the_wrapper_by_any_name(kind: Any, amp: Any) -> None:
    cfg = load(str(MINI))
    cfg.optim_wrapper.type = kind
    enable_amp(cfg)
    assert cfg.optim_wrapper.type == amp


@pytest.mark.parametrize('name', ['RANK', 'SLURM_PROCID'])
def test_only_the_first_process_prints_the_changes_of_zero_wait(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for rank, prints in (('0', True), ('1', False)):
        monkeypatch.setenv(name, rank)
        assert load_zero_wait().model.decode_head.type == 'SparseAccuracyHead'
        assert ('--zero-wait' in capsys.readouterr().err) is prints


def load_zero_wait(*words: str) -> Config:
    return load(PSPNET, '--zero-wait', *words)


def test_zero_wait_prints_its_changes_to_stderr(capsys: pytest.CaptureFixture) -> None:
    cfg = load_zero_wait()
    assert cfg.model.decode_head.type == 'SparseAccuracyHead'
    printed = capsys.readouterr()
    assert 'optim_wrapper: OptimWrapper -> SparseOptimWrapper' in printed.err
    assert printed.out == ''  # print_config.py writes the config to stdout
    assert load(PSPNET).model.decode_head.type == 'PSPHead'
    assert capsys.readouterr().err == ''


def test_options_take_precedence_over_zero_wait(capsys: pytest.CaptureFixture) -> None:
    cfg = load_zero_wait(
        '--cfg-options', 'model.decode_head.type=FCNHead', 'optim_wrapper.type=AmpOptimWrapper',
        'default_hooks.runtime_info.history_length=7', 'default_hooks.logger.interval=3',
    )  # fmt: skip
    assert cfg.model.decode_head.type == 'FCNHead'
    assert 'head' not in cfg.model.decode_head
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert cfg.model.auxiliary_head.type == 'SparseAccuracyHead'
    hooks = cfg.default_hooks
    assert hooks.runtime_info == dict(type='SparseRuntimeInfoHook', history_length=7)
    assert (hooks.logger.type, hooks.logger.interval) == ('SparseLoggerHook', 3)
    printed = capsys.readouterr().err
    assert 'model.decode_head: PSPHead is kept, because --cfg-options sets it' in printed
    assert 'so it is added' not in printed


def test_amp_after_zero_wait_runs_on_a_cpu() -> None:
    cfg = load_zero_wait()
    enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'SparseAmpOptimWrapper'
    enable_amp(cfg)
    check_device(cfg, training=True)


def test_auto_scale_lr_needs_a_base_batch_size() -> None:
    cfg = load(str(MINI))
    enable_auto_scale_lr(cfg)
    assert cfg.auto_scale_lr.enable
    with pytest.raises(LaunchError, match='auto_scale_lr.base_batch_size=N'):
        enable_auto_scale_lr(load(FCN))


def test_pictures_are_enabled_in_the_hook_of_the_config() -> None:
    cfg = load(str(MINI))
    enable_pictures(cfg, False, 'out', 2.0)
    assert cfg.default_hooks.visualization.draw
    assert cfg.default_hooks.visualization.out_dir == 'out'
    with pytest.raises(LaunchError, match='use --show-dir'):
        enable_pictures(cfg, True, None, 2.0)
    stock = load(FCN)
    enable_pictures(stock, True, 'out', 1.0)
    assert stock.visualizer.save_dir == 'out'
    assert stock.default_hooks.visualization.wait_time == 1.0
    stock.default_hooks.pop('visualization')
    with pytest.raises(LaunchError, match='need default_hooks.visualization'):
        enable_pictures(stock, True, None, 1.0)


def test_tta_and_out_need_stock_parts() -> None:
    stock = load(FCN)
    keep_predictions(stock, 'out')
    assert stock.test_evaluator.output_dir == 'out'
    enable_tta(stock)
    assert stock.model.type == 'SegTTAModel'
    with pytest.raises(LaunchError, match='--tta needs tta_model and tta_pipeline in the config'):
        enable_tta(load(str(MINI)))
    with pytest.raises(LaunchError, match='--out: test_evaluator must be a single IoUMetric'):
        keep_predictions(load(str(MINI)), 'out')


def test_root_of_the_tests_is_the_repository() -> None:
    assert (ROOT / 'tools/train.py').is_file()


def load_tempo(policy: str, *options: str) -> Config:
    return load(str(MINI), '--tempo', policy, '--cfg-options', *options)


def test_tempo_prints_its_changes(capsys: pytest.CaptureFixture) -> None:
    cfg = load_tempo('balanced', 'train_dataloader.num_workers=0')
    printed = capsys.readouterr().err
    assert printed.startswith('--tempo balanced changed:')
    assert 'train_dataloader.batch_size: 4 -> 6; 1.5 x the batch' in printed
    assert 'left alone:' in printed
    assert (cfg.train_dataloader.batch_size, cfg.train_dataloader.num_workers) == (6, 0)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['ballanced'], 'there is no such policy.*did you mean balanced'),
        (['balanced', 'tempo.lr=cubic'], r'tempo\.lr must be one of'),
        (['balanced', 'tran_cfg.max_iters=3'], 'did you mean train_cfg'),
    ],
)
def test_mistake_in_a_policy_is_a_launch_error(words: list[str], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        load_tempo(words[0], *(words[1:] or ['work_dir=w']))


def test_auto_scale_lr_counts_accumulation(capsys: pytest.CaptureFixture) -> None:
    cfg = load_tempo('grad_accum', 'train_dataloader.num_workers=0')
    assert cfg.auto_scale_lr.base_batch_size == 8
    enable_auto_scale_lr(cfg)
    # mmengine divides the 4 samples of a batch by it, so that one process keeps its rate.
    assert cfg.auto_scale_lr.base_batch_size == cfg.train_dataloader.batch_size == 4
    assert 'base_batch_size 8 -> 4, since an update accumulates 2' in capsys.readouterr().err
