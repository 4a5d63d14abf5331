"""Frustum of a camera: the cells of its points, computed from calibrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from mmtempo.workloads.bev.structures.grid import BEVGrid


class SplatGeometry(NamedTuple):
    """Cells of the points of a batch, for one formulation of the splat.

    The order of points depends on the formulation: (sample, camera, column, bin) for 'column',
    (sample, camera, row, column, bin) for the others. Points outside of the grid have a cell
    too; `inside` gives them weight zero.

    Args:
        formulation: Name of the formulation.
        inside: Whether a point is inside the grid, (B * cameras, D, h, w).
        cells: Cell of each point, numbered through all samples.
        order: Points sorted by cell; None for 'cumsum', which sorts in each forward pass.
        offsets: Start of each cell in `order`, and the end of the last cell; None for 'cumsum'.
        hint: Depth logits of flat ground, (B * cameras, D, h, w) or (B * cameras, D, h, 1);
            None without a hint.
        num_cells: Number of cells of all samples.
    """

    formulation: str
    inside: torch.Tensor
    cells: torch.Tensor
    order: torch.Tensor | None
    offsets: torch.Tensor | None
    hint: torch.Tensor | None
    num_cells: int


class Placement(NamedTuple):
    """Fields of `SplatGeometry` with the samples as first dimension, as in the cache.

    Points and cells are numbered within their sample.
    """

    inside: torch.Tensor
    cells: torch.Tensor
    order: torch.Tensor | None
    offsets: torch.Tensor | None
    hint: torch.Tensor | None

    def join(self, formulation: str, num_cells: int) -> SplatGeometry:
        """Return the geometry of the batch, with points and cells numbered through all samples.

        Args:
            formulation: Name of the formulation.
            num_cells: Number of cells of the grid.
        """
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
    """Return why the pixels of an image column do not share their cells; None where they do.

    They do where x and z of a ray depend on the image column only, and its height on the
    image row only: for upright cameras without skew. The comparison is exact.

    Args:
        pix2bev: Matrices of `pixel_to_bev`, (samples, cameras, 4, 4).
    """
    kinds = {
        'a projective last row': [(3, 0), (3, 1)],
        'skew, roll or pitch (x or z of a ray depends on the image row)': [(0, 1), (2, 1)],
        'roll (the height of a ray depends on the image column)': [(1, 0)],
    }
    for problem, elements in kinds.items():
        wrong = np.any([pix2bev[..., i, j] != 0 for i, j in elements], axis=0)
        if wrong.any():
            sample, camera = np.argwhere(wrong)[0]
            return f'camera {camera} of sample {sample} has {problem}'
    return None


@dataclass(frozen=True)
class Frustum:
    """Points of a camera: feature pixels times depth bins.

    Args:
        grid: The BEV grid.
        stride: Image pixels per feature pixel, in each dimension.
        truncate_cells: Whether to round cell coordinates toward zero instead of down.
            Defaults to False.
        linspace_pixels: Whether to spread feature pixels from the first to the last image pixel.
            Defaults to False.
        ground: Meters from the grid's origin down to flat ground, for the hint; None for no
            hint. Defaults to None.
    """

    grid: BEVGrid
    stride: int
    truncate_cells: bool = False
    linspace_pixels: bool = False
    ground: float | None = None

    def feature_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of the features of an image (height, width)."""
        height, width = (-(-n // self.stride) for n in image_size)
        # The older code dropped a partial last row.
        return (image_size[0] // self.stride if self.linspace_pixels else height), width

    def pixel_centres(
        self, image_size: tuple[int, int], device: torch.device | str = 'cpu'
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return image rows v (h, 1) and columns u (w) of the feature pixels' centers."""
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
        """Compute the cells of all points, batched and without a synchronization.

        Args:
            pix2bev: Matrices of `pixel_to_bev`, (B, cameras, 4, 4), on the device.
            depths: Depth of each bin in meters, (D,).
            image_size: Height and width of the images.
            formulation: Name of the formulation.
        """
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
        # (B, N, D, h, w), h = 1 for 'column'. Bins go last, so that a pixel's points are adjacent.
        cells, in_grid = (
            t.movedim(2, -1).flatten(1) for t in (cells, in_plane if column else inside)
        )
        # Points outside have weight zero, so any cell will do. Spread evenly, since one bag of
        # all of them would be summed point after point.
        spread = torch.arange(cells.shape[1], dtype=torch.int32, device=cells.device)
        cells = torch.where(in_grid, cells, spread % self.grid.cells)
        order = offsets = None
        if formulation != 'cumsum':
            order, offsets = _sort(cells, self.grid.cells)
        hint = None if self.ground is None else self._hint(pix2bev, y, depths, self.ground)
        return Placement(inside, cells, order, offsets, hint)

    def _cell(
        self, position: torch.Tensor, lower: float, upper: float, step: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the index along an axis, as a float, and whether it is inside the grid."""
        scaled = (position - lower) / step
        scaled = scaled.trunc() if self.truncate_cells else scaled.floor()
        return scaled, (scaled >= 0) & (scaled < round((upper - lower) / step))

    def _hint(
        self, pix2bev: torch.Tensor, y: torch.Tensor, depths: torch.Tensor, ground: float
    ) -> torch.Tensor:
        """Return depth logits of flat ground: from 0 at the ground's depth down to -4."""
        # Size of a feature pixel at each depth; the error below is in feature pixels.
        pixel = depths * (pix2bev[..., 1, 1] * self.stride)[..., None, None, None]
        return ((y - ground) / pixel).square().mul(-2).clamp(min=-4)


def _coordinates(
    pix2bev: torch.Tensor,
    axes: tuple[int, ...],
    v: torch.Tensor,
    u: torch.Tensor,
    depths: torch.Tensor,
) -> list[torch.Tensor]:
    """Return the coordinates (B, N, D, h, w) of all points along the given axes."""

    def along_ray(axis: int) -> torch.Tensor:
        a, b, c = (pix2bev[..., axis, i, None, None] for i in range(3))
        return a * u + b * v + c

    ahead = along_ray(3)
    return [
        (along_ray(axis) / ahead).unsqueeze(2) * depths + pix2bev[..., axis, 3, None, None, None]
        for axis in axes
    ]


def _sort(cells: torch.Tensor, num_cells: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the points of each sample sorted by cell, and the start of each cell."""
    batch, points = cells.shape
    sample = torch.arange(batch, device=cells.device).view(-1, 1)
    # One sort of all samples in one dimension, since torch's fast sort on the CPU needs that.
    keys, order = (cells + sample * num_cells).flatten().sort(stable=True)
    starts = torch.searchsorted(keys, torch.arange(batch * num_cells, device=cells.device))
    order = order.view(batch, -1) - sample * points
    return order.int(), (starts.view(batch, -1) - sample * points).int()
