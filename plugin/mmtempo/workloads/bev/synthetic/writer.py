"""Writing of synthetic data sets.

A sample has one camera, in the layout of `NuScenesBEVDataset`, or six cameras of one scene, in
that of `MultiCameraBEVDataset`:

    img_dir/{train,val}/<CAMERA>/<token>.jpg   without <CAMERA>/ for one camera
    ann_bev_dir/{train,val}/<token>.png        see `SURROUND_GRID`; `LABEL_GRID` for one camera
    calib.json   {token: {CAMERA: {'intrinsics': 3 x 3, 'cam2ego': 4 x 4}}}, {token: 3 x 3} for one

`cam2ego` turns camera coordinates (x right, y down, z ahead) into nuScenes' ego coordinates
(x ahead, y left, z up, origin on the ground). Intrinsics are those of the written images.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from mmtempo.datasets.images.decode import write_image
from mmtempo.workloads.bev.structures.calibration import CAMERA_NAMES

from .camera import Camera
from .render import label_views, make_label, render_image, render_views
from .rig import VEHICLES, make_rig
from .scene import AROUND, make_scene

# Focal length and principal point of each camera, in pixels at 1600 x 900. They differ as much
# as those of real cameras, so that code that ignores the calibration fails.
CAMERAS = (
    (1266.0, 816.0, 491.0),
    (809.0, 829.0, 481.0),
    (1000.0, 560.0, 450.0),
    (960.0, 1060.0, 430.0),
)
SPLITS = ('train', 'val')
# One image in this many is almost completely hidden.
BLOCKED_EVERY = 20


@dataclass(frozen=True)
class Job:
    """Description of a sample, which determines its files completely.

    Args:
        root: Folder of the data set.
        split: 'train' or 'val'.
        index: Number of the sample in its split.
        seed: Seed of the data set.
        size: Width and height of each image, in pixels.
        suffix: File format of the images, 'jpg' or 'png'.
        multicam: Whether the sample has six cameras instead of one. Defaults to False.
    """

    root: str
    split: str
    index: int
    seed: int
    size: tuple[int, int]
    suffix: str
    multicam: bool = False

    @property
    def token(self) -> str:
        return f'{self.split}_{self.index:06d}'


def _one_camera(
    job: Job, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray, Any]:
    """Return images by subfolder (here ''), label and calibration of one camera."""
    focal, cx, cy = CAMERAS[rng.integers(len(CAMERAS))]
    sx, sy = job.size[0] / 1600, job.size[1] / 900
    intrinsics = np.array([[focal * sx, 0, cx * sx], [0, focal * sy, cy * sy], [0, 0, 1.0]])
    camera = Camera(intrinsics, job.size)
    scene = make_scene(rng, blocked=job.index % BLOCKED_EVERY == BLOCKED_EVERY - 1)
    images = {'': render_image(scene, camera, rng)}
    return images, make_label(scene, camera), intrinsics.tolist()


def _six_cameras(
    job: Job, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray, Any]:
    """Return images by camera, label and calibrations of six cameras."""
    rig = make_rig(int(rng.integers(VEHICLES)), job.size)
    scene = make_scene(rng, layout=AROUND)
    views = list(rig.values())
    images = dict(zip(rig, render_views(scene, views, rng)))
    calibration = {
        name: dict(intrinsics=view.camera.intrinsics.tolist(), cam2ego=view.cam2ego.tolist())
        for name, view in rig.items()
    }
    return images, label_views(scene, views), calibration


def make_sample(job: Job) -> tuple[str, Any]:
    """Write images and label of a sample; return its token and its entry of `calib.json`."""
    cv2.setNumThreads(1)
    rng = np.random.default_rng([job.seed, SPLITS.index(job.split), job.index])
    make = _six_cameras if job.multicam else _one_camera
    images, label, calibration = make(job, rng)
    for folder, image in images.items():
        name = f'{job.token}.{job.suffix}'
        write_image(os.path.join(job.root, 'img_dir', job.split, folder, name), image)
    write_image(os.path.join(job.root, 'ann_bev_dir', job.split, f'{job.token}.png'), label)
    return job.token, calibration


def write_dataset(
    root: str,
    num: dict[str, int],
    size: tuple[int, int] = (1600, 900),
    seed: int = 0,
    suffix: str = 'jpg',
    workers: int = 1,
    multicam: bool = False,
) -> Iterator[str]:
    """Write a data set; yield the token of each sample after it is written.

    Files go to a folder next to `root`, which is renamed to `root` at the end, so that `root`
    never contains a part of a data set. The files do not depend on `workers`.

    Args:
        root: Folder of the data set; must not exist.
        num: Number of samples by split ('train', 'val').
        size: Width and height of each image, in pixels. Defaults to (1600, 900).
        seed: Seed of the data set. Defaults to 0.
        suffix: File format of the images, 'jpg' or 'png'. Defaults to 'jpg'.
        workers: Number of processes. Defaults to 1.
        multicam: Whether each sample has six cameras around a vehicle, instead of one that looks
            ahead. Defaults to False.
    """
    target = Path(root)
    if target.exists():
        raise FileExistsError(f'{target} exists; remove it first, or choose another folder')
    partial = target.with_name(f'{target.name}.partial')
    shutil.rmtree(partial, ignore_errors=True)
    jobs = []
    for split, count in num.items():
        (partial / 'ann_bev_dir' / split).mkdir(parents=True)
        for camera in CAMERA_NAMES if multicam else ('',):
            (partial / 'img_dir' / split / camera).mkdir(parents=True)
        jobs += [
            Job(str(partial), split, index, seed, size, suffix, multicam) for index in range(count)
        ]
    calibrations = {}
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context('spawn')) as pool:
            for token, calibration in pool.map(make_sample, jobs, chunksize=4):
                calibrations[token] = calibration
                yield token
        text = json.dumps(dict(sorted(calibrations.items())))
        (partial / 'calib.json').write_text(text, encoding='utf-8')
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
