"""Draw camera images, predicted map and true map into one picture per test sample."""

from __future__ import annotations

import os
import os.path as osp
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmtempo.datasets.images.decode import decode, read_file, write_image
from mmtempo.utils.units import counted
from mmtempo.workloads.bev.datasets.transforms.load_camera_image import FLAGS as CAMERA_FLAGS
from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample
from mmtempo.workloads.bev.structures.labels import PALETTE


def paint_bev(
    occupancy: np.ndarray,
    valid: np.ndarray | None = None,
    palette: Sequence[Sequence[int]] = PALETTE,
) -> np.ndarray:
    """Return planes (classes, rows, columns) as a BGR image, with the first row at the bottom.

    Args:
        occupancy: A boolean plane for each class; later classes are drawn over earlier ones.
        valid: Cells that count in the evaluation; the others are darkened. Defaults to None: all.
        palette: RGB colour of each class. Defaults to PALETTE.
    """
    image = np.full((*occupancy.shape[1:], 3), 255, np.uint8)
    for plane, colour in zip(occupancy, palette):
        image[plane] = colour[::-1]
    if valid is not None:
        image[~valid] //= 3
    return image[::-1]


@HOOKS.register_module()
class BEVVisualizationHook(Hook):
    """Write one PNG per test sample: camera images, predicted map and true map side by side.

    It is off by default; `tools/test.py --show-dir DIR` turns it on.

    Example::

        default_hooks = dict(visualization=dict(type='BEVVisualizationHook'))

    It logs no keys.

    Args:
        draw: Whether to write pictures. Defaults to False.
        out_dir: Folder for the pictures, created if missing. Defaults to None: `vis_bev` in the
            log folder of the run.
        height: Height of the pictures in pixels. Defaults to 392.
        threshold: Probability above which a cell is drawn as occupied. Defaults to 0.5.
    """

    # After the other hooks: it only reads the outputs, and no hook needs the pictures.
    priority = 'LOW'

    def __init__(
        self,
        draw: bool = False,
        out_dir: str | None = None,
        height: int = 392,
        threshold: float = 0.5,
    ) -> None:
        self.draw = draw
        self.out_dir = out_dir
        self.height = height
        self.threshold = threshold
        self._written = 0

    def after_test_iter(
        self,
        runner: Any,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Sequence[BEVDataSample] | None = None,
    ) -> None:
        if not self.draw:
            return
        self.out_dir = self.out_dir or osp.join(runner.log_dir, 'vis_bev')
        os.makedirs(self.out_dir, exist_ok=True)
        for sample in outputs or ():
            if 'skipped' in sample:
                continue
            path = osp.join(self.out_dir, f'{sample.token}.png')
            palette = runner.test_loop.dataloader.dataset.metainfo.get('palette', PALETTE)
            write_image(path, self._picture(sample, palette))
            self._written += 1

    def after_test_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        if self.draw:
            runner.logger.info(
                f'BEVVisualizationHook: {counted(self._written, "picture")} in '
                f'{osp.abspath(str(self.out_dir))}'
            )

    def _picture(self, sample: BEVDataSample, palette: Sequence[Sequence[int]]) -> np.ndarray:
        camera = self._cameras(sample.img_path)
        predicted = (sample.pred_logits.sigmoid() > self.threshold).cpu().numpy()
        if 'gt_occupancy' in sample:
            valid = sample.gt_valid.cpu().numpy()
            truth = sample.gt_occupancy.cpu().numpy()
            maps = [paint_bev(planes, valid, palette) for planes in (predicted, truth)]
        else:
            maps = [paint_bev(predicted, palette=palette)]
        return np.hstack([self._scaled(part) for part in [camera, *maps]])

    def _cameras(self, paths: str | Sequence[str]) -> np.ndarray:
        """Return the image of the camera, or those of several cameras in rows of three."""
        if isinstance(paths, str):
            return decode(read_file(paths, 'image'), CAMERA_FLAGS, paths, 'image')
        images = [self._scaled(self._cameras(path)) for path in paths]
        size = (max(image.shape[1] for image in images), self.height)
        images = [cv2.resize(image, size) for image in images]
        images += [np.zeros_like(images[0])] * (-len(images) % 3)
        return np.vstack([np.hstack(images[i : i + 3]) for i in range(0, len(images), 3)])

    def _scaled(self, image: np.ndarray) -> np.ndarray:
        width = round(image.shape[1] * self.height / image.shape[0])
        interpolation = cv2.INTER_AREA if image.shape[0] > self.height else cv2.INTER_NEAREST
        return cv2.resize(image, (width, self.height), interpolation=interpolation)
