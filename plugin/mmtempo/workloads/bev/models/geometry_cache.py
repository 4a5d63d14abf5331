"""LRU cache of what was computed from calibrations."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch

from .frustum import Placement


class GeometryCache:
    """Cache of placements that evicts the least recently used ones.

    Args:
        size: Number of placements to keep at most.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.hits = 0
        self.misses = 0
        # The flag says whether a placement owns its memory, or is a view of its batch's.
        self._kept: OrderedDict[Hashable, tuple[Placement, bool]] = OrderedDict()

    def __reduce__(self) -> tuple:
        # Copies and pickles of a model start with an empty cache.
        return type(self), (self.size,)

    def __len__(self) -> int:
        return len(self._kept)

    def fetch(self, keys: Sequence[Hashable], make: Callable[[list[int]], Placement]) -> Placement:
        """Return the placement of a batch.

        Args:
            keys: A key per sample; equal keys have equal placements.
            make: Takes the indices of samples, and computes their placements in one batch.
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
        placements = [made[key] if key in made else self._take(key) for key in keys]
        self._keep(made)
        return Placement._make(
            None if field[0] is None else torch.stack(field) for field in zip(*placements)
        )

    def _take(self, key: Hashable) -> Placement:
        """Return a cached placement, which owns its memory from its first use on.

        So a placement that is used does not keep its batch alive. One that is never used, as with
        random augmentation, is never copied and is freed with its batch.
        """
        placement, owned = self._kept[key]
        if not owned:
            placement = Placement._make(None if t is None else t.clone() for t in placement)
            self._kept[key] = placement, True
        self._kept.move_to_end(key)
        return placement

    def _keep(self, made: dict[Hashable, Placement]) -> None:
        self._kept.update((key, (placement, False)) for key, placement in made.items())
        while len(self._kept) > self.size:
            self._kept.popitem(last=False)


def _rows(batch: Placement) -> list[Placement]:
    """Return the placements of single samples, as views of the batch's memory."""
    absent = [None] * len(batch.cells)
    fields = [absent if field is None else field.unbind() for field in batch]
    return [Placement._make(sample) for sample in zip(*fields)]
