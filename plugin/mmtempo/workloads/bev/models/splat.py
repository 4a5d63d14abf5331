"""Splat: sums the lifted points of all cameras into the cells of the BEV grid.

Three formulations of one sum. A point is a depth bin of a feature pixel; `geometry.cells`
says which cell it falls into, and a point outside of the grid has weight zero::

    grid[cell(p, d)] += depth[p, d] * context[p]        for every pixel p and depth bin d

- `splat_column`: where all pixels of an image column share their cells, the column is summed by
  one small matrix product first. Then few points are left.
- `splat_bag`: one bag of points a cell. The points are sorted beforehand, so nothing is
  scattered, nothing is atomic, and the volume of all points is never written.
- `splat_cumsum`: the classic. It writes the volume, sorts it, and takes differences of its
  cumulative sum, which costs time, memory, precision and waits for the device.
  It is here as the reference.

The gradient of a sum into cells is a look into these cells, and each pixel looks into
as many as it has depth bins: the backward passes need neither sorting nor atomics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .frustum import SplatGeometry


class _SumColumns(torch.autograd.Function):
    """Products of columns, then sums by cell.

    One function for both: autograd's own backward pass of the product would take half
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
            looks = grad.contiguous().index_select(0, cells).view(images, width, bins, -1)
            grad_context = depth.permute(0, 3, 2, 1) @ looks
            grad_depth = looks @ context.permute(0, 3, 1, 2)
        return grad_context.permute(0, 3, 2, 1), grad_depth.permute(0, 2, 3, 1), None, None, None


class _SumWeightedPoints(torch.autograd.Function):
    """Sum of weight (P, D) times row (P, C) by cell; every row is D points."""

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
        looks = cells.view_as(weights)
        # Row p gets the gradients of its cells, weighted: a bag of D looks.
        grad_rows = F.embedding_bag(looks, grad, mode='sum', per_sample_weights=weights)
        # Weight (p, d) gets the product of row p and its cell's gradient.
        pixels, bins = weights.shape
        first = torch.arange(0, cells.numel(), bins, dtype=cells.dtype, device=cells.device)
        pixel = torch.arange(pixels, dtype=cells.dtype, device=cells.device)
        pixel = pixel.unsqueeze(1).expand(-1, bins).reshape(-1)
        grad_weights = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            rows, grad, cells, first, pixel, 0
        )
        return grad_rows, grad_weights.view_as(weights), None, None, None


class _SumRuns(torch.autograd.Function):
    """Sums over runs of equal rank in sorted rows, as differences of the cumulative sum."""

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
    """Sum each image column at each depth, then those sums into the cells."""
    depth = depth * geometry.inside
    return _SumColumns.apply(context, depth, geometry.order, geometry.offsets, geometry.cells)


def splat_bag(context: torch.Tensor, depth: torch.Tensor, geometry: SplatGeometry) -> torch.Tensor:
    """Sum presorted points, one bag a cell; exact for any cameras."""
    depth = depth * geometry.inside
    rows = context.permute(0, 2, 3, 1).reshape(-1, context.shape[1])
    weights = depth.permute(0, 2, 3, 1).reshape(len(rows), -1)
    return _SumWeightedPoints.apply(rows, weights, geometry.order, geometry.offsets, geometry.cells)


def splat_cumsum(
    context: torch.Tensor, depth: torch.Tensor, geometry: SplatGeometry
) -> torch.Tensor:
    """The classic: sort the volume, then subtract cumulative sums."""
    volume = context.unsqueeze(2) * depth.unsqueeze(1)
    rows = volume.permute(0, 3, 4, 2, 1).reshape(-1, context.shape[1])
    kept = geometry.inside.permute(0, 2, 3, 1).reshape(-1)
    rows, ranks = rows[kept], geometry.cells[kept]
    order = ranks.argsort()
    rows, ranks = rows[order], ranks[order]
    ends = torch.ones_like(ranks, dtype=torch.bool)
    ends[:-1] = ranks[1:] != ranks[:-1]
    grid = rows.new_zeros(geometry.num_cells, rows.shape[1])
    grid[ranks[ends]] = _SumRuns.apply(rows, ends)
    return grid


SPLATS = dict(column=splat_column, bag=splat_bag, cumsum=splat_cumsum)


def splat(context: torch.Tensor, depth: torch.Tensor, geometry: SplatGeometry) -> torch.Tensor:
    """Sum of all points by cell, by the formulation that the geometry was made for.

    Args:
        context: Features of each pixel, (B * cameras, C, h, w).
        depth: Weight of each depth bin, (B * cameras, D, h, w).
        geometry: Where each point goes.

    Returns:
        Features of the cells of all samples (B * cells, C), float32 also inside autocast:
        sums over thousands of points overflow half precision.
    """
    dtype = torch.promote_types(context.dtype, torch.float32)
    with torch.autocast(context.device.type, enabled=False):
        return SPLATS[geometry.formulation](context.to(dtype), depth.to(dtype), geometry)
