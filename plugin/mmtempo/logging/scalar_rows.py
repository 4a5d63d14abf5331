"""Collect scalars on the device and copy them to the host together.

::

    note(key, tensor)   several times an iteration: keeps a reference
    seal(iteration)     end of an iteration: one small kernel copies the values into a row
    send()              log point: one asynchronous copy of all rows to the host
    take(...)           after it has arrived: (iteration, [(key, value, count), ...])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mmtempo.device.host_copy import HostCopy

Kind = tuple[torch.device, torch.dtype]
Values = list[tuple[str, float, int]]


@dataclass(eq=False)
class _Shipment:
    """Rows that are being copied, and the position of each value in the copies."""

    ticket: int
    rows: list[tuple[int, list]]
    copies: dict[Kind, Any]

    @property
    def arrived(self) -> bool:
        """Whether all copies have arrived."""
        return all(copy.arrived for copy in self.copies.values())

    def unpack(self) -> Iterator[tuple[int, Values]]:
        """Yield iteration and values of each row; wait for the copies."""
        numbers = {kind: iter(copy.values()) for kind, copy in self.copies.items()}
        for iteration, entries in self.rows:
            yield (
                iteration,
                [
                    (key, value if kind is None else next(numbers[kind]), count)
                    for key, value, count, kind in entries
                ],
            )


class Arrivals:
    """Values by key of copies in progress. Reading waits for them; any thread may read.

    Args:
        shipments: The copies, in order.
    """

    def __init__(self, shipments: list[_Shipment]) -> None:
        self.shipments = shipments
        self._by_key: dict[str, tuple[list, list]] | None = None

    def of(self, key: str) -> tuple[list, list]:
        """Return values and counts of a key."""
        if self._by_key is None:
            by_key: dict[str, tuple[list, list]] = {}
            for shipment in self.shipments:
                for _, values in shipment.unpack():
                    for name, value, count in values:
                        found = by_key.setdefault(name, ([], []))
                        found[0].append(value)
                        found[1].append(count)
            self._by_key = by_key
        return self._by_key.get(key, ([], []))


class ScalarRows:
    """Scalars, tensors or Python numbers, that are returned on the host in their order.

    Args:
        copy: Starts a copy to the host, as `HostCopy` does.
    """

    def __init__(self, copy: Callable[[torch.Tensor], Any] = HostCopy) -> None:
        self._copy = copy
        self._open: list[tuple[str, Any, int]] = []
        self._rows: list[tuple[int, list]] = []
        self._tensors: dict[Kind, list[torch.Tensor]] = {}
        self._underway: deque[_Shipment] = deque()
        self._sent = 0
        self._arrivals = Arrivals([])

    def __len__(self) -> int:
        """Return the number of rows that have not been sent."""
        return len(self._rows)

    def note(self, key: str, value: Any, count: int = 1) -> None:
        """Reference a value of the current iteration; `seal` copies it."""
        if type(value) is float:  # the most frequent type
            size = 1
        elif isinstance(value, torch.Tensor):
            size = value.numel()
        elif isinstance(value, (np.ndarray, np.number)):
            size = value.size
            value = value.item() if size == 1 else value
        else:
            size = 1 if isinstance(value, (int, float)) else 0
        if size != 1:
            shape = f' of shape {tuple(value.shape)}' if size else ''
            raise TypeError(
                f'{key}: a value that a training step returns for the log must be one number, '
                f'found {type(value).__name__}{shape}'
            )
        self._open.append((key, value, count))

    def seal(self, iteration: int) -> None:
        """End an iteration: copy its values, because the tensors may be overwritten."""
        noted, self._open = self._open, []
        if not noted:
            return
        entries: list = []
        fresh: dict[Kind, list[torch.Tensor]] = {}
        kind: Kind | None = None
        for key, value, count in noted:
            if not isinstance(value, torch.Tensor):
                entries.append((key, value, count, None))
                continue
            if kind is None or value.dtype is not kind[1] or value.device != kind[0]:
                kind = (value.device, value.dtype)
                alike = fresh.setdefault(kind, [])
            alike.append(value if value.dim() == 0 else value.reshape(()))
            entries.append((key, None, count, kind))
        with torch.no_grad():
            for kind, values in fresh.items():
                self._tensors.setdefault(kind, []).append(torch.stack(values))
        self._rows.append((iteration, entries))

    def send(self) -> int:
        """Start copying all rows; return a ticket for `take`."""
        if self._rows:
            copies = {kind: self._copy(torch.cat(rows)) for kind, rows in self._tensors.items()}
            self._sent += 1
            self._underway.append(_Shipment(self._sent, self._rows, copies))
            self._rows, self._tensors = [], {}
        return self._sent

    def take(self, ticket: int, wait: bool) -> Iterator[tuple[int, Values]]:
        """Yield the rows up to a ticket, in order; without `wait`, those that have arrived."""
        while self._underway and self._underway[0].ticket <= ticket:
            if not wait and not self._underway[0].arrived:
                return
            yield from self._underway.popleft().unpack()

    def underway(self) -> Arrivals:
        """Return what was sent and not taken; the same object until that changes."""
        if self._arrivals.shipments != list(self._underway):
            self._arrivals = Arrivals(list(self._underway))
        return self._arrivals

    def has_taken(self, ticket: int) -> bool:
        """Return whether all rows of a ticket were taken."""
        return not self._underway or self._underway[0].ticket > ticket
