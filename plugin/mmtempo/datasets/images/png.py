"""Decode PNGs of 8-bit colours and greys faster than OpenCV, with the same result.

Most of the time is decompression, which zlib-ng does many times faster than the libraries inside
OpenCV and pyspng. The rest is to add each pixel to its neighbour.
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
# Bit depth, colour type, compression, filter and interlacing of an IHDR chunk.
_COLOUR, _GREY = b'\x08\x02\x00\x00\x00', b'\x08\x00\x00\x00\x00'
_FLAGS = {
    _COLOUR: (
        cv2.IMREAD_COLOR,
        cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION,
        cv2.IMREAD_UNCHANGED,
    ),
    _GREY: (cv2.IMREAD_GRAYSCALE, cv2.IMREAD_UNCHANGED),
}
# Allowed chunks; others, such as transparency, orientation or frames, would change the image.
_HARMLESS = frozenset((b'IHDR', b'IDAT', b'pHYs', b'tEXt', b'tIME', b'sRGB'))
_HEADER = slice(8, 33)
_END = b'\0\0\0\0IEND\xaeB`\x82'  # with its size and checksum
# The checksum of a chunk, and size and kind of the next chunk.
_NEXT = struct.Struct('>II4s')
# zlib-ng does not check whether its allocation succeeds; larger images go to OpenCV, which does.
_MOST_PIXELS = 1 << 26
_SUB = 1  # the filter of a row of differences to the left neighbour, as OpenCV writes them


def decode_png(content: bytes, flags: int) -> np.ndarray | None:
    """Decode a file of 8-bit colours or greys that is neither transparent nor interlaced.

    Colours are decoded by pyspng where that is installed. Unlike OpenCV it holds the GIL, so
    other threads wait.

    Args:
        content: Content of the file.
        flags: Flags of OpenCV; with `cv2.IMREAD_COLOR` only colour images are decoded.

    Returns:
        The image, or None for files that OpenCV must decode: other kinds and damaged files.
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
        return _cumulated(rows[:, 1:])
    stored = _stored(content[_HEADER], rows)
    pyspng = None if is_grey else _pyspng()
    if pyspng is None:
        return cv2.imdecode(np.frombuffer(stored, np.uint8), flags)
    try:
        return cv2.cvtColor(pyspng.load(stored), cv2.COLOR_RGB2BGR)
    except RuntimeError:
        return None  # OpenCV reports the reason


@functools.cache
def _pyspng() -> ModuleType | None:
    try:
        import pyspng
    except ImportError:
        return None
    return pyspng


def _image_data(content: bytes) -> bytes | memoryview | None:
    """Return the compressed pixels; None unless all chunks are allowed and have valid checksums."""
    view, start, parts = memoryview(content), len(_SIGNATURE), []
    size, kind = struct.unpack_from('>I4s', content, start)
    while kind != b'IEND':
        end = start + 8 + size
        if kind not in _HARMLESS or end + 12 > len(content):
            return None
        checksum, next_size, next_kind = _NEXT.unpack_from(content, end)
        if zlib_ng.crc32(view[start + 4 : end]) != checksum:
            return None
        if kind == b'IDAT':
            parts.append(view[start + 8 : end])
        start, size, kind = end + 4, next_size, next_kind
    return parts[0] if len(parts) == 1 else b''.join(parts)


def _inflate(data: bytes | memoryview, height: int, length: int) -> np.ndarray | None:
    """Decompress rows of `length` bytes, the first one its filter; None for any other size."""
    stream, size = zlib_ng.decompressobj(), height * length
    try:
        # One byte more than expected, so that it also reads the checksum at the end.
        rows = stream.decompress(data, size + 1)
    except zlib_ng.error:  # type: ignore[misc]  # untyped in its stubs
        return None
    if len(rows) != size or not stream.eof:
        return None
    return np.frombuffer(rows, np.uint8).reshape(height, length)


def _cumulated(differences: np.ndarray) -> np.ndarray:
    """Return cumulative sums along the rows, computed on the transpose, whose rows vectorize."""
    columns = cv2.transpose(differences)
    for left, column in itertools.pairwise(columns):
        np.add(left, column, out=column)
    return cv2.transpose(columns)


def _stored(header: bytes, rows: np.ndarray) -> bytes:
    """Return an uncompressed PNG of the same rows."""
    data = b'IDAT' + zlib_ng.compress(rows, 0)
    size, checksum = len(data) - 4, zlib_ng.crc32(data)
    parts = _SIGNATURE, header, struct.pack('>I', size), data, struct.pack('>I', checksum), _END
    return b''.join(parts)
