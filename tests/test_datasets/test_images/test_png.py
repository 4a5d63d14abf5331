"""Decoded images and failures equal those of OpenCV."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from mmtempo.datasets.images import png
from mmtempo.datasets.images.decode import decode
from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.datasets.images.png import decode_png
from mmtempo.datasets.transforms.fast_load_annotations import FastLoadAnnotations
from mmtempo.datasets.transforms.fast_load_image_from_file import FastLoadImageFromFile
from mmtempo.workloads.bev.datasets.transforms.load_camera_image import FLAGS, LoadCameraImage

pyspng = pytest.importorskip('pyspng')

COLOURS = np.random.default_rng(0).integers(0, 256, (50, 61, 3), np.uint8)
GREY = COLOURS[..., 0]
UNCHANGED = cv2.IMREAD_UNCHANGED


@pytest.fixture(params=[True, False], ids=['with', 'without'])
def has_pyspng(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    if not request.param:
        monkeypatch.setitem(sys.modules, 'pyspng', None)  # makes its import fail
    png._pyspng.cache_clear()
    yield request.param
    png._pyspng.cache_clear()


def encoded(kind: str) -> bytes:
    if 'OpenCV' in kind:
        image = GREY if 'grey' in kind else COLOURS
        return cv2.imencode('.png', image)[1].tobytes()
    if kind == '16 bits':
        return cv2.imencode('.png', COLOURS.astype(np.uint16) * 200)[1].tobytes()
    image = Image.fromarray(GREY if 'grey' in kind else COLOURS)
    if kind == 'palette':
        image = image.quantize(16)
    elif kind == 'alpha':
        image.putalpha(Image.fromarray(GREY))
    elif kind == 'bits':
        image = Image.fromarray(GREY > 99)
    options: dict = {}
    if 'transparent' in kind:
        options = dict(transparency=7 if 'grey' in kind else (7, 7, 7))
    if kind == 'turned':
        image.getexif()[0x0112] = 6
        options = dict(exif=image.getexif())
    if kind == 'with resolution':
        options = dict(dpi=(72, 72))
    file = io.BytesIO()
    image.save(file, 'png', **options)
    return file.getvalue()


def interlaced() -> bytes:
    """Return an image of 4 x 1 pixels, of which Adam7 has passes of 1, 1 and 2 pixels."""
    row = COLOURS[0, :4].tobytes()
    passes = b''.join(b'\0' + part for part in (row[:3], row[6:9], row[3:6] + row[9:12]))
    header = struct.pack('>IIBBBBB', 4, 1, 8, 2, 0, 0, 1)
    chunks = ((b'IHDR', header), (b'IDAT', zlib.compress(passes)), (b'IEND', b''))
    return b'\x89PNG\r\n\x1a\n' + b''.join(chunk(*each) for each in chunks)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack('>I', len(body)) + kind + body + struct.pack('>I', zlib.crc32(kind + body))


def check(content: bytes, flags: int, taken: bool) -> None:
    wanted = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    image = decode_png(content, flags)
    assert (image is not None) == taken
    for found in (image if taken else wanted, decode(content, flags, 'a.png', 'image')):
        np.testing.assert_array_equal(found, wanted, strict=True)
        assert found.flags.writeable
        assert found.flags.c_contiguous


@pytest.mark.parametrize('flags', [cv2.IMREAD_COLOR, FLAGS, UNCHANGED, cv2.IMREAD_GRAYSCALE])
@pytest.mark.parametrize(
    ('kind', 'ours'),
    [
        ('colours', {cv2.IMREAD_COLOR, FLAGS, UNCHANGED}),
        ('with resolution', {cv2.IMREAD_COLOR, FLAGS, UNCHANGED}),
        ('written by OpenCV', {cv2.IMREAD_COLOR, FLAGS, UNCHANGED}),
        ('grey', {cv2.IMREAD_GRAYSCALE, UNCHANGED}),
        ('grey, written by OpenCV', {cv2.IMREAD_GRAYSCALE, UNCHANGED}),
        *((kind, set()) for kind in ('transparent', 'transparent grey', 'alpha', 'palette')),
        *((kind, set()) for kind in ('bits', '16 bits', 'turned')),
    ],
)
def test_images_equal_those_of_opencv(kind: str, ours: set, flags: int, has_pyspng: bool) -> None:
    check(encoded(kind), flags, flags in ours)


@pytest.mark.parametrize('filters', ['1', '0', '01234', '2', '34'])
@pytest.mark.parametrize('size', [(50, 61), (1, 1), (1, 7), (7, 1)])
@pytest.mark.parametrize('channels', [1, 3])
def test_all_row_filters_equal_opencv(
    channels: int, size: tuple[int, int], filters: str, has_pyspng: bool
) -> None:
    """Any bytes are the filtered rows of some image."""
    check(of_rows(size, channels, filters), UNCHANGED, taken=True)


def test_unknown_row_filters_are_left_to_opencv(has_pyspng: bool) -> None:
    for channels in (1, 3):
        content = of_rows((4, 5), channels, '15')
        assert decode_png(content, UNCHANGED) is None
        with pytest.raises(BadSampleError, match=r'a\.png: not a readable image'):
            decode(content, FLAGS, 'a.png', 'image')


def test_pixels_in_several_chunks(has_pyspng: bool) -> None:
    check(of_rows((50, 61), 3, '01234', chunks=7), UNCHANGED, taken=True)


def of_rows(size: tuple[int, int], channels: int, filters: str, chunks: int = 1) -> bytes:
    height, width = size
    part = COLOURS[:height, :width, :channels].reshape(height, -1)
    kinds = [int(filters[row % len(filters)]) for row in range(height)]
    data = zlib.compress(b''.join(bytes([kind]) + row.tobytes() for kind, row in zip(kinds, part)))
    header = struct.pack('>IIBBBBB', width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    step = -(-len(data) // chunks)
    parts = [(b'IDAT', data[start : start + step]) for start in range(0, len(data), step)]
    written = ((b'IHDR', header), *parts, (b'IEND', b''))
    return b'\x89PNG\r\n\x1a\n' + b''.join(chunk(*each) for each in written)


def test_interlaced_images_are_left_to_opencv(has_pyspng: bool) -> None:
    content = interlaced()
    check(content, FLAGS, taken=False)
    np.testing.assert_array_equal(decode(content, FLAGS, '', '')[..., ::-1], COLOURS[:1, :4])


def damaged(content: bytes, how: str) -> bytes:
    middle = len(content) // 2
    if how == 'cut':
        return content[:middle]
    if how == 'bit':  # pyspng alone returns other pixels
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    if how in ('rows missing', 'no pixels', 'no end', 'sum'):
        data = zlib.compress(bytes(len(COLOURS) * (1 + COLOURS[0].nbytes)))
        if how == 'rows missing':
            data = zlib.compress(bytes(1 + COLOURS[0].nbytes))
        elif how == 'no pixels':
            data = b''
        else:  # the end of the stream, which OpenCV does not need
            data = data[:-4] if how == 'no end' else data[:-1] + b'!'
        return content[:33] + chunk(b'IDAT', data) + chunk(b'IEND', b'')
    return {'empty': b'', 'signature': content[:8], 'header': content[:33]}[how]


@pytest.mark.parametrize(
    'how', ['cut', 'bit', 'rows missing', 'no pixels', 'empty', 'signature', 'header']
)
def test_damaged_files_fail_as_with_opencv(how: str, has_pyspng: bool) -> None:
    content = damaged(encoded('colours'), how)
    message = f'image a.png: not a readable image .{len(content)} bytes'
    with pytest.raises(BadSampleError, match=message):
        decode(content, FLAGS, 'a.png', 'image')


@pytest.mark.parametrize('how', ['no end', 'sum'])
def test_incomplete_checksums_are_left_to_opencv(how: str, has_pyspng: bool) -> None:
    content = damaged(encoded('colours'), how)
    assert decode_png(content, FLAGS) is None


def test_image_size_is_checked_before_decompression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, 'zlib_ng', None)
    header = chunk(b'IHDR', struct.pack('>IIBBBBB', 1 << 20, 1 << 20, 8, 2, 0, 0, 0))
    assert decode_png(encoded('colours')[:8] + header + encoded('colours')[33:], FLAGS) is None


def test_pyspng_is_not_used_for_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the GIL, and threads count labels."""
    calls = []
    load_png = pyspng.load
    monkeypatch.setattr(pyspng, 'load', lambda content: calls.append(1) or load_png(content))
    path = tmp_path / 'a.png'
    path.write_bytes(encoded('colours'))
    results = dict(img_path=str(path), intrinsics=np.eye(3))
    for load in (
        LoadCameraImage(),
        FastLoadImageFromFile(),
        FastLoadImageFromFile(reduce_to=(9, 9)),
    ):
        np.testing.assert_array_equal(load(dict(results))['img'][..., ::-1], COLOURS)
    assert len(calls) == 3
    path.write_bytes(encoded('grey'))
    results = dict(seg_map_path=str(path), seg_fields=[], reduce_zero_label=False)
    np.testing.assert_array_equal(FastLoadAnnotations()(results)['gt_seg_map'], GREY)
    np.testing.assert_array_equal(decode(path.read_bytes(), UNCHANGED, '', ''), GREY)
    assert len(calls) == 3
