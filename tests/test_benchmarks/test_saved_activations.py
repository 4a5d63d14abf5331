"""Bytes that are kept for the backward pass, compared with sums by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from mmtempo.benchmarks.saved_activations import SavedActivations

FLOAT = 4


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


class Checkpointing(nn.Module):
    """Module whose body is recomputed in the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.body, self.use_reentrant = nn.Linear(8, 8), net(), use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, self.first(x), use_reentrant=self.use_reentrant)


def test_each_storage_counts_once_and_parameters_do_not() -> None:
    model, x = net(), torch.randn(5, 8)
    with SavedActivations(model) as saved:
        out = model(x)
    # The input, and the result of ReLU, which is the input of the last layer as well.
    assert saved.bytes == FLOAT * 5 * (8 + 16)
    with SavedActivations(model) as saved:
        model(x).square().sum()
    assert saved.bytes == FLOAT * 5 * (8 + 16 + 2)
    with SavedActivations() as saved:
        model(x)
    # The weight of the first layer is needed only for the gradient of its input, which is unused.
    assert saved.bytes == FLOAT * (5 * (8 + 16) + 16 * 2)
    assert out.grad_fn is not None


def test_view_counts_with_its_whole_storage() -> None:
    whole = torch.randn(6, 10, requires_grad=True)
    with SavedActivations() as saved:
        parts = (whole * 2).chunk(3)
        (parts[0] * parts[1] * parts[2]).sum()
    # The doubled tensor, and the product of the first two parts.
    assert saved.bytes == FLOAT * (60 + 20)


def test_buffers_do_not_count() -> None:
    model = nn.BatchNorm1d(8)
    with SavedActivations(model) as saved:
        model(torch.randn(5, 8))
    assert saved.bytes == FLOAT * (5 * 8 + 8 + 8)  # with mean and deviation of the batch


@pytest.mark.parametrize('use_reentrant', [False, True])
def test_recomputed_tensors_do_not_count(use_reentrant: bool) -> None:
    model, x = Checkpointing(use_reentrant), torch.randn(5, 8)
    expected = copy.deepcopy(model)
    with SavedActivations(model) as saved:
        loss = model(x).square().sum()
        forward = saved.bytes
        loss.backward()
    # Both inputs, and the squared output.
    assert forward == FLOAT * 5 * (8 + 8 + 2)
    assert saved.bytes == forward
    with SavedActivations(expected) as plain:
        expected.body(expected.first(x)).square().sum().backward()
    assert plain.bytes == forward + FLOAT * 5 * 16
    for one, other in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)


def test_tensors_kept_by_a_backward_pass_do_not_count() -> None:
    x = torch.randn(5, 8, requires_grad=True)
    with SavedActivations() as saved:
        y = x.exp().sum()
        before = saved.bytes
        torch.autograd.grad(y, x, create_graph=True)
    assert saved.bytes == before == FLOAT * 40


def test_released_tensors_count() -> None:
    scale = nn.Parameter(torch.ones(1000))
    with SavedActivations() as saved:
        for _ in range(5):  # the allocator reuses the same address
            (scale * torch.ones(1000)).sum()
    assert saved.bytes == FLOAT * 5 * 1000


def test_storages_are_not_kept_alive() -> None:
    x = torch.randn(1000, requires_grad=True)
    with SavedActivations():
        y = x.exp()
        kept = StorageWeakRef(y.untyped_storage())
        del y
        assert kept.expired()


def test_copies_in_half_precision_count() -> None:
    model, x = net(), torch.randn(5, 8)
    with SavedActivations(model) as saved, torch.autocast('cpu', torch.bfloat16):
        model(x)
    assert saved.bytes == 2 * (5 * (8 + 16) + 16 * 2)


def test_meta_tensors_count() -> None:
    model = nn.Linear(1 << 20, 1, device='meta')
    with SavedActivations(model) as saved:
        model(torch.empty(1 << 20, 1 << 20, device='meta'))
    assert saved.bytes == FLOAT << 40


def test_error_ends_the_context() -> None:
    x = torch.randn(8, requires_grad=True)
    with pytest.raises(KeyError), SavedActivations() as saved:
        raise KeyError
    x.exp()
    assert saved.bytes == 0


def test_context_starts_from_zero_again() -> None:
    x, saved = torch.randn(8, requires_grad=True), SavedActivations()
    for _ in range(2):
        with saved:
            x.exp()
        assert saved.bytes == FLOAT * 8
