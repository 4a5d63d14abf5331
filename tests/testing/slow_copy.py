"""A fake copy from the device."""

from __future__ import annotations

import torch


class SlowCopy:
    """A copy to the host that arrives when a test sets `arrived`."""

    made: list[SlowCopy] = []

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.arrived, self.waited = tensor.clone(), False, False
        self.made.append(self)

    def values(self) -> list:
        self.waited = not self.arrived
        return self.tensor.tolist()
