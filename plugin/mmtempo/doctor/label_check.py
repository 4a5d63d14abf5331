"""Check the labels of a sample against the heads and the preprocessor of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from mmseg.models.data_preprocessor import SegDataPreProcessor
from mmseg.models.decode_heads.decode_head import BaseDecodeHead

from mmtempo.workloads.bev.models.bev_segmentor import BEVSegmentor
from mmtempo.workloads.bev.structures.labels import CLASSES, IGNORE_BIT

# Keys of a sample's metainfo that identify it, the best first.
NAMES = ('seg_map_path', 'img_path', 'bev_path', 'token')


def check_labels(model: torch.nn.Module, sample: Any, where: str) -> None:
    """Raise if a model cannot learn from the label of a training sample.

    Args:
        model: The model.
        sample: A sample as the training pipeline returns it.
        where: Config key of the data set, for error messages.
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
            f'{where}: labels are uint8, as FastPackSegInputs packs them; losses need int64, and '
            'model.data_preprocessor.type=SegDataPreProcessor does not convert them. '
            'Set model.data_preprocessor.type=SparseSegDataPreProcessor, or use PackSegInputs'
        )
    values = label.long().unique().tolist()
    for key, head in _heads(model):
        # A head with one channel predicts two classes, whatever its num_classes.
        most = 2 if head.out_channels == 1 else head.num_classes
        wrong = [value for value in values if value != head.ignore_index and not 0 <= value < most]
        if wrong:
            raise ValueError(
                f'{where}: the label of {_name(data)} has the value {wrong[-1]}; '
                f'{key}.num_classes={head.num_classes} takes 0 to {most - 1}, and '
                f'ignore_index={head.ignore_index}. {_advice(data, key, wrong[-1], most)}'
            )


def _advice(data: Any, key: str, value: int, most: int) -> str:
    """Return what to do about a label value of at least `most`."""
    text = f'Set {key}.num_classes to the number of classes, or map the value in the data set'
    if value == most and data.metainfo.get('reduce_zero_label') is False:
        text += '; if 0 is a background to be ignored, set reduce_zero_label=True there'
    return text


def _heads(model: torch.nn.Module) -> Iterator[tuple[str, BaseDecodeHead]]:
    """Yield the heads of a segmentor that learn from label values, with their config keys."""
    for name in ('decode_head', 'auxiliary_head'):
        part = getattr(model, name, None)
        is_list = isinstance(part, torch.nn.ModuleList)
        heads: list[Any] = list(part) if isinstance(part, torch.nn.ModuleList) else [part]
        for number, head in enumerate(heads):
            if isinstance(head, BaseDecodeHead):
                yield f'model.{name}[{number}]' if is_list else f'model.{name}', head


def _check_bits(model: BEVSegmentor, data: Any, where: str) -> None:
    """Raise if a label has classes that the preprocessor would silently drop."""
    label, count = torch.as_tensor(data.gt_bev), model.data_preprocessor.num_classes
    dropped = [bit for bit in range(count, IGNORE_BIT) if bool((label.int() >> bit & 1).any())]
    if dropped:
        raise ValueError(
            f'{where}: the label of {_name(data)} has the class {dropped[-1]} '
            f'({CLASSES[dropped[-1]]}); model.data_preprocessor.num_classes={count} drops it. '
            'Set it to the number of classes, or merge classes with LoadBEVAnnotation.groups'
        )


def _name(data: Any) -> str:
    """Return the name of the sample, which is the first of its data set."""
    names = [str(data.metainfo[name]) for name in NAMES if data.metainfo.get(name)]
    return names[0] if names else 'sample 0'
