"""Transfer of batches to the device of the model before their step."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
from mmengine.model import BaseDataPreprocessor, BaseTTAModel

from mmtempo.device.prepared_batch import PreparedBatch
from mmtempo.device.streams import WITHOUT_PINNING
from mmtempo.models.data_transfer import DataTransfer
from mmtempo.utils.modules import layers_of

_hooked: WeakSet[torch.nn.Module] = WeakSet()


class BatchStage:
    """A callable that starts the transfer of a batch to the preprocessor's device.

    Call it on a side stream; it does not synchronize with the device::

        batch --> PreparedBatch: the same keys, as the loader made them, for hooks and metrics
                  + what the model's step gets instead

    A preprocessor that has a method `prepare_ahead(data, training)` in addition to `forward`, as
    `BEVDataPreprocessor` and `SparseSegDataPreProcessor` have, does all of its work here. For
    any other preprocessor only the tensors are moved: a forward pre-hook passes them to its
    `forward`, which works as always and finds nothing left to copy.

    Args:
        preprocessor: The data preprocessor of the model.
        training: Whether batches are for training, or for validation and testing.
    """

    def __init__(self, preprocessor: BaseDataPreprocessor, training: bool) -> None:
        self._preprocessor, self._training = preprocessor, training
        self._prepares = _prepares_ahead(type(preprocessor))
        self._transfer = DataTransfer(self.device)
        if not self._prepares and preprocessor not in _hooked:
            _hooked.add(preprocessor)
            preprocessor.register_forward_pre_hook(_replace_by_moved)

    @property
    def device(self) -> torch.device:
        """Device that batches are moved to."""
        return torch.device(self._preprocessor.device)

    def __call__(self, batch: Any) -> Any:
        if not isinstance(batch, dict):
            return batch
        if self._prepares:
            ready = self._preprocessor.prepare_ahead(batch, self._training)
            return PreparedBatch(batch, ready, self._training)
        return PreparedBatch(batch, self._transfer.cast_data(batch))


def stage_for(model: torch.nn.Module, training: bool) -> BatchStage | None:
    """Return the stage that moves batches to the model's device, or None if it gains nothing.

    It gains nothing on the CPU and on devices without asynchronous copies, for models that take
    batches apart themselves, as in test-time augmentation, and for models without a
    preprocessor of mmengine's kind.

    Args:
        model: The model; it may be wrapped for distributed training.
        training: Whether batches are for training, or for validation and testing.
    """
    inner: Any = layers_of(model)[-1]
    preprocessor = getattr(inner, 'data_preprocessor', None)
    if isinstance(inner, BaseTTAModel) or not isinstance(preprocessor, BaseDataPreprocessor):
        return None
    if torch.device(preprocessor.device).type in WITHOUT_PINNING:
        return None
    return BatchStage(preprocessor, training)


def _prepares_ahead(kind: type) -> bool:
    """Return whether the class that defines `forward` also defines `prepare_ahead`.

    A subclass that overrides `forward` alone need not know about prepared batches.
    """
    owner = next(cls for cls in kind.__mro__ if 'forward' in vars(cls))
    return 'prepare_ahead' in vars(owner)


def _replace_by_moved(preprocessor: torch.nn.Module, args: tuple) -> tuple | None:
    """Replace a prepared batch by its moved tensors; return None to leave the arguments."""
    if not args or not isinstance(args[0], PreparedBatch):
        return None
    moved = args[0].take()
    return None if moved is None else (moved, *args[1:])
