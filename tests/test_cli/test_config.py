"""What a command line becomes, and what each mistake in it is answered with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import AmpOptimWrapper, OptimWrapper

from mmtempo.cli import config as launch
from mmtempo.optim import SparseOptimWrapper
from tests.testing.common import MINI, ROOT


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    launch.add_common_arguments(parser)
    return parser.parse_args(list(words))


def load(*words: str) -> Config:
    return launch.load_config(parse(*words))


def test_flags_override_the_config() -> None:
    cfg = load(str(MINI), '--work-dir', 'w', '--cfg-options', 'train_cfg.max_iters=7')
    assert cfg.work_dir == 'w'
    assert cfg.train_cfg.max_iters == 7
    assert load(str(MINI)).work_dir == f'work_dirs/{MINI.stem}'


@pytest.mark.parametrize('suffix', ['', '.py'])
def test_configs_of_installed_packages(suffix: str) -> None:
    cfg = load(f'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024{suffix}')
    assert cfg.model.decode_head.type == 'FCNHead'
    assert cfg.work_dir == 'work_dirs/fcn_r18-d8_4xb2-80k_cityscapes-512x1024'


def test_our_own_configs_by_package_name() -> None:
    path = launch.resolve_config_path(f'mmtempo::lss_swin/{MINI.name}')
    assert Path(path).samefile(MINI)


def test_mistyped_path_suggests_the_right_one() -> None:
    wrong = str(MINI).replace('synthetic', 'syntetic')
    with pytest.raises(launch.LaunchError, match=f'did you mean {MINI}'):
        launch.resolve_config_path(wrong)
    with pytest.raises(launch.LaunchError, match='folder configs/lss does not exist'):
        launch.resolve_config_path('configs/lss/x.py')
    with pytest.raises(launch.LaunchError, match="no installed package 'mmnothing'"):
        launch.resolve_config_path('mmnothing::x/y.py')


def test_mistyped_option_suggests_the_right_one(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(launch.LaunchError, match='has no optim_wraper; did you mean optim_wrapper'):
        load(str(MINI), '--cfg-options', 'optim_wraper.optimizer.lr=1')
    load(str(MINI), '--cfg-options', 'optim_wrapper.optimizer.lrr=1')
    said = ''.join(capsys.readouterr())
    assert 'so it is added; did you mean optim_wrapper.optimizer.lr?' in said


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
def test_new_keys_that_mean_something_pass(option: str) -> None:
    load(str(MINI), '--cfg-options', option)


def test_option_without_a_value(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        parse(str(MINI), '--cfg-options', 'train_cfg.max_iters')
    assert '--cfg-options train_cfg.max_iters: expected KEY=VALUE' in capsys.readouterr().err


def test_amp_without_gpu() -> None:
    cfg = load(str(MINI))
    launch.enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'SparseAmpOptimWrapper'
    assert cfg.optim_wrapper.loss_scale == 'dynamic'
    launch.enable_amp(cfg)  # twice is once
    launch.check_device(cfg, training=True)  # ours computes in bfloat16 there
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    with pytest.raises(
        launch.LaunchError, match='needs a GPU(.|\n)*SparseAmpOptimWrapper, computes in bfl'
    ):
        launch.check_device(cfg, training=True)
    launch.check_device(cfg, training=False)  # testing builds no optimizer
    cfg.optim_wrapper.type = 'mmengine.AmpOptimWrapper'
    with pytest.raises(launch.LaunchError, match='needs a GPU'):
        launch.check_device(cfg, training=True)
    cfg.optim_wrapper.type = 'MyWrapper'
    with pytest.raises(launch.LaunchError, match='found MyWrapper'):
        launch.enable_amp(cfg)


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
def test_amp_knows_the_class(kind: Any, amp: Any) -> None:
    cfg = load(str(MINI))
    cfg.optim_wrapper.type = kind
    launch.enable_amp(cfg)
    assert cfg.optim_wrapper.type == amp


@pytest.mark.parametrize('name', ['RANK', 'SLURM_PROCID'])
def test_one_process_says_what_zero_wait_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for rank, says in (('0', True), ('1', False)):
        monkeypatch.setenv(name, rank)
        assert load_zero_wait().model.decode_head.type == 'SparseAccuracyHead'
        assert ('--zero-wait' in capsys.readouterr().err) is says


PSPNET = 'mmseg::pspnet/pspnet_r18-d8_4xb2-80k_cityscapes-512x1024'


def load_zero_wait(*words: str) -> Config:
    parser = argparse.ArgumentParser()
    launch.add_common_arguments(parser)
    launch.add_overlays(parser)
    return launch.load_config(parser.parse_args([PSPNET, '--zero-wait', *words]))


def test_zero_wait(capsys: pytest.CaptureFixture) -> None:
    cfg = load_zero_wait()
    assert cfg.model.decode_head.type == 'SparseAccuracyHead'
    said = capsys.readouterr()
    assert 'optim_wrapper: OptimWrapper -> SparseOptimWrapper' in said.err
    assert said.out == ''  # print_config.py may go to a file
    assert load(PSPNET).model.decode_head.type == 'PSPHead'
    assert capsys.readouterr().err == ''


def test_options_win_over_zero_wait(capsys: pytest.CaptureFixture) -> None:
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
    said = capsys.readouterr().err
    assert 'model.decode_head: PSPHead is kept as --cfg-options has it' in said
    assert 'so it is added' not in said


def test_amp_without_waits() -> None:
    cfg = load_zero_wait()
    launch.enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'SparseAmpOptimWrapper'
    launch.enable_amp(cfg)
    launch.check_device(cfg, training=True)  # on a CPU it is slow, but works


def test_auto_scale_lr() -> None:
    cfg = load(str(MINI))
    launch.enable_auto_scale_lr(cfg)
    assert cfg.auto_scale_lr.enable
    with pytest.raises(launch.LaunchError, match='auto_scale_lr.base_batch_size=N'):
        launch.enable_auto_scale_lr(load('mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024'))


@pytest.mark.parametrize('launcher', ['slurm', 'mpi'])
def test_launchers_that_need_gpus(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = load(str(MINI), '--launcher', launcher)
    with pytest.raises(launch.LaunchError, match='not set'):
        launch.check_device(cfg, training=True)
    for name in launch.LAUNCHER_NEEDS[launcher]:
        monkeypatch.setenv(name, '1')
    with pytest.raises(launch.LaunchError, match=f'--launcher {launcher} needs a GPU'):
        launch.check_device(cfg, training=True)


@pytest.mark.parametrize(
    ('resume', 'expected'),
    [(None, (False, None)), ('auto', (True, None)), ('a.pth', (True, 'a.pth'))],
)
def test_resume(resume: str | None, expected: tuple) -> None:
    cfg = load(str(MINI))
    launch.set_resume(cfg, resume)
    assert (cfg.resume, cfg.load_from) == expected


def test_resume_takes_the_newest_that_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = load(str(MINI))
    cfg.work_dir = str(tmp_path)
    for iteration in (1, 2, 3):
        torch.save(
            dict(meta=dict(iter=iteration), message_hub={}), tmp_path / f'iter_{iteration}.pth'
        )
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_3.pth'))
    launch.set_resume(cfg, 'auto')
    assert cfg.load_from is None  # as stock finds it
    damaged = tmp_path / 'iter_3.pth'
    damaged.write_bytes(damaged.read_bytes()[:-9])
    launch.set_resume(cfg, 'auto')
    assert cfg.load_from == str(tmp_path / 'iter_2.pth')
    said = capsys.readouterr().err
    assert 'iter_3.pth: it is not a complete zip file' in said
    assert 'iter_2.pth is whole' in said


def test_pictures() -> None:
    cfg = load(str(MINI))
    launch.enable_pictures(cfg, False, 'out', 2.0)
    assert cfg.default_hooks.visualization.draw
    assert cfg.default_hooks.visualization.out_dir == 'out'
    with pytest.raises(launch.LaunchError, match='use --show-dir'):
        launch.enable_pictures(cfg, True, None, 2.0)
    stock = load('mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024')
    launch.enable_pictures(stock, True, 'out', 1.0)
    assert stock.visualizer.save_dir == 'out'
    assert stock.default_hooks.visualization.wait_time == 1.0
    stock.default_hooks.pop('visualization')
    with pytest.raises(launch.LaunchError, match='need default_hooks.visualization'):
        launch.enable_pictures(stock, True, None, 1.0)


def test_tta_and_out() -> None:
    stock = load('mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024')
    launch.keep_predictions(stock, 'out')
    assert stock.test_evaluator.output_dir == 'out'
    launch.enable_tta(stock)
    assert stock.model.type == 'SegTTAModel'
    with pytest.raises(launch.LaunchError, match='--tta needs'):
        launch.enable_tta(load(str(MINI)))
    with pytest.raises(launch.LaunchError, match='--out works with'):
        launch.keep_predictions(load(str(MINI)), 'out')


def test_launcher_without_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('RANK', raising=False)
    cfg = load(str(MINI), '--launcher', 'pytorch')
    with pytest.raises(launch.LaunchError, match=r'RANK, .*not set; start it with'):
        launch.check_device(cfg, training=True)


def test_repository_root_is_what_the_tests_think() -> None:
    assert (ROOT / 'tools/train.py').is_file()


def followed(policy: str, *options: str) -> Config:
    parser = argparse.ArgumentParser()
    launch.add_common_arguments(parser)
    launch.add_overlays(parser)
    words = [str(MINI), '--tempo', policy, '--cfg-options', *options]
    return launch.load_config(parser.parse_args(words))


def test_tempo_says_what_it_changes(capsys: pytest.CaptureFixture) -> None:
    cfg = followed('balanced', 'train_dataloader.num_workers=0')
    told = capsys.readouterr().err
    assert told.startswith('--tempo balanced changed:')
    assert 'train_dataloader.batch_size: 4 -> 6; 1.5 x the batch' in told
    assert 'left alone:' in told
    assert (cfg.train_dataloader.batch_size, cfg.train_dataloader.num_workers) == (6, 0)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['ballanced'], 'there is no such policy.*did you mean balanced'),
        (['balanced', 'tempo.lr=cubic'], r'tempo\.lr must be one of'),
        (['balanced', 'tran_cfg.max_iters=3'], 'did you mean train_cfg'),
    ],
)
def test_policies_that_cannot_be(words: list[str], message: str) -> None:
    with pytest.raises(launch.LaunchError, match=message):
        followed(words[0], *(words[1:] or ['work_dir=w']))


def test_auto_scale_lr_counts_accumulation(capsys: pytest.CaptureFixture) -> None:
    cfg = followed('grad_accum', 'train_dataloader.num_workers=0')
    assert cfg.auto_scale_lr.base_batch_size == 8
    launch.enable_auto_scale_lr(cfg)
    # What mmengine divides the 4 samples of a batch by: one card is what the rate is for.
    assert cfg.auto_scale_lr.base_batch_size == cfg.train_dataloader.batch_size == 4
    assert '2 batches make an update' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('has_it', 'options', 'kind'),
    [
        (False, [], 'SparseOptimWrapper'),
        (True, [], 'SparseAmpOptimWrapper'),
        (None, [], 'SparseAmpOptimWrapper'),
        (False, ['optim_wrapper.dtype=bfloat16'], 'SparseAmpOptimWrapper'),
    ],
)
def test_half_precision_is_not_emulated_for_a_policy(
    has_it: bool | None, options: list[str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, 'cpu_has_bfloat16', lambda: has_it)
    cfg = followed('balanced', 'train_dataloader.num_workers=0', *options)
    launch.check_device(cfg, training=True)
    assert cfg.optim_wrapper.type == kind
    assert ('loss_scale' in cfg.optim_wrapper) == (kind == 'SparseAmpOptimWrapper')
