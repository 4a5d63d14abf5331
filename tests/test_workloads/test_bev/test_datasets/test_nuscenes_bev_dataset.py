"""Files are matched by token, and problems are reported before training starts."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.workloads.bev.datasets.nuscenes_bev_dataset import NuScenesBEVDataset

PIPELINE = [
    dict(type='LoadCameraImage'),
    dict(type='LoadBEVAnnotation'),
    dict(type='PackBEVInputs'),
]


def build(root: object, split: str = 'train', **kwargs: Any) -> NuScenesBEVDataset:
    prefix = dict(img_path=f'img_dir/{split}', bev_path=f'ann_bev_dir/{split}')
    return NuScenesBEVDataset(str(root), data_prefix=prefix, pipeline=PIPELINE, **kwargs)


def edit_calibrations(root: Path, **changes: Any) -> None:
    """Set calibrations by token; None deletes."""
    path = root / 'calib.json'
    calibrations = json.loads(path.read_text())
    for token, value in changes.items():
        if value is None:
            del calibrations[token]
        else:
            calibrations[token] = value
    path.write_text(json.dumps(calibrations))


def test_reads_the_layout(bev_root: str) -> None:
    dataset = build(bev_root)
    assert len(dataset) == 8
    sample = dataset[3]
    assert sample['inputs'].shape == (3, 180, 320)
    assert sample['inputs'].dtype == torch.uint8
    data = sample['data_samples']
    assert data.token == 'train_000003'
    on_disk = cv2.imread(f'{bev_root}/ann_bev_dir/train/train_000003.png', cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(data.gt_bev.numpy().view(np.uint16), on_disk)
    expected = json.loads(Path(bev_root, 'calib.json').read_text())['train_000003']
    np.testing.assert_array_equal(data.calibration.intrinsics, expected)


def test_jpg_and_png_images_can_be_mixed(own_bev_root: Path) -> None:
    path = own_bev_root / 'img_dir/train/train_000000.jpg'
    image = cv2.imread(str(path))
    path.unlink()
    cv2.imwrite(str(path.with_suffix('.png')), image)
    assert torch.equal(
        build(own_bev_root)[0]['inputs'], torch.from_numpy(image.transpose(2, 0, 1).copy())
    )


def test_missing_folders_are_errors_with_their_key(tmp_path: Path, own_bev_root: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r'data_root: .*nowhere.*make_synthetic_bev'):
        build(tmp_path / 'nowhere')
    with pytest.raises(FileNotFoundError, match=r'data_prefix.img_path: .*img_dir/tset'):
        build(own_bev_root, 'tset')
    (own_bev_root / 'calib.json').unlink()
    with pytest.raises(FileNotFoundError, match=r'calib_file: .*calib.json'):
        build(own_bev_root)


def test_empty_split_is_an_error(own_bev_root: Path) -> None:
    for folder in ('img_dir', 'ann_bev_dir'):
        (own_bev_root / folder / 'empty').mkdir()
    with pytest.raises(ValueError, match=r'split is empty: no .*img_dir/empty'):
        build(own_bev_root, 'empty')


def test_one_error_lists_all_problems(own_bev_root: Path) -> None:
    labels, images = own_bev_root / 'ann_bev_dir/train', own_bev_root / 'img_dir/train'
    for index in (0, 1, 2, 3):
        (labels / f'train_{index:06d}.png').unlink()
    (images / 'train_000004.jpg').unlink()
    cv2.imwrite(str(labels / 'train_000005.png'), np.zeros((196, 200), np.uint8))
    cv2.imwrite(str(labels / 'train_000006.png'), np.zeros((100, 50), np.uint16))
    edit_calibrations(own_bev_root, train_000007=None, train_000005=[[1, 0], [0, 1]])
    with pytest.raises(ValueError, match='cannot be used') as info:
        build(own_bev_root)
    message = str(info.value)
    assert '4 images without a label: train_000000, train_000001, train_000002, ...' in message
    assert '1 labels without an image: train_000004' in message
    assert '1 tokens missing in calib.json: train_000007' in message
    assert 'train_000005 (8-bit gray instead of 16-bit gray)' in message
    assert 'train_000006 (100 rows x 50 columns instead of 196 x 200)' in message
    assert 'train_000005: intrinsics must be 3x3, found shape (2, 2)' in message


def test_two_images_of_a_token_are_an_error(own_bev_root: Path) -> None:
    path = own_bev_root / 'img_dir/train/train_000000.jpg'
    path.with_suffix('.png').write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match='token train_000000 has two files: .*jpg and .*png'):
        build(own_bev_root)


def test_invalid_calibration_file_is_an_error(own_bev_root: Path) -> None:
    (own_bev_root / 'calib.json').write_text('{"a": [1')
    with pytest.raises(ValueError, match='not valid JSON'):
        build(own_bev_root)
    (own_bev_root / 'calib.json').write_text('[]')
    with pytest.raises(ValueError, match='found a list'):
        build(own_bev_root)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ('damage', 'message'),
    [
        (truncate, 'truncated after'),
        (lambda path: path.write_bytes(b'no image at all'), 'not a readable image'),
        (lambda path: path.write_bytes(b''), 'not a readable image'),
    ],
)
def test_unreadable_image_is_an_error_with_its_path(
    own_bev_root: Path, damage: Any, message: str
) -> None:
    path = own_bev_root / 'img_dir/train/train_000002.jpg'
    damage(path)
    dataset = build(own_bev_root)
    with pytest.raises(BadSampleError, match=f'{path}: {message}'):
        dataset[2]


def test_truncated_png_is_an_error(own_bev_root: Path) -> None:
    """OpenCV decodes a part of a PNG without an error."""
    path = own_bev_root / 'ann_bev_dir/train/train_000002.png'
    truncate(path)
    with pytest.raises(BadSampleError, match=f'label {path}: truncated'):
        build(own_bev_root)[2]


def test_bit_15_is_refused(own_bev_root: Path) -> None:
    path = own_bev_root / 'ann_bev_dir/train/train_000002.png'
    cv2.imwrite(str(path), np.full((196, 200), 1 << 15, np.uint16))
    with pytest.raises(BadSampleError, match='bit 15 is set'):
        build(own_bev_root)[2]


@pytest.mark.parametrize('num_workers', [0, 2])
@pytest.mark.parametrize('start_method', ['fork', 'spawn'])
def test_skip_replaces_samples_and_reports_them(
    own_bev_root: Path, num_workers: int, start_method: str
) -> None:
    for index in (2, 3, 7):
        truncate(own_bev_root / f'img_dir/train/train_{index:06d}.jpg')
    dataset = build(own_bev_root, on_bad_sample='skip')
    loader = DataLoader(
        dataset,
        num_workers=num_workers,
        collate_fn=_tokens,
        multiprocessing_context=start_method if num_workers else None,
    )
    tokens = [token for _ in range(2) for batch in loader for token in batch]
    # The next readable sample is the replacement; after the last sample follows the first.
    assert tokens == 2 * [f'train_{i:06d}' for i in (0, 1, 4, 4, 4, 5, 6, 0)]
    assert [Path(p).stem for p in dataset.bad_samples()] == [f'train_{i:06d}' for i in (2, 3, 7)]


def _tokens(samples: list) -> list:
    return [sample['data_samples'].token for sample in samples]


def test_replacement_is_ignored_in_evaluation(own_bev_root: Path) -> None:
    truncate(own_bev_root / 'img_dir/val/val_000001.jpg')
    dataset = build(own_bev_root, 'val', on_bad_sample='skip', test_mode=True)
    replacement = dataset[1]['data_samples']
    assert (replacement.gt_bev == 1 << 14).all()
    assert replacement.token == 'val_000001'
    assert replacement.skipped
    assert 'skipped' not in dataset[2]['data_samples']
    assert not (dataset[2]['data_samples'].gt_bev == 1 << 14).all()


def test_subset_reports_skipped_samples(own_bev_root: Path) -> None:
    truncate(own_bev_root / 'img_dir/train/train_000005.jpg')
    subset = build(own_bev_root, on_bad_sample='skip').get_subset([4, 5, 6])
    list(DataLoader(subset, num_workers=1, collate_fn=_tokens))
    assert [Path(p).stem for p in subset.bad_samples()] == ['train_000005']


def test_exif_orientation_is_not_applied(own_bev_root: Path) -> None:
    """The calibration is that of the pixels as stored in the file."""
    path = own_bev_root / 'img_dir/train/train_000000.jpg'
    content = path.read_bytes()
    tiff = b'MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06' + bytes(6)
    exif = b'Exif\x00\x00' + tiff
    segment = b'\xff\xe1' + (len(exif) + 2).to_bytes(2, 'big') + exif
    path.write_bytes(content[:2] + segment + content[2:])
    assert cv2.imread(str(path)).shape[:2] == (320, 180)  # rotated by OpenCV
    assert build(own_bev_root)[0]['inputs'].shape == (3, 180, 320)


def test_data_set_of_unreadable_samples_is_an_error(own_bev_root: Path) -> None:
    for path in (own_bev_root / 'img_dir/val').iterdir():
        truncate(path)
    with pytest.raises(BadSampleError, match='all 4 samples'):
        build(own_bev_root, 'val', on_bad_sample='skip')[0]


def test_on_bad_sample_is_checked(bev_root: str) -> None:
    with pytest.raises(ValueError, match="'raise' or 'skip', found 'ignore'"):
        build(bev_root, on_bad_sample='ignore')


def test_data_set_can_be_pickled(bev_root: str) -> None:
    dataset = build(bev_root)
    assert len(pickle.loads(pickle.dumps(dataset))) == 8
