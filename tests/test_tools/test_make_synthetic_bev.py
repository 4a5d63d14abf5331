"""`tools/dataset_converters/make_synthetic_bev.py` on a command line."""

from __future__ import annotations

from pathlib import Path

from mmtempo.workloads.bev.structures.calibration import CAMERA_NAMES
from tests.testing.tool_commands import run

TOOL = 'dataset_converters/make_synthetic_bev.py'


def test_existing_data_set_is_not_overwritten(tmp_path: Path) -> None:
    root = tmp_path / 'bev'
    words = (TOOL, root, '--num', 2, '--num-val', 1, '--size', 160, 90, '--suffix', 'png')
    assert '2 + 1 images of 160x90' in run(*words)
    assert len(list((root / 'img_dir/train').glob('*.png'))) == 2
    assert len(list((root / 'ann_bev_dir/val').glob('*.png'))) == 1
    text = run(*words, code=2)
    assert 'exists; remove it first' in text
    assert 'Traceback' not in text


def test_multicam_writes_six_images_per_sample(tmp_path: Path) -> None:
    root = tmp_path / 'bev'
    text = run(TOOL, root, '--multicam', '--num', 2, '--num-val', 1, '--size', 160, 90)
    assert '2 + 1 samples of six images of 160x90' in text
    assert {path.name for path in (root / 'img_dir/train').iterdir()} == set(CAMERA_NAMES)
    assert len(list((root / 'img_dir/train').glob('*/*.jpg'))) == 12
    assert len(list((root / 'img_dir/val/CAM_BACK').glob('*.jpg'))) == 1
    assert len(list((root / 'ann_bev_dir/train').glob('*.png'))) == 2


def test_mistake_in_arguments_is_an_error(tmp_path: Path) -> None:
    assert '--num must be at least 1, found 0' in run(TOOL, tmp_path / 'a', '--num', 0, code=2)
    assert 'at least 32 x 32' in run(TOOL, tmp_path / 'a', '--size', 8, 8, code=2)
    assert not (tmp_path / 'a').exists()
