"""Pixels of each class in each sample's label, counted once and stored in a file."""

from __future__ import annotations

import hashlib
import logging
import os
import time
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import cv2
import numpy as np
from mmengine.logging import print_log

from mmtempo.datasets.images.decode import read_file
from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.datasets.images.read import decode_labels
from mmtempo.system.limits import usable_cpus
from mmtempo.utils.atomic_file import replace_file
from mmtempo.utils.datasets import innermost
from mmtempo.utils.threads import PREFIX, use_one_thread
from mmtempo.utils.units import duration

LOG_INTERVAL = 10.0  # seconds
MOST_THREADS = 8
KEY_BYTES = 32
# What reading a damaged .npz file may raise.
DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


class LabelCounter(Protocol):
    """A way to count a label. Its `repr` names all that the counts depend on except the file."""

    def count(self, path: str) -> np.ndarray:
        """Return the number of pixels of each class, int64."""


Label = tuple[str, LabelCounter]


@dataclass(frozen=True)
class SegMapCounter:
    """A counter that reads a label as mmseg's `LoadAnnotations` does.

    Args:
        num_classes: The number of classes of the data set.
        ignore_index: The label that is not counted.
        reduce_zero_label: Whether label 0 means no class and label 1 the first class.
        label_map: Pairs of an old label and the label that replaces it.
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


def read_counts(path: str) -> dict[bytes, np.ndarray]:
    """Return the rows of an .npz file by key; none where it is missing, or damaged: logged."""
    try:
        # Opened here because numpy leaves a file open that it cannot read.
        with open(path, 'rb') as file, np.load(file, allow_pickle=False) as content:
            keys, counts = content['keys'], content['counts']
        if keys.dtype != np.uint8 or keys.shape != (len(counts), KEY_BYTES) or counts.ndim != 2:
            raise ValueError(f'keys {keys.dtype} {keys.shape}, counts {counts.shape}')
        if counts.dtype != np.int64:
            raise ValueError(f'counts of {counts.dtype}')
    except FileNotFoundError:
        return {}
    except DAMAGE as error:
        _warn(f'{path} cannot be read', error, 'labels are counted again')
        return {}
    return {key.tobytes(): row for key, row in zip(keys, counts)}


def write_counts(path: str, rows: dict[bytes, np.ndarray]) -> None:
    """Replace the file atomically; a failure is logged, and the next training counts again."""
    keys = np.frombuffer(b''.join(rows), dtype=np.uint8).reshape(-1, KEY_BYTES)
    counts = np.stack(list(rows.values()))
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        replace_file(path, lambda file: np.savez(file, keys=keys, counts=counts))
    except OSError as error:
        _warn(f'{path} cannot be written', error, 'the next training counts again')


def _warn(what: str, error: Exception, consequence: str) -> None:
    print_log(
        f'label counts: {what} ({type(error).__name__}: {error}); {consequence}',
        logger='current',
        level=logging.WARNING,
    )


def count_labels(dataset: Any, cache_file: str | None = None) -> np.ndarray:
    """Return the pixels of each class in each sample's label: int64, samples x classes.

    Reads only labels that the file does not have. Their keys are path, size, modification time
    and counter, so a changed label is read again.

    Args:
        dataset: A data set that `labels_of` accepts.
        cache_file: Path of the .npz file with the counts. Defaults to None: a file in the user's
            cache folder, named after the paths of the labels.
    """
    labels = list(labels_of(dataset))
    keys = [_key(*label) for label in labels]
    path = cache_file or _default_file(labels)
    rows = read_counts(path)
    missing = {key: label for key, label in zip(keys, labels) if key not in rows}
    if missing:
        for key, counts in zip(missing, _count_all(list(missing.values()))):
            rows[key] = counts
        write_counts(path, {key: rows[key] for key in keys})
    return np.stack([rows[key] for key in keys])


def labels_of(dataset: Any) -> Iterator[Label]:
    """Yield file and counter of each sample's label.

    Args:
        dataset: A data set of mmseg, whose data infos have `seg_map_path`, or one with a method
            `label_of(info)` that returns file and counter of a sample.
    """
    if not (hasattr(dataset, 'metainfo') and hasattr(dataset, 'get_data_info')):
        raise TypeError(
            f'{type(dataset).__name__}: labels cannot be counted without metainfo and '
            'get_data_info(index), as data sets of mmengine have them'
        )
    # Data sets in one ConcatDataset share classes and pipeline, so the first stands for all.
    inner = innermost(dataset)
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
                f'{type(dataset).__name__}: sample {index} has no label that can be counted; '
                f"expected 'seg_map_path' in its data info, found {', '.join(sorted(info))}, and "
                f'classes in the metainfo, found {len(classes)}; or give the data set a method '
                'label_of(info)'
            )


def read_seg_map(path: str) -> np.ndarray:
    """Return the values of a label as stock reads them, uint8."""
    values = decode_labels(read_file(path, 'label'), 'pillow', path, 'label')
    if values.ndim != 2:
        raise BadSampleError(f'label {path}: expected one value per pixel, found {values.shape}')
    return np.ascontiguousarray(values)


def _count_all(labels: list[Label]) -> Iterator[np.ndarray]:
    """Yield the counts of labels in order; threads suffice, as decoding releases the GIL."""
    threads = max(1, min(MOST_THREADS, int(usable_cpus().number)))
    start = logged = time.monotonic()
    with ThreadPoolExecutor(threads, f'{PREFIX}label-counts', use_one_thread) as pool:
        for number, counts in enumerate(pool.map(_count, labels), start=1):
            now = time.monotonic()
            if now - logged > LOG_INTERVAL or number == len(labels):
                logged = now
                print_log(
                    f'label counts: {number:,} of {len(labels):,} labels in '
                    f'{duration(now - start)}',
                    logger='current',
                )
            yield counts


def _count(label: Label) -> np.ndarray:
    path, counter = label
    return counter.count(path)


def _key(path: str, counter: LabelCounter) -> bytes:
    try:
        status = os.stat(path)
    except OSError as error:
        raise FileNotFoundError(
            f'label {path}: {error.strerror}; labels can be counted in local files only'
        ) from None
    text = f'{os.path.abspath(path)}\n{status.st_size}\n{status.st_mtime_ns}\n{counter!r}'
    return hashlib.sha256(text.encode()).digest()


def _default_file(labels: list[Label]) -> str:
    paths = '\n'.join(os.path.abspath(path) for path, _ in labels)
    name = hashlib.sha256(paths.encode()).hexdigest()[:16]
    root = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
    return os.path.join(root, 'mmtempo', f'label_counts_{name}.npz')
