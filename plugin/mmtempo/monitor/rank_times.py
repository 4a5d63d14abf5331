"""Which process waits longest, over the process group that is there."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from mmengine.dist import all_gather, get_comm_device, get_world_size

from mmtempo.device.host_copy import HostCopy
from mmtempo.device.streams import to_device

NAMES = ('data', 'step')


class RankTimes:
    """The longest times among all processes, and whose they are.

    ::

        log point      send: each process gives its own    take: what has arrived by then
        gloo           at once                             this log point's
        accelerator    the device does it when it can      this one's, or the one's before

    A collective: all processes call `send` equally often, at the same iterations, in the thread
    that trains. Nothing waits for the device.
    """

    def __init__(self) -> None:
        self._pending: deque[HostCopy] = deque(maxlen=8)

    def send(self, data_seconds: float, step_seconds: float) -> None:
        """Give this process's times; does nothing where it is the only one."""
        if get_world_size() == 1:
            return
        own = torch.tensor([data_seconds, step_seconds], dtype=torch.float32)
        rows = torch.stack(all_gather(to_device(own, get_comm_device())))
        self._pending.append(HostCopy(rows))

    def take(self) -> dict[str, dict[str, Any]] | None:
        """The last that has arrived, `max`, whose `rank` and `min` by name; None if none has."""
        rows: list[list[float]] = []
        while self._pending and self._pending[0].arrived:
            rows = self._pending.popleft().values()
        if not rows:
            return None
        found: dict[str, dict[str, Any]] = {}
        for name, column in zip(NAMES, zip(*rows)):
            longest = max(column)
            found[name] = dict(max=longest, rank=column.index(longest), min=min(column))
        return found
