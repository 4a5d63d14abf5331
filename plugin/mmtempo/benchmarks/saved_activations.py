"""How many bytes autograd keeps for the backward pass."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef


class SavedActivations:
    """Context manager that counts what a forward pass keeps for the backward pass.

    It needs no device and no allocator, so that two configs can be compared on any machine::

        with SavedActivations(model) as saved:
            loss = model(batch)
        print(saved.bytes)

    - A storage counts once, as a whole, however many views of it are kept.
    - Parameters and buffers of the model don't count: they are there anyway. Their copies in
      half precision, which autocast makes, do, and so does the batch where an operation keeps it.
    - Of what is checkpointed only the inputs count. What is computed again in the backward pass,
      and whatever else that pass keeps, does not, whether it runs inside or behind the context.
    - What a forward pass keeps and lets go of again counts as well. So does what it frees and
      makes anew at the same address.

    Autograd looks less closely meanwhile: what is kept and then changed in place is not reported
    as an error. One thread is counted.

    Args:
        model: Whose parameters and buffers don't count. Defaults to None.

    Attributes:
        bytes: So many, since the context was last entered.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.bytes = 0
        self._model = model
        # Weak: nothing lives longer. And no storage gets the address of one that is referred to.
        self._seen: set[StorageWeakRef] = set()
        self._hooks: Any = None

    def __enter__(self) -> SavedActivations:
        own = chain(self._model.parameters(), self._model.buffers()) if self._model else ()
        self.bytes = 0
        self._seen = {
            StorageWeakRef(part.untyped_storage()) for tensor in own for part in _strided(tensor)
        }
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._count, _as_it_is)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)
        self._seen = set()

    def _count(self, tensor: Tensor) -> Tensor:
        # In a backward pass a checkpointed part is run again, or a graph of gradients is made.
        if torch._C._current_graph_task_id() == -1:
            for part in _strided(tensor):
                storage = part.untyped_storage()
                reference = StorageWeakRef(storage)
                if reference not in self._seen:
                    self._seen.add(reference)
                    self.bytes += storage.nbytes()
        return tensor.detach()  # the result of an operation would keep itself alive


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _strided(tensor: Tensor) -> list[Tensor]:
    """The dense tensors that a tensor consists of: of a sparse one, values and indices."""
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []  # mkldnn's own, which have no storage
