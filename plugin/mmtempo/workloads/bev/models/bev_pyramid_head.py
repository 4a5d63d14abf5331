"""Head that turns BEV features into class logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import nn

from mmtempo.workloads.bev.structures.labels import PRIORS


class Bottleneck(nn.Module):
    """Residual block of 1x1, 3x3 and 1x1 convolutions.

    Uses GroupNorm, since BEV batches are small.

    Args:
        channels: Channels of input and output.
        groups: Groups of each GroupNorm.
    """

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        middle = max(channels // 2 // groups, 1) * groups
        self.body = nn.Sequential(
            nn.Conv2d(channels, middle, 1, bias=False),
            nn.GroupNorm(groups, middle),
            nn.ReLU(inplace=True),
            nn.Conv2d(middle, middle, 3, padding=1, bias=False),
            nn.GroupNorm(groups, middle),
            nn.ReLU(inplace=True),
            nn.Conv2d(middle, channels, 1, bias=False),
            nn.GroupNorm(groups, channels),
        )
        # Start as the identity, so that no ReLU dies before the block has learned anything.
        nn.init.zeros_(self.body[-1].weight)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.body(x)).relu_()


@MODELS.register_module()
class BEVPyramidHead(BaseModule):
    """Residual levels, each at twice the resolution of the previous level, then a classifier.

    The first level has the resolution of the grid. Before training, every cell predicts the
    priors: the weights of the classifier are zero, and its biases are the logits of the priors.

    Args:
        in_channels: Channels of the BEV features.
        channels: Channels of the first level, a multiple of `groups`. Defaults to 128.
        num_blocks: Number of bottlenecks of each level; every level after the first doubles
            the resolution and halves the channels. Defaults to (4, 2).
        groups: Groups of each GroupNorm. Defaults to 16.
        priors: Share of valid cells with each class; determines the number of classes.
            Defaults to nuScenes' 14 priors.
        loss: Config of the loss; updates that of an `OccupancyLoss` with `priors`.
            Defaults to None.
        init_cfg: As for mmengine's `BaseModule`. Defaults to None.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int = 128,
        num_blocks: Sequence[int] = (4, 2),
        groups: int = 16,
        priors: Sequence[float] = PRIORS,
        loss: dict | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        if channels % groups:
            raise ValueError(
                f'BEVPyramidHead.channels must be a multiple of groups = {groups}, found {channels}'
            )
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(groups, channels),
            nn.ReLU(inplace=True),
        )
        levels: list[nn.Module] = [self._level(channels, groups, num_blocks[0])]
        for blocks in num_blocks[1:]:
            finer = max(channels // 2 // groups, 1) * groups
            levels += [self._upsample(channels, finer, groups), self._level(finer, groups, blocks)]
            channels = finer
        self.levels = nn.Sequential(*levels)
        self.classify = nn.Conv2d(channels, len(priors), 1)
        nn.init.zeros_(self.classify.weight)
        with torch.no_grad():
            self.classify.bias.copy_(torch.tensor(priors).logit())  # type: ignore[union-attr]
        loss = dict(type='OccupancyLoss', priors=tuple(priors)) | dict(loss or {})
        self.loss_module = MODELS.build(loss)

    @staticmethod
    def _level(channels: int, groups: int, blocks: int) -> nn.Sequential:
        return nn.Sequential(*(Bottleneck(channels, groups) for _ in range(blocks)))

    @staticmethod
    def _upsample(channels: int, finer: int, groups: int) -> nn.Sequential:
        return nn.Sequential(
            nn.ConvTranspose2d(channels, finer, 2, stride=2, bias=False),
            nn.GroupNorm(groups, finer),
            nn.ReLU(inplace=True),
        )

    def forward(self, bev: torch.Tensor) -> torch.Tensor:
        """Return logits (B, classes, rows, columns) at the resolution of the last level."""
        return self.classify(self.levels(self.stem(bev)))

    def loss(
        self, bev: torch.Tensor, occupancy: torch.Tensor, valid: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the losses of a batch."""
        return self.loss_module(self(bev), occupancy, valid)
