"""From image features to BEV features."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import nn

from .grid import BEVGrid
from .splat import splat_scatter


@MODELS.register_module()
class LiftSplatShoot(BaseModule):
    """Lift-Splat view transform, one camera a sample.

    Lift: a 1x1 convolution gives each feature pixel a distribution over depth and
    a context vector. Splat: each (pixel, depth) point adds its share of the
    context to the BEV cell it falls into.

    By default the geometry is right: depth bins sit on the centres of the BEV
    rows, feature pixels on the centres of their strides, and cells are found by
    flooring. `legacy` brings back what the older code did, all or one by one.

    Args:
        in_channels: Channels of the image features.
        out_channels: Context channels. Defaults to 64.
        stride: Image pixels a feature pixel. Defaults to 32.
        grid: Arguments of `BEVGrid`. Defaults to None: 98 x 100 cells of 0.5 m.
        legacy: Default of the three flags below. Defaults to False.
        unit_bins: Depth bins every metre from the near edge on, whatever the grid:
            on a 0.5 m grid every second row stays empty. Defaults to None.
        truncate_cells: Round cell coordinates toward zero, so that points up to one cell
            before the grid leak into its first row and column. Defaults to None.
        linspace_pixels: Spread feature pixels evenly from the first to the last image
            pixel and drop a partial last row. Defaults to None.
        camera_height: Metres of the camera above flat ground. Where given, depth starts out
            from where each pixel's ray meets the ground, and has less to learn.
            Defaults to None.
        init_cfg: As for mmengine's `BaseModule`. Defaults to None.
    """

    depths: torch.Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 64,
        stride: int = 32,
        grid: dict | None = None,
        legacy: bool = False,
        unit_bins: bool | None = None,
        truncate_cells: bool | None = None,
        linspace_pixels: bool | None = None,
        camera_height: float | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.grid = BEVGrid(**(grid or {}))
        self.out_channels = out_channels
        self.stride = stride
        self.unit_bins = legacy if unit_bins is None else unit_bins
        self.truncate_cells = legacy if truncate_cells is None else truncate_cells
        self.linspace_pixels = legacy if linspace_pixels is None else linspace_pixels
        self.camera_height = camera_height
        near, far, step = self.grid.z
        if self.unit_bins:
            depths = torch.arange(near, far, 1.0)
        else:
            depths = near + step * (torch.arange(self.grid.rows) + 0.5)
        self.register_buffer('depths', depths, persistent=False)
        self.lift = nn.Conv2d(in_channels, len(depths) + out_channels, 1)

    def forward(
        self, features: torch.Tensor, img2cam: torch.Tensor, image_size: tuple[int, int]
    ) -> torch.Tensor:
        """Features (B, C, h, w) of images (height, width) to the grid (B, C', rows, columns)."""
        if self.linspace_pixels:
            features = features[:, :, : image_size[0] // self.stride]
        logits, context = self.lift(features).split([len(self.depths), self.out_channels], 1)
        height, width = features.shape[-2:]
        ray = self.rays(img2cam, (height, width), image_size)
        if self.camera_height is not None:
            logits = logits + self.ground_hint(ray, img2cam, self.camera_height)
        cells = self.find_cells(ray)
        bev = splat_scatter(context, logits.softmax(1), cells, self.grid.rows * self.grid.columns)
        return bev.reshape(*bev.shape[:2], self.grid.rows, self.grid.columns)

    def pixel_centres(
        self, feature_size: tuple[int, int], image_size: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Image rows v (h) and columns u (w) that the feature pixels stand for."""
        v, u = (torch.arange(n, device=self.depths.device) for n in feature_size)
        if self.linspace_pixels:
            height, width = image_size
            return (
                v * ((height - 1) / max(len(v) - 1, 1)),
                u * ((width - 1) / max(len(u) - 1, 1)),
            )
        return (v + 0.5) * self.stride - 0.5, (u + 0.5) * self.stride - 0.5

    def rays(
        self, img2cam: torch.Tensor, feature_size: tuple[int, int], image_size: tuple[int, int]
    ) -> torch.Tensor:
        """x and y of each feature pixel's ray at depth 1: (B, 2, h, w), float32."""
        v, u = self.pixel_centres(feature_size, image_size)
        ray = (
            img2cam[:, :, 0, None, None] * u
            + img2cam[:, :, 1, None, None] * v[:, None]
            + img2cam[:, :, 2, None, None]
        )
        return ray[:, :2] / ray[:, 2:]

    def ground_hint(
        self, ray: torch.Tensor, img2cam: torch.Tensor, camera_height: float
    ) -> torch.Tensor:
        """Depth logits (B, D, h, w) of flat ground: 0 where it fits, down to -4 where not."""
        slope = camera_height / self.depths.view(-1, 1, 1)
        # How many feature pixels lie between a pixel and the ground at each depth.
        pixel = (img2cam[:, 1, 1] * self.stride).view(-1, 1, 1, 1)
        return ((ray[:, 1:] - slope) / pixel).square().mul(-2).clamp(min=-4)

    def find_cells(self, ray: torch.Tensor) -> torch.Tensor:
        """Cell (B, D, h, w) of every point, int64; the number of cells means outside."""
        # A point at depth d lies at d times its ray.
        depth = self.depths.view(-1, 1, 1)
        column, in_x = self._cell(ray[:, :1] * depth, *self.grid.x)
        row, in_z = self._cell(depth.expand_as(column), *self.grid.z)
        low, high = self.grid.y
        _, in_y = self._cell(ray[:, 1:] * depth, low, high, high - low)
        outside = self.grid.rows * self.grid.columns
        return torch.where(in_x & in_y & in_z, row * self.grid.columns + column, outside)

    def _cell(
        self, position: torch.Tensor, lower: float, upper: float, step: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Index along one axis, and whether it lies inside."""
        scaled = (position - lower) / step
        scaled = scaled.trunc() if self.truncate_cells else scaled.floor()
        inside = (scaled >= 0) & (scaled < round((upper - lower) / step))
        # Clamped first: what lies far outside does not fit into an integer.
        return scaled.clamp(-1, 1e6).long(), inside
