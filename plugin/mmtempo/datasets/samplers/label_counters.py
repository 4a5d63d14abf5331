"""How the pixels of each class are counted in one label file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import cv2
import mmcv
import numpy as np

from mmtempo.datasets.images.decode import decode, read_file
from mmtempo.datasets.images.errors import BadSampleError

GREY_OF_8_BITS = (8, 0)  # depth and colour type in a PNG's header


class LabelCounter(Protocol):
    """Counts; its `repr` says all that the counts depend on, beside the file."""

    def count(self, path: str) -> np.ndarray:
        """Pixels of each class, int64."""


@dataclass(frozen=True)
class SegMapCounter:
    """Counts a label as mmseg's `LoadAnnotations` would load it.

    Args:
        num_classes: Classes of the data set.
        ignore_index: What does not count.
        reduce_zero_label: Whether 0 stands for no class, and 1 for the first.
        label_map: Pairs of an old class and its new one.
    """

    num_classes: int
    ignore_index: int
    reduce_zero_label: bool
    label_map: tuple[tuple[int, int], ...]

    def count(self, path: str) -> np.ndarray:
        by_value = cv2.calcHist([read_seg_map(path)], [0], None, [256], [0, 256]).ravel()
        by_class = np.bincount(self._class_of_value(), weights=by_value, minlength=256)
        if 0 <= self.ignore_index < self.num_classes:
            by_class[self.ignore_index] = 0
        return by_class[: self.num_classes].astype(np.int64)

    def _class_of_value(self) -> np.ndarray:
        classes = np.arange(256)
        if self.reduce_zero_label:
            classes -= 1
            classes[[0, 255]] = 255
        mapped = classes.copy()
        for old, new in self.label_map:
            mapped[classes == old] = new
        return mapped


def labels_of(dataset: Any) -> Iterator[tuple[str, LabelCounter]]:
    """File and counter of each sample's label.

    Args:
        dataset: A data set of mmseg's, whose data infos have `seg_map_path`, or one with a method
            `label_of(info)` that returns the file and the counter of a sample.
    """
    if not (hasattr(dataset, 'metainfo') and hasattr(dataset, 'get_data_info')):
        raise TypeError(
            f'{type(dataset).__name__} has no metainfo and get_data_info(index), as data sets of '
            'mmengine do: its labels cannot be found'
        )
    inner = _innermost(dataset)
    classes = dataset.metainfo.get('classes') or ()
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        if hasattr(inner, 'label_of'):
            yield inner.label_of(info)
        elif info.get('seg_map_path') and classes:
            counter = SegMapCounter(
                len(classes),
                getattr(inner, 'ignore_index', 255),
                bool(info.get('reduce_zero_label')),
                tuple(sorted((info.get('label_map') or {}).items())),
            )
            yield info['seg_map_path'], counter
        else:
            raise ValueError(
                f'sample {index} of {type(dataset).__name__} has no label that can be counted: '
                "its data info must have 'seg_map_path', with classes in the metainfo "
                f'({len(classes)} found), or the data set a method label_of(info); '
                f'the info has: {", ".join(sorted(info))}'
            )


def read_seg_map(path: str) -> np.ndarray:
    """The values of a label, uint8, as stock reads them."""
    content = read_file(path, 'label')
    if content[:4] == b'\x89PNG' and tuple(content[24:26]) == GREY_OF_8_BITS:
        values = decode(content, cv2.IMREAD_UNCHANGED, path, 'label')
    else:
        # OpenCV would make colours of a palette's indices, and stretch fewer bits to 8.
        try:
            values = mmcv.imfrombytes(content, flag='unchanged', backend='pillow')
        except (OSError, ValueError) as error:
            raise BadSampleError(f'label {path}: not a readable image: {error}') from None
        values = np.ascontiguousarray(values.squeeze().astype(np.uint8))
    if values.ndim != 2:
        raise BadSampleError(f'label {path}: expected one value a pixel, found {values.shape}')
    return values


def _innermost(dataset: Any) -> Any:
    """What wrappers wrap; of several data sets the first, as they share classes and pipeline."""
    while True:
        if hasattr(dataset, 'datasets'):
            dataset = dataset.datasets[0]
        elif hasattr(dataset, 'dataset'):
            dataset = dataset.dataset
        else:
            return dataset
