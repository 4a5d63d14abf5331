"""Image files, read and written so that nothing goes wrong in silence."""

from __future__ import annotations

import os.path as osp

import cv2
import numpy as np

from .errors import BadSampleError

# How a complete file ends. OpenCV only warns about a file that was cut short.
_ENDINGS = {b'\xff\xd8': b'\xff\xd9', b'\x89P': b'IEND\xaeB`\x82'}


def read_file(path: str, kind: str) -> bytes:
    """The file's bytes, checked to be whole; BadSampleError names what is wrong."""
    try:
        with open(path, 'rb') as file:
            content = file.read()
    except OSError as error:
        raise BadSampleError(f'{kind} {path}: {error.strerror or error}') from None
    ending = _ENDINGS.get(content[:2])
    # Some writers pad the end of the file, so look in its tail.
    if ending is not None and ending not in content[-1024:]:
        raise BadSampleError(f'{kind} {path}: truncated after {len(content)} bytes')
    return content


def decode(content: bytes, flags: int, path: str, kind: str) -> np.ndarray:
    """Decode an image; BadSampleError names the file if that fails."""
    image = None
    if content:
        try:
            image = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
        except cv2.error:
            image = None
    if image is None:
        raise BadSampleError(f'{kind} {path}: not a readable image ({len(content)} bytes)')
    return image


def write_image(path: str, image: np.ndarray) -> None:
    """Write an image; unlike `cv2.imwrite` it takes any path, and says why it failed."""
    encoded, content = cv2.imencode(osp.splitext(path)[1], image)
    if not encoded:
        raise ValueError(f'{path}: an image of {image.dtype} {image.shape} cannot be encoded')
    with open(path, 'wb') as file:
        file.write(content.tobytes())
