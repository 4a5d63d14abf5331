"""Pixels of each class in each sample's label, counted once."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from mmengine.logging import print_log

from mmtempo.system.limits import usable_cpus
from mmtempo.utils.threads import PREFIX, use_one_thread

from .label_counters import LabelCounter, labels_of
from .label_counts_file import LabelCountsFile

LINE_EVERY = 10.0  # seconds
MOST_THREADS = 8
Label = tuple[str, LabelCounter]


def count_labels(dataset: Any, cache_file: str | None = None) -> np.ndarray:
    """Pixels of each class in each sample's label: int64, samples x classes.

    Only labels are read that the file does not know, or that were changed since: it knows them
    by path, size, time of change, and how they are read.

    Args:
        dataset: One that `labels_of` takes.
        cache_file: Where the counts are kept. Defaults to None: in the user's cache folder, named
            after the labels' paths.
    """
    labels = list(labels_of(dataset))
    keys = [_key(*label) for label in labels]
    file = LabelCountsFile(cache_file or _usual_file(labels))
    known = file.read()
    missing = {key: label for key, label in zip(keys, labels) if key not in known}
    if missing:
        for key, counts in zip(missing, _count_all(list(missing.values()))):
            known[key] = counts
        file.write({key: known[key] for key in keys})
    return np.stack([known[key] for key in keys])


def _count_all(labels: list[Label]) -> Iterator[np.ndarray]:
    """In order. Threads will do, as decoding does not hold Python's lock."""
    threads = max(1, min(MOST_THREADS, int(usable_cpus().number)))
    start = said = time.monotonic()
    with ThreadPoolExecutor(threads, f'{PREFIX}label-counts', use_one_thread) as pool:
        for number, counts in enumerate(pool.map(_count, labels), start=1):
            now = time.monotonic()
            if now - said > LINE_EVERY or number == len(labels):
                said = now
                print_log(
                    f'label counts: {number:,} of {len(labels):,} labels in {now - start:.1f} s',
                    logger='current',
                )
            yield counts


def _count(label: Label) -> np.ndarray:
    path, counter = label
    return counter.count(path)


def _key(path: str, counter: LabelCounter) -> bytes:
    try:
        state = os.stat(path)
    except OSError as error:
        raise FileNotFoundError(
            f'label {path}: {error.strerror}; labels can be counted in local files only'
        ) from None
    told = f'{os.path.abspath(path)}\n{state.st_size}\n{state.st_mtime_ns}\n{counter!r}'
    return hashlib.sha256(told.encode()).digest()


def _usual_file(labels: list[Label]) -> str:
    paths = '\n'.join(os.path.abspath(path) for path, _ in labels)
    name = hashlib.sha256(paths.encode()).hexdigest()[:16]
    root = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
    return os.path.join(root, 'mmtempo', f'label_counts_{name}.npz')
