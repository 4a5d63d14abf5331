"""Find and change transforms in nested datasets and pipelines."""

from __future__ import annotations

from mmengine.registry import DATASETS

from mmtempo.progressive.live_transforms import LiveTransforms
from tests.testing.progressive import DrawPicture, GrowingPictures


def test_finds_transforms_in_wrappers_and_in_other_transforms() -> None:
    crop = dict(type='RandomCrop', crop_size=(8, 8))
    resize = dict(type='RandomResize', scale=(32, 24), ratio_range=(1.0, 1.0))
    fused = dict(type='ResizeRandomCrop', resize=resize, crop=dict(crop_size=(8, 8)))
    apart = dict(type='RandomChoice', transforms=[[crop], [dict(type='RandomFlip', prob=0.5)]])
    pictures = [
        dict(type=GrowingPictures, pipeline=[dict(type=DrawPicture), fused]),
        dict(type='RepeatDataset', times=2, dataset=dict(type=GrowingPictures, pipeline=[apart])),
    ]
    with_scope = dict(type='ConcatDataset', datasets=pictures, _scope_='mmseg')
    dataset = DATASETS.build(with_scope)
    transforms = LiveTransforms(dataset)
    assert len(transforms.find('RandomCrop')) == 2
    assert len(transforms.find('FastRandomCrop')) == 1
    assert transforms.find('Resize') == []  # RandomResize sets its attributes at each call
    assert transforms.set('RandomCrop', 'crop_size', [4, 6]) == [
        'FastRandomCrop.crop_size (8, 8) -> (4, 6)',
        'RandomCrop.crop_size (8, 8) -> (4, 6)',
    ]
    assert transforms.set('RandomCrop', 'crop_size', (4, 6)) == []
    assert transforms.set('RandomResize', 'scale', (16, 12)) != []
    sample = dataset[0]
    assert sample['img'].shape == (4, 6, 3)
    assert sample['scale'] == (16, 12)


def test_unknown_type_and_names() -> None:
    dataset = DATASETS.build(
        dict(
            type=GrowingPictures,
            pipeline=[dict(type=DrawPicture), dict(type='RandomFlip', prob=0.5)],
            _scope_='mmseg',
        )
    )
    transforms = LiveTransforms(dataset)
    assert transforms.find('Unknown') == []
    assert transforms.set('Unknown', 'prob', 1.0) == []
    assert transforms.names() == ['DrawPicture', 'RandomFlip']
