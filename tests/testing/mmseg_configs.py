"""Configs of mmseg, and small data sets in the layouts that they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mmengine.config import Config

from mmtempo.cli.config import resolve_config_path
from tests.testing.common import next_name

PSPNET = 'mmseg::pspnet/pspnet_r18-d8_4xb2-80k_cityscapes-512x1024'
SWIN = 'swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512'


def load(name: str) -> Config:
    """Return a config by path or as `package::path`."""
    return Config.fromfile(resolve_config_path(name))


def make_cityscapes(root: Path, size: tuple[int, int] = (128, 64)) -> Path:
    """Write two training images and one validation image in the layout of Cityscapes."""
    rng = np.random.default_rng(0)
    for split, count in (('train', 2), ('val', 1)):
        for i in range(count):
            for folder, suffix, high, channels in (
                ('leftImg8bit', 'leftImg8bit', 256, 3),
                ('gtFine', 'gtFine_labelTrainIds', 19, 1),
            ):
                path = root / folder / split / 'town' / f'town_{i:06d}_000019_{suffix}.png'
                path.parent.mkdir(parents=True, exist_ok=True)
                cv2.imwrite(str(path), rng.integers(0, high, (*size[::-1], channels), np.uint8))
    return root


def make_ade(root: Path) -> Path:
    """Write four images per split in the layout of ADE20K, with labels from 0 to 150."""
    rng = np.random.default_rng(0)
    for split in ('training', 'validation'):
        for kind in ('images', 'annotations'):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        for number in range(4):
            image = rng.integers(0, 256, (96, 128, 3), dtype=np.uint8)
            label = np.repeat(rng.integers(0, 151, (12, 16), dtype=np.uint8), 8, 0).repeat(8, 1)
            cv2.imwrite(str(root / f'images/{split}/{number}.jpg'), image)
            cv2.imwrite(str(root / f'annotations/{split}/{number}.png'), label)
    return root


def pspnet(tmp_path: Path) -> Config:
    """Return mmseg's PSPNet on small images of Cityscapes, for training on a CPU."""
    cfg = load(PSPNET)
    root = str(make_cityscapes(tmp_path / 'cityscapes'))
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        loader.dataset.data_root = root
    pipeline = cfg.train_dataloader.dataset.pipeline
    pipeline[2].scale, pipeline[3].crop_size = (128, 64), (64, 64)
    cfg.model.data_preprocessor.size = (64, 64)
    cfg.model.pretrained = None
    cfg.model.backbone.norm_cfg.type = 'BN'
    cfg.work_dir, cfg.experiment_name = str(tmp_path / 'work'), next_name()
    cfg.launcher = 'none'
    return cfg


def with_bn(node: Any) -> Any:
    """Return a part of a config with BN in place of SyncBN, which works on GPUs only."""
    if isinstance(node, dict):
        return {key: with_bn(value) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return type(node)(map(with_bn, node))
    return 'BN' if node == 'SyncBN' else node
