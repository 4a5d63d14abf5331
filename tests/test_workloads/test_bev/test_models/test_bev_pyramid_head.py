"""The head predicts the priors before training, at the resolution of the label."""

import pytest
import torch

from mmtempo.workloads.bev.models.bev_pyramid_head import BEVPyramidHead
from mmtempo.workloads.bev.structures.labels import PRIORS


def test_new_head_predicts_the_priors_at_twice_the_resolution() -> None:
    head = BEVPyramidHead(8, channels=32, num_blocks=(1, 1))
    logits = head(torch.randn(2, 8, 6, 7))
    assert logits.shape == (2, 14, 12, 14)
    expected = torch.tensor(PRIORS).view(14, 1, 1).expand_as(logits)
    torch.testing.assert_close(logits.sigmoid(), expected)


def test_each_level_doubles_the_resolution() -> None:
    head = BEVPyramidHead(8, channels=64, num_blocks=(2, 1, 1), groups=8, priors=(0.1, 0.2))
    assert head(torch.randn(1, 8, 3, 4)).shape == (1, 2, 12, 16)


def test_all_parameters_get_gradients_after_two_steps() -> None:
    head = BEVPyramidHead(8, channels=32, num_blocks=(1, 1))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    occupancy, valid = torch.rand(1, 14, 12, 14) < 0.3, torch.ones(1, 12, 14, dtype=torch.bool)
    for _ in range(3):  # the zero weights of classifier and blocks block gradients at first
        optimizer.zero_grad()
        sum(head.loss(torch.randn(1, 8, 6, 7), occupancy, valid).values()).backward()
        optimizer.step()
    assert all((p.grad != 0).any() for p in head.parameters())


def test_loss_uses_the_priors_of_the_head() -> None:
    head = BEVPyramidHead(8, channels=16, priors=(0.25,), loss=dict(legacy=True))
    assert head.loss_module.pos_weight.item() == 2
    assert head.loss_module.legacy


def test_channels_must_be_a_multiple_of_the_groups() -> None:
    with pytest.raises(ValueError, match='channels must be a multiple of groups = 16, found 24'):
        BEVPyramidHead(8, channels=24)
