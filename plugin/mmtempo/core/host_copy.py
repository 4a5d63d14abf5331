"""A copy from a device to the host that nobody has to wait for."""

from __future__ import annotations

from typing import Any

import torch


class HostCopy:
    """Starts copying a tensor to the host; it may be read once it has arrived.

    Args:
        tensor: What to copy; one that lies on the host already is taken as it is, so it must
            belong to the caller alone.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._host = tensor
        self._event: Any = None
        if tensor.device.type != 'cpu':
            self._host = torch.empty_like(tensor, device='cpu', pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            # torch.Event follows any accelerator; before torch 2.6 only CUDA's own is there.
            self._event = (
                torch.Event(tensor.device) if hasattr(torch, 'accelerator') else torch.cuda.Event()
            )
            self._event.record()

    @property
    def arrived(self) -> bool:
        """Whether reading would not wait."""
        return self._event is None or self._event.query()

    def values(self) -> list:
        """The values as Python numbers; waits where they have not arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()
