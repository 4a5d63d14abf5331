"""Splat: sums the lifted points of an image into the cells of the BEV grid."""

from __future__ import annotations

import torch


def splat_scatter(
    context: torch.Tensor, depth: torch.Tensor, cells: torch.Tensor, num_cells: int
) -> torch.Tensor:
    """Scatter-add of every (depth, pixel) point: the plain form, exact in any geometry.

    Args:
        context: Features (B, C, h, w).
        depth: Weight of each depth bin (B, D, h, w).
        cells: Cell of each point (B, D, h, w), int64; `num_cells` means outside.
        num_cells: Number of cells of the grid.

    Returns:
        Features of the grid (B, C, num_cells), float32 also inside autocast:
        sums over thousands of points overflow half precision.
    """
    batch, channels = context.shape[:2]
    volume = depth.float().unsqueeze(-1) * context.float().permute(0, 2, 3, 1).unsqueeze(1)
    # Each sample gets cells of its own, and one more for what falls outside.
    first = torch.arange(batch, device=cells.device).view(-1, 1, 1, 1) * (num_cells + 1)
    grid = volume.new_zeros(batch * (num_cells + 1), channels)
    grid = grid.index_add(0, (cells + first).flatten(), volume.reshape(-1, channels))
    return grid.view(batch, num_cells + 1, channels)[:, :num_cells].transpose(1, 2)
