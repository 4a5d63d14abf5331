"""Crops agree with their calibration; test_calibration.py covers chains of transforms."""

from __future__ import annotations

import numpy as np
import pytest

from mmtempo.workloads.bev.datasets.transforms.bev_random_crop import BEVRandomCrop
from tests.testing.bev_samples import bev_results, bev_rig_results


def test_image_is_cropped_at_the_offset_of_the_calibration() -> None:
    before = bev_results()
    np.random.seed(0)
    offsets = set()
    for _ in range(20):
        after = BEVRandomCrop(size=(100, 50))(bev_results())
        left, top = (-after['calibration'].intrinsics[:2, 2]).astype(int)
        np.testing.assert_array_equal(
            after['img'], before['img'][top : top + 50, left : left + 100]
        )
        offsets.add((left, top))
    assert len(offsets) > 5


def test_size_must_be_positive_and_at_most_that_of_the_image() -> None:
    with pytest.raises(ValueError, match=r'size = \(161, 10\) .* image of 160 x 90'):
        BEVRandomCrop(size=(161, 10))(bev_results())
    with pytest.raises(ValueError, match='must be positive'):
        BEVRandomCrop(size=(0, 10))


def test_position_ranges_limit_the_offsets() -> None:
    for y, top in (((1.0, 1.0), 40), ((0.0, 0.0), 0), ((0.5, 0.5), 20)):
        after = BEVRandomCrop(size=(160, 50), y=y)(bev_results())
        assert after['calibration'].intrinsics[1, 2] == -top
        np.testing.assert_array_equal(after['img'], bev_results()['img'][top : top + 50])
    np.random.seed(0)
    crop = BEVRandomCrop(size=(100, 50), x=(0.5, 1.0))
    lefts = {int(-crop(bev_results())['calibration'].intrinsics[0, 2]) for _ in range(200)}
    assert min(lefts) == 30
    assert max(lefts) == 60
    with pytest.raises(ValueError, match=r'BEVRandomCrop.y must be a range within \[0, 1\]'):
        BEVRandomCrop(size=(10, 10), y=(0.5, 1.5))


def test_several_cameras_are_refused() -> None:
    with pytest.raises(ValueError, match=r"BEVRandomCrop: .* found 2; put .*type='EachCamera'"):
        BEVRandomCrop(size=(10, 10))(bev_rig_results())
