"""Read image files from any backend of mmengine, with errors that name the file."""

from __future__ import annotations

from typing import Any

import cv2
import mmcv
import numpy as np
from mmengine import fileio

from .decode import check_whole, decode, read_file
from .errors import BadSampleError
from .png import decode_png

# Position and value of bit depth and colour type in the header of a PNG: 8 bits, grey.
KIND_OF_PIXELS, GREY_BYTES = slice(24, 26), b'\x08\x00'
# Names that mmcv gives to flags of OpenCV.
FLAGS = dict(
    color=cv2.IMREAD_COLOR,
    color_ignore_orientation=cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION,
    grayscale=cv2.IMREAD_GRAYSCALE,
    unchanged=cv2.IMREAD_UNCHANGED,
)


def get_content(
    path: str, backend_args: dict | None, kind: str, file_client_args: dict | None = None
) -> bytes:
    """Return the bytes of a file; raise BadSampleError where it is truncated.

    Args:
        path: Path or URL of the file.
        backend_args: Arguments of mmengine's file backend; None for a local file.
        kind: What the file is, such as 'image', for error messages.
        file_client_args: Arguments of mmengine's former file client. Defaults to None.
    """
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
    """Decode as `mmcv.imfrombytes` does; raise BadSampleError where the file is no image."""
    if backend == 'cv2' and flag in FLAGS:
        decoded = decode_png(content, FLAGS[flag])
        if decoded is not None:
            return decoded
    reason: Any = ''
    try:
        image = mmcv.imfrombytes(content, flag=flag, backend=backend)
    except (cv2.error, OSError, SyntaxError, ValueError) as error:  # the latter are Pillow's
        image, reason = None, f': {error}'
    if image is None:
        raise BadSampleError(f'{kind} {path}: not a readable image ({len(content)} bytes){reason}')
    return image


def decode_labels(content: bytes, backend: str, path: str, kind: str) -> np.ndarray:
    """Decode a label image as stock does, as bytes; most 8-bit grey PNGs in a third of the time.

    OpenCV would turn palette indices into colours and stretch fewer bits to 8.
    """
    is_grey = content[:4] == b'\x89PNG' and content[KIND_OF_PIXELS] == GREY_BYTES
    # With transparency some versions of OpenCV return four channels.
    if is_grey and backend == 'pillow' and b'tRNS' not in content[:1024]:
        labels = decode_png(content, cv2.IMREAD_UNCHANGED)
        return decode(content, cv2.IMREAD_UNCHANGED, path, kind) if labels is None else labels
    labels = decode_as_stock(content, 'unchanged', backend, path, kind)
    return labels.squeeze().astype(np.uint8)
