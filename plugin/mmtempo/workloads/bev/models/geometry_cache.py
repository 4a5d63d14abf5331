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
        # Whether a placement has memory of its own, or is one row of the batch it came in.
        self._kept: OrderedDict[Hashable, tuple[Placement, bool]] = OrderedDict()

    def __reduce__(self) -> tuple:
        # Copies of a model, and files of it, start with an empty cache.
        return type(self), (self.size,)

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
            made = dict(zip(missing, _rows(batch)))
            if len(missing) == len(keys):
                self._keep(made)
                return batch
        found = [made[key] if key in made else self._take(key) for key in keys]
        self._keep(made)
        return Placement._make(
            None if field[0] is None else torch.stack(field) for field in zip(*found)
        )

    def _take(self, key: Hashable) -> Placement:
        """A known placement; from its first use on it has memory of its own.

        So what is used lets its batch go, and what is never used, as with random augmentation,
        is never copied and leaves with its batch.
        """
        placement, own = self._kept[key]
        if not own:
            placement = Placement._make(None if t is None else t.clone() for t in placement)
            self._kept[key] = placement, True
        self._kept.move_to_end(key)
        return placement

    def _keep(self, made: dict[Hashable, Placement]) -> None:
        self._kept.update((key, (placement, False)) for key, placement in made.items())
        while len(self._kept) > self.size:
            self._kept.popitem(last=False)


def _rows(batch: Placement) -> list[Placement]:
    """Placements of single samples, as views of the batch's."""
    nothing = [None] * len(batch.cells)
    fields = [nothing if field is None else field.unbind() for field in batch]
    return [Placement._make(sample) for sample in zip(*fields)]
