"""Faster loading of segmentation maps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import LoadAnnotations

from mmtempo.datasets.images.read import decode_labels, get_content

from .byte_ops import BYTES, look_up


@TRANSFORMS.register_module()
class FastLoadAnnotations(LoadAnnotations):
    """A faster `LoadAnnotations` of mmseg, with equal labels and the same arguments.

    8-bit grey PNGs are decompressed by zlib-ng, in a third of the time or less. Other files, such
    as palette PNGs, which OpenCV would turn into colours, are decoded by `imdecode_backend`.
    `reduce_zero_label` and the data set's `label_map` become one table with one lookup per pixel,
    where stock passes over the image once per class.

    A file that is missing, truncated or no image raises a `BadSampleError` that names it.

    Example::

        train_pipeline = [dict(type='LoadImageFromFile'), dict(type='FastLoadAnnotations'), ...]

    Args:
        args: Positional arguments of mmseg's `LoadAnnotations`.
        kwargs: Keyword arguments of mmseg's `LoadAnnotations`.
    """

    reduce_zero_label: bool | None

    def _load_seg_map(self, results: dict) -> None:
        path = results['seg_map_path']
        content = get_content(path, self.backend_args, 'segmentation map')
        labels = decode_labels(content, self.imdecode_backend, path, 'segmentation map')
        expected = results['reduce_zero_label']
        if self.reduce_zero_label is None:
            self.reduce_zero_label = expected
        elif self.reduce_zero_label != expected:
            raise ValueError(
                f'{type(self).__name__}.reduce_zero_label must be {expected}, as in the data set, '
                f'found {self.reduce_zero_label}; set it in the data set only'
            )
        table = label_table(bool(expected), results.get('label_map'))
        results['gt_seg_map'] = labels if table is None else look_up(labels, table)
        results['seg_fields'].append('gt_seg_map')


def label_table(reduce_zero_label: bool, label_map: Mapping[int, int] | None) -> np.ndarray | None:
    """Return the table of new labels by old ones; None where no label changes."""
    if not reduce_zero_label and label_map is None:
        return None
    table = BYTES.copy()
    for old, new in (label_map or {}).items():
        if 0 <= old < 256:
            table[old] = new
    if reduce_zero_label:
        reduced = BYTES - np.uint8(1)  # 0 becomes 255
        reduced[255] = 255  # and 255 stays
        table = table[reduced]
    return table
