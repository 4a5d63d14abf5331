"""How many samples an update and an iteration of a training take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config


@dataclass(frozen=True)
class Workload:
    """Samples of a training, on each of its processes.

    Attributes:
        batch: Samples the loader gives at once; None where the config does not say.
        accumulation: Batches to an update.
        counts_updates: Whether an iteration is an update, or a batch as stock has it.
    """

    batch: int | None
    accumulation: int
    counts_updates: bool

    @classmethod
    def of(cls, cfg: Config) -> Workload:
        """As the config describes it."""
        batch = (cfg.get('train_dataloader') or {}).get('batch_size')
        loop = cfg.get('train_cfg') or {}
        return cls(
            batch if isinstance(batch, int) else None,
            accumulation_of(cfg.get('optim_wrapper')),
            loop.get('count') == 'updates',
        )

    @property
    def of_update(self) -> int | None:
        return None if self.batch is None else self.batch * self.accumulation

    @property
    def of_iteration(self) -> int | None:
        return self.of_update if self.counts_updates else self.batch


def accumulation_of(wrapper: Any) -> int:
    """Batches to an update, of an optimizer wrapper's config."""
    counts = wrapper.get('accumulative_counts', 1) if isinstance(wrapper, Mapping) else 1
    return counts if isinstance(counts, int) and counts > 0 else 1
