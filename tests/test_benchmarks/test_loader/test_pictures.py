"""Files that all loaders of the benchmark read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2

from mmtempo.benchmarks.loader.pictures import segment


def read(path: str) -> Any:
    return cv2.imread(path, cv2.IMREAD_UNCHANGED)


def test_images_are_the_same_in_both_formats(pictures: str) -> None:
    for number in range(12):
        png = read(f'{pictures}/img_dir/png/{number:06d}.png')
        jpg = read(f'{pictures}/img_dir/jpg/{number:06d}.jpg')
        assert png.shape == jpg.shape == (90, 160, 3)
        assert cv2.absdiff(png, jpg).mean() < 8
        classes = read(f'{pictures}/ann_dir/{number:06d}.png')
        assert (classes.shape, classes.dtype) == ((90, 160), 'uint8')
        assert len(set(classes.flat)) > 1
        assert (classes == segment(png)).all()
    assert len(json.loads(Path(pictures, 'calib.json').read_text())) == 12
