"""Whether a crop is worth learning from."""

from __future__ import annotations

import cv2
import numpy as np

# Of so many labels one is looked at in each direction, to see which is the most frequent.
STEP = 16
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
        known = _by_most_frequent(labels, ignore_index, cat_max_ratio)
        if known is not None:
            return known
        counts = _counts(labels, ignore_index)
        counts = counts[counts > 0]
    return len(counts) > 1 and bool(counts.max() / counts.sum() < cat_max_ratio)


def _by_most_frequent(labels: np.ndarray, ignore_index: int, cat_max_ratio: float) -> bool | None:
    """The answer from the counts of one to three classes, in less time; None where it takes more.

    If all others together stay below the limit, so does each of them. A few labels tell which
    classes to count; were those not the most frequent ones, the answer would be right all the same.
    """
    # Of so few numpy's count is the faster one.
    few = np.bincount(labels[::STEP, ::STEP].ravel(), minlength=256)
    if 0 <= ignore_index < 256:
        few[ignore_index] = 0
    total = labels.size
    # Mostly there is nothing to ignore, which the maximum tells sooner than a count.
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
    """How often each of 256 classes is there; 0 for what is ignored."""
    if labels.size <= EXACT:
        # In one or two dimensions, as the version has it.
        counts = cv2.calcHist([labels], [0], None, [256], [0, 256]).ravel().astype(np.int64)
    else:
        counts = np.bincount(labels.ravel(), minlength=256)
    if 0 <= ignore_index < 256:
        counts[ignore_index] = 0
    return counts
