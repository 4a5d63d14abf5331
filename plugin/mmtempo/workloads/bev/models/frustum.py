"""Where the points of a camera's frustum fall: from calibrations to cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from mmtempo.workloads.bev.structures.grid import BEVGrid


class SplatGeometry(NamedTuple):
    """Where each point of a batch goes, for one formulation of the splat.

    Points are numbered as the formulation wants them: `column` has (sample, camera, column,
    bin), the others have (sample, camera, row, column, bin). Every point has a cell,
    also one outside of the grid: what makes it count nothing is `inside`.

    Args:
        formulation: Name of the splat that this is for.
        inside: Whether a point lies in the grid, (B * cameras, D, h, w).
        cells: Cell of each point, of all samples' cells.
        order: Points sorted by cell; None for `cumsum`, which sorts each time.
        offsets: Where each cell starts in `order`, and where the last one ends; likewise.
        hint: What flat ground says about depth, (B * cameras, D, h, w) or (..., h, 1), or None.
        num_cells: Cells of all samples.
    """

    formulation: str
    inside: torch.Tensor
    cells: torch.Tensor
    order: torch.Tensor | None
    offsets: torch.Tensor | None
    hint: torch.Tensor | None
    num_cells: int


class Placement(NamedTuple):
    """The same of each sample by itself (first dimension), as it is kept in the cache."""

    inside: torch.Tensor
    cells: torch.Tensor
    order: torch.Tensor | None
    offsets: torch.Tensor | None
    hint: torch.Tensor | None

    def join(self, formulation: str, num_cells: int) -> SplatGeometry:
        """Number points and cells through all samples."""
        batch, points = self.cells.shape
        sample = torch.arange(batch, dtype=torch.int32, device=self.cells.device).view(-1, 1)
        order = offsets = hint = None
        if self.order is not None and self.offsets is not None:
            order = (self.order + sample * points).flatten()
            starts = (self.offsets + sample * points).flatten()
            offsets = torch.nn.functional.pad(starts, (0, 1), value=batch * points)
        if self.hint is not None:
            hint = self.hint.flatten(0, 1)
        return SplatGeometry(
            formulation=formulation,
            inside=self.inside.flatten(0, 1),
            cells=(self.cells + sample * num_cells).flatten(),
            order=order,
            offsets=offsets,
            hint=hint,
            num_cells=batch * num_cells,
        )


def unlike_column(pix2bev: np.ndarray) -> str | None:
    """Why the pixels of an image column do not share their cells; None where they do.

    They do where x and z of a ray depend on the image column only, and its height on the
    image row only: cameras without skew that stand upright. Checked to the last bit.
    """
    kinds = {
        'a projective last row': [(3, 0), (3, 1)],
        'skew, roll or pitch (x or z of a ray depends on the image row)': [(0, 1), (2, 1)],
        'roll (the height of a ray depends on the image column)': [(1, 0)],
    }
    for what, places in kinds.items():
        wrong = np.any([pix2bev[..., i, j] != 0 for i, j in places], axis=0)
        if wrong.any():
            sample, camera = np.argwhere(wrong)[0]
            return f'camera {camera} of sample {sample} has {what}'
    return None


@dataclass(frozen=True)
class Frustum:
    """The points of a camera: feature pixels times depth bins.

    Args:
        grid: The cells.
        stride: Image pixels a feature pixel.
        truncate_cells: Round toward zero instead of down.
        linspace_pixels: Spread feature pixels from the first to the last image pixel.
        ground: Metres from the grid's origin down to flat ground, for the hint; None is no hint.
    """

    grid: BEVGrid
    stride: int
    truncate_cells: bool = False
    linspace_pixels: bool = False
    ground: float | None = None

    def feature_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of the features of an image (height, width)."""
        height, width = (-(-n // self.stride) for n in image_size)
        # The older code lost a partial last row.
        return (image_size[0] // self.stride if self.linspace_pixels else height), width

    def pixel_centres(
        self, image_size: tuple[int, int], device: torch.device | str = 'cpu'
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Image rows v (h, 1) and columns u (w) that the feature pixels stand for."""
        size = self.feature_size(image_size)
        v, u = (torch.arange(n, device=device) for n in size)
        if self.linspace_pixels:
            height, width = image_size
            v = v * ((height - 1) / max(size[0] - 1, 1))
            u = u * ((width - 1) / max(size[1] - 1, 1))
        else:
            v, u = (v + 0.5) * self.stride - 0.5, (u + 0.5) * self.stride - 0.5
        return v.unsqueeze(1), u

    def place(
        self,
        pix2bev: torch.Tensor,
        depths: torch.Tensor,
        image_size: tuple[int, int],
        formulation: str,
    ) -> Placement:
        """Where all points of cameras (B, N, 4, 4) fall; batched, without waiting."""
        depths = depths.view(-1, 1, 1)
        v, u = self.pixel_centres(image_size, depths.device)
        column = formulation == 'column'
        x, z = _coordinates(pix2bev, (0, 2), v[:1] if column else v, u, depths)
        (y,) = _coordinates(pix2bev, (1,), v, u[:1] if column else u, depths)
        columns, in_x = self._cell(x, *self.grid.x)
        rows, in_z = self._cell(z, *self.grid.z)
        low, high = self.grid.y
        _, in_y = self._cell(y, low, high, high - low)
        in_plane = in_x & in_z
        inside = in_plane & in_y
        cells = (rows * self.grid.columns + columns).int()
        # (B, N, D, h, w) with h = 1 for `column`: bins last, so that a pixel's points are together.
        cells, found = (
            t.movedim(2, -1).flatten(1) for t in (cells, in_plane if column else inside)
        )
        # Points outside count nothing, wherever they go: spread evenly, no bag gets long.
        spread = torch.arange(cells.shape[1], dtype=torch.int32, device=cells.device)
        cells = torch.where(found, cells, spread % self.grid.cells)
        order = offsets = None
        if formulation != 'cumsum':
            order, offsets = _sort(cells, self.grid.cells)
        hint = None if self.ground is None else self._hint(pix2bev, y, depths, self.ground)
        return Placement(inside, cells, order, offsets, hint)

    def _cell(
        self, position: torch.Tensor, lower: float, upper: float, step: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Index along one axis, as a float, and whether it lies inside."""
        scaled = (position - lower) / step
        scaled = scaled.trunc() if self.truncate_cells else scaled.floor()
        return scaled, (scaled >= 0) & (scaled < round((upper - lower) / step))

    def _hint(
        self, pix2bev: torch.Tensor, y: torch.Tensor, depths: torch.Tensor, ground: float
    ) -> torch.Tensor:
        """Depth logits of flat ground: 0 where it fits, down to -4 where not."""
        # How many feature pixels lie between a pixel and the ground at each depth.
        pixel = depths * (pix2bev[..., 1, 1] * self.stride)[..., None, None, None]
        return ((y - ground) / pixel).square().mul(-2).clamp(min=-4)


def _coordinates(
    pix2bev: torch.Tensor,
    axes: tuple[int, ...],
    v: torch.Tensor,
    u: torch.Tensor,
    depths: torch.Tensor,
) -> list[torch.Tensor]:
    """Coordinates (B, N, D, h, w) of all points along the axes asked for."""

    def along_ray(axis: int) -> torch.Tensor:
        a, b, c = (pix2bev[..., axis, i, None, None] for i in range(3))
        return a * u + b * v + c

    ahead = along_ray(3)
    return [
        (along_ray(axis) / ahead).unsqueeze(2) * depths + pix2bev[..., axis, 3, None, None, None]
        for axis in axes
    ]


def _sort(cells: torch.Tensor, num_cells: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of each sample sorted by cell, and where each cell starts."""
    batch, points = cells.shape
    sample = torch.arange(batch, device=cells.device).view(-1, 1)
    # One sort of one row of keys: the CPU has a fast one for that only.
    keys, order = (cells + sample * num_cells).flatten().sort(stable=True)
    starts = torch.searchsorted(keys, torch.arange(batch * num_cells, device=cells.device))
    order = order.view(batch, -1) - sample * points
    return order.int(), (starts.view(batch, -1) - sample * points).int()
