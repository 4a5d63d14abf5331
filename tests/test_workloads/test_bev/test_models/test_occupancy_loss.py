"""The loss equals a sum by hand, in its current and its legacy form."""

import pytest
import torch

from mmtempo.workloads.bev.models.occupancy_loss import OccupancyLoss

PRIORS = (0.5, 0.04)


def inputs() -> tuple:
    torch.manual_seed(0)
    logits = torch.randn(2, 2, 4, 5, requires_grad=True)
    occupancy = torch.rand(2, 2, 4, 5) < 0.4
    valid = torch.rand(2, 4, 5) < 0.6
    return logits, occupancy, valid


def by_hand(legacy: bool) -> tuple[float, float]:
    """Return both losses of `inputs`, summed cell by cell."""
    logits, occupancy, valid = inputs()
    total = pulled = 0.0
    for b, c, i, j in torch.ones_like(logits).nonzero().tolist():
        p = torch.sigmoid(logits[b, c, i, j]).item()
        log_p, log_q = torch.tensor([p, 1 - p]).log().tolist()
        if valid[b, i, j]:
            weight = (1 / PRIORS[c]) ** 0.5
            total -= weight * log_p if occupancy[b, c, i, j] else log_q
        else:
            pulled -= PRIORS[c] * log_p + (1 - PRIORS[c]) * log_q
    cells = valid.sum().item() * 2
    ignored = (~valid).sum().item() * 2
    if legacy:
        cells = ignored = logits.numel()
    return total / cells, 0.001 * pulled / ignored


@pytest.mark.parametrize('legacy', [False, True])
def test_losses_equal_the_sum_by_hand(legacy: bool) -> None:
    losses = OccupancyLoss(PRIORS, legacy=legacy)(*inputs())
    occupancy, prior = by_hand(legacy)
    assert losses['loss_occupancy'].item() == pytest.approx(occupancy, rel=1e-5)
    assert losses['loss_prior'].item() == pytest.approx(prior, rel=1e-5)


def test_only_legacy_loss_shrinks_with_ignored_cells() -> None:
    logits, occupancy, valid = torch.zeros(1, 2, 4, 4), torch.zeros(1, 2, 4, 4).bool(), None
    values = {}
    for legacy in (False, True):
        loss = OccupancyLoss(PRIORS, legacy=legacy)
        for share in (4, 1):
            valid = torch.zeros(1, 4, 4, dtype=torch.bool)
            valid[:, :share] = True
            values[legacy, share] = loss(logits, occupancy, valid)['loss_occupancy'].item()
    assert values[False, 4] == pytest.approx(values[False, 1])
    assert values[True, 4] == pytest.approx(4 * values[True, 1])


@pytest.mark.parametrize('fill', [False, True])
def test_losses_are_finite_with_all_or_no_cells_valid(fill: bool) -> None:
    logits, occupancy, _ = inputs()
    losses = OccupancyLoss(PRIORS)(logits, occupancy, torch.full((2, 4, 5), fill))
    sum(losses.values()).backward()
    assert all(torch.isfinite(v) for v in losses.values())
    assert torch.isfinite(logits.grad).all()
    assert losses['loss_prior' if fill else 'loss_occupancy'] == 0


def test_losses_of_half_precision_logits_are_float32() -> None:
    logits, occupancy, valid = inputs()
    losses = OccupancyLoss(PRIORS)(logits.bfloat16(), occupancy, valid)
    assert losses['loss_occupancy'].dtype == torch.float32


@pytest.mark.parametrize('priors', [(), (0.0, 0.5), (0.5, 1.0)])
def test_priors_must_be_between_0_and_1(priors: tuple) -> None:
    with pytest.raises(ValueError, match='strictly in'):
        OccupancyLoss(priors)
