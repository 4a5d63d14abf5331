"""Keeps what was computed for a calibration, until too many others were used since."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch

from .frustum import Placement


class GeometryCache:
    """The placements of the calibrations used last.

    Args:
        size: How many to keep at most.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.hits = 0
        self.misses = 0
        self._kept: OrderedDict[Hashable, Placement] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def fetch(self, keys: Sequence[Hashable], make: Callable[[list[int]], Placement]) -> Placement:
        """Placement of a batch, one key a sample.

        Args:
            keys: Equal ones have equal placements.
            make: Computes those of the samples given by number, all at once.
        """
        missing: dict[Hashable, int] = {}
        for number, key in enumerate(keys):
            if key not in self._kept:
                missing.setdefault(key, number)
        self.misses += len(missing)
        self.hits += len(keys) - len(missing)
        made: dict[Hashable, Placement] = {}
        if missing:
            batch = make(list(missing.values()))
            made = dict(zip(missing, _split(batch)))
            if len(missing) == len(keys):
                self._keep(made)
                return batch
        found = [made[key] if key in made else self._kept[key] for key in keys]
        for key in keys:
            if key not in made:
                self._kept.move_to_end(key)
        self._keep(made)
        return Placement._make(
            None if field[0] is None else torch.stack(field) for field in zip(*found)
        )

    def _keep(self, made: dict[Hashable, Placement]) -> None:
        self._kept.update(made)
        while len(self._kept) > self.size:
            self._kept.popitem(last=False)


def _split(batch: Placement) -> list[Placement]:
    """Placements of single samples, in memory of their own: none keeps the batch alive."""
    samples = len(batch.cells)
    fields = []
    for field in batch:
        # torch's own stub says that it returns nothing.
        pieces = None if field is None else torch.unbind_copy(field)  # type: ignore
        fields.append(pieces or [None] * samples)
    return [Placement._make(sample) for sample in zip(*fields)]
