"""Full images equal those of stock; reduced ones are close to them, and their labels fit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from mmseg.datasets.transforms import Resize
from PIL import Image

from mmtempo.datasets.images.decode import jpeg_size
from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.datasets.transforms.fast_load_image_from_file import FastLoadImageFromFile
from tests.testing.transforms_against_stock import labels, picture

IMAGE = picture(160, 96)


@pytest.fixture(params=['png', 'jpg'])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f'ä image.{request.param}'
    Image.fromarray(IMAGE).save(path)
    return path


def load(path: Path, cls: type = FastLoadImageFromFile, **arguments: Any) -> dict:
    return cls(**arguments)(dict(img_path=str(path)))


@pytest.mark.parametrize(
    'arguments',
    [
        {},
        dict(to_float32=True),
        dict(color_type='grayscale'),
        dict(color_type='unchanged'),
        dict(imdecode_backend='pillow'),
        dict(backend_args=dict(backend='local')),
        dict(ignore_empty=True),
    ],
)
def test_images_equal_those_of_stock(path: Path, arguments: dict) -> None:
    ours, stock = load(path, **arguments), load(path, LoadImageFromFile, **arguments)
    np.testing.assert_equal(ours, stock)
    assert ours['img'].dtype == stock['img'].dtype


def test_bad_files_are_named(path: Path) -> None:
    with pytest.raises(BadSampleError, match='image .*gone: No such file'):
        load(path.with_name('gone'))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    for arguments in ({}, dict(backend_args=dict(backend='local')), dict(reduce_to=(9, 9))):
        with pytest.raises(BadSampleError, match='image .*: truncated after'):
            load(path, **arguments)
    assert load(path, ignore_empty=True) is None
    path.write_bytes(b'')
    for backend in ('cv2', 'pillow'):
        with pytest.raises(BadSampleError, match='not a readable image .0 bytes'):
            load(path, imdecode_backend=backend)


@pytest.mark.parametrize(
    ('size', 'reduce_to', 'factor'),
    [
        ((160, 96), (80, 48), 2),
        ((160, 96), (81, 48), 1),
        ((160, 96), (80, 49), 1),
        ((160, 96), (41, 10), 2),
        ((160, 96), (40, 24), 4),
        ((160, 96), (1, 1), 8),
        ((160, 90), (1, 1), 2),  # 90 is not a multiple of 4
        ((161, 96), (1, 1), 1),
    ],
)
def test_reduced_images_keep_the_minimum_size(
    tmp_path: Path, size: tuple, reduce_to: tuple, factor: int
) -> None:
    path = tmp_path / 'a.jpg'
    Image.fromarray(picture(*size)).save(path)
    results = load(path, reduce_to=reduce_to)
    width, height = size
    assert results['img'].shape == (height // factor, width // factor, 3)
    assert results['img_shape'] == (height // factor, width // factor)
    assert results['ori_shape'] == (height, width)
    assert jpeg_size(path.read_bytes()) == size


def natural(width: int, height: int) -> np.ndarray:
    """Return an image with fine brightness and coarse colours, like most photographs."""
    grey = picture(width, height)[..., :1].repeat(3, 2)
    colour = cv2.resize(picture(width // 32, height // 32), (width, height))
    return cv2.addWeighted(grey, 0.7, colour, 0.3, 0)


@pytest.mark.parametrize('factor', [2, 4, 8])
@pytest.mark.parametrize('quality', [95, 70])
@pytest.mark.parametrize(
    ('draw', 'most', 'least_psnr'), [(natural, 0.3, 50), (picture, 3, 36)], ids=['natural', 'wild']
)
def test_reduced_image_is_close_to_the_mean_of_pixels(
    tmp_path: Path, factor: int, quality: int, draw: Any, most: float, least_psnr: float
) -> None:
    path = tmp_path / 'a.jpg'
    Image.fromarray(draw(640, 352)).save(path, quality=quality)
    reduced = load(path, reduce_to=(640 // factor, 352 // factor))['img']
    full = load(path)['img']
    mean = cv2.resize(full, reduced.shape[1::-1], interpolation=cv2.INTER_AREA)
    error = reduced.astype(float) - mean
    assert np.abs(error).mean() < most
    assert 10 * np.log10(255**2 / (error**2).mean()) > least_psnr


def test_other_formats_are_decoded_in_full(tmp_path: Path) -> None:
    path = tmp_path / 'a.png'
    cv2.imwrite(str(path), IMAGE)
    results = load(path, reduce_to=(20, 12))
    np.testing.assert_array_equal(results['img'], IMAGE)
    assert results['ori_shape'] == (96, 160)


@pytest.mark.parametrize('keep_ratio', [True, False])
@pytest.mark.parametrize('scale', [(64, 48), (53, 31), (71, 44), (39, 23)])
def test_labels_fit_after_resizing(tmp_path: Path, scale: tuple, keep_ratio: bool) -> None:
    path = tmp_path / 'a.jpg'
    Image.fromarray(IMAGE).save(path)
    resize = Resize(scale=scale, keep_ratio=keep_ratio)
    made = []
    for reduce_to in (None, scale):
        results = load(path, reduce_to=reduce_to)
        results.update(gt_seg_map=labels(160, 96), seg_fields=['gt_seg_map'])
        made.append(resize(copy.deepcopy(results)))
    full, reduced = made
    assert reduced['img'].shape == full['img'].shape
    assert reduced['img'].shape[:2] == reduced['gt_seg_map'].shape
    np.testing.assert_array_equal(reduced['gt_seg_map'], full['gt_seg_map'])


@pytest.mark.parametrize('color_type', ['color', 'color_ignore_orientation'])
def test_minimum_size_applies_after_exif_rotation(tmp_path: Path, color_type: str) -> None:
    path = tmp_path / 'a.jpg'
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    Image.fromarray(IMAGE).save(path, exif=exif)
    upright = color_type == 'color'
    full = load(path, color_type=color_type)
    assert full['ori_shape'] == ((160, 96) if upright else (96, 160))
    for reduce_to, factor in (((40, 40), 2), ((80, 48), 1 if upright else 2)):
        results = load(path, reduce_to=reduce_to, color_type=color_type)
        assert results['ori_shape'] == full['ori_shape']
        assert tuple(factor * side for side in results['img_shape']) == full['ori_shape']


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(reduce_to=(3,)), r'FastLoadImageFromFile.reduce_to must be .* found \(3,\)'),
        (dict(reduce_to=400), 'found 400'),
        (dict(reduce_to=(0, 5)), r'found \(0, 5\)'),
        (dict(reduce_to=(9, 5), color_type='grayscale'), "found 'cv2' and 'grayscale'"),
        (dict(reduce_to=(9, 5), imdecode_backend='pillow'), "found 'pillow' and 'color'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FastLoadImageFromFile(**arguments)
