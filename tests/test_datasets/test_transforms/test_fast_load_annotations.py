"""Labels equal those of stock for every kind of file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from mmcv import image as mmcv_image
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.datasets.transforms import fast_load_annotations
from mmtempo.datasets.transforms.fast_load_annotations import FastLoadAnnotations
from tests.testing.transforms_against_stock import labels

VALUES = labels(classes=30)
VALUES[0] = np.arange(64) * 4  # the whole range
VALUES[1, :2] = 254, 255


def results_of(path: Path | str, **more: Any) -> dict:
    return dict(seg_map_path=str(path), seg_fields=[], reduce_zero_label=False, **more)


def check(path: Path, arguments: dict[str, Any] | None = None, **more: Any) -> np.ndarray:
    results = dict(results_of(path), **more)
    ours = FastLoadAnnotations(**arguments or {})(copy.deepcopy(results))
    stock = LoadAnnotations(**arguments or {})(copy.deepcopy(results))
    np.testing.assert_equal(ours, stock)
    assert ours['gt_seg_map'].dtype == np.uint8
    assert ours['gt_seg_map'].flags.writeable
    return ours['gt_seg_map']


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / 'ä label.png'
    Image.fromarray(VALUES).save(path)
    return path


@pytest.mark.parametrize('reduce_zero_label', [False, True])
@pytest.mark.parametrize(
    'label_map', [None, {}, {0: 3, 3: 0, 7: 255}, {1: 1, 255: 9, 300: 4, -1: 5}]
)
def test_labels_are_mapped_as_stock_does(
    path: Path, reduce_zero_label: bool, label_map: dict | None
) -> None:
    check(path, reduce_zero_label=reduce_zero_label, label_map=label_map)


def save(path: Path, kind: str) -> None:
    image = Image.fromarray(VALUES)
    if kind == 'palette':
        image = Image.fromarray(VALUES % 7)
        image.putpalette([value for place in range(7) for value in (place, 90, 255 - place)])
    elif kind == 'bits':
        image = Image.fromarray(VALUES % 2 == 0)
    elif kind == '16 bits':
        image = Image.fromarray(VALUES.astype(np.uint16) + 256)
    elif kind == 'colours':
        image = Image.fromarray(np.stack([VALUES] * 3, -1))
    options = dict(transparency=0) if kind == 'transparent' else {}
    image.save(path, **options)


@pytest.mark.parametrize(
    'kind', ['grey', 'palette', 'bits', '16 bits', 'colours', 'transparent', 'tiff', 'bmp']
)
def test_labels_of_every_file_kind_equal_stock(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f'a.{kind if kind in ("tiff", "bmp") else "png"}'
    save(path, kind)
    check(path)
    check(path, dict(imdecode_backend='cv2'))


def test_labels_written_by_opencv(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / 'a.png'), VALUES)
    np.testing.assert_array_equal(check(tmp_path / 'a.png'), VALUES)


def test_pillow_is_used_for_palettes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    decode = mmcv_image.io.Image.open
    monkeypatch.setattr(mmcv_image.io.Image, 'open', lambda file: asked.append(1) or decode(file))
    for kind, times in (('grey', 0), ('palette', 1)):
        save(tmp_path / 'a.png', kind)
        FastLoadAnnotations()(results_of(tmp_path / 'a.png'))
        assert len(asked) == times


def test_labels_from_a_file_backend(path: Path) -> None:
    check(path, dict(backend_args=dict(backend='local')))


def test_bad_files_are_named(path: Path) -> None:
    load = FastLoadAnnotations()
    with pytest.raises(BadSampleError, match='segmentation map .*gone.png: No such file'):
        load(results_of(path.with_name('gone.png')))
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    for arguments in ({}, dict(backend_args=dict(backend='local'))):
        with pytest.raises(BadSampleError, match='segmentation map .*label.png: truncated after'):
            FastLoadAnnotations(**arguments)(results_of(path))
    path.write_bytes(b'GIF' + content)
    with pytest.raises(BadSampleError, match='label.png: not a readable image .*identify'):
        load(results_of(path))


def test_contradicting_reduce_zero_label_is_refused(path: Path) -> None:
    with pytest.warns(UserWarning, match='deprecated'):
        load = FastLoadAnnotations(reduce_zero_label=True)
    with pytest.raises(
        ValueError, match='reduce_zero_label must be False, as in the data set, found True'
    ):
        load(results_of(path))


def test_label_map_costs_one_lookup(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = []
    look_up = fast_load_annotations.look_up
    monkeypatch.setattr(
        fast_load_annotations, 'look_up', lambda *args: looked_up.append(1) or look_up(*args)
    )
    FastLoadAnnotations()(results_of(path, label_map={old: 255 - old for old in range(150)}))
    assert looked_up == [1]
