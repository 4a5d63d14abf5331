"""From image features to BEV features."""

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
    """Lift-Splat view transform, for one camera a sample or for many.

    Lift: a 1x1 convolution gives each feature pixel a distribution over depth and
    a context vector. Splat: each (pixel, depth) point adds its share of the
    context to the BEV cell it falls into::

        calibrations --prepare--> geometry      on the host, then one batched pass; cached
                                     |
        features  ----forward----> BEV          tensors only: no wait, no Python loop

    By default the geometry is right: depth bins sit on the centres of the BEV
    rows, feature pixels on the centres of their strides, and cells are found by
    flooring. `legacy` brings back what the older code did, all or one by one.

    The sum runs in float32 also inside autocast, is deterministic, and compiles with
    ``torch.compile(fullgraph=True)`` (`cumsum` excepted). Where a run allows TF32 for matrix
    products, that goes for those of 'column' as for all others.

    Args:
        in_channels: Channels of the image features.
        out_channels: Context channels. Defaults to 64.
        stride: Image pixels a feature pixel. Defaults to 32.
        grid: Arguments of `BEVGrid`. Defaults to None: 98 x 100 cells of 0.5 m.
        depth: Nearest and farthest depth and size of a bin, in metres; points sit on the
            centres of the bins. Defaults to None: one bin for each row of the grid.
        splat: 'column' sums image columns first; it is exact where the cameras have neither
            skew nor tilt, and an error elsewhere. 'bag' is exact for any cameras. 'cumsum' is the
            classic, slow, for reference. 'auto' takes 'column' where it is exact and
            'bag' elsewhere, and logs which. Defaults to 'auto'.
        cache_size: Samples whose geometry is kept, the longest unused going first: about
            0.1 MB each for one camera ('bag': 0.6 MB), 0.7 MB for six. Defaults to 128.
        legacy: Default of the three flags below. Defaults to False.
        unit_bins: Depth bins every metre from the near edge on, whatever the grid:
            on a 0.5 m grid every second row stays empty. With `depth`: points on the near
            edges of its bins. Defaults to None.
        truncate_cells: Round cell coordinates toward zero, so that points up to one cell
            before the grid leak into its first row and column. Defaults to None.
        linspace_pixels: Spread feature pixels evenly from the first to the last image
            pixel and drop a partial last row. Defaults to None.
        ground: Metres from the grid's origin down to flat ground: the camera's height where the
            grid is the camera's own. Where given, depth starts out from where each pixel's
            ray meets the ground, and has less to learn. Defaults to None.
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
        self._said: set[str] = set()

    def _depth_bins(self, depth: Sequence[float] | None) -> list[float]:
        if depth is None:
            near, far, step = self.grid.z[0], self.grid.z[1], self.grid.z[2]
            if near < 0:
                raise ValueError(
                    f'LiftSplatShoot.depth: the grid starts at z = {near}, behind its origin, so '
                    'its rows cannot give the depth bins; set depth=(near, far, step)'
                )
            if self.unit_bins:
                step = 1.0
        else:
            near, far, step = depth
        if near < 0 or step <= 0 or far - near < step:
            raise ValueError(
                f'LiftSplatShoot.depth = ({near}, {far}, {step}) must be (near, far, step) with '
                '0 <= near and at least one bin'
            )
        bins = round((far - near) / step, 6)
        shift = 0.0 if self.unit_bins else 0.5
        return [near + step * (i + shift) for i in range(int(bins))]

    @torch.no_grad()
    def prepare(self, pix2bev: np.ndarray, image_size: tuple[int, int]) -> SplatGeometry:
        """Geometry of a batch, from the cache or computed for all new calibrations at once.

        Args:
            pix2bev: Where the pixels look, (samples, cameras, 4, 4), on the host: see
                `pixel_to_bev`.
            image_size: Height and width of the images.
        """
        formulation = self._choose(pix2bev)
        device = self.depths.device
        image_size = (int(image_size[0]), int(image_size[1]))
        keys = [(sample.tobytes(), image_size, formulation, device) for sample in pix2bev]

        def make(numbers: list[int]) -> Any:
            cameras = torch.from_numpy(pix2bev[numbers].astype(np.float32))
            cameras = to_device(cameras, device)
            return self.frustum.place(cameras, self.depths.float(), image_size, formulation)

        return self.cache.fetch(keys, make).join(formulation, self.grid.cells)

    def _choose(self, pix2bev: np.ndarray) -> str:
        """The formulation for these cameras, decided on the host."""
        if self.splat in ('bag', 'cumsum'):
            return self.splat
        problem = unlike_column(pix2bev)
        if problem is not None and self.splat == 'column':
            raise ValueError(
                f"LiftSplatShoot: splat='column' is not exact here: {problem}; "
                "use splat='auto' or 'bag'"
            )
        choice, why = (
            ('bag', problem) if problem else ('column', 'exact for cameras without skew or tilt')
        )
        if self.splat == 'auto' and choice not in self._said:
            self._said.add(choice)
            print_log(f"LiftSplatShoot: splat='auto' takes '{choice}': {why}", logger='current')
        return choice

    def forward(self, features: torch.Tensor, geometry: SplatGeometry) -> torch.Tensor:
        """Features (B * cameras, C, h, w) to the grid (B, C', rows, columns)."""
        height, width = geometry.inside.shape[-2:]
        if self.frustum.linspace_pixels:
            features = features[:, :, :height]
        if len(features) != len(geometry.inside):
            raise ValueError(
                f'LiftSplatShoot: features of {len(features)} images, but calibrations of '
                f'{len(geometry.inside)}'
            )
        if features.shape[-2:] != (height, width):
            raise ValueError(
                f'LiftSplatShoot: features of {tuple(features.shape[-2:])} rows and columns, '
                f'expected {(height, width)}: view_transform.stride = {self.frustum.stride} must '
                'be that of the backbone'
            )
        logits, context = self.lift(features).split([len(self.depths), self.out_channels], 1)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if geometry.hint is not None:
            logits = logits + geometry.hint
        bev = splat(context, logits.softmax(1), geometry)
        # Channels last, as it was summed; a view, not a copy.
        shape = (-1, self.grid.rows, self.grid.columns, self.out_channels)
        return bev.view(shape).permute(0, 3, 1, 2)
