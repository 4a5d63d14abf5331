"""Counts of packed BEV labels equal those of the unpacked cells."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from mmtempo.datasets.samplers.class_balanced_sampler import ClassBalancedSampler
from mmtempo.datasets.samplers.label_histogram import count_labels
from mmtempo.workloads.bev.datasets.nuscenes_bev_dataset import NuScenesBEVDataset
from mmtempo.workloads.bev.structures.labels import CLASSES, pack_label, unpack_label


@pytest.fixture
def small_bev(tmp_path: Path) -> dict:
    """Write four labels of 6 x 5 with ignored cells; return the arguments of their data set."""
    rng = np.random.default_rng(0)
    for folder in ('img', 'bev'):
        (tmp_path / folder).mkdir()
    for token in 'abcd':
        (tmp_path / f'img/{token}.jpg').touch()
        label = pack_label(rng.random((14, 6, 5)) < 0.2, rng.random((6, 5)) < 0.3)
        cv2.imwrite(str(tmp_path / f'bev/{token}.png'), label)
    camera = [[100.0, 0.0, 50.0], [0.0, 100.0, 50.0], [0.0, 0.0, 1.0]]
    (tmp_path / 'calib.json').write_text(json.dumps(dict.fromkeys('abcd', camera)))
    prefix = dict(img_path='img', bev_path='bev')
    return dict(data_root=str(tmp_path), data_prefix=prefix, label_size=(6, 5))


def test_counts_equal_those_of_unpacked_labels(small_bev: dict, tmp_path: Path) -> None:
    file = str(tmp_path / 'counts.npz')
    dataset = NuScenesBEVDataset(**small_bev)
    groups = [['car', 'truck', 'bus'], ['pedestrian']]
    merged = NuScenesBEVDataset(
        metainfo=dict(classes=('vehicle', 'pedestrian')),
        pipeline=[dict(type='LoadBEVAnnotation', groups=groups)],
        **small_bev,
    )
    counts, merged_counts = count_labels(dataset, file), count_labels(merged, file)
    assert counts.shape == (4, 14)
    assert merged_counts.shape == (4, 2)
    vehicle = [CLASSES.index(name) for name in groups[0]]
    for index in range(4):
        path = dataset.get_data_info(index)['bev_path']
        packed = torch.from_numpy(cv2.imread(path, cv2.IMREAD_UNCHANGED).astype(np.int16))
        occupancy, valid = unpack_label(packed)
        seen = occupancy & valid
        assert counts[index].tolist() == seen.sum((1, 2)).tolist()
        assert merged_counts[index, 0] == seen[vehicle].any(0).sum()
        assert merged_counts[index, 1] == counts[index, CLASSES.index('pedestrian')]
    assert counts.min(0).sum() < counts.max(0).sum()


def test_class_balanced_sampler_uses_counts_of_bev_labels(small_bev: dict, tmp_path: Path) -> None:
    dataset = NuScenesBEVDataset(**small_bev)
    sampler = ClassBalancedSampler(dataset, cache_file=str(tmp_path / 'counts.npz'), seed=0)
    assert len(list(sampler)) == 4
    assert sampler.frequencies.shape == (14,)
