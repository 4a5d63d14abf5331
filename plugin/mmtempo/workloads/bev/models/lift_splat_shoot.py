"""Lift-Splat view transform from image features to BEV features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import nn

from mmtempo.device.streams import to_device
from mmtempo.workloads.bev.structures.grid import BEVGrid

from .frustum import Frustum, SplatGeometry, unlike_column
from .geometry_cache import GeometryCache
from .splat import SPLATS, splat


@MODELS.register_module()
class LiftSplatShoot(BaseModule):
    """Lift-Splat view transform, for one or several cameras per sample.

    Lift: a 1x1 convolution gives each feature pixel a distribution over depth and
    a context vector. Splat: each (pixel, depth) point adds its share of the
    context to the BEV cell that contains it::

        calibrations --prepare--> geometry      on the host, then one batched pass; cached
                                     |
        features  ----forward----> BEV          no synchronization, no Python loop

    By default the geometry is exact: depth bins are at the centers of the BEV rows, feature
    pixels at the centers of their strides, and cell coordinates are rounded down. `legacy`
    reproduces the older code; its three differences can also be set one by one.

    The sum is in float32 also inside autocast, is deterministic, and compiles with
    ``torch.compile(fullgraph=True)`` (except 'cumsum'). Where a run allows TF32 for matrix
    products, those of 'column' use it too.

    Args:
        in_channels: Channels of the image features.
        out_channels: Channels of the context, and of the BEV features. Defaults to 64.
        stride: Image pixels per feature pixel, in each dimension. Defaults to 32.
        grid: Arguments of `BEVGrid`. Defaults to None: 98 x 100 cells of 0.5 m.
        depth: Nearest depth, farthest depth and size of a bin, in meters; points are at the
            centers of the bins. Defaults to None: one bin for each row of the grid.
        splat: Formulation of the sum. 'column' sums image columns first; it is exact for cameras
            without skew and tilt, and raises an error for others. 'bag' is exact for any cameras.
            'cumsum' is the original, slow formulation, for reference. 'auto' takes 'column' where
            it is exact and 'bag' elsewhere, and logs its choice. Defaults to 'auto'.
        cache_size: Number of samples whose geometry is cached; the least recently used ones are
            evicted. A sample takes about 0.1 MB with one camera ('bag': 0.6 MB), 0.7 MB with
            six. Defaults to 128.
        legacy: Value of the three flags below where they are None. Defaults to False.
        unit_bins: Whether depth bins are 1 m apart from the near edge on, for any grid: on a
            0.5 m grid every second row stays empty. With `depth`, whether points are at the
            near edges of its bins. Defaults to None.
        truncate_cells: Whether to round cell coordinates toward zero, so that points up to one
            cell outside of the grid leak into its first row and column. Defaults to None.
        linspace_pixels: Whether to spread feature pixels evenly from the first to the last image
            pixel, and to drop a partial last row. Defaults to None.
        ground: Meters from the grid's origin down to flat ground: the height of the camera where
            the grid is in the camera frame. Adds a hint to the depth logits: the depth where
            each pixel's ray meets the ground, so that less is left to learn.
            Defaults to None: no hint.
        init_cfg: As for mmengine's `BaseModule`. Defaults to None.
    """

    depths: torch.Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 64,
        stride: int = 32,
        grid: dict | None = None,
        depth: Sequence[float] | None = None,
        splat: str = 'auto',
        cache_size: int = 128,
        legacy: bool = False,
        unit_bins: bool | None = None,
        truncate_cells: bool | None = None,
        linspace_pixels: bool | None = None,
        ground: float | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        if splat not in ('auto', *SPLATS):
            names = ', '.join(map(repr, ('auto', *SPLATS)))
            raise ValueError(f'LiftSplatShoot.splat must be one of {names}, found {splat!r}')
        if cache_size < 0:
            raise ValueError(f'LiftSplatShoot.cache_size must not be negative, found {cache_size}')
        self.grid = BEVGrid(**(grid or {}))
        self.out_channels = out_channels
        self.splat = splat
        self.unit_bins = legacy if unit_bins is None else unit_bins
        self.frustum = Frustum(
            self.grid,
            stride,
            truncate_cells=legacy if truncate_cells is None else truncate_cells,
            linspace_pixels=legacy if linspace_pixels is None else linspace_pixels,
            ground=ground,
        )
        depths = torch.tensor(self._depth_bins(depth))
        self.register_buffer('depths', depths, persistent=False)
        self.lift = nn.Conv2d(in_channels, len(depths) + out_channels, 1)
        self.cache = GeometryCache(cache_size)
        self._logged: set[str] = set()

    def _depth_bins(self, depth: Sequence[float] | None) -> list[float]:
        if depth is None:
            near, far, step = self.grid.z[0], self.grid.z[1], self.grid.z[2]
            if near < 0:
                raise ValueError(
                    f'LiftSplatShoot.depth: the rows of the grid start at z = {near}, but depth '
                    'bins must not be negative; set depth=(near, far, step)'
                )
            if self.unit_bins:
                step = 1.0
        else:
            near, far, step = depth
        if near < 0 or step <= 0 or far - near < step:
            raise ValueError(
                'LiftSplatShoot.depth must be (near, far, step) with 0 <= near and at least one '
                f'bin, found ({near}, {far}, {step})'
            )
        bins = round((far - near) / step, 6)
        shift = 0.0 if self.unit_bins else 0.5
        return [near + step * (i + shift) for i in range(int(bins))]

    @torch.no_grad()
    def prepare(self, pix2bev: np.ndarray, image_size: tuple[int, int]) -> SplatGeometry:
        """Return the geometry of a batch; compute what is not cached in one batched pass.

        Args:
            pix2bev: Matrices of `pixel_to_bev`, (samples, cameras, 4, 4), on the host.
            image_size: Height and width of the images.
        """
        formulation = self._choose(pix2bev)
        device = self.depths.device
        image_size = (int(image_size[0]), int(image_size[1]))
        keys = [(sample.tobytes(), image_size, formulation, device) for sample in pix2bev]

        def make(indices: list[int]) -> Any:
            cameras = torch.from_numpy(pix2bev[indices].astype(np.float32))
            cameras = to_device(cameras, device)
            return self.frustum.place(cameras, self.depths.float(), image_size, formulation)

        return self.cache.fetch(keys, make).join(formulation, self.grid.cells)

    def _choose(self, pix2bev: np.ndarray) -> str:
        """Choose the formulation for these cameras, on the host."""
        if self.splat in ('bag', 'cumsum'):
            return self.splat
        problem = unlike_column(pix2bev)
        if problem is not None and self.splat == 'column':
            raise ValueError(
                f"LiftSplatShoot: splat='column' is not exact here: {problem}; "
                "use splat='auto' or 'bag'"
            )
        choice, reason = (
            ('bag', problem) if problem else ('column', 'exact for cameras without skew and tilt')
        )
        if self.splat == 'auto' and choice not in self._logged:
            self._logged.add(choice)
            print_log(f"LiftSplatShoot: splat='auto' takes '{choice}' ({reason})", logger='current')
        return choice

    def forward(self, features: torch.Tensor, geometry: SplatGeometry) -> torch.Tensor:
        """Turn image features (B * cameras, C, h, w) into BEV features (B, C', rows, columns).

        Args:
            features: Features of the images.
            geometry: Result of `prepare` for the same batch.
        """
        height, width = geometry.inside.shape[-2:]
        if self.frustum.linspace_pixels:
            features = features[:, :, :height]
        if len(features) != len(geometry.inside):
            raise ValueError(
                f'LiftSplatShoot: found features of {len(features)} images, but calibrations of '
                f'{len(geometry.inside)}'
            )
        if features.shape[-2:] != (height, width):
            raise ValueError(
                f'LiftSplatShoot: expected features of {height} x {width} pixels, found '
                f'{features.shape[-2]} x {features.shape[-1]}; '
                f'view_transform.stride = {self.frustum.stride} must be that of the backbone'
            )
        logits, context = self.lift(features).split([len(self.depths), self.out_channels], 1)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if geometry.hint is not None:
            logits = logits + geometry.hint
        bev = splat(context, logits.softmax(1), geometry)
        # The splat sums rows of channels, so the permuted view is channels-last without a copy.
        shape = (-1, self.grid.rows, self.grid.columns, self.out_channels)
        return bev.view(shape).permute(0, 3, 1, 2)
