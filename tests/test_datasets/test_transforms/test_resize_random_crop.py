"""A resize of the crop equals a crop of the resized image."""

from __future__ import annotations

from typing import Any

import mmcv.transforms
import numpy as np
import pytest
from mmcv.transforms import Compose
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import RandomCrop

from mmtempo.datasets.transforms.resize_random_crop import ResizeRandomCrop
from tests.testing.transforms_against_stock import read_only, run, same, sample

SIZE = dict(width=320, height=180)


def both(resize: dict, crop: dict) -> tuple[Any, Any]:
    stock = Compose(
        [
            {**resize, 'type': getattr(mmcv.transforms, resize['type'])},
            dict(type=RandomCrop, **crop),
        ]
    )
    return ResizeRandomCrop(resize, crop), stock


CROP = dict(crop_size=(64, 96), cat_max_ratio=0.3)


@pytest.mark.parametrize(
    'resize',
    [
        dict(type='Resize', scale=(160, 120)),
        dict(type='Resize', scale=(160, 120), keep_ratio=True),
        dict(type='Resize', scale=(640, 360)),
        dict(type='Resize', scale=(320, 180)),
        dict(type='Resize', scale_factor=0.75),
        dict(type='Resize', scale=(80, 60)),  # the crop is larger
    ],
)
def test_result_equals_stock_on_pixel_boundaries(resize: dict) -> None:
    ours, stock = both(resize, CROP)
    for seed in range(8):
        results = read_only(sample(seed, **SIZE))
        same(run(ours, results, seed), run(stock, results, seed))


@pytest.mark.parametrize(
    'resize',
    [
        dict(type='RandomResize', scale=(320, 180), ratio_range=(0.5, 2.0), keep_ratio=True),
        dict(type='RandomResize', scale=(320, 180), ratio_range=(0.5, 2.0)),
        dict(type='RandomResize', scale=[(200, 100), (500, 400)]),
        dict(type='RandomChoiceResize', scales=[(170, 99), (333, 333)], keep_ratio=True),
    ],
)
def test_result_is_close_to_stock_elsewhere(resize: dict) -> None:
    ours, stock = both(resize, CROP)
    for seed in range(16):
        results = sample(seed, **SIZE)
        mine, theirs = run(ours, results, seed), run(stock, results, seed)
        error = np.abs(mine.pop('img').astype(int) - theirs.pop('img'))
        assert error.max() <= 5
        assert error.mean() < 0.2
        same(mine, theirs)


def test_images_without_labels_equal_stock() -> None:
    ours, stock = both(dict(type='Resize', scale=(160, 120)), dict(crop_size=(64, 96)))
    results = sample(**SIZE)
    del results['gt_seg_map'], results['seg_fields']
    same(run(ours, results, 0), run(stock, results, 0))


@pytest.mark.parametrize(
    ('resize', 'says'),
    [
        (dict(type='Resize', scale=(9, 9), interpolation='nearest'), "found 'nearest' and 'cv2'"),
        (dict(type='Resize', scale=(9, 9), backend='pillow'), "found 'bilinear' and 'pillow'"),
        (
            dict(type='FastRandomCrop', crop_size=3),
            'must be the config of Resize, .*FastRandomCrop',
        ),
    ],
)
def test_wrong_resizes_are_refused(resize: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ResizeRandomCrop(resize, dict(crop_size=4))


def test_boxes_are_refused() -> None:
    built = TRANSFORMS.build(
        dict(
            type='ResizeRandomCrop',
            resize=dict(type='Resize', scale=(160, 120)),
            crop=dict(type='RandomCrop', crop_size=(64, 96)),
        )
    )
    with pytest.raises(ValueError, match="supports images and .* found \\['gt_bboxes'\\]"):
        built(dict(sample(**SIZE), gt_bboxes=np.zeros((1, 4))))
