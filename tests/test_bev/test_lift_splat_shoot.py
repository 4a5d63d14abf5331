"""The view transform puts every point where it belongs; the old mistakes are there on request."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmtempo.bev import LiftSplatShoot

GRID = dict(x=(-3.0, 3.0, 0.5), z=(1.0, 5.0, 0.5), y=(-1.0, 2.0))
IMAGE = (60, 80)  # height, width
STRIDE = 8
FEATURES = (8, 10)


def make(**kwargs: object) -> LiftSplatShoot:
    torch.manual_seed(0)
    return LiftSplatShoot(in_channels=5, out_channels=3, stride=STRIDE, grid=GRID, **kwargs)


def cameras(batch: int = 2) -> torch.Tensor:
    """Inverse intrinsics that differ between samples, with skew."""
    matrices = [
        np.linalg.inv([[60.0 + 7 * i, 3.0 * i, 41.3], [0, 55.0 - 2 * i, 27.7], [0, 0, 1]])
        for i in range(batch)
    ]
    return torch.tensor(np.stack(matrices), dtype=torch.float32)


def by_hand(module: LiftSplatShoot, features: torch.Tensor, img2cam: torch.Tensor) -> torch.Tensor:
    """One point after the other, in float64."""
    grid = module.grid
    if module.linspace_pixels:
        features = features[:, :, : IMAGE[0] // STRIDE]
    lifted = torch.nn.functional.conv2d(
        features.double(), module.lift.weight.double(), module.lift.bias.double()
    )
    depths = module.depths.tolist()
    weight = lifted[:, : len(depths)].softmax(1)
    context = lifted[:, len(depths) :]
    bev = torch.zeros(len(features), context.shape[1], grid.rows, grid.columns, dtype=torch.double)
    height, width = features.shape[-2:]
    round_ = np.trunc if module.truncate_cells else np.floor
    for b, i, j in np.ndindex(len(features), height, width):
        if module.linspace_pixels:
            v, u = i * (IMAGE[0] - 1) / (height - 1), j * (IMAGE[1] - 1) / (width - 1)
        else:
            v, u = (i + 0.5) * STRIDE - 0.5, (j + 0.5) * STRIDE - 0.5
        ray = img2cam[b].double().numpy() @ [u, v, 1.0]
        for d, depth in enumerate(depths):
            x, y, z = ray * depth
            column = int(round_((x - grid.x[0]) / grid.x[2]))
            row = int(round_((z - grid.z[0]) / grid.z[2]))
            low = round_((y - grid.y[0]) / (grid.y[1] - grid.y[0]))
            if low == 0 and 0 <= row < grid.rows and 0 <= column < grid.columns:
                bev[b, :, row, column] += weight[b, d, i, j] * context[b, :, i, j]
    return bev


@pytest.mark.parametrize('legacy', [False, True])
def test_equals_summing_by_hand(legacy: bool) -> None:
    module = make(legacy=legacy)
    features = torch.randn(2, 5, *FEATURES)
    bev = module(features, cameras(), IMAGE)
    assert bev.shape == (2, 3, 8, 12)
    expected = by_hand(module, features, cameras())
    assert expected.abs().sum() > 1
    torch.testing.assert_close(bev.double(), expected, atol=1e-5, rtol=1e-4)


def test_gradients_reach_depth_and_context() -> None:
    module = make()
    features = torch.randn(1, 5, *FEATURES, requires_grad=True)
    weights = torch.randn(1, 3, 8, 12)
    (module(features, cameras(1), IMAGE) * weights).sum().backward()
    (expected,) = torch.autograd.grad(
        (by_hand(module, features, cameras(1)) * weights).sum(), features
    )
    torch.testing.assert_close(features.grad, expected.float(), atol=1e-4, rtol=1e-3)
    assert (module.lift.weight.grad[: len(module.depths)] != 0).any()


def test_every_row_gets_points_only_with_matching_bins() -> None:
    """Bins of 1 m leave every second row of a 0.5 m grid empty."""
    features = torch.ones(1, 5, *FEATURES)
    right = make()(features, cameras(1), IMAGE).abs().sum((0, 1, 3))
    wrong = make(unit_bins=True)(features, cameras(1), IMAGE).abs().sum((0, 1, 3))
    assert (right > 0).all()
    assert (wrong[0::2] > 0).all()
    assert (wrong[1::2] == 0).all()


def test_truncation_leaks_from_outside_into_the_first_cell() -> None:
    floor, trunc = make(), make(truncate_cells=True)
    just_outside = torch.tensor([-3.3])
    assert not floor._cell(just_outside, *floor.grid.x)[1].item()
    index, inside = trunc._cell(just_outside, *trunc.grid.x)
    assert inside.item()
    assert index.item() == 0


def test_pixels_stand_at_stride_centres() -> None:
    v, u = make().pixel_centres(FEATURES, IMAGE)
    assert u.tolist() == [3.5 + 8 * i for i in range(10)]
    assert v.tolist() == [3.5 + 8 * i for i in range(8)]
    _, u = make(linspace_pixels=True).pixel_centres(FEATURES, IMAGE)
    assert u[0] == 0
    assert u[-1] == IMAGE[1] - 1


def test_all_points_outside_give_zeros() -> None:
    behind = torch.diag(torch.tensor([1.0, 1.0, 1.0])).expand(1, 3, 3).clone()
    behind[:, 1, 2] = 1e6  # far below the grid
    bev = make()(torch.randn(1, 5, *FEATURES), behind, IMAGE)
    assert (bev == 0).all()


def test_ground_hint_points_at_the_ground() -> None:
    """Below the horizon the likeliest bin is where the ray meets the ground, 1.5 m down."""
    module = LiftSplatShoot(in_channels=1, out_channels=1, stride=STRIDE, camera_height=1.5)
    img2cam = cameras(1)
    ray = module.rays(img2cam, FEATURES, IMAGE)
    hint = module.ground_hint(ray, img2cam, 1.5)
    assert hint.shape == (1, 98, *FEATURES)
    assert hint.max() <= 0
    assert hint.min() == -4
    y = ray[0, 1, -1, 0]  # the lowest row
    best = module.depths[hint[0, :, -1, 0].argmax()]
    assert best.item() == pytest.approx(1.5 / y.item(), abs=0.26)
    torch.nn.init.zeros_(module.lift.weight)
    torch.nn.init.ones_(module.lift.bias)
    bev = module(torch.zeros(1, 1, *FEATURES), img2cam, IMAGE)
    assert bev.sum() > 0


def test_autocast_sums_in_float32() -> None:
    module = make()
    features = torch.randn(2, 5, *FEATURES)
    with torch.autocast('cpu', torch.bfloat16):
        bev = module(features, cameras(), IMAGE)
    assert bev.dtype == torch.float32
    torch.testing.assert_close(bev, module(features, cameras(), IMAGE), atol=0.1, rtol=0.1)


def test_reference_shapes() -> None:
    module = LiftSplatShoot(in_channels=768)
    assert module.lift.weight.shape == (98 + 64, 768, 1, 1)
    assert (module.grid.rows, module.grid.columns) == (98, 100)
    assert module.depths[[0, -1]].tolist() == [1.25, 49.75]  # centres of the rows
    assert LiftSplatShoot(in_channels=8, legacy=True).depths.tolist() == list(range(1, 50))
