"""Record of the operations that torch dispatches."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Context that records the names of all operations, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore
        self.names.append(func.name().split('::')[1].split('.')[0])
        return func(*args, **(kwargs or {}))
