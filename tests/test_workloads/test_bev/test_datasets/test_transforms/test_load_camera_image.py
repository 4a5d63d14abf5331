"""An image that is decoded at a reduced size has the calibration of the full image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.workloads.bev.datasets.transforms.bev_resize import BEVResize
from mmtempo.workloads.bev.datasets.transforms.load_camera_image import LoadCameraImage

INTRINSICS = np.array([[120.0, 0, 79.5], [0, 121.0, 48.25], [0, 0, 1]])


def sample(folder: Path, suffix: str = 'jpg') -> dict:
    """Write an image of 160 x 96 pixels with a ramp in each channel; return its sample."""
    rows, columns = np.indices((96, 160))
    image = np.stack([rows * 2, columns, rows + columns // 2], -1).astype(np.uint8)
    path = folder / f'a.{suffix}'
    Image.fromarray(image).save(path, quality=95)
    return dict(img_path=str(path), intrinsics=INTRINSICS)


@pytest.mark.parametrize('scale', [(80, 48), (41, 25), (33, 20), (20, 12)])
def test_calibration_equals_that_of_full_decode_after_resize(
    tmp_path: Path, scale: tuple[int, int]
) -> None:
    resize = BEVResize(scale=scale)
    full = resize(LoadCameraImage()(sample(tmp_path)))
    loaded = LoadCameraImage(reduce_to=scale)(sample(tmp_path))
    assert loaded['img_shape'] < loaded['ori_shape'] == full['ori_shape'] == (96, 160)
    assert loaded['calibration'].size == loaded['img_shape'][::-1]
    reduced = resize(loaded)
    ours, theirs = reduced['calibration'], full['calibration']
    np.testing.assert_allclose(ours.intrinsics, theirs.intrinsics, rtol=1e-12)
    np.testing.assert_array_equal(ours.native_intrinsics, theirs.native_intrinsics)
    assert ours.size == theirs.size == scale
    # A ramp does not depend on the filter of the resize, as long as pixel centers match.
    error = reduced['img'].astype(float)[1:-1, 1:-1] - full['img'][1:-1, 1:-1]
    assert np.abs(error).max() <= 4
    assert np.abs(error.mean((0, 1))).max() < 0.5


@pytest.mark.parametrize(('suffix', 'reduce_to'), [('png', (20, 12)), ('jpg', (81, 48))])
def test_png_and_images_of_less_than_twice_the_size_are_decoded_in_full(
    tmp_path: Path, suffix: str, reduce_to: tuple[int, int]
) -> None:
    full = LoadCameraImage()(sample(tmp_path, suffix))
    results = LoadCameraImage(reduce_to=reduce_to)(sample(tmp_path, suffix))
    np.testing.assert_array_equal(results['img'], full['img'])
    assert results['calibration'].intrinsics is full['calibration'].intrinsics
    assert results['ori_shape'] == results['img_shape'] == (96, 160)


def test_truncated_file_raises_bad_sample_error(tmp_path: Path) -> None:
    results = sample(tmp_path)
    path = Path(results['img_path'])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadSampleError, match='a.jpg: truncated after'):
        LoadCameraImage(reduce_to=(20, 12))(results)


def test_several_cameras_are_refused() -> None:
    with pytest.raises(ValueError, match='LoadCameraImage: expected one camera image, found 2'):
        LoadCameraImage()(dict(img_path=['a.jpg', 'b.jpg']))


def test_reduce_to_must_be_width_and_height() -> None:
    with pytest.raises(ValueError, match='LoadCameraImage.reduce_to must be .* found 400'):
        LoadCameraImage(reduce_to=400)  # type: ignore[arg-type]
