"""Read, decode and write image files, with an error for each file that is not whole."""

from __future__ import annotations

import os.path as osp
import struct
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from mmtempo.utils.checks import is_whole

from .errors import BadSampleError
from .png import decode_png

_JPEG = b'\xff\xd8'
# The end of a complete file. OpenCV only warns about a truncated one.
_ENDINGS = {_JPEG: b'\xff\xd9', b'\x89P': b'IEND\xaeB`\x82'}

# Flags of OpenCV for colour images at a fraction of their size.
REDUCED = {
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}


def read_file(path: str, kind: str) -> bytes:
    """Return the bytes of a file; raise BadSampleError where it is missing or truncated.

    Args:
        path: Path of the file.
        kind: What the file is, such as 'image', for error messages.
    """
    try:
        with open(path, 'rb') as file:
            content = file.read()
    except OSError as error:
        raise BadSampleError(f'{kind} {path}: {error.strerror or error}') from None
    check_whole(content, path, kind)
    return content


def check_whole(content: bytes, path: str, kind: str) -> None:
    """Raise BadSampleError where a JPEG or PNG is truncated."""
    ending = _ENDINGS.get(content[:2])
    # Some writers append padding, so the tail is searched; a few append whole files.
    if ending is None or ending in content[-1024:]:
        return
    if content.rfind(ending, _start_of_scan(content)) < 0:
        raise BadSampleError(f'{kind} {path}: truncated after {len(content)} bytes')


def decode(content: bytes, flags: int, path: str, kind: str) -> np.ndarray:
    """Decode an image; raise BadSampleError, which names the file, where that fails."""
    # Labels are decoded unchanged, also by threads, which pyspng would block by the GIL.
    image = None if flags == cv2.IMREAD_UNCHANGED else decode_png(content, flags)
    if image is None and content:
        try:
            image = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
        except cv2.error:
            image = None
    if image is None:
        raise BadSampleError(f'{kind} {path}: not a readable image ({len(content)} bytes)')
    return image


def decode_reduced(
    content: bytes, flags: int, at_least: tuple[int, int], path: str, kind: str
) -> tuple[np.ndarray, int]:
    """Decode a JPEG at 1/2, 1/4 or 1/8 of its size, which skips most of the work.

    A pixel is about the mean of the pixels that it replaces, and covers their area exactly: only
    divisors of both sides of the image are used.

    Args:
        content: Content of the file.
        flags: Flags of OpenCV for a colour image at full size.
        at_least: The minimum width and height of the result.
        path: Path of the file, for error messages.
        kind: What the file is, for error messages.

    Returns:
        The image, and the divisor of its sides. The divisor is 1 where a smaller image would fall
        below `at_least`, and for other formats than JPEG, which are decoded in full.
    """
    size = jpeg_size(content)
    factor = 1 if size is None else _largest_factor(size, at_least)
    if factor > 1:
        image = decode(content, flags | REDUCED[factor], path, kind)
        # The orientation in EXIF data may have swapped the sides.
        if _covers((image.shape[1], image.shape[0]), at_least):
            return image, factor
    return decode(content, flags, path, kind), 1


def check_reduce_to(reduce_to: Any, transform: str) -> tuple[int, int] | None:
    """Return width and height, or None; raise ValueError for other values."""
    if reduce_to is None:
        return None
    if (
        not isinstance(reduce_to, (tuple, list))
        or len(reduce_to) != 2
        or not all(is_whole(side) for side in reduce_to)
    ):
        raise ValueError(
            f'{transform}.reduce_to must be the minimum width and height, such as (800, 450), or '
            f'None, found {reduce_to!r}'
        )
    return reduce_to[0], reduce_to[1]


def jpeg_size(content: bytes) -> tuple[int, int] | None:
    """Return width and height from the header of a JPEG; None for other or damaged files."""
    for marker, offset in _segments(content):
        is_frame = 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)
        if is_frame and offset + 9 <= len(content):
            height, width = struct.unpack_from('>HH', content, offset + 5)
            return width, height
    return None


def _start_of_scan(content: bytes) -> int:
    """Return the offset of a JPEG's pixels: a preview before them has an end marker, too."""
    if content[:2] != _JPEG:
        return 0
    scans = (offset for marker, offset in _segments(content) if marker == 0xDA)
    return next(scans, len(content))


def _segments(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield marker and offset of each segment of a JPEG's header; none of another file."""
    offset = 2 if content[:2] == _JPEG else len(content)
    while offset + 4 <= len(content) and content[offset] == 0xFF:
        marker = content[offset + 1]
        if marker == 0xFF:  # padding
            offset += 1
        else:
            yield marker, offset
            offset += 2 + int.from_bytes(content[offset + 2 : offset + 4], 'big')


def _largest_factor(size: tuple[int, int], at_least: tuple[int, int]) -> int:
    for factor in sorted(REDUCED, reverse=True):
        whole = size[0] % factor == 0 and size[1] % factor == 0
        if whole and _covers((size[0] // factor, size[1] // factor), at_least):
            return factor
    return 1


def _covers(size: tuple[int, int], at_least: tuple[int, int]) -> bool:
    return size[0] >= at_least[0] and size[1] >= at_least[1]


def write_image(path: str, image: np.ndarray) -> None:
    """Write an image to any path; unlike `cv2.imwrite`, raise an error where that fails."""
    encoded, content = cv2.imencode(osp.splitext(path)[1], image)
    if not encoded:
        raise ValueError(f'{path}: cannot encode an image of {image.dtype} {image.shape}')
    with open(path, 'wb') as file:
        file.write(content.tobytes())
