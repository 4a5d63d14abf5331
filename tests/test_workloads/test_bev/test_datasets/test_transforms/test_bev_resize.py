"""A resize updates the calibration; test_calibration.py covers chains of transforms."""

from __future__ import annotations

import numpy as np
import pytest

from mmtempo.workloads.bev.datasets.transforms.bev_resize import BEVResize
from tests.testing.bev_samples import bev_results, bev_rig_results


def test_image_and_calibration_are_resized_and_the_label_is_not() -> None:
    before = bev_results()
    after = BEVResize(scale=(80, 60))(bev_results())
    assert after['img'].shape == (60, 80, 3)
    assert after['img_shape'] == (60, 80)
    assert after['calibration'].size == (80, 60)
    np.testing.assert_array_equal(after['gt_bev'], before['gt_bev'])


def test_several_cameras_are_refused() -> None:
    with pytest.raises(ValueError, match=r"BEVResize: .* found 2; put .*type='EachCamera'"):
        BEVResize(scale=(10, 10))(bev_rig_results())
