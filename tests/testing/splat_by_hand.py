"""The splat by its definition: a sum over single points, in float64."""

from __future__ import annotations

import numpy as np
import torch

from mmtempo.workloads.bev.models.frustum import Frustum


def by_hand(
    frustum: Frustum,
    depths: list[float],
    pix2bev: np.ndarray,
    image_size: tuple[int, int],
    context: torch.Tensor,
    depth: torch.Tensor,
) -> torch.Tensor:
    """Return the grid (B, C, rows, columns), in float64.

    Args:
        frustum: The points of a camera.
        depths: Depth of each bin, in meters.
        pix2bev: Matrices of `pixel_to_bev`, (B, cameras, 4, 4).
        image_size: Height and width of the images.
        context: Features of each pixel, (B * cameras, C, h, w).
        depth: Weight of each depth bin, (B * cameras, D, h, w).
    """
    grid = frustum.grid
    batch, cameras = pix2bev.shape[:2]
    bev = torch.zeros(batch, context.shape[1], grid.rows, grid.columns, dtype=torch.double)
    height, width = context.shape[-2:]
    round_ = np.trunc if frustum.truncate_cells else np.floor
    # Cells are computed in single precision, as in the module, and sums in double precision.
    matrices = pix2bev.astype(np.float32)
    single = np.float32
    for b, n, i, j in np.ndindex(batch, cameras, height, width):
        if frustum.linspace_pixels:
            v = single(i) * single((image_size[0] - 1) / max(height - 1, 1))
            u = single(j) * single((image_size[1] - 1) / max(width - 1, 1))
        else:
            v, u = ((k + 0.5) * frustum.stride - 0.5 for k in (i, j))
        a = matrices[b, n, :, 0] * single(u) + matrices[b, n, :, 1] * single(v)
        a = a + matrices[b, n, :, 2]
        for d, meters in enumerate(depths):
            x, y, z = a[:3] / a[3] * single(meters) + matrices[b, n, :3, 3]
            column = round_((x - single(grid.x[0])) / single(grid.x[2]))
            row = round_((z - single(grid.z[0])) / single(grid.z[2]))
            low = round_((y - single(grid.y[0])) / single(grid.y[1] - grid.y[0]))
            if low == 0 and 0 <= row < grid.rows and 0 <= column < grid.columns:
                k = b * cameras + n
                point = depth[k, d, i, j].double() * context[k, :, i, j].double()
                bev[b, :, int(row), int(column)] += point
    # Gradients are zero, not missing, where no point is inside the grid.
    return bev + 0 * (context.sum() + depth.sum())
