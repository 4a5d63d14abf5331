"""Count the cells of each class in a packed BEV label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmtempo.workloads.bev.structures.labels import CLASSES, IGNORE_BIT

from .transforms.load_bev_annotation import LoadBEVAnnotation


@dataclass(frozen=True)
class BEVLabelCounter:
    """Counter of the cells of each class in a packed BEV label.

    A cell that carries several classes counts for each of them; ignored cells do not count.

    Args:
        groups: As for `LoadBEVAnnotation`.
    """

    groups: tuple[tuple[str, ...], ...] | None

    def count(self, path: str) -> np.ndarray:
        label = LoadBEVAnnotation(self.groups).transform(dict(bev_path=path))['gt_bev']
        by_value = np.bincount(label.ravel(), minlength=1 << IGNORE_BIT)
        values = np.flatnonzero(by_value[: 1 << IGNORE_BIT])  # larger values are ignored cells
        bits = values[:, None] >> np.arange(len(self.groups or CLASSES)) & 1
        return by_value[values] @ bits


def groups_of(pipeline: Any) -> tuple[tuple[str, ...], ...] | None:
    """Return the `groups` of the pipeline's `LoadBEVAnnotation`; None where it has none."""
    for transform in getattr(pipeline, 'transforms', ()):
        if isinstance(transform, LoadBEVAnnotation) and transform.groups is not None:
            return tuple(map(tuple, transform.groups))
    return None
