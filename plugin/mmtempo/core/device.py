"""Copies to the device that the host does not wait for."""

from __future__ import annotations

import torch

# Memory that the host can reach anyway, or none at all: nothing is gained by pinning.
WITHOUT_PINNING = {'cpu', 'meta', 'mps'}


def to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Copy without waiting for the device.

    From pageable memory even an asynchronous copy may hold the host up, so the tensor goes
    through pinned memory. It may be dropped right after: torch gives pinned memory to the next
    only when the copies from it are done. What is not pinned is waited for: an asynchronous copy
    may read it after it was released, as on MPS (pytorch#189690).
    """
    target = torch.device(device).type
    on_host = tensor.device.type == 'cpu'
    if on_host and target not in WITHOUT_PINNING and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    # From the host to the host is no copy; the wait census takes it for one to its device.
    if on_host and (target == 'cpu' or tensor.is_pinned()):
        return tensor.to(device, non_blocking=True)
    return tensor.to(device)
