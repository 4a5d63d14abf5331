"""Loading of a packed BEV label."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS

from mmtempo.datasets.images.decode import decode, read_file
from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.workloads.bev.structures.labels import CLASSES, IGNORE_BIT


@TRANSFORMS.register_module()
class LoadBEVAnnotation(BaseTransform):
    """Load a 16-bit label without unpacking it.

    Required keys: ``bev_path``. Added keys: ``gt_bev`` (uint16, rows x columns).

    Args:
        groups: A list of class names of the file for each class to be learned; a cell with any
            of them carries that class. Defaults to None: the classes of the file.
    """

    def __init__(self, groups: Sequence[Sequence[str]] | None = None) -> None:
        if groups is not None and (
            not 1 <= len(groups) <= IGNORE_BIT
            or not all(group and not isinstance(group, str) for group in groups)
        ):
            raise ValueError(
                f'LoadBEVAnnotation.groups must be 1 to {IGNORE_BIT} lists of class names, such as '
                f"[['car', 'truck'], ['pedestrian']], found {groups!r:.100}"
            )
        unknown = {name for group in groups or () for name in group} - set(CLASSES)
        if unknown:
            raise ValueError(
                f'LoadBEVAnnotation.groups names the unknown classes {sorted(unknown)}; '
                f'the classes of a label are {", ".join(CLASSES)}'
            )
        self.groups = groups

    def transform(self, results: dict) -> dict:
        path = results['bev_path']
        label = decode(read_file(path, 'label'), cv2.IMREAD_UNCHANGED, path, 'label')
        if label.dtype != np.uint16 or label.ndim != 2:
            raise BadSampleError(
                f'label {path}: expected 16-bit gray, found {label.dtype} of shape {label.shape}'
            )
        if label.max() >> 15:
            raise BadSampleError(
                f'label {path}: bit 15 is set; bits 0-13 are classes, bit 14 marks ignored cells'
            )
        results['gt_bev'] = label if self.groups is None else self._merge(label, self.groups)
        return results

    @staticmethod
    def _merge(label: np.ndarray, groups: Sequence[Sequence[str]]) -> np.ndarray:
        merged = label & np.uint16(1 << IGNORE_BIT)
        for bit, group in enumerate(groups):
            members = np.uint16(sum(1 << CLASSES.index(name) for name in group))
            merged |= (label & members != 0).astype(np.uint16) << np.uint16(bit)
        return merged

    def __repr__(self) -> str:
        return f'{type(self).__name__}(groups={self.groups})'
