"""How the batches of a model are brought to its device ahead of their turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from mmengine.model import BaseDataPreprocessor, BaseTTAModel, is_model_wrapper
from mmengine.structures import BaseDataElement

from mmtempo.device.prepared_batch import PreparedBatch
from mmtempo.device.streams import WITHOUT_PINNING, to_device

_served: WeakSet[torch.nn.Module] = WeakSet()


class BatchStage:
    """Starts bringing batches to the device of a preprocessor; to be called on a side stream.

    ::

        batch --> PreparedBatch: the same keys, as the loader made them, for hooks and metrics
                  + what the model's step gets to see instead

    A preprocessor with a method `prepare_ahead(data, training)` beside its `forward`, as
    `BEVDataPreprocessor` and `SparseSegDataPreProcessor` have, is done with its work then.
    For any other one the tensors are moved, so that it finds nothing left to copy; it is given
    them by a forward pre-hook, and works as always.

    Args:
        preprocessor: Of the model.
        training: Whether batches are for training, or for validation and testing.
    """

    def __init__(self, preprocessor: BaseDataPreprocessor, training: bool) -> None:
        self._preprocessor, self._training = preprocessor, training
        self._prepares = _prepares_ahead(type(preprocessor))
        if not self._prepares and preprocessor not in _served:
            _served.add(preprocessor)
            preprocessor.register_forward_pre_hook(_hand_over)

    @property
    def device(self) -> torch.device:
        """Where batches go."""
        return torch.device(self._preprocessor.device)

    def __call__(self, batch: Any) -> Any:
        if not isinstance(batch, dict):
            return batch
        if self._prepares:
            ready = self._preprocessor.prepare_ahead(batch, self._training)
            return PreparedBatch(batch, ready, self._training)
        return PreparedBatch(batch, move(batch, self.device))


def stage_for(model: torch.nn.Module, training: bool) -> BatchStage | None:
    """What brings batches to the model's device ahead; None where there is nothing to gain.

    That is on the CPU and where there are no asynchronous copies, for models that take batches
    apart themselves, as in test-time augmentation, and for those without a preprocessor of
    mmengine's kind.

    Args:
        model: Which may be wrapped, for distributed training.
        training: Whether batches are for training, or for validation and testing.
    """
    inner: Any = model
    while is_model_wrapper(inner):
        inner = inner.module
    preprocessor = getattr(inner, 'data_preprocessor', None)
    if isinstance(inner, BaseTTAModel) or not isinstance(preprocessor, BaseDataPreprocessor):
        return None
    if torch.device(preprocessor.device).type in WITHOUT_PINNING:
        return None
    return BatchStage(preprocessor, training)


def move(data: Any, device: torch.device) -> Any:
    """Tensors, however nested, to a device without waiting; the rest is as mmengine leaves it."""
    if isinstance(data, torch.Tensor):
        return to_device(data, device)
    if isinstance(data, BaseDataElement):
        moved = data.new()
        for key, value in data.items():
            if isinstance(value, (torch.Tensor, BaseDataElement)):
                moved.set_data({key: move(value, device)})
            elif hasattr(value, 'to'):
                moved.set_data({key: value.to(device, non_blocking=True)})
        return moved
    if isinstance(data, Mapping):
        return {key: move(data[key], device) for key in data}
    if isinstance(data, tuple) and hasattr(data, '_fields'):
        return type(data)(*(move(item, device) for item in data))
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return type(data)(move(item, device) for item in data)  # type: ignore[call-arg]
    return data


def _prepares_ahead(kind: type) -> bool:
    """Whether its `forward` knows of prepared batches, and not only one that it has replaced."""
    owner = next(cls for cls in kind.__mro__ if 'forward' in vars(cls))
    return 'prepare_ahead' in vars(owner)


def _hand_over(preprocessor: torch.nn.Module, args: tuple) -> tuple | None:
    """Replace the batch by the moved one; None leaves it as it is."""
    if not args or not isinstance(args[0], PreparedBatch):
        return None
    moved = args[0].take()
    return None if moved is None else (moved, *args[1:])
