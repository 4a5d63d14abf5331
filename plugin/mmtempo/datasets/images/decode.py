"""Image files, read and written so that nothing goes wrong in silence."""

from __future__ import annotations

import os.path as osp
import struct
from typing import Any

import cv2
import numpy as np

from .errors import BadSampleError
from .png import decode_png

# How a complete file ends. OpenCV only warns about a file that was cut short.
_ENDINGS = {b'\xff\xd8': b'\xff\xd9', b'\x89P': b'IEND\xaeB`\x82'}

# OpenCV's flags; each is for colour images.
REDUCED = {
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}


def read_file(path: str, kind: str) -> bytes:
    """The file's bytes, checked to be whole; BadSampleError names what is wrong."""
    try:
        with open(path, 'rb') as file:
            content = file.read()
    except OSError as error:
        raise BadSampleError(f'{kind} {path}: {error.strerror or error}') from None
    check_whole(content, path, kind)
    return content


def check_whole(content: bytes, path: str, kind: str) -> None:
    """Raise BadSampleError where a JPEG or PNG was cut short."""
    ending = _ENDINGS.get(content[:2])
    # Some writers pad the end of the file, so look in its tail; a few put whole files there.
    if ending is None or ending in content[-1024:]:
        return
    if content.rfind(ending, _start_of_scan(content)) < 0:
        raise BadSampleError(f'{kind} {path}: truncated after {len(content)} bytes')


def decode(content: bytes, flags: int, path: str, kind: str) -> np.ndarray:
    """Decode an image; BadSampleError names the file if that fails."""
    # Labels are asked for unchanged. Threads read them too, which pyspng would make wait.
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
    """Decode a JPEG at 1/2, 1/4 or 1/8 of its size, which leaves most of the work out.

    A pixel is about the mean of those that it stands for, and covers their area exactly: only
    sizes are taken that both sides of the image can be divided by.

    Args:
        content: The file.
        flags: OpenCV's, of a colour image at full size.
        at_least: Width and height that the image must not fall below.
        path: For messages.
        kind: For messages.

    Returns:
        The image, and what its sides were divided by; 1 where nothing less is large enough, or
        where it is no JPEG: other formats are decoded in full, whatever is wanted.
    """
    size = jpeg_size(content)
    factor = 1 if size is None else _largest_factor(size, at_least)
    if factor > 1:
        image = decode(content, flags | REDUCED[factor], path, kind)
        # EXIF data may have turned it by a quarter.
        if _covers((image.shape[1], image.shape[0]), at_least):
            return image, factor
    return decode(content, flags, path, kind), 1


def check_reduce_to(reduce_to: Any, transform: str) -> tuple[int, int] | None:
    """Two positive integers, or None; or ValueError."""
    if reduce_to is None:
        return None
    if (
        not isinstance(reduce_to, (tuple, list))
        or len(reduce_to) != 2
        or not all(isinstance(side, int) and side > 0 for side in reduce_to)
    ):
        raise ValueError(
            f'{transform}.reduce_to must be the width and height that are needed at least, such '
            f'as (800, 450), or None, found {reduce_to!r}'
        )
    return reduce_to[0], reduce_to[1]


def jpeg_size(content: bytes) -> tuple[int, int] | None:
    """Width and height as a JPEG's header has them; None where it is no JPEG, or a broken one."""
    if content[:2] != b'\xff\xd8':
        return None
    place = 2
    while place + 9 <= len(content):
        if content[place] != 0xFF:
            return None
        marker = content[place + 1]
        if marker == 0xFF:  # padding
            place += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # start of frame
            height, width = struct.unpack_from('>HH', content, place + 5)
            return width, height
        else:
            place += 2 + int.from_bytes(content[place + 2 : place + 4], 'big')
    return None


def _start_of_scan(content: bytes) -> int:
    """Where a JPEG's pixels begin: what comes before may hold a preview, which has an end, too."""
    if content[:2] != b'\xff\xd8':
        return 0
    place = 2
    while place + 4 <= len(content) and content[place] == 0xFF:
        marker = content[place + 1]
        if marker == 0xDA:
            return place
        # Padding, or a segment that says how long it is.
        skipped = 1 if marker == 0xFF else 2 + int.from_bytes(content[place + 2 : place + 4], 'big')
        place += skipped
    return len(content)


def _largest_factor(size: tuple[int, int], at_least: tuple[int, int]) -> int:
    for factor in sorted(REDUCED, reverse=True):
        whole = size[0] % factor == 0 and size[1] % factor == 0
        if whole and _covers((size[0] // factor, size[1] // factor), at_least):
            return factor
    return 1


def _covers(size: tuple[int, int], at_least: tuple[int, int]) -> bool:
    return size[0] >= at_least[0] and size[1] >= at_least[1]


def write_image(path: str, image: np.ndarray) -> None:
    """Write an image; unlike `cv2.imwrite` it takes any path, and says why it failed."""
    encoded, content = cv2.imencode(osp.splitext(path)[1], image)
    if not encoded:
        raise ValueError(f'{path}: an image of {image.dtype} {image.shape} cannot be encoded')
    with open(path, 'wb') as file:
        file.write(content.tobytes())
