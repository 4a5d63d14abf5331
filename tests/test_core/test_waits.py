"""What makes the host wait is counted; what does not, is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mmtempo.core import WaitCounter

VALUES = torch.tensor([1.0, -2.0, 3.0])


@pytest.mark.parametrize(
    'work',
    [
        lambda: VALUES.sum().item(),
        lambda: bool(VALUES[0] > 0),
        lambda: VALUES[VALUES > 0],
        lambda: VALUES.clone().__setitem__(VALUES > 0, torch.zeros(2)),
        lambda: VALUES.nonzero(),
        lambda: torch.where(VALUES > 0),
        lambda: VALUES.masked_select(VALUES > 0),
        lambda: torch.equal(VALUES, VALUES),
        lambda: torch.allclose(VALUES, VALUES),
        lambda: VALUES.unique(),
        lambda: VALUES.unique(dim=0),
        lambda: VALUES.unique_consecutive(),
        lambda: torch.tensor([0, 2]).bincount(),
        lambda: VALUES.repeat_interleave(torch.tensor([1, 2, 0])),
    ],
)
def test_counts_what_waits(work: Callable) -> None:
    with WaitCounter() as counter:
        work()
    assert len(counter.waits) >= 1


def test_does_not_count_what_does_not() -> None:
    with WaitCounter() as counter:
        total = VALUES.softmax(0) @ VALUES
        chosen = VALUES[torch.tensor([0, 2])] + torch.where(VALUES > 0, VALUES, 0).sum()
        (total + chosen).repeat_interleave(2).to('cpu', non_blocking=True)
    assert counter.waits == []
