"""Stock transforms in the pipelines of a config are replaced by exact ones."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import cv2
import mmseg
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope
from mmseg.datasets.transforms import RandomCrop

from mmtempo.policies.apply import apply_policy
from mmtempo.policies.policy import load_policy
from mmtempo.policies.transforms import exchange_transforms
from tests.testing.mmseg_configs import PSPNET, load

DATA_SETS = sorted((Path(mmseg.__file__).parent / '.mim/configs/_base_/datasets').glob('*.py'))
ALL = (
    'LoadImageFromFile, LoadAnnotations, RandomCrop, RandomFlip, PhotoMetricDistortion',
    'FastLoadImageFromFile, FastLoadAnnotations, FastRandomCrop, FastRandomFlip, '
    'FastPhotoMetricDistortion',
)
# Pipelines of other files than an image and a map of labels: spectra, two images, depth.
OTHER_FILES = ('hsi_drive', 'levir_256x256', 'nyu', 'nyu_512x512')


def of_data_set(path: Path) -> Config:
    cfg = Config.fromfile(path)
    cfg.default_scope = 'mmseg'
    cfg.model = dict(data_preprocessor=dict(type='SparseSegDataPreProcessor'))
    return cfg


def pipeline_of(data_set: Any) -> list:
    """Return the pipeline of a data set or of the first one in a wrapper."""
    while 'pipeline' not in data_set:
        data_set = data_set['datasets'][0] if 'datasets' in data_set else data_set['dataset']
    return data_set['pipeline']


def files_of(folder: Path) -> dict:
    """Write an image and labels of 150 classes; return the keys of a sample."""
    rng = np.random.default_rng(0)
    image = cv2.resize(rng.integers(0, 256, (12, 16, 3), np.uint8), (160, 120))
    labels = rng.integers(0, 151, (12, 16), np.uint8).repeat(10, 0).repeat(10, 1)
    cv2.imwrite(str(folder / 'image.png'), image)
    cv2.imwrite(str(folder / 'labels.png'), labels)
    return dict(img_path=str(folder / 'image.png'), seg_map_path=str(folder / 'labels.png'))


def samples_of(pipeline: list, keys: dict) -> list[dict]:
    np.random.seed(5)
    with DefaultScope.overwrite_default_scope('mmseg'):
        composed = Compose(copy.deepcopy(pipeline))
    reduces = any(one.get('reduce_zero_label') for one in pipeline)
    rest = dict(label_map=None, reduce_zero_label=reduces, seg_fields=[], sample_idx=0)
    return [composed(dict(copy.deepcopy(rest), **keys)) for _ in range(3)]


def assert_equal(one: dict, other: dict) -> None:
    assert torch.equal(one['inputs'], other['inputs'])
    one, other = one['data_samples'], other['data_samples']
    assert one.metainfo == other.metainfo
    assert one.keys() == other.keys()
    assert torch.equal(one.gt_sem_seg.data, other.gt_sem_seg.data.long())


@pytest.mark.parametrize('path', DATA_SETS, ids=lambda path: path.stem)
def test_samples_of_mmseg_are_equal(path: Path, tmp_path: Path) -> None:
    cfg = of_data_set(path)
    before = copy.deepcopy(pipeline_of(cfg.train_dataloader.dataset))
    assert exchange_transforms(cfg)
    after = pipeline_of(cfg.train_dataloader.dataset)
    assert any(str(one['type']).startswith('Fast') for one in after)
    assert [{**one, 'type': ''} for one in before] == [{**one, 'type': ''} for one in after]
    if path.stem in OTHER_FILES:
        return
    keys = files_of(tmp_path)
    for one, other in zip(samples_of(before, keys), samples_of(after, keys), strict=True):
        assert_equal(one, other)


def test_change_names_both_sides() -> None:
    cfg = load(PSPNET)
    train, val, test = exchange_transforms(cfg)
    assert (train.key, train.before, train.after) == ('train_dataloader.dataset', *ALL)
    # Labels as bytes need our preprocessor, and evaluation packs as stock.
    assert val.after == test.after == 'FastLoadImageFromFile, FastLoadAnnotations'
    assert exchange_transforms(cfg) == []


def test_transforms_within_others_are_replaced() -> None:
    crop, flip = dict(type='RandomCrop', crop_size=8), dict(type='mmseg.RandomFlip', prob=0.5)
    choice = dict(
        type='RandomChoice', transforms=[[crop], [dict(type='Compose', transforms=[flip])]]
    )
    inner = dict(type='CityscapesDataset', pipeline=[choice])
    other = dict(type='CityscapesDataset', pipeline=[dict(type=RandomCrop, crop_size=8)])
    cfg = Config(dict(default_scope='mmseg', train_dataloader=dict(dataset=dict(
        type='RepeatDataset', times=2, dataset=dict(type='ConcatDataset', datasets=[inner, other])
    ))))  # fmt: skip
    (change,) = exchange_transforms(cfg)
    assert change.after == 'FastRandomCrop, FastRandomFlip'
    first, second = cfg.train_dataloader.dataset.dataset.datasets
    (first,) = first.pipeline
    assert first.transforms[0][0].type == 'FastRandomCrop'
    assert first.transforms[1][0].transforms[0].type == 'FastRandomFlip'
    assert second.pipeline[0].type == 'FastRandomCrop'


def test_types_of_others_and_options_are_kept() -> None:
    cfg = load(PSPNET)
    pipeline = cfg.train_dataloader.dataset.pipeline
    pipeline[3].type = 'mmdet.RandomCrop'
    key = 'train_dataloader.dataset.pipeline.0.type'
    exchange_transforms(cfg, keep=[key])
    assert pipeline[0].type == 'LoadImageFromFile'
    assert pipeline[3].type == 'mmdet.RandomCrop'
    assert pipeline[1].type == 'FastLoadAnnotations'


def test_policy_switches_it_on() -> None:
    for options in ({}, {'tempo.data.fast_transforms': True}):
        cfg = load(PSPNET)
        apply_policy(cfg, load_policy('balanced', options), options)
        assert (cfg.train_dataloader.dataset.pipeline[-1].type == 'FastPackSegInputs') == bool(
            options
        )


def test_wrong_value_is_refused() -> None:
    with pytest.raises(ValueError, match='tempo.data must be a dict of fast_transforms, which are'):
        load_policy('balanced', {'tempo.data.fast_transforms': 1})
