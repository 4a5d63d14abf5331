"""PNGs decoded by pyspng where that is installed: what OpenCV makes of them, in less time."""

from __future__ import annotations

import functools
import struct
import zlib
from types import ModuleType

import cv2
import numpy as np

_SIGNATURE = b'\x89PNG\r\n\x1a\n'
# Bits, kind, compression, filter and interlacing of an IHDR chunk.
_COLOUR, _GREY = b'\x08\x02\x00\x00\x00', b'\x08\x00\x00\x00\x00'
_FLAGS = {
    _COLOUR: (
        cv2.IMREAD_COLOR,
        cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION,
        cv2.IMREAD_UNCHANGED,
    ),
    _GREY: (cv2.IMREAD_GRAYSCALE, cv2.IMREAD_UNCHANGED),
}
# What else may be in the file: transparency, orientation or frames would change the image.
_HARMLESS = frozenset((b'IHDR', b'IDAT', b'pHYs', b'tEXt', b'tIME', b'sRGB'))
# A chunk's check sum, and the size and kind of the chunk behind it.
_NEXT = struct.Struct('>II4s')
# pyspng does not look whether it got the memory; OpenCV reports that it did not.
_MOST_PIXELS = 1 << 26


def decode_png(content: bytes, flags: int) -> np.ndarray | None:
    """Decode what pyspng decodes as OpenCV does; None leaves the file to OpenCV.

    These are 8-bit colours or greys, neither transparent nor interlaced, in a whole file. It
    holds Python's lock, which OpenCV does not: threads wait for each other.

    Args:
        content: The file.
        flags: OpenCV's; with `cv2.IMREAD_COLOR`, only images of colours are decoded.
    """
    if content[:8] != _SIGNATURE or flags not in _FLAGS.get(content[24:29], ()):
        return None
    width, height = struct.unpack_from('>II', content, 16)
    if width * height > _MOST_PIXELS:
        return None
    pyspng = _pyspng()
    # It passes over check sums, and would return wrong pixels where a bit has changed.
    if pyspng is None or not _is_sound(content):
        return None
    try:
        image = pyspng.load(content)
    except RuntimeError:
        return None  # OpenCV says what is wrong
    return cv2.cvtColor(image, cv2.COLOR_RGB2BGR) if image.ndim == 3 else image


@functools.cache
def _pyspng() -> ModuleType | None:
    try:
        import pyspng
    except ImportError:
        return None
    return pyspng


def _is_sound(content: bytes) -> bool:
    """Whether all of a PNG's chunks are known and carry their check sums."""
    view, place = memoryview(content), len(_SIGNATURE)
    size, kind = struct.unpack_from('>I4s', content, place)
    while kind != b'IEND':
        end = place + 8 + size
        if kind not in _HARMLESS or end + 12 > len(content):
            return False
        check_sum, next_size, next_kind = _NEXT.unpack_from(content, end)
        if zlib.crc32(view[place + 4 : end]) != check_sum:
            return False
        place, size, kind = end + 4, next_size, next_kind
    return True
