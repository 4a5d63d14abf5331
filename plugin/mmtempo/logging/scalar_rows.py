"""Collect scalars on the device and copy them to the host together.

::

    note(key, tensor)   several times an iteration: keeps a reference
    seal(iteration)     end of an iteration: one small kernel copies the values into a row
    send()              log point: one asynchronous copy of all rows to the host
    take(...)           after it has arrived: shipments of (iteration, [(key, value, count), ...])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from mmtempo.device.host_copy import HostCopy

Kind = tuple[torch.device, torch.dtype]
Values = list[tuple[str, float, int]]


@dataclass(eq=False)
class Shipment:
    """Rows that are being copied. Reading them waits for the copies; any thread may read.

    Attributes:
        ticket: Number of the shipment, from 1.
        rows: Iterations and their entries: key, value, count, and the kind of a copied value.
        copies: Copies to the host by kind, each with the values of all rows in their order.
    """

    ticket: int
    rows: list[tuple[int, list]]
    copies: dict[Kind, Any]

    @property
    def arrived(self) -> bool:
        """Whether all copies have arrived."""
        return all(copy.arrived for copy in self.copies.values())

    @cached_property
    def values(self) -> list[tuple[int, Values]]:
        """Iteration and values of each row."""
        numbers = {kind: iter(copy.values()) for kind, copy in self.copies.items()}
        return [
            (
                iteration,
                [
                    (key, value if kind is None else next(numbers[kind]), count)
                    for key, value, count, kind in entries
                ],
            )
            for iteration, entries in self.rows
        ]

    @cached_property
    def by_key(self) -> dict[str, tuple[list, list]]:
        """Values and counts of each key, in order."""
        found: dict[str, tuple[list, list]] = {}
        for _, values in self.values:
            for key, value, count in values:
                numbers, counts = found.setdefault(key, ([], []))
                numbers.append(value)
                counts.append(count)
        return found


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
        self._underway: deque[Shipment] = deque()
        self._sent = 0

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
            self._underway.append(Shipment(self._sent, self._rows, copies))
            self._rows, self._tensors = [], {}
        return self._sent

    def take(self, ticket: int, wait: bool) -> Iterator[Shipment]:
        """Yield the shipments up to a ticket, in order; without `wait`, those that have arrived."""
        while self._underway and self._underway[0].ticket <= ticket:
            if not wait and not self._underway[0].arrived:
                return
            yield self._underway.popleft()

    def underway(self) -> list[Shipment]:
        """Return what was sent and not taken."""
        return list(self._underway)

    def has_taken(self, ticket: int) -> bool:
        """Return whether all rows of a ticket were taken."""
        return not self._underway or self._underway[0].ticket > ticket
