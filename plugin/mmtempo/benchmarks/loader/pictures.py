"""Write the synthetic images that all loaders read."""

from __future__ import annotations

import json
import os

import cv2
import numpy as np

from mmtempo.datasets.images.decode import write_image
from mmtempo.workloads.bev.structures.labels import CLASSES, PALETTE
from mmtempo.workloads.bev.synthetic import Camera, make_label, make_scene, render_image
from mmtempo.workloads.bev.synthetic.render import GRASS, SKY
from mmtempo.workloads.bev.synthetic.writer import CAMERAS

SIZE = (1600, 900)
SUFFIXES = ('jpg', 'png')
# Factor by which segmentation maps are smaller before they are enlarged to areas of one class.
COARSE = 8


def write_pictures(root: str, count: int, size: tuple[int, int] = SIZE) -> None:
    """Write the same images as JPEG and PNG, with a segmentation map and a BEV label each.

    ::

        img_dir/jpg/<token>.jpg, img_dir/png/<token>.png    the image
        ann_dir/<token>.png                                 its classes, 8 bits, same size
        ann_bev_dir/<token>.png, calib.json                 as for `NuScenesBEVDataset`

    Args:
        root: Existing folder.
        count: Number of images.
        size: Width and height of an image. Defaults to (1600, 900).
    """
    folders = {suffix: os.path.join(root, 'img_dir', suffix) for suffix in SUFFIXES}
    labels, maps = os.path.join(root, 'ann_bev_dir'), os.path.join(root, 'ann_dir')
    for folder in (*folders.values(), labels, maps):
        os.makedirs(folder)
    calibrations = {}
    for number in range(count):
        rng = np.random.default_rng([0, number])
        focal, cx, cy = CAMERAS[number % len(CAMERAS)]
        sx, sy = size[0] / SIZE[0], size[1] / SIZE[1]
        intrinsics = np.array([[focal * sx, 0, cx * sx], [0, focal * sy, cy * sy], [0, 0, 1.0]])
        camera = Camera(intrinsics, size)
        scene = make_scene(rng)
        image, token = render_image(scene, camera, rng), f'{number:06d}'
        for suffix, folder in folders.items():
            write_image(os.path.join(folder, f'{token}.{suffix}'), image)
        write_image(os.path.join(maps, f'{token}.png'), segment(image))
        write_image(os.path.join(labels, f'{token}.png'), make_label(scene, camera))
        calibrations[token] = intrinsics.tolist()
    with open(os.path.join(root, 'calib.json'), 'w', encoding='utf-8') as file:
        json.dump(calibrations, file)


def bev_dataset(root: str, scale: tuple[int, int]) -> dict:
    """Return the config of a BEV data set, as in configs/_base_/datasets/nuscenes_bev.py.

    Args:
        root: Folder that `write_pictures` has filled.
        scale: Width and height of the resized images.
    """
    return dict(
        type='NuScenesBEVDataset',
        data_root=root,
        data_prefix=dict(img_path='img_dir/jpg', bev_path='ann_bev_dir'),
        pipeline=[
            dict(type='LoadCameraImage'),
            dict(type='LoadBEVAnnotation'),
            dict(type='BEVResize', scale=scale),
            dict(type='BEVRandomFlip', prob=0.5),
            dict(type='PackBEVInputs'),
        ],
    )


def segment(image: np.ndarray) -> np.ndarray:
    """Return a segmentation map of an image: the class with the nearest color of each area."""
    colors = [color[::-1] for color in PALETTE[: len(CLASSES)]] + [GRASS, SKY]
    height, width = image.shape[:2]
    coarse_size = max(width // COARSE, 1), max(height // COARSE, 1)
    coarse = cv2.resize(image, coarse_size, interpolation=cv2.INTER_AREA)
    coarse = cv2.medianBlur(coarse, 5).astype(np.int32)
    distances = [np.abs(coarse - np.array(color)).sum(-1) for color in colors]
    nearest = np.argmin(distances, 0).astype(np.uint8)
    return cv2.resize(nearest, (width, height), interpolation=cv2.INTER_NEAREST)
