"""mmseg's own configs, across families, train by each policy on tiny data of their layout."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from mmtempo.doctor.preflight import preflight
from mmtempo.policies import POLICIES, apply_policy, load_policy
from tests.test_policies.test_drop_in import SWIN, load, with_bn
from tests.test_tools.test_train import make_cityscapes
from tests.testing.common import next_name

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
    # Mask2Former wants mmdet, which is not installed here.
    'OCRNet': 'ocrnet/ocrnet_hr18s_4xb2-40k_cityscapes-512x1024',
}
SIZE = 64  # of a crop
IN_CI = ('balanced', 'grad_accum')  # with PSPNet; the others take minutes


def make_ade(root: Path) -> Path:
    """Four images a split, labels from 1 to 150."""
    chance = np.random.default_rng(0)
    for split in ('training', 'validation'):
        for kind in ('images', 'annotations'):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        for number in range(4):
            image = chance.integers(0, 256, (96, 128, 3), dtype=np.uint8)
            label = np.repeat(chance.integers(0, 151, (12, 16), dtype=np.uint8), 8, 0).repeat(8, 1)
            cv2.imwrite(str(root / f'images/{split}/{number}.jpg'), image)
            cv2.imwrite(str(root / f'annotations/{split}/{number}.png'), label)
    return root


@pytest.fixture(scope='session')
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp('seg')
    return dict(
        cityscapes=str(make_cityscapes(folder / 'cityscapes')), ade20k=str(make_ade(folder / 'ade'))
    )


def tiny(family: str, roots: dict[str, str], work: Path) -> Config:
    """The config over little data, its crops small; the model is its own."""
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
    cfg.launcher = 'none'
    return cfg


def train_by(policy: str, family: str, roots: dict[str, str], work: Path) -> None:
    cfg = tiny(family, roots, work)
    apply_policy(cfg, load_policy(policy), {'train_dataloader.num_workers': 0})
    cfg.train_cfg.update(max_iters=4, val_interval=4)
    cfg.default_hooks.checkpoint.interval = 4
    cfg.default_hooks.logger.interval = 1
    preflight(cfg)
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert runner.iter == 4
    assert all(bool(torch.isfinite(one).all()) for one in runner.model.parameters())
    assert (work / 'iter_4.pth').is_file()


@pytest.mark.parametrize('policy', IN_CI)
def test_pspnet(policy: str, roots: dict[str, str], tmp_path: Path) -> None:
    train_by(policy, 'PSPNet', roots, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('family', CONFIGS)
def test_each_family(family: str, policy: str, roots: dict[str, str], tmp_path: Path) -> None:
    train_by(policy, family, roots, tmp_path)
