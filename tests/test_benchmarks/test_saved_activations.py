"""Bytes that are kept for the backward pass, against counting by hand."""

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
    """Runs its body anew in the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.body, self.use_reentrant = nn.Linear(8, 8), net(), use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, self.first(x), use_reentrant=self.use_reentrant)


def test_counts_each_storage_once_and_no_parameters() -> None:
    model, x = net(), torch.randn(5, 8)
    with SavedActivations(model) as saved:
        out = model(x)
    # The input, and what is both the result of ReLU and the input of the last layer.
    assert saved.bytes == FLOAT * 5 * (8 + 16)
    with SavedActivations(model) as saved:
        model(x).square().sum()
    assert saved.bytes == FLOAT * 5 * (8 + 16 + 2)
    with SavedActivations() as saved:
        model(x)
    # The first layer's weight is needed for the gradient of its input only, which nobody wants.
    assert saved.bytes == FLOAT * (5 * (8 + 16) + 16 * 2)
    assert out.grad_fn is not None


def test_a_view_counts_as_all_that_it_keeps() -> None:
    whole = torch.randn(6, 10, requires_grad=True)
    with SavedActivations() as saved:
        parts = (whole * 2).chunk(3)
        (parts[0] * parts[1] * parts[2]).sum()
    # The doubled whole, and the product of the first two.
    assert saved.bytes == FLOAT * (60 + 20)


def test_buffers_do_not_count() -> None:
    model = nn.BatchNorm1d(8)
    with SavedActivations(model) as saved:
        model(torch.randn(5, 8))
    assert saved.bytes == FLOAT * (5 * 8 + 8 + 8)  # with mean and deviation of the batch


@pytest.mark.parametrize('use_reentrant', [False, True])
def test_what_is_run_again_does_not_count(use_reentrant: bool) -> None:
    model, x = Checkpointing(use_reentrant), torch.randn(5, 8)
    expected = copy.deepcopy(model)
    with SavedActivations(model) as saved:
        loss = model(x).square().sum()
        forward = saved.bytes
        loss.backward()
    # Both inputs, and what is squared.
    assert forward == FLOAT * 5 * (8 + 8 + 2)
    assert saved.bytes == forward
    with SavedActivations(expected) as plain:
        expected.body(expected.first(x)).square().sum().backward()
    assert plain.bytes == forward + FLOAT * 5 * 16
    for one, other in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)


def test_a_backward_pass_keeps_nothing_that_counts() -> None:
    x = torch.randn(5, 8, requires_grad=True)
    with SavedActivations() as saved:
        y = x.exp().sum()
        before = saved.bytes
        torch.autograd.grad(y, x, create_graph=True)
    assert saved.bytes == before == FLOAT * 40


def test_what_was_freed_counts_too() -> None:
    scale = nn.Parameter(torch.ones(1000))
    with SavedActivations() as saved:
        for _ in range(5):  # the allocator gives out the same address each time
            (scale * torch.ones(1000)).sum()
    assert saved.bytes == FLOAT * 5 * 1000


def test_nothing_lives_longer() -> None:
    x = torch.randn(1000, requires_grad=True)
    with SavedActivations():
        y = x.exp()
        kept = StorageWeakRef(y.untyped_storage())
        del y
        assert kept.expired()


def test_sparse_tensors() -> None:
    matrix = torch.eye(6).to_sparse()
    dense = torch.randn(6, 3, requires_grad=True)
    with SavedActivations() as saved:
        torch.sparse.mm(matrix, dense).sum()
    assert saved.bytes == FLOAT * 6 + 8 * 2 * 6


def test_copies_in_half_precision_count() -> None:
    model, x = net(), torch.randn(5, 8)
    with SavedActivations(model) as saved, torch.autocast('cpu', torch.bfloat16):
        model(x)
    assert saved.bytes == 2 * (5 * (8 + 16) + 16 * 2)


def test_needs_no_memory() -> None:
    model = nn.Linear(1 << 20, 1, device='meta')
    with SavedActivations(model) as saved:
        model(torch.empty(1 << 20, 1 << 20, device='meta'))
    assert saved.bytes == FLOAT << 40


def test_an_error_ends_it() -> None:
    x = torch.randn(8, requires_grad=True)
    with pytest.raises(KeyError), SavedActivations() as saved:
        raise KeyError
    x.exp()
    assert saved.bytes == 0


def test_enters_again() -> None:
    x, saved = torch.randn(8, requires_grad=True), SavedActivations()
    for _ in range(2):
        with saved:
            x.exp()
        assert saved.bytes == FLOAT * 8
