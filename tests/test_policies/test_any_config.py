"""Configs of many families of mmseg train by each policy on tiny data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from mmtempo.doctor.preflight import preflight
from mmtempo.policies import POLICIES, apply_policy, load_policy
from tests.testing.common import next_name
from tests.testing.mmseg_configs import SWIN, load, make_ade, make_cityscapes, with_bn

CONFIGS = {
    'FCN': 'fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024',
    'PSPNet': 'pspnet/pspnet_r18-d8_4xb2-80k_cityscapes-512x1024',
    'DeepLabV3+': 'deeplabv3plus/deeplabv3plus_r18-d8_4xb2-80k_cityscapes-512x1024',
    'UPerNet-Swin': f'swin/{SWIN}',
    'SegFormer': 'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512',
    'BiSeNetV2': 'bisenetv2/bisenetv2_fcn_4xb4-160k_cityscapes-1024x1024',
    'UNet': 'unet/unet-s5-d16_fcn_4xb4-160k_cityscapes-512x1024',
    'HRNet': 'hrnet/fcn_hr18s_4xb2-40k_cityscapes-512x1024',
    'STDC': 'stdc/stdc1_4xb12-80k_cityscapes-512x1024',
    'PIDNet': 'pidnet/pidnet-s_2xb6-120k_1024x1024-cityscapes',
    'DDRNet': 'ddrnet/ddrnet_23-slim_in1k-pre_2xb6-120k_cityscapes-1024x1024',
    # Mask2Former needs mmdet, which is not installed.
    'OCRNet': 'ocrnet/ocrnet_hr18s_4xb2-40k_cityscapes-512x1024',
}
SIZE = 64  # pixels of a crop
QUICK = ('balanced', 'grad_accum')  # with PSPNet; the others take minutes


@pytest.fixture(scope='session')
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp('seg')
    return dict(
        cityscapes=str(make_cityscapes(folder / 'cityscapes')), ade20k=str(make_ade(folder / 'ade'))
    )


def tiny(family: str, roots: dict[str, str], work: Path) -> Config:
    """Return a config with its model, small crops and a small data set."""
    name = CONFIGS[family]
    cfg = load(f'mmseg::{name}')
    root = roots['ade20k' if 'ade20k' in name else 'cityscapes']
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'].dataset.data_root = root
        cfg[f'{split}_dataloader'].update(num_workers=0, persistent_workers=False)
    cfg.train_dataloader.batch_size = min(cfg.train_dataloader.batch_size, 4)
    for step in cfg.train_dataloader.dataset.pipeline:
        if step.type == 'RandomResize':
            step.scale = (2 * SIZE, SIZE)
        elif step.type == 'RandomCrop':
            step.crop_size = (SIZE, SIZE)
    for step in cfg.val_dataloader.dataset.pipeline:
        if step.type == 'Resize':
            step.scale = (2 * SIZE, SIZE)
    cfg.model = with_bn(cfg.model.to_dict())
    cfg.model.data_preprocessor.size = (SIZE, SIZE)
    cfg.model.pretrained = None
    cfg.model.backbone.init_cfg = None
    if cfg.model.test_cfg.get('mode') == 'slide':
        cfg.model.test_cfg.update(crop_size=(SIZE, SIZE), stride=(SIZE, SIZE))
    cfg.train_cfg.update(max_iters=8, val_interval=8)
    cfg.work_dir, cfg.experiment_name = str(work), next_name()
    cfg.launcher, cfg.randomness = 'none', dict(seed=0)
    return cfg


def train_by(
    policy: str,
    family: str,
    roots: dict[str, str],
    work: Path,
    options: dict[str, bool] | None = None,
) -> None:
    cfg = tiny(family, roots, work)
    apply_policy(cfg, load_policy(policy, options), {'train_dataloader.num_workers': 0})
    cfg.train_cfg.update(max_iters=4, val_interval=4)
    cfg.default_hooks.checkpoint.interval = 4
    cfg.default_hooks.logger.interval = 1
    preflight(cfg)
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert runner.iter == 4
    assert all(bool(torch.isfinite(weight).all()) for weight in runner.model.parameters())
    assert (work / 'iter_4.pth').is_file()


@pytest.mark.parametrize('policy', QUICK)
def test_pspnet_trains_by_a_policy(policy: str, roots: dict[str, str], tmp_path: Path) -> None:
    train_by(policy, 'PSPNet', roots, tmp_path)


def test_weights_with_fast_transforms_equal_those_of_stock(
    roots: dict[str, str], tmp_path: Path
) -> None:
    weights = []
    for number in (0, 1):
        work = tmp_path / str(number)
        train_by('baseline', 'PSPNet', roots, work, {'tempo.data.fast_transforms': bool(number)})
        weights.append(torch.load(work / 'iter_4.pth', weights_only=False)['state_dict'])
    stock, ours = weights
    assert all(torch.equal(stock[name], ours[name]) for name in stock)


@pytest.mark.slow
@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('family', CONFIGS)
def test_each_family_trains_by_each_policy(
    family: str, policy: str, roots: dict[str, str], tmp_path: Path
) -> None:
    train_by(policy, family, roots, tmp_path)
