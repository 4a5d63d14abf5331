"""Writes a synthetic data set in the layout of `NuScenesBEVDataset`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np

from ..image_files import write_image
from .render import Camera, make_label, render_image
from .scene import make_scene

# Focal length and principal point of each camera, at 1600 x 900. They differ as much
# as real ones do: whoever ignores the calibration puts things in the wrong place.
CAMERAS = (
    (1266.0, 816.0, 491.0),
    (809.0, 829.0, 481.0),
    (1000.0, 560.0, 450.0),
    (960.0, 1060.0, 430.0),
)
SPLITS = ('train', 'val')
# Every so many images one is nearly all hidden.
BLOCKED_EVERY = 20


@dataclass(frozen=True)
class Job:
    """One image to make; a pure function of these values, whoever makes it."""

    root: str
    split: str
    index: int
    seed: int
    size: tuple[int, int]
    suffix: str

    @property
    def token(self) -> str:
        return f'{self.split}_{self.index:06d}'


def make_sample(job: Job) -> tuple[str, list[list[float]]]:
    """Write image and label of one job; returns its token and intrinsics."""
    cv2.setNumThreads(1)
    rng = np.random.default_rng([job.seed, SPLITS.index(job.split), job.index])
    focal, cx, cy = CAMERAS[rng.integers(len(CAMERAS))]
    sx, sy = job.size[0] / 1600, job.size[1] / 900
    intrinsics = np.array([[focal * sx, 0, cx * sx], [0, focal * sy, cy * sy], [0, 0, 1.0]])
    camera = Camera(intrinsics, job.size)
    scene = make_scene(rng, blocked=job.index % BLOCKED_EVERY == BLOCKED_EVERY - 1)
    for folder, name, image in (
        ('img_dir', f'{job.token}.{job.suffix}', render_image(scene, camera, rng)),
        ('ann_bev_dir', f'{job.token}.png', make_label(scene, camera)),
    ):
        path = os.path.join(job.root, folder, job.split, name)
        write_image(path, image)
    return job.token, intrinsics.tolist()


def write_dataset(
    root: str,
    num: dict[str, int],
    size: tuple[int, int] = (1600, 900),
    seed: int = 0,
    suffix: str = 'jpg',
    workers: int = 1,
) -> Iterator[str]:
    """Write the data set, yielding each token as it is done.

    Everything goes to a folder beside `root` first, which is renamed at the end:
    `root` never holds half a data set. The result depends on the arguments
    only, not on `workers`.

    Args:
        root: Folder to make; must not exist.
        num: Number of images by split ('train', 'val').
        size: Width and height of the images.
        seed: Of the whole data set.
        suffix: 'jpg' or 'png'.
        workers: Processes to use.
    """
    target = Path(root)
    if target.exists():
        raise FileExistsError(f'{target} exists; remove it first, or name another folder')
    partial = target.with_name(f'{target.name}.partial')
    shutil.rmtree(partial, ignore_errors=True)
    jobs = []
    for split, count in num.items():
        for folder in ('img_dir', 'ann_bev_dir'):
            (partial / folder / split).mkdir(parents=True)
        jobs += [Job(str(partial), split, index, seed, size, suffix) for index in range(count)]
    calibrations = {}
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context('spawn')) as pool:
            for token, intrinsics in pool.map(make_sample, jobs, chunksize=4):
                calibrations[token] = intrinsics
                yield token
        text = json.dumps(dict(sorted(calibrations.items())))
        (partial / 'calib.json').write_text(text, encoding='utf-8')
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
