"""Labels stay packed, and groups merge their classes."""

from __future__ import annotations

import numpy as np
import pytest

from mmtempo.workloads.bev.datasets.transforms.load_bev_annotation import LoadBEVAnnotation
from mmtempo.workloads.bev.structures.labels import CLASSES


@pytest.mark.parametrize('groups', ['car', [], [[]], ['car'], [['car']] * 15])
def test_groups_must_be_lists_of_class_names(groups: list) -> None:
    with pytest.raises(ValueError, match='must be 1 to 14 lists of class names'):
        LoadBEVAnnotation(groups=groups)


def test_groups_merge_classes_and_keep_ignored_cells(bev_root: str) -> None:
    path = dict(bev_path=f'{bev_root}/ann_bev_dir/train/train_000000.png')
    plain = LoadBEVAnnotation()(dict(path))['gt_bev']
    groups = [['car', 'truck', 'bus', 'trailer'], ['drivable_area']]
    merged = LoadBEVAnnotation(groups=groups)(dict(path))['gt_bev']
    vehicle = sum(plain >> CLASSES.index(name) & 1 for name in groups[0]) > 0
    assert vehicle.any()
    np.testing.assert_array_equal(merged & 1 == 1, vehicle)
    np.testing.assert_array_equal(merged >> 1 & 1, plain & 1)
    np.testing.assert_array_equal(merged & ~np.uint16(3), plain & np.uint16(1 << 14))
    with pytest.raises(ValueError, match=r"classes \['lorry'\]; the classes of a label are"):
        LoadBEVAnnotation(groups=[['lorry']])
