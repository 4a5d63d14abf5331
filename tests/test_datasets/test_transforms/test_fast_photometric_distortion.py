"""Distorted images equal those of stock's float32 arithmetic to the bit."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import PhotoMetricDistortion

from mmtempo.datasets.transforms import fast_photometric_distortion
from mmtempo.datasets.transforms.fast_photometric_distortion import FastPhotoMetricDistortion
from tests.testing.transforms_against_stock import picture, read_only, run, same, sample

WIDE = dict(
    brightness_delta=200, contrast_range=(0.0, 5.0), saturation_range=(0.0, 9.0), hue_delta=90
)


@pytest.mark.parametrize('arguments', [{}, WIDE], ids=['default', 'wide'])
def test_images_equal_those_of_stock(arguments: dict) -> None:
    ours, stock = FastPhotoMetricDistortion(**arguments), PhotoMetricDistortion(**arguments)
    for seed in range(96):  # most of the 32 combinations of steps, several times
        results = sample(seed)
        same(run(ours, results, seed), run(stock, results, seed))


def test_all_colours_equal_those_of_stock() -> None:
    levels = np.arange(0, 256, 5, dtype=np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(52, -1, 3)
    ours, stock = FastPhotoMetricDistortion(), PhotoMetricDistortion()
    for seed in range(24):
        same(run(ours, dict(img=colours), seed), run(stock, dict(img=colours), seed))


def test_hue_shift_changes_hues_only() -> None:
    hues, others = np.meshgrid(np.arange(180), (0, 3, 76, 77, 180, 255), indexing='ij')
    hsv = np.stack([hues, others, others[:, ::-1]], -1).astype(np.uint8)
    for shift in range(-190, 191):
        turned = hsv.copy()
        fast_photometric_distortion._shift_hue(shift, turned)
        np.testing.assert_array_equal(turned[..., 0], (hues + shift) % 180)
        np.testing.assert_array_equal(turned[..., 1:], hsv[..., 1:])


def test_inexact_images_are_close_to_those_of_stock() -> None:
    levels = np.arange(0, 256, 5, dtype=np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(52, -1, 3)
    ours, stock = FastPhotoMetricDistortion(exact=False), PhotoMetricDistortion()
    off = []
    for seed in range(128):
        made, expected = (run(one, dict(img=colours), seed)['img'] for one in (ours, stock))
        off.append(np.abs(made.astype(int) - expected))
    # Images whose saturation and hue both change: one in four.
    different = [levels for levels in off if levels.any()]
    assert 0.15 < len(different) / len(off) < 0.35
    assert np.max(different) <= 5
    assert np.quantile(different, 0.99) <= 2
    assert np.mean(different) < 0.4


def test_inexact_version_draws_the_same_random_numbers() -> None:
    ours, stock = FastPhotoMetricDistortion(exact=False), PhotoMetricDistortion()
    drawn = []
    for one in (ours, stock):
        np.random.seed(0)
        for _ in range(32):
            one(dict(img=picture()))
        drawn.append(np.random.random())
    assert drawn[0] == drawn[1]


def test_inexact_version_converts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    convert, codes = cv2.cvtColor, []

    def counted(image: np.ndarray, code: int, **options: np.ndarray) -> np.ndarray:
        codes.append(code)
        return convert(image, code, **options)

    monkeypatch.setattr(cv2, 'cvtColor', counted)
    conversions = []
    for exact in (True, False):
        ours = FastPhotoMetricDistortion(exact=exact)
        counts = []
        for seed in range(32):
            codes.clear()
            run(ours, sample(seed), seed)
            counts.append(len(codes))
        conversions.append(counts)
    assert set(conversions[0]) == {0, 2, 4}
    assert conversions[1] == [min(count, 2) for count in conversions[0]]


def test_repr_shows_exact() -> None:
    assert repr(FastPhotoMetricDistortion()).endswith(', exact=True)')
    assert repr(FastPhotoMetricDistortion(exact=False)).endswith(', exact=False)')


@pytest.mark.parametrize('shape', [(1, 1), (1, 33), (33, 1), (2, 31), (7, 65)])
def test_small_images_equal_those_of_stock(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    ours, stock = FastPhotoMetricDistortion(), PhotoMetricDistortion()
    for seed in range(64):
        same(run(ours, dict(img=image), seed), run(stock, dict(img=image), seed))


def test_results_share_no_memory() -> None:
    """Earlier results stay unchanged while later ones are computed."""
    ours = FastPhotoMetricDistortion()
    held = []
    for seed in range(48):
        made = run(ours, sample(), seed)['img']
        held.append((made, made.copy()))
    for number, (made, before) in enumerate(held):
        np.testing.assert_array_equal(made, before)
        assert not any(np.shares_memory(made, other) for other, _ in held[:number])


@pytest.mark.parametrize('step', [(1, -1), (-1, 1), (2, 3)])
def test_views_are_read_and_not_written(step: tuple[int, int]) -> None:
    whole = picture()
    results = dict(img=whole[:: step[0], :: step[1]][3:20, 5:15])
    results['img'].flags.writeable = False
    before = whole.copy()
    ours, stock = FastPhotoMetricDistortion(), PhotoMetricDistortion()
    for seed in range(24):
        np.random.seed(seed)
        made = ours(dict(results))['img']
        np.random.seed(seed)
        np.testing.assert_array_equal(made, stock(dict(results))['img'])
    np.testing.assert_array_equal(whole, before)


@pytest.mark.parametrize('kind', ['float', 'four channels'])
def test_other_images_are_distorted_by_stock(kind: str) -> None:
    image = picture().astype(np.float32) / 255 if kind == 'float' else picture().repeat(2, 2)
    ours, stock = FastPhotoMetricDistortion(), PhotoMetricDistortion()
    for seed in range(12):
        results = dict(img=image[..., :4] if kind == 'four channels' else image)
        try:
            expected = run(stock, results, seed)
        except cv2.error:  # stock cannot convert four channels to HSV
            with pytest.raises(cv2.error):
                run(ours, results, seed)
        else:
            same(run(ours, results, seed), expected)


def test_registered_type_accepts_read_only_images() -> None:
    built = TRANSFORMS.build(dict(type='FastPhotoMetricDistortion', hue_delta=9))
    assert isinstance(built, PhotoMetricDistortion)
    assert built.hue_delta == 9
    results = read_only(sample())
    for seed in range(16):
        np.random.seed(seed)
        built(dict(results))
