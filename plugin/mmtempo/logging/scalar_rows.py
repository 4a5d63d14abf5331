"""Scalars of each iteration stay on the device and leave it together.

::

    note(key, tensor)   several times an iteration: nothing but a reference
    seal(iteration)     end of an iteration: one small kernel copies them into a row
    send()              log point: one asynchronous copy of all rows to the host
    take(...)           whenever it has arrived: (iteration, [(key, value, count), ...])
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
    """Rows on their way: what lies where in the copies."""

    ticket: int
    rows: list[tuple[int, list]]
    copies: dict[Kind, Any]

    @property
    def arrived(self) -> bool:
        return all(copy.arrived for copy in self.copies.values())

    def unpack(self) -> Iterator[tuple[int, Values]]:
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
    """The values of copies on their way, by key; reading waits for them, in any thread.

    Args:
        shipments: The copies, in order.
    """

    def __init__(self, shipments: list[_Shipment]) -> None:
        self.shipments = shipments
        self._by_key: dict[str, tuple[list, list]] | None = None

    def of(self, key: str) -> tuple[list, list]:
        """Return values and counts."""
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
    """Collects scalars, tensors or Python numbers, and hands them out in the order they came.

    Args:
        copy: Starts a copy to the host, as HostCopy does.
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
        """Rows that have not been sent."""
        return len(self._rows)

    def note(self, key: str, value: Any, count: int = 1) -> None:
        """Hold on to a value of the current iteration; it is copied when that ends."""
        if type(value) is float:  # most of them
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
                f'{key} is {type(value).__name__}{shape}, but what a training step returns for '
                'the log has to be one number each'
            )
        self._open.append((key, value, count))

    def seal(self, iteration: int) -> None:
        """End an iteration: what it noted is copied, as its tensors may be used again."""
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
        """Start the copy of all rows; returns a ticket to ask for it."""
        if self._rows:
            copies = {kind: self._copy(torch.cat(rows)) for kind, rows in self._tensors.items()}
            self._sent += 1
            self._underway.append(_Shipment(self._sent, self._rows, copies))
            self._rows, self._tensors = [], {}
        return self._sent

    def take(self, ticket: int, wait: bool) -> Iterator[tuple[int, Values]]:
        """All rows up to those of a ticket, in order; without `wait`, those that have arrived."""
        while self._underway and self._underway[0].ticket <= ticket:
            if not wait and not self._underway[0].arrived:
                return
            yield from self._underway.popleft().unpack()

    def underway(self) -> Arrivals:
        """Return what was sent and has not been handed out; the same object until that changes."""
        if self._arrivals.shipments != list(self._underway):
            self._arrivals = Arrivals(list(self._underway))
        return self._arrivals

    def has_taken(self, ticket: int) -> bool:
        """Whether all rows of a ticket have been handed out."""
        return not self._underway or self._underway[0].ticket > ticket
