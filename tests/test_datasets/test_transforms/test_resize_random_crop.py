"""Resizing what is kept is as good as keeping some of what was resized."""

from __future__ import annotations

from typing import Any

import cv2
import mmcv.transforms
import numpy as np
import pytest
from mmcv.transforms import Compose
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import RandomCrop

from mmtempo.datasets.transforms.partial_resize import REACH, nearest_indices, resize_part
from mmtempo.datasets.transforms.resize_random_crop import ResizeRandomCrop
from tests.testing.transforms_against_stock import picture, read_only, run, same, sample

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
def test_equals_stock_on_the_grid(resize: dict) -> None:
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
def test_is_within_the_bound_of_stock_off_the_grid(resize: dict) -> None:
    ours, stock = both(resize, CROP)
    for seed in range(16):
        results = sample(seed, **SIZE)
        mine, theirs = run(ours, results, seed), run(stock, results, seed)
        error = np.abs(mine.pop('img').astype(int) - theirs.pop('img'))
        assert error.max() <= 5
        assert error.mean() < 0.2
        same(mine, theirs)


@pytest.mark.parametrize('image', ['noise', 'edges'])
def test_the_bound_holds_for_the_worst_of_images(image: str) -> None:
    generator = np.random.default_rng(0)
    source = generator.integers(0, 256, (300, 400, 3), dtype=np.uint8)
    if image == 'edges':
        source = (np.indices((300, 400)).sum(0) % 2 * 255).astype(np.uint8)
    for _ in range(60):
        width, height = (int(side) for side in generator.integers(150, 700, 2))
        top, left = generator.integers(0, height - 99), generator.integers(0, width - 99)
        box = int(top), int(top) + 100, int(left), int(left) + 100
        part = resize_part(source, (width, height), box)
        whole = cv2.resize(source, (width, height))
        error = np.abs(part.astype(int) - whole[box[0] : box[1], box[2] : box[3]])
        assert error.max() <= 5


def test_no_more_is_resized_than_the_crop_and_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    resized = []
    resize, image = cv2.resize, picture(400, 300)

    def count(source: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
        result = resize(source, *args, **kwargs)
        resized.append(result.shape)
        return result

    monkeypatch.setattr(cv2, 'resize', count)
    resize_part(image, (800, 450), (200, 300, 500, 600))
    ((height, width, _),) = resized
    assert 100 <= height <= 110
    assert 100 <= width <= 110
    resized.clear()
    resize_part(image, (717, 391), (200, 300, 500, 600))
    ((height, width, _),) = resized
    assert width <= 100 + REACH + 10
    assert height <= 100 + REACH + 10


def test_nearest_pixels_are_opencv_s() -> None:
    generator = np.random.default_rng(0)
    for source, target in generator.integers(1, 500, (60, 2)):
        column = generator.integers(0, 256, (source, 1), dtype=np.uint8)
        expected = cv2.resize(column, (1, int(target)), interpolation=cv2.INTER_NEAREST)
        np.testing.assert_array_equal(column[nearest_indices(source, target)], expected)


def test_without_labels() -> None:
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
def test_mistakes(resize: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ResizeRandomCrop(resize, dict(crop_size=4))


def test_what_it_does_not_know() -> None:
    built = TRANSFORMS.build(
        dict(
            type='ResizeRandomCrop',
            resize=dict(type='Resize', scale=(160, 120)),
            crop=dict(type='RandomCrop', crop_size=(64, 96)),
        )
    )
    with pytest.raises(ValueError, match="knows images and .* found \\['gt_bboxes'\\]"):
        built(dict(sample(**SIZE), gt_bboxes=np.zeros((1, 4))))
