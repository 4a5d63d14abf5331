"""PNGs of 8-bit colours and greys: what OpenCV makes of them, in less time.

Most of a PNG's time is its decompression, which zlib-ng does many times as fast as the libraries
that OpenCV and pyspng have in them. What is left is to add each pixel to its neighbour.
"""

from __future__ import annotations

import functools
import itertools
import struct
from types import ModuleType

import cv2
import numpy as np
from zlib_ng import zlib_ng

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
_HEADER = slice(8, 33)
_END = b'\0\0\0\0IEND\xaeB`\x82'  # with its size and check sum
# A chunk's check sum, and the size and kind of the chunk behind it.
_NEXT = struct.Struct('>II4s')
# Nobody looks whether it got the memory; OpenCV reports that it did not.
_MOST_PIXELS = 1 << 26
_SUB = 1  # the kind of row whose pixels are differences to the left, as OpenCV writes them


def decode_png(content: bytes, flags: int) -> np.ndarray | None:
    """Decode a whole file of 8-bit colours or greys, neither transparent nor interlaced.

    Colours are decoded by pyspng where that is installed. It holds Python's lock, which OpenCV
    does not: threads wait for each other.

    Args:
        content: The file.
        flags: OpenCV's; with `cv2.IMREAD_COLOR`, only images of colours are decoded.

    Returns:
        The image, or None for what is left to OpenCV: files of other kinds, and broken ones.
    """
    if content[:8] != _SIGNATURE or flags not in _FLAGS.get(content[24:29], ()):
        return None
    width, height = struct.unpack_from('>II', content, 16)
    if width * height > _MOST_PIXELS:
        return None
    data = _image_data(content)
    if data is None:
        return None
    is_grey = content[24:29] == _GREY
    rows = _inflate(data, height, 1 + width * (1 if is_grey else 3))
    if rows is None:
        return None
    if is_grey and (rows[:, 0] == _SUB).all():
        return _added_up(rows[:, 1:])
    stored = _stored(content[_HEADER], rows)
    pyspng = None if is_grey else _pyspng()
    if pyspng is None:
        return cv2.imdecode(np.frombuffer(stored, np.uint8), flags)
    try:
        return cv2.cvtColor(pyspng.load(stored), cv2.COLOR_RGB2BGR)
    except RuntimeError:
        return None  # OpenCV says what is wrong


@functools.cache
def _pyspng() -> ModuleType | None:
    try:
        import pyspng
    except ImportError:
        return None
    return pyspng


def _image_data(content: bytes) -> bytes | memoryview | None:
    """A PNG's compressed pixels; None unless all chunks are known and carry their check sums."""
    view, place, parts = memoryview(content), len(_SIGNATURE), []
    size, kind = struct.unpack_from('>I4s', content, place)
    while kind != b'IEND':
        end = place + 8 + size
        if kind not in _HARMLESS or end + 12 > len(content):
            return None
        check_sum, next_size, next_kind = _NEXT.unpack_from(content, end)
        if zlib_ng.crc32(view[place + 4 : end]) != check_sum:
            return None
        if kind == b'IDAT':
            parts.append(view[place + 8 : end])
        place, size, kind = end + 4, next_size, next_kind
    return parts[0] if len(parts) == 1 else b''.join(parts)


def _inflate(data: bytes | memoryview, height: int, length: int) -> np.ndarray | None:
    """Decompress rows of so many bytes, the kind of the row first; None if it is not just them."""
    stream, size = zlib_ng.decompressobj(), height * length
    try:
        # With room for more than there may be, it goes on to the check sum at the end.
        rows = stream.decompress(data, size + 1)
    except zlib_ng.error:  # type: ignore[misc]  # its stubs do not say what it is
        return None
    if len(rows) != size or not stream.eof:
        return None
    return np.frombuffer(rows, np.uint8).reshape(height, length)


def _added_up(differences: np.ndarray) -> np.ndarray:
    """Sums along the rows; made along columns, which are added many pixels at a time."""
    columns = cv2.transpose(differences)
    for left, column in itertools.pairwise(columns):
        np.add(left, column, out=column)
    return cv2.transpose(columns)


def _stored(header: bytes, rows: np.ndarray) -> bytes:
    """A PNG of the same rows that is not compressed."""
    data = b'IDAT' + zlib_ng.compress(rows, 0)
    size, check_sum = len(data) - 4, zlib_ng.crc32(data)
    parts = _SIGNATURE, header, struct.pack('>I', size), data, struct.pack('>I', check_sum), _END
    return b''.join(parts)
