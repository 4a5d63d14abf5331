"""Compares the labels of a sample with what the model can learn from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from mmseg.models.data_preprocessor import SegDataPreProcessor
from mmseg.models.decode_heads.decode_head import BaseDecodeHead

from mmtempo.workloads.bev.models.bev_segmentor import BEVSegmentor
from mmtempo.workloads.bev.structures.labels import CLASSES, IGNORE_BIT

NAMES = ('seg_map_path', 'img_path', 'bev_path', 'token')


def check_labels(model: torch.nn.Module, sample: Any, where: str) -> None:
    """Raise where a label of a training sample fits neither the heads nor the preprocessor.

    Args:
        model: The model.
        sample: What the training pipeline made.
        where: The data set's key in the config.
    """
    data = sample.get('data_samples') if isinstance(sample, dict) else None
    if data is None:
        return
    if isinstance(model, BEVSegmentor):
        if 'gt_bev' in data:
            _check_bits(model, data, where)
        return
    label = getattr(data.gt_sem_seg, 'data', None) if 'gt_sem_seg' in data else None
    if not isinstance(label, torch.Tensor) or label.is_floating_point():
        return
    if label.dtype == torch.uint8 and type(model.data_preprocessor) is SegDataPreProcessor:
        raise ValueError(
            f'{where}: labels are uint8, as FastPackSegInputs packs them, and '
            'model.data_preprocessor.type=SegDataPreProcessor leaves them so; losses take int64. '
            'Set model.data_preprocessor.type=SparseSegDataPreProcessor, or use PackSegInputs'
        )
    values = label.long().unique().tolist()
    for key, head in _heads(model):
        # One channel is for two classes, whatever their number.
        most = 2 if head.out_channels == 1 else head.num_classes
        wrong = [one for one in values if one != head.ignore_index and not 0 <= one < most]
        if wrong:
            raise ValueError(
                f'{where}: the label of {_name(data)} has the value {wrong[-1]}; '
                f'{key}.num_classes={head.num_classes} takes 0 to {most - 1}, and '
                f'ignore_index={head.ignore_index}. {_advice(data, key, wrong[-1], most)}'
            )


def _advice(data: Any, key: str, value: int, most: int) -> str:
    text = f'Set {key}.num_classes to the number of classes, or map other values in the data set'
    if value == most and data.metainfo.get('reduce_zero_label') is False:
        text += '; where 0 is the background that is not learnt, set reduce_zero_label=True there'
    return text


def _heads(model: torch.nn.Module) -> Iterator[tuple[str, BaseDecodeHead]]:
    """Heads of a segmentor that learn from label values, with their config keys."""
    for name in ('decode_head', 'auxiliary_head'):
        part = getattr(model, name, None)
        is_list = isinstance(part, torch.nn.ModuleList)
        heads: list[Any] = list(part) if isinstance(part, torch.nn.ModuleList) else [part]
        for number, head in enumerate(heads):
            if isinstance(head, BaseDecodeHead):
                yield f'model.{name}[{number}]' if is_list else f'model.{name}', head


def _check_bits(model: BEVSegmentor, data: Any, where: str) -> None:
    """Classes that the preprocessor would drop without a word."""
    label, count = torch.as_tensor(data.gt_bev), model.data_preprocessor.num_classes
    dropped = [
        bit for bit in range(count, IGNORE_BIT) if bool((label.int() >> bit & 1).any())
    ]  # fmt: skip
    if dropped:
        raise ValueError(
            f'{where}: the label of {_name(data)} has the class {dropped[-1]} '
            f'({CLASSES[dropped[-1]]}); model.data_preprocessor.num_classes={count} drops it. '
            'Set it to the number of classes, or merge classes with LoadBEVAnnotation.groups'
        )


def _name(data: Any) -> str:
    found = [str(data.metainfo[name]) for name in NAMES if data.metainfo.get(name)]
    return found[0] if found else 'sample 0'
