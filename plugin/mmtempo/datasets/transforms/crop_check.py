"""Check that no class dominates a crop."""

from __future__ import annotations

import cv2
import numpy as np

# Step in both directions at which labels are sampled to guess the most frequent classes.
STEP = 16
# OpenCV counts in float32, which is exact up to this number of labels.
EXACT = 1 << 24


def is_varied(labels: np.ndarray, ignore_index: int, cat_max_ratio: float) -> bool:
    """Return whether every class stays below a share of a crop: mmseg's test without sorting.

    Args:
        labels: The labels of the crop.
        ignore_index: The label that is not counted.
        cat_max_ratio: The share of the counted labels that each class must stay below.
    """
    if labels.dtype != np.uint8 or labels.ndim != 2:
        present, counts = np.unique(labels, return_counts=True)
        counts = counts[present != ignore_index]
    else:
        answer = _by_most_frequent(labels, ignore_index, cat_max_ratio)
        if answer is not None:
            return answer
        counts = _counts(labels, ignore_index)
        counts = counts[counts > 0]
    return len(counts) > 1 and bool(counts.max() / counts.sum() < cat_max_ratio)


def _by_most_frequent(labels: np.ndarray, ignore_index: int, cat_max_ratio: float) -> bool | None:
    """Return the answer by counting one to three classes; None where these do not suffice.

    If all other labels together are below the limit, so is each of their classes. A sample of the
    labels selects the classes to count; the answer is correct whichever they are.
    """
    # For a small sample numpy counts faster than OpenCV.
    few = np.bincount(labels[::STEP, ::STEP].ravel(), minlength=256)
    if 0 <= ignore_index < 256:
        few[ignore_index] = 0
    total = labels.size
    # Most crops have no ignored labels, which the maximum shows faster than a count.
    if 0 <= ignore_index < 256 and cv2.norm(labels, cv2.NORM_INF) >= ignore_index:
        total -= np.count_nonzero(labels == ignore_index)
    others = total
    for likely in few.argsort()[:-4:-1].tolist():
        if not few[likely]:
            break
        count = cv2.countNonZero(cv2.inRange(labels, likely, likely))
        if not count / total < cat_max_ratio:
            return False
        others -= count
        if others / total < cat_max_ratio:
            return True
    return None


def _counts(labels: np.ndarray, ignore_index: int) -> np.ndarray:
    """Return the counts of 256 classes; 0 for the ignored label."""
    if labels.size <= EXACT:
        # The result has one or two dimensions, depending on OpenCV's version.
        counts = cv2.calcHist([labels], [0], None, [256], [0, 256]).ravel().astype(np.int64)
    else:
        counts = np.bincount(labels.ravel(), minlength=256)
    if 0 <= ignore_index < 256:
        counts[ignore_index] = 0
    return counts
