"""A flip mirrors images, calibrations and label together."""

from __future__ import annotations

import numpy as np
import pytest

from mmtempo.workloads.bev.datasets.transforms.bev_random_flip import BEVRandomFlip
from tests.testing.bev_samples import bev_results, bev_rig_results


def test_rig_is_flipped_as_a_whole() -> None:
    """A point before the flip and its mirror image after it have mirrored pixels."""
    before, after = bev_rig_results(), BEVRandomFlip(prob=1.0)(bev_rig_results())
    np.testing.assert_array_equal(after['gt_bev'], before['gt_bev'][:, ::-1])
    points = np.array([[9.0, 0.4, 2.5], [8.0, -0.3, 1.0], [1.0, 1.0, 7.0]])
    for number in range(2):
        image = before['img'][number][:, ::-1]
        np.testing.assert_array_equal(after['img'][number], image)
        old, new = before['calibration'][number], after['calibration'][number]
        pixels = old.project(points)
        mirrored = new.project(points)  # takes points of the scene before the flip
        np.testing.assert_allclose(mirrored[:, 0], 159 - pixels[:, 0])
        np.testing.assert_allclose(mirrored[:, 1], pixels[:, 1])
        # The mirrored point in the mirrored frame, as the view transform computes it.
        local = (points * [-1, 1, 1] - new.cam2bev[:3, 3]) @ new.cam2bev[:3, :3]
        seen = local @ new.intrinsics.T
        np.testing.assert_allclose(seen[:, :2] / seen[:, 2:], mirrored)


def test_probability() -> None:
    np.random.seed(0)
    flips = [BEVRandomFlip(prob=0.3)(bev_results())['flip'] for _ in range(300)]
    assert 60 < sum(flips) < 120
    assert not any(BEVRandomFlip(prob=0.0)(bev_results())['flip'] for _ in range(20))
    with pytest.raises(ValueError, match=r'must be in \[0, 1\], found 3'):
        BEVRandomFlip(prob=3)


def test_label_is_optional() -> None:
    assert BEVRandomFlip(prob=1.0)(bev_results(label=False))['flip']
