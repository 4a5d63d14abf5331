"""Samples per update and per iteration."""

from __future__ import annotations

import pytest
from mmengine.config import Config

from mmtempo.policies.workload import Workload


@pytest.mark.parametrize(
    ('batch', 'counts', 'count', 'update', 'iteration'),
    [
        (4, None, None, 4, 4),
        (4, 2, None, 8, 4),
        (4, 2, 'updates', 8, 8),
        (4, 1, 'updates', 4, 4),
        (None, 2, 'updates', None, None),
    ],
)
def test_samples_follow_the_config(
    batch: int | None, counts: int | None, count: str | None, update: int, iteration: int
) -> None:
    cfg = Config(
        dict(
            train_dataloader=dict(batch_size=batch) if batch else dict(batch_sampler=dict()),
            optim_wrapper=dict(accumulative_counts=counts) if counts else dict(),
            train_cfg=dict(count=count) if count else dict(),
        )
    )
    workload = Workload.of(cfg)
    assert workload.samples_per_update == update
    assert workload.samples_per_iteration == iteration
