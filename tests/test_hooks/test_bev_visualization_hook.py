"""Pictures of camera images, predicted map and true map."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.runner import Runner

from mmtempo.hooks.bev_visualization_hook import BEVVisualizationHook, paint_bev
from mmtempo.workloads.bev.structures.labels import PALETTE


def test_colours_and_orientation() -> None:
    occupancy = np.zeros((14, 4, 3), bool)
    occupancy[0, 0] = True
    occupancy[4, 0, 2] = True  # a car on the road
    valid = np.ones((4, 3), bool)
    valid[3] = False
    image = paint_bev(occupancy, valid)
    assert image[3, 0].tolist() == list(PALETTE[0][::-1])  # nearest row at the bottom
    assert image[3, 2].tolist() == list(PALETTE[4][::-1])
    assert image[2, 0].tolist() == [255, 255, 255]
    assert image[0, 0].tolist() == [85, 85, 85]


def test_writes_one_picture_per_sample(tiny_cfg: Config, tmp_path: Path) -> None:
    tiny_cfg.default_hooks.visualization.update(draw=True, out_dir=str(tmp_path / 'out'))
    Runner.from_cfg(tiny_cfg).test()
    pictures = sorted((tmp_path / 'out').iterdir())
    assert [p.name for p in pictures] == [f'val_{i:06d}.png' for i in range(4)]
    # 320 x 180 scaled to 392 rows, and two maps of 200 x 196 at double size.
    assert cv2.imread(str(pictures[0])).shape == (392, 697 + 400 + 400, 3)


def test_off_by_default(tiny_cfg: Config) -> None:
    Runner.from_cfg(tiny_cfg).test()
    assert not list(Path(tiny_cfg.work_dir).rglob('*.png'))


def test_unwritable_folder_is_named(tiny_cfg: Config, tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    tiny_cfg.default_hooks.visualization.update(draw=True, out_dir=str(tmp_path / 'file'))
    with pytest.raises(OSError, match='file'):
        Runner.from_cfg(tiny_cfg).test()


def test_defaults_draw_nothing() -> None:
    assert not BEVVisualizationHook().draw
