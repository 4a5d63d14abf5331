"""A copy from a device to the host that nobody has to wait for; a part of the device seam."""

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
            self._host = _room_for(tensor)
            self._host.copy_(tensor, non_blocking=True)
            self._event = _event_after(tensor.device)

    @property
    def arrived(self) -> bool:
        """Whether reading would not wait."""
        return self._event is None or self._event.query()

    def values(self) -> list:
        """The values as Python numbers; waits where they have not arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()


def _room_for(tensor: torch.Tensor) -> torch.Tensor:
    # Only into pinned memory is a copy asynchronous; MPS has none.
    return torch.empty_like(tensor, device='cpu', pin_memory=tensor.device.type != 'mps')


def _event_after(device: torch.device) -> Any:
    """An event behind all that the device has been given so far.

    The stream is named: left out it is that of the current device, which may be another one.
    """
    if hasattr(torch, 'accelerator'):  # torch 2.6
        event = torch.Event(device)
        event.record(torch.accelerator.current_stream(device))
    else:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
    return event
