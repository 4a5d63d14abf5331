"""Files from wherever mmengine can read them, with errors that name them."""

from __future__ import annotations

from typing import Any

import cv2
import mmcv
import numpy as np
from mmengine import fileio

from .decode import check_whole, read_file
from .errors import BadSampleError
from .png import decode_png

# mmcv's names of OpenCV's flags.
FLAGS = dict(
    color=cv2.IMREAD_COLOR,
    color_ignore_orientation=cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION,
    grayscale=cv2.IMREAD_GRAYSCALE,
    unchanged=cv2.IMREAD_UNCHANGED,
)


def get_content(
    path: str, backend_args: dict | None, kind: str, file_client_args: dict | None = None
) -> bytes:
    """The file's bytes, checked to be whole."""
    if file_client_args is not None:
        client = fileio.FileClient.infer_client(file_client_args, path)
        content = client.get(path)
    elif backend_args is None and '://' not in str(path):
        return read_file(path, kind)
    else:
        content = fileio.get(path, backend_args=backend_args)
    content = bytes(content)
    check_whole(content, path, kind)
    return content


def decode_as_stock(content: bytes, flag: str, backend: str, path: str, kind: str) -> np.ndarray:
    """As `mmcv.imfrombytes`; BadSampleError names a file that is no image."""
    if backend == 'cv2' and flag in FLAGS:
        decoded = decode_png(content, FLAGS[flag])
        if decoded is not None:
            return decoded
    why: Any = ''
    try:
        image = mmcv.imfrombytes(content, flag=flag, backend=backend)
    except (cv2.error, OSError, SyntaxError) as error:  # Pillow's are of the latter two kinds
        image, why = None, f': {error}'
    if image is None:
        raise BadSampleError(f'{kind} {path}: not a readable image ({len(content)} bytes){why}')
    return image
