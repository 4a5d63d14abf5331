"""Failures to read and write images are errors that name the file."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from mmtempo.datasets.images.decode import decode, jpeg_size, read_file, write_image
from mmtempo.datasets.images.errors import BadSampleError

IMAGE = np.arange(12 * 10 * 3, dtype=np.uint8).reshape(12, 10, 3)


@pytest.mark.parametrize('name', ['a.png', 'Ünïcode 图像.png'])
def test_written_image_is_read_under_any_name(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    write_image(path, IMAGE)
    image = decode(read_file(path, 'image'), cv2.IMREAD_COLOR, path, 'image')
    np.testing.assert_array_equal(image, IMAGE)


def test_failed_write_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match='gone'):
        write_image(str(tmp_path / 'gone/a.png'), IMAGE)


def test_missing_file_is_a_bad_sample(tmp_path: Path) -> None:
    with pytest.raises(BadSampleError, match='image .*gone.jpg: No such file'):
        read_file(str(tmp_path / 'gone.jpg'), 'image')


@pytest.mark.parametrize('suffix', ['.png', '.jpg'])
@pytest.mark.parametrize('share', [0.1, 0.5, 0.99])
def test_truncated_file_is_a_bad_sample(tmp_path: Path, suffix: str, share: float) -> None:
    path = tmp_path / f'a{suffix}'
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8)
    write_image(str(path), noise)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BadSampleError, match='truncated after'):
        read_file(str(path), 'image')


def test_padding_is_no_truncation(tmp_path: Path) -> None:
    path = tmp_path / 'a.jpg'
    write_image(str(path), IMAGE)
    path.write_bytes(path.read_bytes() + bytes(512))
    read_file(str(path), 'image')


@pytest.mark.parametrize('suffix', ['.png', '.jpg'])
def test_long_padding_is_no_truncation(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f'a{suffix}'
    write_image(str(path), IMAGE)
    path.write_bytes(path.read_bytes() + bytes(5000))
    read_file(str(path), 'image')


def test_file_truncated_after_its_preview_is_a_bad_sample(tmp_path: Path) -> None:
    path = tmp_path / 'a.jpg'
    write_image(str(path), np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8))
    content = path.read_bytes()
    preview = b'\xff\xe1\x00\x0a' + b'preview'[:6] + b'\xff\xd9'
    whole = content[:2] + preview + content[2:]
    path.write_bytes(whole)
    read_file(str(path), 'image')
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadSampleError, match='truncated after'):
        read_file(str(path), 'image')


@pytest.mark.parametrize(
    'content', [b'', b'\xff\xd8', b'\xff\xd8\xff\xe0', b'\xff\xd8' + bytes(40)]
)
def test_damaged_jpeg_header_has_no_size(content: bytes) -> None:
    assert jpeg_size(content) is None
