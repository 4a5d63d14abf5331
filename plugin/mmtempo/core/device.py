"""Copies to the device that the host does not wait for."""

from __future__ import annotations

import torch

# Memory that the host can reach anyway, or none at all: nothing is gained by pinning.
WITHOUT_PINNING = {'cpu', 'meta', 'mps'}


def to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Copy without waiting for the device.

    From pageable memory even an asynchronous copy may hold the host up, so the tensor goes
    through pinned memory. It may be dropped right after: torch gives pinned memory to the next
    only when the copies from it are done.
    """
    leaves_host = tensor.device.type == 'cpu' and torch.device(device).type not in WITHOUT_PINNING
    if leaves_host and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
