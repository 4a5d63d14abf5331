"""All formulations give the same sum and gradients, in any geometry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from mmtempo.benchmarks.harness import allocated_bytes
from mmtempo.benchmarks.splat.measure import (
    MAX_BYTES,
    REFERENCE,
    WORKLOADS,
    make_inputs,
    step,
)
from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.workloads.bev.models.frustum import Frustum, SplatGeometry, unlike_column
from mmtempo.workloads.bev.models.geometry_cache import GeometryCache
from mmtempo.workloads.bev.models.splat import SPLATS, splat
from mmtempo.workloads.bev.structures.calibration import Calibration, pixel_to_bev
from mmtempo.workloads.bev.structures.grid import BEVGrid
from tests.testing.operations import Operations
from tests.testing.splat_by_hand import by_hand

# Operations that a splat might use and that torch documents as nondeterministic on CUDA.
NOT_DETERMINISTIC = {'index_add', 'index_add_', 'scatter_add', 'scatter_add_', 'put_', 'bincount'}
NOT_DETERMINISTIC |= {'cumsum', 'index_put', 'index_put_', 'histc', 'scatter_reduce'}


def geometry_of(
    frustum: Frustum,
    depths: torch.Tensor,
    pix2bev: np.ndarray,
    size: tuple[int, int],
    formulation: str,
) -> SplatGeometry:
    cameras = torch.from_numpy(pix2bev.astype(np.float32))
    return frustum.place(cameras, depths, size, formulation).join(formulation, frustum.grid.cells)


def make_data(geometry: SplatGeometry, channels: int, dtype: torch.dtype = torch.float32) -> list:
    images, bins, height, width = geometry.inside.shape
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(images, channels, height, width, generator=generator).to(dtype)
    depth = torch.randn(images, bins, height, width, generator=generator).softmax(1).to(dtype)
    grad = torch.randn(geometry.num_cells, channels, generator=generator).to(dtype)
    return [context.requires_grad_(), depth.requires_grad_(), grad]


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    """Draw a frustum, depth bins, calibrations after flips and crops, and an image size."""
    number = draw(st.integers(1, 8))
    rows, columns = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    cell = draw(st.sampled_from([0.25, 0.5, 1.0]))
    left, near = draw(st.sampled_from([-2.0, -0.5, 1.0])), draw(st.sampled_from([-1.0, 0.0, 1.0]))
    grid = BEVGrid(
        x=(left, left + columns * cell, cell),
        z=(near, near + rows * cell, cell),
        y=(-1.0, draw(st.sampled_from([0.2, 2.0]))),
    )
    legacy = draw(st.booleans())
    frustum = Frustum(grid, draw(st.sampled_from([4, 8])), legacy, legacy)
    size = draw(st.integers(16, 40)), draw(st.integers(16, 40))
    skewed, cameras = draw(st.booleans()), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    batch = draw(st.integers(1, 3))
    matrices = np.zeros((batch, cameras, 4, 4))
    for index in np.ndindex(batch, cameras):
        intrinsics = np.diag([*rng.uniform(5, 40, 2), 1.0])
        intrinsics[:2, 2] = rng.uniform(0.2, 0.8, 2) * size[::-1]
        pose = np.eye(4)
        if cameras > 1:
            yaw = rng.uniform(-np.pi, np.pi)
            pose[0, [0, 2]] = np.cos(yaw), np.sin(yaw)
            pose[2, [0, 2]] = -np.sin(yaw), np.cos(yaw)
            pose[:3, 3] = rng.uniform(-1, 1, 3)
        if skewed:
            intrinsics[0, 1] = rng.uniform(-5, 5)
        camera = Calibration.native(intrinsics, size[::-1], pose)
        if rng.random() < 0.5:
            camera = camera.flipped()
        if rng.random() < 0.5:
            camera = camera.cropped(*rng.integers(-3, 4, 2), *size[::-1])
        matrices[index] = pixel_to_bev(camera.intrinsics, camera.cam2bev)
    depths = torch.arange(number) * draw(st.sampled_from([0.3, 0.5, 1.0])) + 0.5
    return frustum, depths, matrices, size


@given(cases())
@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_all_formulations_equal_the_sum_by_hand(case: tuple) -> None:
    frustum, depths, pix2bev, size = case
    possible = [name for name in SPLATS if name != 'column' or unlike_column(pix2bev) is None]
    expected = None
    for name in possible:
        geometry = geometry_of(*case, name)
        context, depth, grad = make_data(geometry, channels=2)
        assume(geometry.inside.any())
        if expected is None:
            bev = by_hand(frustum, depths.tolist(), pix2bev, size, context, depth)
            flat = bev.flatten(2).transpose(1, 2).reshape(-1, 2)
            expected = flat, *torch.autograd.grad(flat, [context, depth], grad.double())
        grid = splat(context, depth, geometry)
        values = grid, *torch.autograd.grad(grid, [context, depth], grad)
        for ours, by_sum in zip(values, expected):
            torch.testing.assert_close(ours.double(), by_sum.double(), atol=1e-5, rtol=1e-5)


def test_all_formulations_are_exact_for_upright_cameras_around_a_vehicle() -> None:
    """Cameras that are turned and moved, but neither tilted nor skewed."""
    rng = np.random.default_rng(0)
    matrices = np.zeros((2, 4, 4, 4))
    for sample, camera in np.ndindex(2, 4):
        yaw = camera * np.pi / 2 + rng.uniform(-0.3, 0.3)
        pose = np.eye(4)
        pose[0, [0, 2]], pose[2, [0, 2]] = (np.cos(yaw), np.sin(yaw)), (-np.sin(yaw), np.cos(yaw))
        pose[:3, 3] = rng.uniform(-1, 1, 3)
        intrinsics = np.array([[20.0, 0, rng.uniform(8, 16)], [0, 18, 8], [0, 0, 1]])
        matrices[sample, camera] = pixel_to_bev(intrinsics, pose)
    assert unlike_column(matrices) is None
    frustum = Frustum(BEVGrid(x=(-4.0, 4.0, 0.5), z=(-4.0, 4.0, 0.5), y=(-1.0, 1.5)), 8)
    depths = torch.arange(1.0, 5.0, 0.5)
    grids = {}
    for name in SPLATS:
        geometry = geometry_of(frustum, depths, matrices, (16, 24), name)
        context, depth, _ = make_data(geometry, channels=3)
        grids[name] = splat(context, depth, geometry)
        assert 0.1 < geometry.inside.float().mean() < 0.9
    expected = by_hand(frustum, depths.tolist(), matrices, (16, 24), context, depth)
    expected = expected.flatten(2).transpose(1, 2).reshape(-1, 3)
    assert expected.abs().sum() > 10
    for grid in grids.values():
        torch.testing.assert_close(grid.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('formulation', ['column', 'bag'])
def test_no_operation_reads_a_value(formulation: str) -> None:
    """With fake tensors, which have shapes only, reading a value raises an error."""
    frustum = Frustum(BEVGrid(x=(-2.0, 2.0, 0.5), z=(1.0, 4.0, 0.5), y=(-1.0, 2.0)), 8, ground=1.0)
    cache = GeometryCache(4)
    with FakeTensorMode():
        cameras, depths = torch.empty(2, 1, 4, 4), torch.empty(3)
        for _ in range(2):
            placement = cache.fetch(
                [0, 1], lambda indices: frustum.place(cameras, depths, (16, 24), formulation)
            )
            geometry = placement.join(formulation, frustum.grid.cells)
            context = torch.empty(2, 5, 2, 3, requires_grad=True)
            depth = torch.empty(2, 3, 2, 3, requires_grad=True)
            grid = splat(context, depth, geometry)
            grid.backward(torch.empty(96, 5))
        with pytest.raises(Exception, match='data-dependent|aten._local_scalar_dense'):
            grid.sum().item()
    assert context.grad.shape == context.shape


def small_geometry(formulation: str, legacy: bool = False, cameras: int = 1) -> SplatGeometry:
    intrinsics = np.array([[20.0, 0, 10], [0, 18.0, 8], [0, 0, 1]])
    pix2bev = pixel_to_bev(np.broadcast_to(intrinsics, (2, cameras, 3, 3)), np.eye(4))
    grid = BEVGrid(x=(-2.0, 2.0, 0.5), z=(1.0, 4.0, 0.5), y=(-1.0, 2.0))
    frustum = Frustum(grid, 8, legacy, legacy)
    return geometry_of(frustum, torch.arange(1.0, 4.0), pix2bev, (16, 24), formulation)


@pytest.mark.parametrize('legacy', [False, True])
@pytest.mark.parametrize('formulation', SPLATS)
def test_gradients_pass_gradcheck(formulation: str, legacy: bool) -> None:
    geometry = small_geometry(formulation, legacy)
    context, depth, _ = make_data(geometry, channels=3, dtype=torch.double)
    assert torch.autograd.gradcheck(lambda *x: splat(*x, geometry), (context, depth))


@pytest.mark.parametrize('formulation', SPLATS)
@pytest.mark.parametrize('where', ['far below', 'far left'])
def test_grid_and_gradients_are_zero_with_all_points_outside(formulation: str, where: str) -> None:
    intrinsics = np.array([[20.0, 0, 10], [0, 18.0, 8], [0, 0, 1]])
    intrinsics[(0 if where == 'far left' else 1), 2] = -1e5
    pix2bev = pixel_to_bev(intrinsics, np.eye(4))[None, None]
    frustum = Frustum(BEVGrid(x=(-2.0, 2.0, 0.5), z=(1.0, 4.0, 0.5), y=(-1.0, 2.0)), 8)
    geometry = geometry_of(frustum, torch.arange(1.0, 4.0), pix2bev, (16, 24), formulation)
    context, depth, grad = make_data(geometry, channels=3)
    grid = splat(context, depth, geometry)
    assert not geometry.inside.any()
    assert grid.shape == (48, 3)
    assert (grid == 0).all()
    for gradient in torch.autograd.grad(grid, [context, depth], grad):
        assert (gradient == 0).all()


@pytest.mark.parametrize('formulation', SPLATS)
def test_grid_of_one_cell_has_the_sum_of_all_points(formulation: str) -> None:
    pix2bev = pixel_to_bev(np.array([[20.0, 0, 10], [0, 18.0, 8], [0, 0, 1]]), np.eye(4))
    frustum = Frustum(BEVGrid(x=(-90.0, 90.0, 180.0), z=(0.0, 9.0, 9.0), y=(-90.0, 90.0)), 8)
    geometry = geometry_of(
        frustum, torch.arange(1.0, 4.0), pix2bev[None, None], (16, 24), formulation
    )
    context, depth, _ = make_data(geometry, channels=3)
    assert geometry.inside.all()
    expected = context.sum((2, 3))  # the weights of a pixel sum to one
    torch.testing.assert_close(splat(context, depth, geometry), expected)


@pytest.mark.parametrize('formulation', ['column', 'bag'])
def test_forward_and_backward_have_no_synchronization(formulation: str) -> None:
    geometry = small_geometry(formulation)
    context, depth, grad = make_data(geometry, channels=3)
    with SyncCensus() as counter:
        splat(context, depth, geometry).backward(grad)
    assert counter.waits == []


def test_cumsum_synchronizes() -> None:
    geometry = small_geometry('cumsum')
    context, depth, grad = make_data(geometry, channels=3)
    with SyncCensus() as counter:
        splat(context, depth, geometry).backward(grad)
    assert len(counter.waits) >= 3


@pytest.mark.parametrize('formulation', ['column', 'bag'])
def test_all_operations_are_deterministic(formulation: str) -> None:
    geometry = small_geometry(formulation)
    context, depth, grad = make_data(geometry, channels=3)
    torch.use_deterministic_algorithms(True)
    try:
        with Operations() as operations:
            splat(context, depth, geometry).backward(grad)
    finally:
        torch.use_deterministic_algorithms(False)
    assert 'embedding_bag' in ' '.join(operations.names)
    assert not NOT_DETERMINISTIC & set(operations.names)
    first = context.grad.clone(), depth.grad.clone()
    context.grad = depth.grad = None
    splat(context, depth, geometry).backward(grad)
    assert torch.equal(context.grad, first[0])
    assert torch.equal(depth.grad, first[1])


@pytest.mark.parametrize('formulation', SPLATS)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_sums_are_float32_inside_autocast(formulation: str, dtype: torch.dtype) -> None:
    geometry = small_geometry(formulation)
    context, depth, grad = make_data(geometry, channels=3)
    # Two of these in one cell exceed the range of half precision.
    context = torch.full_like(context, 6e4).to(dtype).requires_grad_()
    depth = depth.detach().to(dtype).requires_grad_()
    with torch.autocast('cpu', dtype):
        grid = splat(context, depth, geometry)
    assert grid.dtype == torch.float32
    assert 65504 < grid.max() < torch.inf
    exact = splat(context.detach().double(), depth.detach().double(), geometry)
    torch.testing.assert_close(grid.double(), exact, atol=0.1, rtol=1e-4)
    gradients = torch.autograd.grad(grid, [context, depth], grad)
    assert [gradient.dtype for gradient in gradients] == [dtype, dtype]


@pytest.mark.parametrize('name', WORKLOADS)
def test_auto_allocates_a_fraction_of_the_reference(name: str) -> None:
    workload = WORKLOADS[name]
    pix2bev, size = workload.pix2bev(0), workload.image_size
    allocated = {}
    for formulation in ('auto', REFERENCE):
        geometry = workload.view(formulation).prepare(pix2bev, size)
        inputs = make_inputs(geometry, torch.float32)
        allocated[formulation] = allocated_bytes(lambda i=inputs, g=geometry: step(i, g))
    assert allocated['auto'] > 1e7  # at least the grid and its gradient
    assert allocated['auto'] <= MAX_BYTES[workload.kind] * allocated[REFERENCE]
