"""Samples that an update and an iteration of a training take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config

from mmtempo.utils.checks import is_whole


@dataclass(frozen=True)
class Workload:
    """Samples that one process of a training takes.

    Attributes:
        batch: Samples of a batch; None where the config does not set it.
        accumulation: Batches of an update.
        counts_updates: Whether an iteration is an update; in stock loops it is a batch.
    """

    batch: int | None
    accumulation: int
    counts_updates: bool

    @classmethod
    def of(cls, cfg: Config) -> Workload:
        """Return the workload that a config describes."""
        batch = (cfg.get('train_dataloader') or {}).get('batch_size')
        loop = cfg.get('train_cfg') or {}
        return cls(
            batch if is_whole(batch) else None,
            accumulation_of(cfg.get('optim_wrapper')),
            loop.get('count') == 'updates',
        )

    @property
    def samples_per_update(self) -> int | None:
        return None if self.batch is None else self.batch * self.accumulation

    @property
    def samples_per_iteration(self) -> int | None:
        return self.samples_per_update if self.counts_updates else self.batch


def accumulation_of(wrapper: Any) -> int:
    """Return the batches of an update, from the config of an optimizer wrapper."""
    count = wrapper.get('accumulative_counts', 1) if isinstance(wrapper, Mapping) else 1
    return count if is_whole(count) else 1
