"""Asynchronous copies of batches to a device, however nested their tensors are."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.structures import BaseDataElement

from mmtempo.device.streams import to_device


class AsyncCast(BaseDataPreprocessor):
    """Base of preprocessors whose `cast_data` copies through pinned memory, without waiting."""

    def cast_data(self, data: Any) -> Any:
        """Copy tensors to the device; the result has the structure that mmengine's has."""
        if not self._non_blocking:
            return super().cast_data(data)
        if isinstance(data, torch.Tensor):
            return to_device(data, self.device)
        if isinstance(data, BaseDataElement):
            moved = data.new()
            for key, value in data.items():
                if isinstance(value, (torch.Tensor, BaseDataElement)):
                    moved.set_data({key: self.cast_data(value)})
                elif hasattr(value, 'to'):
                    moved.set_data({key: value.to(self.device, non_blocking=True)})
            return moved
        if hasattr(data, 'stacked'):  # a `SampleBatch`
            return data.apply(self.cast_data)
        return super().cast_data(data)


class DataTransfer(AsyncCast):
    """A preprocessor that only copies, and does so without waiting.

    Args:
        device: The device to copy to.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(non_blocking=True)
        self._device = device
