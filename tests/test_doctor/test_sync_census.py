"""What makes the host wait is counted; what does not, is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from mmtempo.doctor import sync_census
from mmtempo.doctor.sync_census import SyncCensus

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
        lambda: VALUES.abs().long().bincount(),
        lambda: VALUES.repeat_interleave(VALUES.abs().long()),
    ],
)
def test_counts_what_waits(work: Callable) -> None:
    with SyncCensus() as counter:
        work()
    assert len(counter.waits) >= 1


def test_does_not_count_what_does_not() -> None:
    with SyncCensus() as counter:
        total = VALUES.softmax(0) @ VALUES
        chosen = VALUES[torch.tensor([0, 2])] + torch.where(VALUES > 0, VALUES, 0).sum()
        (total + chosen).repeat_interleave(2).to('cpu', non_blocking=True)
    assert counter.waits == []


@pytest.mark.parametrize(
    ('work', 'kind'),
    [
        (lambda: VALUES.cpu(), 'copy to the host'),
        (lambda: VALUES.numpy(), 'copy to the host'),
        (lambda: np.asarray(VALUES), 'copy to the host'),
        (lambda: VALUES.tolist(), 'copy to the host'),
        (lambda: VALUES.to('cpu'), 'copy to the host'),
        (lambda: VALUES[[2, 1, 0]], 'index by list'),
        (lambda: VALUES[np.array([0, 1])], 'index by list'),
        (lambda: VALUES.new_tensor([1.0, 2.0]), 'blocking copy'),
        (lambda: torch.tensor([1.0], device=VALUES.device), 'blocking copy'),
        (lambda: VALUES[VALUES > 0], 'index by mask'),
        (lambda: float(VALUES.mean()), 'scalar read'),
        (lambda: VALUES.nonzero(), 'shape by value'),
    ],
)
def test_names_the_kind_and_the_line(work: Callable, kind: str) -> None:
    with SyncCensus() as census:
        work()
    (wait,) = census.waits
    assert wait.kind == kind
    path, _, line = wait.where.rpartition(':')
    assert path == __file__
    assert int(line) == work.__code__.co_firstlineno


def test_what_lies_on_the_host_is_free_until_it_moves() -> None:
    batch = dict(inputs=[torch.ones(3), torch.ones(3)], sample=SegDataSample(gt=PixelData()))
    batch['sample'].gt.data = torch.zeros(1, 3, 3)
    device = torch.device('cpu')
    with SyncCensus() as census:
        census.mark_on_host(batch)
        stacked = torch.stack(batch['inputs'])
        stacked.sum().item()
        stacked[[1, 0]].tolist()
        batch['sample'].gt.data.numpy()
        torch.tensor([1, 2]).tolist()
        stacked.half().float().sum().item()
        stacked.to(torch.float64).sum().item()
        moved = stacked.to(device, non_blocking=True)
        assert census.waits == []
        stacked.to(device)
        moved.sum().item()
        (moved + stacked).sum().item()
    kinds = [wait.kind for wait in census.waits]
    assert kinds == ['blocking copy', 'scalar read', 'scalar read']


def test_backward_passes_and_functions_are_looked_into() -> None:
    class Peeks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * grad.max().item()

    x = VALUES.clone().requires_grad_()
    with SyncCensus() as census:
        Peeks.apply(x).sum().backward()
    assert [wait.kind for wait in census.waits] == ['scalar read']


def test_optimizers_keep_their_step_count_on_the_host() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    for _ in range(2):
        weight.sum().backward()
        with SyncCensus() as census:
            optimizer.step()
        assert census.waits == []


def test_table_counts() -> None:
    with SyncCensus() as census:
        for _ in range(3):
            VALUES.sum().item()
        VALUES.nonzero()
    assert [count for _, count in census.table()] == [3, 1]
    assert census.table()[0][0].kind == 'scalar read'


def test_nothing_is_counted_afterwards() -> None:
    with pytest.raises(RuntimeError, match='on purpose'), SyncCensus() as census:
        raise RuntimeError('on purpose')
    VALUES.sum().item()
    VALUES.tolist()
    assert census.waits == []


def test_where_cuda_is_its_own_reports_are_taken_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fake CUDA that reports as the real one does."""
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(sync_census, 'current_device_index', lambda: 0)
    monkeypatch.setattr(torch.cuda, 'set_sync_debug_mode', modes.append)
    with SyncCensus() as census:
        assert modes == ['warn']
        VALUES.sum().item()  # lies on the host, since there is a device
        warnings.warn('called a synchronizing CUDA operation', stacklevel=1)
        warnings.warn('something else', stacklevel=1)
    assert modes == ['warn', 'default']
    assert census.waits == []
    (wait,) = census.synchronised
    assert wait.where.startswith(__file__)
    assert census.table() == [(wait, 1)]


def test_no_device_is_imagined_where_another_accelerator_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_census, 'current_device_index', lambda: 0)
    with SyncCensus() as census:
        VALUES.sum().item()  # on the host, since there is a device
        VALUES.tolist()
    assert census.table() == []
