"""Count the bytes that autograd keeps for the backward pass."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef


class SavedActivations:
    """Context manager that counts the bytes that a forward pass keeps for the backward pass.

    It needs no device and no allocator, so that two configs can be compared on any machine::

        with SavedActivations(model) as saved:
            loss = model(batch)
        print(saved.bytes)

    - A storage counts once and completely, however many views of it are kept.
    - Parameters and buffers of the model do not count, since they exist anyway. Their copies in
      half precision, which autocast makes, count, and so does the batch if an operation keeps it.
    - Sparse tensors do not count.
    - Only the inputs of a checkpointed part count. Tensors that a backward pass recomputes or keeps
      do not count, whether it runs inside the context or later.
    - Tensors that the forward pass keeps and releases again count as well; so does a new storage at
      the address of a released one.

    Inside the context autograd does not report an error if a kept tensor is changed in place. Only
    the thread that enters the context is counted.

    Args:
        model: Model whose parameters and buffers do not count. Defaults to None.

    Attributes:
        bytes: Bytes kept since the context was last entered.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.bytes = 0
        self._model = model
        # Weak references prolong no storage's life, but keep its address from being reused.
        self._seen: set[StorageWeakRef] = set()
        self._hooks: Any = None

    def __enter__(self) -> SavedActivations:
        own = chain(self._model.parameters(), self._model.buffers()) if self._model else ()
        self.bytes = 0
        self._seen = {StorageWeakRef(tensor.untyped_storage()) for tensor in own}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._count, _unchanged)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)
        self._seen = set()

    def _count(self, tensor: Tensor) -> Tensor:
        # A graph task runs in a backward pass, which recomputes checkpointed parts or builds a
        # graph of gradients.
        if torch._C._current_graph_task_id() == -1 and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)
            if reference not in self._seen:
                self._seen.add(reference)
                self.bytes += storage.nbytes()
        return tensor.detach()  # an operation's result that is kept as is would refer to itself


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor
