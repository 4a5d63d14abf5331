"""Longest times among the processes of a process group."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from mmengine.dist import all_gather, get_comm_device, get_world_size

from mmtempo.device.host_copy import HostCopy
from mmtempo.device.streams import to_device

NAMES = ('data', 'step')


class RankTimes:
    """Exchange of times between processes, which finds the longest ones and their ranks.

    ::

        log point      send: each process sends its times   take: the last result that arrived
        gloo           complete at once                     of this log point
        accelerator    complete when the device gets to it  of this log point or an earlier one

    `send` is a collective: all processes call it equally often, at the same iterations, in the
    main thread. Neither method synchronizes with the device.
    """

    def __init__(self) -> None:
        self._pending: deque[HostCopy] = deque(maxlen=8)

    def send(self, data_seconds: float, step_seconds: float) -> None:
        """Send the times of this process to the others. No-op for a single process."""
        if get_world_size() == 1:
            return
        own = torch.tensor([data_seconds, step_seconds], dtype=torch.float32)
        rows = torch.stack(all_gather(to_device(own, get_comm_device())))
        self._pending.append(HostCopy(rows))

    def take(self) -> dict[str, dict[str, Any]] | None:
        """Return `max`, its `rank`, and `min` by name, of the last result that arrived.

        None if no result has arrived since the last call.
        """
        rows: list[list[float]] = []
        while self._pending and self._pending[0].arrived:
            rows = self._pending.popleft().values()
        if not rows:
            return None
        times: dict[str, dict[str, Any]] = {}
        for name, column in zip(NAMES, zip(*rows)):
            longest = max(column)
            times[name] = dict(max=longest, rank=column.index(longest), min=min(column))
        return times
