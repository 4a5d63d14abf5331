"""The head starts at the prior and ends at the label's resolution."""

import pytest
import torch

from mmtempo.workloads.bev.models.bev_pyramid_head import BEVPyramidHead
from mmtempo.workloads.bev.structures.labels import PRIORS


def test_starts_at_the_prior_and_doubles_the_resolution() -> None:
    head = BEVPyramidHead(8, channels=32, num_blocks=(1, 1))
    logits = head(torch.randn(2, 8, 6, 7))
    assert logits.shape == (2, 14, 12, 14)
    expected = torch.tensor(PRIORS).view(14, 1, 1).expand_as(logits)
    torch.testing.assert_close(logits.sigmoid(), expected)


def test_levels() -> None:
    head = BEVPyramidHead(8, channels=64, num_blocks=(2, 1, 1), groups=8, priors=(0.1, 0.2))
    assert head(torch.randn(1, 8, 3, 4)).shape == (1, 2, 12, 16)


def test_every_parameter_gets_a_gradient_after_one_step() -> None:
    head = BEVPyramidHead(8, channels=32, num_blocks=(1, 1))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    occupancy, valid = torch.rand(1, 14, 12, 14) < 0.3, torch.ones(1, 12, 14, dtype=torch.bool)
    for _ in range(3):  # zero weights at the end and in the blocks hold gradients back at first
        optimizer.zero_grad()
        sum(head.loss(torch.randn(1, 8, 6, 7), occupancy, valid).values()).backward()
        optimizer.step()
    assert all((p.grad != 0).any() for p in head.parameters())


def test_loss_takes_the_priors_of_the_head() -> None:
    head = BEVPyramidHead(8, channels=16, priors=(0.25,), loss=dict(legacy=True))
    assert head.loss_module.pos_weight.item() == 2
    assert head.loss_module.legacy


def test_width_must_fit_the_groups() -> None:
    with pytest.raises(ValueError, match='channels = 24 is not a multiple of groups = 16'):
        BEVPyramidHead(8, channels=24)
