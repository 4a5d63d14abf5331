"""Flips equal those of stock, in contiguous memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mmcv.transforms.utils import cache_random_params
from mmseg.datasets.transforms import RandomFlip

from mmtempo.datasets.transforms.fast_random_flip import FastRandomFlip
from tests.testing.transforms_against_stock import read_only, run, same, sample


@pytest.mark.parametrize(
    'arguments',
    [
        dict(prob=0.5),
        dict(prob=1.0, direction='vertical'),
        dict(prob=1.0, direction='diagonal'),
        dict(prob=[0.3, 0.3, 0.3], direction=['horizontal', 'vertical', 'diagonal']),
        dict(prob=1.0, swap_seg_labels=[(1, 2), (3, 1)]),
    ],
)
@pytest.mark.parametrize('channels', [3, 1, 0])
def test_flips_equal_those_of_stock(arguments: dict[str, Any], channels: int) -> None:
    ours, stock = FastRandomFlip(**arguments), RandomFlip(**arguments)
    for seed in range(8):
        results = sample(seed)
        results['gt_bboxes'] = np.array([[3.0, 4, 20, 30]])
        results['gt_edge_map'] = (results['gt_seg_map'] == 1).astype(np.int64)
        results['seg_fields'] = ['gt_seg_map', 'gt_edge_map']
        if channels < 3:
            results['img'] = results['img'][..., :1] if channels else results['img'][..., 0]
        same(run(ours, results, seed), run(stock, results, seed))


def test_cached_randomness_repeats_the_flip() -> None:
    ours = FastRandomFlip(prob=0.5)
    with cache_random_params(ours):
        assert len({ours(sample())['flip'] for _ in range(20)}) == 1
    assert len({ours(sample())['flip'] for _ in range(20)}) == 2


@pytest.mark.parametrize('arguments', [{}, dict(swap_seg_labels=[(1, 2)])])
def test_input_arrays_are_not_written(arguments: dict[str, Any]) -> None:
    results = read_only(sample())
    flipped = FastRandomFlip(prob=1.0, **arguments)(dict(results))
    for key in ('img', 'gt_seg_map'):
        assert flipped[key].flags.c_contiguous
        assert not np.shares_memory(flipped[key], results[key])
