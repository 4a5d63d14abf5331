"""Whether a crop is worth learning from."""

from __future__ import annotations

import cv2
import numpy as np

# Beyond it OpenCV's counts, which are float32, are not exact any more.
EXACT = 1 << 24


def is_varied(labels: np.ndarray, ignore_index: int, cat_max_ratio: float) -> bool:
    """Whether no class fills more of a crop than it may: mmseg's test, without sorting the labels.

    Args:
        labels: The labels of the crop.
        ignore_index: A label that does not count.
        cat_max_ratio: The share of the others that one class must stay below.
    """
    if labels.dtype != np.uint8 or labels.ndim != 2:
        present, counts = np.unique(labels, return_counts=True)
        counts = counts[present != ignore_index]
    else:
        if labels.size <= EXACT:
            # In one or two dimensions, as the version has it.
            counts = cv2.calcHist([labels], [0], None, [256], [0, 256]).ravel().astype(np.int64)
        else:
            counts = np.bincount(labels.ravel(), minlength=256)
        if 0 <= ignore_index < 256:
            counts[ignore_index] = 0
        counts = counts[counts > 0]
    return len(counts) > 1 and bool(counts.max() / counts.sum() < cat_max_ratio)
