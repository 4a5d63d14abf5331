"""Asynchronous copies have the structure and the values of mmengine's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.structures import BaseDataElement, InstanceData, PixelData

from mmtempo.loaders.collate.sample_batch import SampleBatch
from mmtempo.models import data_transfer
from mmtempo.models.data_transfer import DataTransfer


class Pair(NamedTuple):
    image: torch.Tensor
    name: str


def nested() -> dict:
    boxes = InstanceData(metainfo=dict(shape=(3, 4)), bboxes=torch.ones(2, 4), names=['a', 'b'])
    sample = BaseDataElement(metainfo=dict(id=1), boxes=boxes, number=3, x=torch.ones(1))
    generator = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 256, (3, 12, 16), generator=generator) for _ in range(2)]
    maps = BaseDataElement(gt=PixelData(data=torch.arange(12).view(1, 3, 4)))
    return dict(
        inputs=images,
        data_samples=[sample, maps],
        pair=Pair(torch.ones(2), 'a'),
        nested=dict(t=(torch.ones(1), None, b'b', 'c', 1.5, np.ones(2)), empty=[]),
    )


def plain(value: Any, with_values: bool) -> Any:
    """Reduce data to types, metadata and, if they are on the host, values."""
    if isinstance(value, BaseDataElement):
        return type(value), value.metainfo, plain(dict(value.items()), with_values)
    if isinstance(value, torch.Tensor):
        values = value.tolist() if with_values else None
        return value.dtype, value.shape, value.device, values
    if isinstance(value, dict):
        return {key: plain(item, with_values) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [plain(item, with_values) for item in value]
    return str(value)


@pytest.mark.parametrize('device', ['cpu', 'meta'])
def test_moved_data_is_that_of_mmengine(device: str) -> None:
    data = nested()
    moved = DataTransfer(torch.device(device)).cast_data(data)
    stock = BaseDataPreprocessor().to(device).cast_data(data)
    assert plain(moved, device == 'cpu') == plain(stock, device == 'cpu')


def test_stacked_field_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []

    def copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        copied.append(tuple(tensor.shape))
        return tensor.clone()

    monkeypatch.setattr(data_transfer, 'to_device', copy)
    samples = [BaseDataElement(x=torch.full((3,), float(number))) for number in range(4)]
    moved = DataTransfer(torch.device('cpu')).cast_data(SampleBatch.of(samples))
    assert copied == [(4, 3)]
    assert [sample.x.tolist() for sample in moved] == [[float(n)] * 3 for n in range(4)]
