"""Loads a segmentation map."""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import LoadAnnotations

from mmtempo.datasets.images.decode import decode
from mmtempo.datasets.images.png import decode_png
from mmtempo.datasets.images.read import decode_as_stock, get_content

from .byte_ops import BYTES, look_up

# Where a PNG's header says how many bits and of what kind: 8, grey.
KIND_OF_PIXELS, GREY_BYTES = slice(24, 26), b'\x08\x00'


@TRANSFORMS.register_module()
class FastLoadAnnotations(LoadAnnotations):
    """mmseg's `LoadAnnotations`: the same labels, and arguments.

    Grey PNGs of bytes are decompressed by zlib-ng, in a third of the time or less; palettes, which
    OpenCV would turn into colours, and all else are decoded by the backend that is asked for.
    `reduce_zero_label` and the data set's `label_map` are one table, looked up once a pixel:
    stock goes through the image once for each class.

    A file that is missing, cut short or no image is a `BadSampleError`, which names it.

    Args:
        args: Those of mmseg's `LoadAnnotations`.
        kwargs: Those of mmseg's `LoadAnnotations`.
    """

    reduce_zero_label: bool | None

    def _load_seg_map(self, results: dict) -> None:
        path = results['seg_map_path']
        content = get_content(path, self.backend_args, 'segmentation map')
        labels = self._decode(content, path)
        wanted = results['reduce_zero_label']
        mine = self.reduce_zero_label
        if mine is None:
            self.reduce_zero_label = wanted
        elif mine != wanted:
            raise ValueError(
                f'{type(self).__name__}.reduce_zero_label is {mine}, but that of the data set is '
                f'{wanted}; set it there alone'
            )
        table = label_table(bool(wanted), results.get('label_map'))
        results['gt_seg_map'] = labels if table is None else look_up(labels, table)
        results['seg_fields'].append('gt_seg_map')

    def _decode(self, content: bytes, path: str) -> np.ndarray:
        kind = 'segmentation map'
        is_grey = content[:4] == b'\x89PNG' and content[KIND_OF_PIXELS] == GREY_BYTES
        # With transparency some versions of OpenCV give four channels.
        if is_grey and self.imdecode_backend == 'pillow' and b'tRNS' not in content[:1024]:
            flags = cv2.IMREAD_UNCHANGED
            image = decode_png(content, flags)
            return decode(content, flags, path, kind) if image is None else image
        labels = decode_as_stock(content, 'unchanged', self.imdecode_backend, path, kind)
        return labels.squeeze().astype(np.uint8)


def label_table(reduce_zero_label: bool, label_map: Mapping[int, int] | None) -> np.ndarray | None:
    """What becomes of each label; None where they all stay."""
    if not reduce_zero_label and label_map is None:
        return None
    table = BYTES.copy()
    for old, new in (label_map or {}).items():
        if 0 <= old < 256:
            table[old] = new
    if reduce_zero_label:
        reduced = BYTES - np.uint8(1)  # 0 becomes 255,
        reduced[255] = 255  # which stays as it is
        table = table[reduced]
    return table
