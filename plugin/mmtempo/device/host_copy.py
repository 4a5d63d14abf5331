"""Copy a tensor from a device to the host without synchronization."""

from __future__ import annotations

from typing import Any

import torch


class HostCopy:
    """An asynchronous copy of a tensor on the host.

    Args:
        tensor: The tensor to copy. A tensor on the host is used as it is, without a copy, so no
            other code may change it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._host = tensor
        self._event: Any = None
        if tensor.device.type != 'cpu':
            self._host = _empty_on_host(tensor)
            self._host.copy_(tensor, non_blocking=True)
            self._event = _event_after(tensor.device)

    @property
    def arrived(self) -> bool:
        """Whether the values can be read without waiting."""
        return self._event is None or self._event.query()

    def values(self) -> list:
        """Return the values as Python numbers; wait for them if they have not arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()


def _empty_on_host(tensor: torch.Tensor) -> torch.Tensor:
    # A copy is asynchronous only into pinned memory; MPS has none.
    return torch.empty_like(tensor, device='cpu', pin_memory=tensor.device.type != 'mps')


def _event_after(device: torch.device) -> Any:
    """Record an event on the current stream of this device and return it.

    The stream is given explicitly: the default is that of the current device, maybe another one.
    """
    if hasattr(torch, 'accelerator'):  # torch 2.6
        event = torch.Event(device)
        event.record(torch.accelerator.current_stream(device))
    else:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
    return event
