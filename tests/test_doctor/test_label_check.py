"""Labels that a model cannot learn from are errors before a training starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from mmengine.config import Config

from mmtempo.doctor.preflight import preflight

CE = dict(type='CrossEntropyLoss')


def head(num_classes: int, **options: Any) -> dict:
    return dict(
        type='FCNHead', in_channels=16, in_index=0, channels=4, num_convs=1,
        num_classes=num_classes, loss_decode=CE, **options,
    )  # fmt: skip


def config(folder: Path, values: list[int], pack: str = 'PackSegInputs', **dataset: Any) -> Config:
    """Return the config of a small stock segmentor with one image, whose label has these values."""
    for name, content in (
        ('img/a.jpg', np.full((32, 32, 3), 90)),
        ('ann/a.png', np.resize(values, (32, 32))),
    ):
        (folder / name).parent.mkdir()
        assert cv2.imwrite(str(folder / name), content.astype(np.uint8))
    backbone = dict(
        type='UNet', base_channels=16, num_stages=2, strides=(1, 1), enc_num_convs=(1, 1),
        dec_num_convs=(1,), downsamples=(True,), enc_dilations=(1, 1), dec_dilations=(1,),
    )  # fmt: skip
    loads = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
    return Config(
        dict(
            default_scope='mmseg',
            work_dir=str(folder / 'work'),
            model=dict(
                type='EncoderDecoder',
                data_preprocessor=dict(type='SegDataPreProcessor', size=(32, 32)),
                backbone=backbone,
                decode_head=dict(head(2), in_channels=32),
                auxiliary_head=[dict(head(2), in_channels=32)],
            ),
            train_dataloader=dict(
                batch_size=1,
                num_workers=0,
                sampler=dict(type='InfiniteSampler'),
                dataset=dict(
                    type='BaseSegDataset', data_root=str(folder), img_suffix='.jpg',
                    data_prefix=dict(img_path='img', seg_map_path='ann'),
                    pipeline=[*loads, dict(type=pack)], **dataset,
                ),
            ),
            train_cfg=dict(type='IterBasedTrainLoop', max_iters=2),
            optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1)),
        )
    )  # fmt: skip


def test_labels_within_num_classes_pass(tmp_path: Path) -> None:
    preflight(config(tmp_path, [0, 1, 255]))


@pytest.mark.parametrize(
    ('values', 'options', 'message'),
    [
        ([0, 2], {}, r'model\.decode_head\.num_classes=2 takes 0 to 1, and ignore_index=255'),
        (
            [0, 2],
            {'decode_head.num_classes': 3},
            r'model\.auxiliary_head\[0\]\.num_classes=2 takes 0 to 1',
        ),
        (
            [0, 2],
            {'decode_head.out_channels': 1},
            r'model\.decode_head\.num_classes=2 takes 0 to 1',
        ),
        ([1, 255], {'decode_head.ignore_index': 254}, 'has the value 255; '),
    ],
)
def test_label_above_num_classes_is_an_error(
    values: list[int], options: dict, message: str, tmp_path: Path
) -> None:
    cfg = config(tmp_path, values)
    cfg.merge_from_dict({f'model.{key}': value for key, value in options.items()})
    with pytest.raises(ValueError, match=message) as error:
        preflight(cfg)
    text = str(error.value)
    assert text.startswith('train_dataloader.dataset: the label of ')
    assert f'{tmp_path}/ann/a.png has the value {values[-1]}; ' in text


def test_reduced_background_is_no_label(tmp_path: Path) -> None:
    cfg = config(tmp_path, [0, 1, 2], reduce_zero_label=True)
    preflight(cfg)
    cfg.train_dataloader.dataset.reduce_zero_label = False
    with pytest.raises(ValueError, match='set reduce_zero_label=True there'):
        preflight(cfg)


def test_packed_labels_need_a_preprocessor_that_converts_them(tmp_path: Path) -> None:
    cfg = config(tmp_path, [0, 1], pack='FastPackSegInputs')
    with pytest.raises(ValueError, match=r'model\.data_preprocessor\.type=SparseSegDataPreProc'):
        preflight(cfg)
    cfg.model.data_preprocessor.type = 'SparseSegDataPreProcessor'
    preflight(cfg)


def test_bev_class_that_would_be_dropped_is_an_error(tiny_cfg: Config) -> None:
    tiny_cfg.model.data_preprocessor.num_classes = 2
    tiny_cfg.model.decode_head.priors = (0.4, 0.1)
    with pytest.raises(ValueError, match=r'model\.data_preprocessor\.num_classes=2 drops it'):
        preflight(tiny_cfg)
