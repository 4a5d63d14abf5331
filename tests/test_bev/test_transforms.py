"""Each transform on its own; that they agree on geometry is in test_calibration.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmtempo.bev import Calibration
from mmtempo.bev.transforms import BEVRandomCrop, BEVRandomFlip, BEVResize, PackBEVInputs


def results(label: bool = True) -> dict:
    rng = np.random.default_rng(0)
    made = dict(
        img=rng.integers(0, 256, (90, 160, 3), np.uint8),
        calibration=Calibration.native(np.diag([100.0, 100, 1]), (160, 90)),
        token='t',
        img_path='t.jpg',
    )
    if label:
        made['gt_bev'] = rng.integers(0, 1 << 15, (6, 8), np.uint16)
    return made


def test_resize_leaves_the_label() -> None:
    before = results()
    after = BEVResize(scale=(80, 60))(results())
    assert after['img'].shape == (60, 80, 3)
    assert after['img_shape'] == (60, 80)
    assert after['calibration'].size == (80, 60)
    np.testing.assert_array_equal(after['gt_bev'], before['gt_bev'])


def test_crop_cuts_where_the_calibration_says() -> None:
    before = results()
    np.random.seed(0)
    places = set()
    for _ in range(20):
        after = BEVRandomCrop(size=(100, 50))(results())
        left, top = (-after['calibration'].intrinsics[:2, 2]).astype(int)
        np.testing.assert_array_equal(
            after['img'], before['img'][top : top + 50, left : left + 100]
        )
        places.add((left, top))
    assert len(places) > 5


def test_crop_larger_than_the_image_is_explained() -> None:
    with pytest.raises(ValueError, match=r'size = \(161, 10\) .* image of 160 x 90'):
        BEVRandomCrop(size=(161, 10))(results())
    with pytest.raises(ValueError, match='must be positive'):
        BEVRandomCrop(size=(0, 10))


def test_flip_probability() -> None:
    np.random.seed(0)
    flips = [BEVRandomFlip(prob=0.3)(results())['flip'] for _ in range(300)]
    assert 60 < sum(flips) < 120
    assert not any(BEVRandomFlip(prob=0.0)(results())['flip'] for _ in range(20))
    with pytest.raises(ValueError, match=r'must lie in \[0, 1\], found 3'):
        BEVRandomFlip(prob=3)


def test_flip_works_without_a_label() -> None:
    assert BEVRandomFlip(prob=1.0)(results(label=False))['flip']


def test_pack_keeps_the_bits() -> None:
    packed = PackBEVInputs()(BEVRandomFlip(prob=1.0)(results()))
    assert packed['inputs'].dtype == torch.uint8
    assert packed['inputs'].is_contiguous()
    sample = packed['data_samples']
    expected = results()['gt_bev'][:, ::-1]
    np.testing.assert_array_equal(sample.gt_bev.numpy().view(np.uint16), expected)
    assert sample.token == 't'
    assert sample.calibration.mirrored
    assert 'gt_bev' not in PackBEVInputs()(results(label=False))['data_samples']
