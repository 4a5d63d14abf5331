"""Loss of multi-label BEV occupancy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmengine.registry import MODELS
from torch import nn
from torch.nn import functional as F

from mmtempo.workloads.bev.structures.labels import PRIORS


@MODELS.register_module()
class OccupancyLoss(nn.Module):
    """Weighted cross-entropy on valid cells, and cross-entropy to the priors on ignored cells.

    Positives of class c have the weight ``sqrt(1 / prior_c)``, so that rare classes count.

    Args:
        priors: Share of valid cells with each class. Defaults to nuScenes' 14 priors.
        prior_weight: Weight of the loss on ignored cells. Defaults to 0.001.
        legacy: Whether masked cells stay in the denominators, as in the older code, where
            the loss shrinks with the share of ignored cells. Defaults to False.
    """

    prior: torch.Tensor
    pos_weight: torch.Tensor

    def __init__(
        self,
        priors: Sequence[float] = PRIORS,
        prior_weight: float = 0.001,
        legacy: bool = False,
    ) -> None:
        super().__init__()
        if not priors or min(priors) <= 0 or max(priors) >= 1:
            raise ValueError(
                'OccupancyLoss.priors must be at least one number strictly in (0, 1), '
                f'found {priors}'
            )
        self.prior_weight = prior_weight
        self.legacy = legacy
        prior = torch.tensor(priors).view(-1, 1, 1)
        self.register_buffer('prior', prior, persistent=False)
        self.register_buffer('pos_weight', prior.rsqrt(), persistent=False)

    def forward(
        self, logits: torch.Tensor, occupancy: torch.Tensor, valid: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the losses of a batch.

        Args:
            logits: Logits (B, classes, rows, columns).
            occupancy: Labels, bool (B, classes, rows, columns).
            valid: Cells that are not ignored, bool (B, rows, columns).
        """
        logits = logits.float()
        valid = valid.unsqueeze(1).to(logits.dtype)
        occupied = F.binary_cross_entropy_with_logits(
            logits, occupancy.to(logits.dtype), pos_weight=self.pos_weight, reduction='none'
        )
        unknown = F.binary_cross_entropy_with_logits(
            logits, self.prior.expand_as(logits), reduction='none'
        )
        return dict(
            loss_occupancy=self._mean(occupied, valid),
            loss_prior=self.prior_weight * self._mean(unknown, 1 - valid),
        )

    def _mean(self, loss: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.legacy:
            return (loss * mask).mean()
        # A batch may have no such cell; its loss must be 0, not NaN.
        return (loss * mask).sum() / (mask.sum() * loss.shape[1]).clamp(min=1)
