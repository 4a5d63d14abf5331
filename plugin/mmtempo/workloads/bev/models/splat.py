"""Splat: sum of the lifted points of all cameras into the cells of the BEV grid.

There are three formulations of the same sum. A point is a depth bin of a feature pixel;
`geometry.cells` is its cell, and a point outside of the grid has weight zero::

    grid[cell(p, d)] += depth[p, d] * context[p]        for every pixel p and depth bin d

- `splat_column`: where all pixels of an image column share their cells, sums the column by a
  small matrix product first. Few points are left.
- `splat_bag`: sums one bag of points per cell. The points are sorted beforehand, so there are no
  scatters and no atomics, and the volume of all points is never written.
- `splat_cumsum`: the original formulation, as the reference. It writes the volume, sorts it, and
  takes differences of its cumulative sum, which costs time, memory, precision and
  synchronizations.

The gradient of a sum into cells is a gather from these cells, one for each depth bin of a pixel,
so the backward passes need neither sorting nor atomics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .frustum import SplatGeometry


class _SumColumns(torch.autograd.Function):
    """Matrix products of image columns, then sums by cell.

    Both are in one function, since autograd's backward pass of the product would run in half
    precision where it is compiled inside autocast.
    """

    @staticmethod
    def forward(
        ctx: Any,
        context: torch.Tensor,
        depth: torch.Tensor,
        order: torch.Tensor,
        offsets: torch.Tensor,
        cells: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(context, depth, cells)
        # (images, w, D, h) @ (images, w, h, C)
        sums = depth.permute(0, 3, 1, 2) @ context.permute(0, 3, 2, 1)
        rows = sums.reshape(-1, context.shape[1])
        return F.embedding_bag(order, rows, offsets, mode='sum', include_last_offset=True)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        context, depth, cells = ctx.saved_tensors
        images, bins, _, width = depth.shape
        with torch.autocast(grad.device.type, enabled=False):
            gathered = grad.contiguous().index_select(0, cells).view(images, width, bins, -1)
            grad_context = depth.permute(0, 3, 2, 1) @ gathered
            grad_depth = gathered @ context.permute(0, 3, 1, 2)
        return grad_context.permute(0, 3, 2, 1), grad_depth.permute(0, 2, 3, 1), None, None, None


class _SumWeightedPoints(torch.autograd.Function):
    """Sums of weight (P, D) times row (P, C) by cell; every row has D points."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        weights: torch.Tensor,
        order: torch.Tensor,
        offsets: torch.Tensor,
        cells: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weights, cells)
        return F.embedding_bag(
            order // weights.shape[1],
            rows,
            offsets,
            mode='sum',
            per_sample_weights=weights.flatten().index_select(0, order),
            include_last_offset=True,
        )

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        rows, weights, cells = ctx.saved_tensors
        grad = grad.contiguous()
        # The gradient of row p is the weighted sum of its cells' gradients: a bag of D rows.
        bags = cells.view_as(weights)
        grad_rows = F.embedding_bag(bags, grad, mode='sum', per_sample_weights=weights)
        # The gradient of weight (p, d) is the dot product of row p and its cell's gradient.
        pixels, bins = weights.shape
        first = torch.arange(0, cells.numel(), bins, dtype=cells.dtype, device=cells.device)
        pixel = torch.arange(pixels, dtype=cells.dtype, device=cells.device)
        pixel = pixel.unsqueeze(1).expand(-1, bins).reshape(-1)
        grad_weights = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            rows, grad, cells, first, pixel, 0
        )
        return grad_rows, grad_weights.view_as(weights), None, None, None


class _SumRuns(torch.autograd.Function):
    """Sums over runs of equal cells in sorted rows, as differences of the cumulative sum."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(ends)
        totals = rows.cumsum(0)[ends]
        return torch.cat([totals[:1], totals[1:] - totals[:-1]])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        (ends,) = ctx.saved_tensors
        run = ends.cumsum(0) - ends.long()
        return grad[run], None


def splat_column(
    context: torch.Tensor, depth: torch.Tensor, geometry: SplatGeometry
) -> torch.Tensor:
    """Sum each image column at each depth, then sum the results by cell."""
    depth = depth * geometry.inside
    return _SumColumns.apply(context, depth, geometry.order, geometry.offsets, geometry.cells)


def splat_bag(context: torch.Tensor, depth: torch.Tensor, geometry: SplatGeometry) -> torch.Tensor:
    """Sum presorted points, one bag per cell; exact for any cameras."""
    depth = depth * geometry.inside
    rows = context.permute(0, 2, 3, 1).reshape(-1, context.shape[1])
    weights = depth.permute(0, 2, 3, 1).reshape(len(rows), -1)
    return _SumWeightedPoints.apply(rows, weights, geometry.order, geometry.offsets, geometry.cells)


def splat_cumsum(
    context: torch.Tensor, depth: torch.Tensor, geometry: SplatGeometry
) -> torch.Tensor:
    """Sort the volume of all points, then subtract cumulative sums."""
    volume = context.unsqueeze(2) * depth.unsqueeze(1)
    rows = volume.permute(0, 3, 4, 2, 1).reshape(-1, context.shape[1])
    inside = geometry.inside.permute(0, 2, 3, 1).reshape(-1)
    rows, cells = rows[inside], geometry.cells[inside]
    order = cells.argsort()
    rows, cells = rows[order], cells[order]
    ends = torch.ones_like(cells, dtype=torch.bool)
    ends[:-1] = cells[1:] != cells[:-1]
    grid = rows.new_zeros(geometry.num_cells, rows.shape[1])
    grid[cells[ends]] = _SumRuns.apply(rows, ends)
    return grid


SPLATS = dict(column=splat_column, bag=splat_bag, cumsum=splat_cumsum)


def splat(context: torch.Tensor, depth: torch.Tensor, geometry: SplatGeometry) -> torch.Tensor:
    """Sum all points by cell, with the formulation of the geometry.

    Args:
        context: Features of each pixel, (B * cameras, C, h, w).
        depth: Weight of each depth bin, (B * cameras, D, h, w).
        geometry: Cell of each point.

    Returns:
        Features of the cells of all samples (B * cells, C), float32 also inside autocast, since
        sums over thousands of points overflow half precision.
    """
    dtype = torch.promote_types(context.dtype, torch.float32)
    with torch.autocast(context.device.type, enabled=False):
        return SPLATS[geometry.formulation](context.to(dtype), depth.to(dtype), geometry)
