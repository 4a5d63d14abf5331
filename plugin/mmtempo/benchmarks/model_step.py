"""One training step of the BEV model on random data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from mmengine.registry import MODELS, DefaultScope

from ..bev import BEVDataSample, Calibration
from ..bev.splat import splat

# Backbones of `_base_/models/lss_swin-{mini,t}.py`, without pretrained weights.
SWINS = dict(
    mini=dict(
        embed_dims=32,
        depths=[1, 1, 2],
        num_heads=[2, 4, 8],
        strides=(4, 2, 2),
        out_indices=(2,),
    ),
    tiny=dict(
        embed_dims=96,
        depths=[2, 2, 6, 2],
        num_heads=[3, 6, 12, 24],
        out_indices=(3,),
    ),
)
VIEWS = dict(mini=dict(in_channels=128, stride=16), tiny=dict(in_channels=768, stride=32))


class TrainingStep:
    """Forward, loss, backward and optimizer step; call it to take one.

    Args:
        model: 'mini' or 'tiny'.
        size: Height and width of the images.
        batch: Samples a step.
        splat: Of `LiftSplatShoot`.
    """

    def __init__(self, model: str, size: tuple[int, int], batch: int, splat: str) -> None:
        torch.manual_seed(0)
        with DefaultScope.overwrite_default_scope('mmseg'):
            self.model = MODELS.build(
                dict(
                    type='BEVSegmentor',
                    backbone=dict(type='SwinTransformer', window_size=7, **SWINS[model]),
                    view_transform=dict(type='LiftSplatShoot', splat=splat, **VIEWS[model]),
                    decode_head=dict(type='BEVPyramidHead', in_channels=64),
                )
            )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        height, width = size
        intrinsics = np.array(
            [[0.7 * width, 0, width / 2], [0, 0.7 * width, height / 2], [0, 0, 1]]
        )
        samples = [
            BEVDataSample(
                metainfo=dict(calibration=Calibration.native(intrinsics, (width, height))),
                gt_bev=torch.zeros(196, 200, dtype=torch.int16),
            )
            for _ in range(batch)
        ]
        images = torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8)
        self.data = dict(inputs=images, data_samples=samples)

    def __call__(self) -> None:
        data = self.model.data_preprocessor(self.data, True)
        losses = self.model(**data, mode='loss')
        self.optimizer.zero_grad()
        sum(losses.values()).backward()
        self.optimizer.step()

    def splat_only(self) -> Callable[[], None]:
        """What the splat has to do in one step, by itself."""
        geometry = self.model.data_preprocessor(self.data, True)['inputs']['geometry']
        images, bins, rows, columns = geometry.inside.shape
        channels = self.model.view_transform.out_channels
        context = torch.rand(images, channels, rows, columns, requires_grad=True)
        depth = torch.rand(images, bins, rows, columns, requires_grad=True)
        grad = torch.rand(geometry.num_cells, channels)
        return lambda: splat(context, depth, geometry).backward(grad)
