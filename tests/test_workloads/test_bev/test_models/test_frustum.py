"""Points of a frustum have the right cells, with and without the options of the older code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmtempo.workloads.bev.models.frustum import Frustum, unlike_column
from mmtempo.workloads.bev.structures.calibration import Calibration, pixel_to_bev
from mmtempo.workloads.bev.structures.grid import BEVGrid
from tests.testing.operations import Operations

GRID = BEVGrid(x=(-3.0, 3.0, 0.5), z=(1.0, 5.0, 0.5), y=(-1.0, 2.0))
IMAGE = (60, 80)
UPRIGHT = np.array([[60.0, 0, 41.3], [0, 55.0, 27.7], [0, 0, 1]])


def pose(axis: int, angle: float) -> np.ndarray:
    """Return the pose of a camera that is turned about x (pitch), y (yaw) or z (roll)."""
    first, second = [i for i in range(3) if i != axis]
    matrix = np.eye(4)
    matrix[first, first] = matrix[second, second] = np.cos(angle)
    matrix[first, second], matrix[second, first] = -np.sin(angle), np.sin(angle)
    return matrix


def test_feature_pixels_are_at_the_centers_of_strides() -> None:
    v, u = Frustum(GRID, 8).pixel_centres(IMAGE)
    assert u.tolist() == [3.5 + 8 * i for i in range(10)]
    assert v.flatten().tolist() == [3.5 + 8 * i for i in range(8)]
    v, u = Frustum(GRID, 8, linspace_pixels=True).pixel_centres(IMAGE)
    assert (u[0], u[-1]) == (0, 79)
    assert len(v) == 7  # a partial last row is dropped
    assert (v[0], v[-1]) == (0, 59)


def test_truncation_moves_points_from_outside_into_the_first_cell() -> None:
    floor, trunc = Frustum(GRID, 8), Frustum(GRID, 8, truncate_cells=True)
    outside = torch.tensor([-3.3])
    assert not floor._cell(outside, *GRID.x)[1].item()
    index, inside = trunc._cell(outside, *GRID.x)
    assert inside.item()
    assert index.item() == 0


def test_image_columns_of_upright_cameras_share_their_cells() -> None:
    for yaw in (0.0, 0.3, np.pi):
        assert unlike_column(pixel_to_bev(UPRIGHT, pose(1, yaw))[None, None]) is None
    camera = Calibration.native(UPRIGHT, (80, 60)).resized(70, 30).flipped().cropped(3, 2, 40, 20)
    assert unlike_column(pixel_to_bev(camera.intrinsics, camera.cam2bev)[None, None]) is None


@pytest.mark.parametrize(
    ('intrinsics', 'camera_pose', 'problem'),
    [
        (UPRIGHT + np.eye(3, k=1) * [[0, 1e-9, 0]], np.eye(4), 'skew'),
        (UPRIGHT, pose(0, 1e-9), 'pitch'),
        (UPRIGHT, pose(2, 1e-9), 'roll'),
        (UPRIGHT + [[0, 0, 0], [1e-9, 0, 0], [0, 0, 0]], np.eye(4), 'roll'),
        (UPRIGHT + np.eye(3, k=-2) * 1e-9, np.eye(4), 'projective'),
    ],
)
def test_smallest_tilt_or_skew_is_detected(
    intrinsics: np.ndarray, camera_pose: np.ndarray, problem: str
) -> None:
    good = pixel_to_bev(UPRIGHT, np.eye(4))
    bad = pixel_to_bev(intrinsics, camera_pose)
    found = unlike_column(np.stack([[good, good], [good, bad]]))
    assert found is not None
    assert 'camera 1 of sample 1 has' in found
    assert problem in found


def test_points_outside_are_spread_over_all_cells() -> None:
    """A single bag of all of them would be summed sequentially."""
    sky = UPRIGHT + [[0, 0, 0], [0, 0, 1e6], [0, 0, 0]]
    matrices = torch.tensor(pixel_to_bev(sky, np.eye(4))[None, None], dtype=torch.float32)
    placement = Frustum(GRID, 8).place(matrices, torch.arange(1.0, 5.0), IMAGE, 'bag')
    assert not placement.inside.any()
    longest = placement.cells[0].bincount().max()
    assert longest == -(-placement.cells.shape[1] // GRID.cells)


def test_number_of_operations_does_not_depend_on_the_batch() -> None:
    """A loop over samples would need more operations for eight calibrations than for two."""
    counts = []
    for batch in (2, 8):
        matrices = np.stack([[pixel_to_bev(UPRIGHT + i, np.eye(4))] for i in range(batch)])
        for formulation in ('column', 'bag'):
            with Operations() as operations:
                Frustum(GRID, 8, ground=1.0).place(
                    torch.from_numpy(matrices).float(),
                    torch.arange(1.0, 5.0),
                    IMAGE,
                    formulation,
                ).join(formulation, GRID.cells)
            counts.append(len(operations.names))
    assert counts[:2] == counts[2:]


@pytest.mark.parametrize('formulation', ['column', 'bag'])
def test_order_and_offsets_sort_points_by_cell(formulation: str) -> None:
    matrices = np.stack([[pixel_to_bev(UPRIGHT + i, np.eye(4))] for i in range(3)])
    geometry = (
        Frustum(GRID, 8)
        .place(torch.from_numpy(matrices).float(), torch.arange(1.0, 5.0), IMAGE, formulation)
        .join(formulation, GRID.cells)
    )
    assert geometry.num_cells == 3 * GRID.cells
    assert geometry.order.sort().values.tolist() == list(range(len(geometry.cells)))
    for cell in range(0, geometry.num_cells, 7):
        points = geometry.order[geometry.offsets[cell] : geometry.offsets[cell + 1]]
        assert (geometry.cells[points] == cell).all()
    assert geometry.offsets[-1] == len(geometry.cells)
