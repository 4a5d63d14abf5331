"""The view transform sums all points into their cells; `legacy` reproduces the older code."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.logging import MMLogger

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.workloads.bev.models.lift_splat_shoot import LiftSplatShoot
from mmtempo.workloads.bev.structures.calibration import pixel_to_bev
from tests.testing.splat_by_hand import by_hand

GRID = dict(x=(-3.0, 3.0, 0.5), z=(1.0, 5.0, 0.5), y=(-1.0, 2.0))
IMAGE = (60, 80)  # height, width
STRIDE = 8
FEATURES = (8, 10)


def make(**kwargs: Any) -> LiftSplatShoot:
    torch.manual_seed(0)
    arguments = dict(in_channels=5, out_channels=3, stride=STRIDE, grid=GRID) | kwargs
    return LiftSplatShoot(**arguments)


def calibrations(batch: int = 2, skew: float = 0.0) -> np.ndarray:
    """Return matrices of samples with one camera each, all different."""
    intrinsics = [
        [[60.0 + 7 * i, skew, 41.3], [0, 55.0 - 2 * i, 27.7], [0, 0, 1]] for i in range(batch)
    ]
    return pixel_to_bev(np.array(intrinsics)[:, None], np.eye(4))


def rig(batch: int = 2, cameras: int = 3) -> np.ndarray:
    """Return matrices of samples with several cameras, each turned, tilted and moved."""
    rng = np.random.default_rng(0)
    rotations = np.linalg.qr(rng.normal(size=(batch, cameras, 3, 3)))[0]
    poses = np.broadcast_to(np.eye(4), (batch, cameras, 4, 4)).copy()
    poses[..., :3, :3] = rotations * np.linalg.det(rotations)[..., None, None]
    poses[..., :3, 3] = rng.uniform(-1, 3, (batch, cameras, 3))
    intrinsics = np.array([[60.0, 0, 41.3], [0, 55.0, 27.7], [0, 0, 1]])
    return pixel_to_bev(intrinsics, poses)


def lifted(module: LiftSplatShoot, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return context and depth distribution in float64."""
    if module.frustum.linspace_pixels:
        features = features[:, :, : IMAGE[0] // STRIDE]
    both = torch.nn.functional.conv2d(
        features.double(), module.lift.weight.double(), module.lift.bias.double()
    )
    bins = len(module.depths)
    return both[:, bins:], both[:, :bins].softmax(1)


@pytest.mark.parametrize('splat', ['auto', 'column', 'bag', 'cumsum'])
@pytest.mark.parametrize('legacy', [False, True])
def test_values_and_gradients_equal_the_sum_by_hand(legacy: bool, splat: str) -> None:
    module = make(legacy=legacy, splat=splat)
    features = torch.randn(2, 5, *FEATURES, requires_grad=True)
    weights = torch.randn(2, 3, 8, 12)
    bev = module(features, module.prepare(calibrations(), IMAGE))
    assert bev.shape == (2, 3, 8, 12)
    expected = by_hand(
        module.frustum, module.depths.tolist(), calibrations(), IMAGE, *lifted(module, features)
    )
    assert expected.abs().sum() > 1
    torch.testing.assert_close(bev.double(), expected, atol=1e-5, rtol=1e-4)
    (ours,) = torch.autograd.grad((bev * weights).sum(), features)
    (by_sum,) = torch.autograd.grad((expected * weights).sum(), features)
    torch.testing.assert_close(ours, by_sum.float(), atol=1e-4, rtol=1e-3)


def test_several_cameras_are_summed_into_one_grid() -> None:
    module = make(depth=(0.5, 4.5, 0.5))
    features = torch.randn(6, 5, *FEATURES)
    geometry = module.prepare(rig(), IMAGE)
    bev = module(features, geometry)
    assert geometry.formulation == 'bag'
    assert bev.shape == (2, 3, 8, 12)
    expected = by_hand(
        module.frustum, module.depths.tolist(), rig(), IMAGE, *lifted(module, features)
    )
    torch.testing.assert_close(bev.double(), expected, atol=1e-5, rtol=1e-4)
    # Each camera contributes to its sample only.
    for number in range(6):
        without = features.clone()
        without[number] = 0
        assert not torch.equal(module(without, geometry)[number // 3], bev[number // 3])
        assert torch.equal(module(without, geometry)[1 - number // 3], bev[1 - number // 3])


def test_depth_and_context_get_gradients() -> None:
    module = make()
    features = torch.randn(1, 5, *FEATURES)
    (module(features, module.prepare(calibrations(1), IMAGE)) ** 2).sum().backward()
    bins = len(module.depths)
    assert (module.lift.weight.grad[:bins] != 0).any()
    assert (module.lift.weight.grad[bins:] != 0).any()


def test_unit_bins_leave_every_second_row_empty() -> None:
    """By default, depth bins are those of the rows of the grid, here 0.5 m apart."""
    features = torch.ones(1, 5, *FEATURES)

    def rows(module: LiftSplatShoot) -> torch.Tensor:
        return module(features, module.prepare(calibrations(1), IMAGE)).abs().sum((0, 1, 3))

    assert (rows(make()) > 0).all()
    unit = rows(make(unit_bins=True))
    assert (unit[0::2] > 0).all()
    assert (unit[1::2] == 0).all()


def test_depth_bins_are_centered_or_legacy() -> None:
    assert make(depth=(4.0, 45.0, 1.0)).depths.tolist() == [4.5 + i for i in range(41)]
    assert make(depth=(4.0, 45.0, 1.0), legacy=True).depths.tolist() == list(range(4, 45))
    assert make().depths.tolist() == [1.25 + 0.5 * i for i in range(8)]
    assert make(legacy=True).depths.tolist() == [1, 2, 3, 4]
    assert LiftSplatShoot(in_channels=8, legacy=True).depths.tolist() == list(range(1, 50))
    assert LiftSplatShoot(in_channels=8).depths[[0, -1]].tolist() == [1.25, 49.75]


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(splat='colum'), "one of 'auto', 'column', 'bag', 'cumsum', found 'colum'"),
        (dict(cache_size=-1), 'cache_size must not be negative'),
        (dict(depth=(4.0, 4.5, 1.0)), r'depth must be .* found \(4.0, 4.5, 1.0\)'),
        (dict(grid=dict(z=(-5.0, 5.0, 0.5))), r'start at z = -5.*set depth=\(near, far, step\)'),
    ],
)
def test_invalid_arguments_are_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**arguments)


def test_auto_takes_column_where_it_is_exact_and_logs_each_choice_once() -> None:
    logger = MMLogger.get_instance('auto-choice', logger_name='auto-choice')
    lines: list[str] = []
    logger.info = logger.log = lambda *args, **_: lines.append(str(args[-1]))  # type: ignore
    module = make()
    for _ in range(2):
        assert module.prepare(calibrations(), IMAGE).formulation == 'column'
        assert module.prepare(calibrations(skew=1.0), IMAGE).formulation == 'bag'
        assert module.prepare(rig(), IMAGE).formulation == 'bag'
    assert len(lines) == 2
    assert "takes 'column' (exact for cameras without skew and tilt)" in lines[0]
    assert "takes 'bag' (camera 0 of sample 0 has skew" in lines[1]


def test_column_refuses_skewed_cameras() -> None:
    with pytest.raises(
        ValueError, match="'column' is not exact here: camera 0 of sample 0 has skew"
    ):
        make(splat='column').prepare(calibrations(skew=1.0), IMAGE)


def test_features_must_match_stride_and_calibrations() -> None:
    module = make()
    geometry = module.prepare(calibrations(), IMAGE)
    with pytest.raises(ValueError, match=r'8 x 10 pixels, found 4 x 5; view_transform.stride = 8'):
        module(torch.randn(2, 5, 4, 5), geometry)
    with pytest.raises(ValueError, match='features of 3 images, but calibrations of 2'):
        module(torch.randn(3, 5, *FEATURES), geometry)


@pytest.mark.parametrize('cameras', [calibrations(), calibrations(skew=1.0), rig()])
def test_prepare_and_forward_have_no_synchronization(cameras: np.ndarray) -> None:
    module = make(depth=(1.0, 5.0, 0.5), ground=1.5)
    features = torch.randn(cameras.shape[0] * cameras.shape[1], 5, *FEATURES, requires_grad=True)
    with SyncCensus() as counter:
        for _ in range(2):  # computed, then from the cache
            module(features, module.prepare(cameras, IMAGE)).sum().backward()
    assert counter.waits == []


def test_hint_favors_the_depth_of_the_ground() -> None:
    """Below the horizon, the likeliest bin is where the ray meets the ground, 1.5 m down."""
    module = LiftSplatShoot(in_channels=1, out_channels=1, stride=STRIDE, ground=1.5)
    hints = {}
    for splat in ('column', 'bag'):
        module.splat = splat
        hints[splat] = module.prepare(calibrations(1), IMAGE).hint.expand(1, 98, *FEATURES)
    hint = hints['column']
    torch.testing.assert_close(hint, hints['bag'])
    assert hint.max() <= 0
    assert hint.min() == -4
    matrix = calibrations(1)[0, 0]
    y = (matrix[1, :3] @ [3.5, 59.5, 1]) / 1  # ray of the lowest row at depth 1
    best = module.depths[hint[0, :, -1, 0].argmax()]
    assert best.item() == pytest.approx(1.5 / y, abs=0.26)
    # The same ground in a frame whose origin is on it.
    pose = np.eye(4)
    pose[1, 3] = -1.5
    lower = LiftSplatShoot(1, 1, stride=STRIDE, ground=0.0)
    moved = pixel_to_bev(np.linalg.inv(matrix[:3, :3]), pose)[None, None]
    torch.testing.assert_close(
        lower.prepare(moved, IMAGE).hint, hint[..., :1], atol=1e-4, rtol=1e-4
    )


def test_sums_are_float32_inside_autocast() -> None:
    module = make()
    features = torch.randn(2, 5, *FEATURES)
    geometry = module.prepare(calibrations(), IMAGE)
    with torch.autocast('cpu', torch.bfloat16):
        inside = module.prepare(calibrations(3), IMAGE)
        bev = module(features, geometry)
    assert bev.dtype == torch.float32
    torch.testing.assert_close(bev, module(features, geometry), atol=0.1, rtol=0.1)
    outside = make().prepare(calibrations(3), IMAGE)
    assert torch.equal(inside.cells, outside.cells)
    assert torch.equal(inside.inside, outside.inside)


@pytest.mark.parametrize('cameras', [calibrations(), rig(2, 1)], ids=['column', 'bag'])
@pytest.mark.parametrize('backend', ['aot_eager', pytest.param('inductor', marks=pytest.mark.slow)])
def test_compiles_without_a_graph_break(cameras: np.ndarray, backend: str) -> None:
    torch._dynamo.reset()
    module = make(depth=(1.0, 5.0, 0.5), ground=1.5)
    features = torch.randn(2, 5, *FEATURES, requires_grad=True)
    geometry = module.prepare(cameras, IMAGE)
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    for autocast in (False, True):
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            bevs = compiled(features, geometry), module(features, geometry)
        assert bevs[0].dtype == torch.float32
        torch.testing.assert_close(*bevs, atol=1e-5, rtol=1e-5)
        gradients = (torch.autograd.grad(bev.square().sum(), features) for bev in bevs)
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-3)


def test_geometry_is_computed_once_for_each_calibration() -> None:
    module = make()
    placed: list[int] = []
    place = type(module.frustum).place

    class Counting(type(module.frustum)):  # type: ignore
        def place(self, pix2bev: torch.Tensor, *args: Any) -> Any:
            placed.append(len(pix2bev))
            return place(self, pix2bev, *args)

    module.frustum = Counting(**module.frustum.__dict__)
    three = calibrations(3)
    first = module.prepare(three, IMAGE)
    again = module.prepare(three[[2, 0, 1]], IMAGE)
    assert placed == [3]
    points = first.cells.numel() // 3
    cells = 96  # of a sample
    assert torch.equal(again.cells[:points], first.cells[2 * points :] - 2 * cells)
    module.prepare(np.concatenate([three[:1], calibrations(2, skew=2.0)[[1, 1]]]), IMAGE)
    assert placed == [3, 2]  # a new calibration, and a cached one in another formulation
    module.prepare(three, (64, 88))  # another image size
    assert placed == [3, 2, 3]


def test_geometry_cached_in_inference_mode_can_be_trained_with() -> None:
    module = make()
    with torch.inference_mode():
        for _ in range(2):  # computed, then cloned from its batch
            module.prepare(calibrations(), IMAGE)
    features = torch.randn(2, 5, *FEATURES)
    module(features, module.prepare(calibrations(), IMAGE)).sum().backward()
    assert module.cache.hits == 4


def test_copy_has_a_separate_cache() -> None:
    """Exponential moving averages copy the model."""
    module = make()
    module.prepare(calibrations(), IMAGE)
    other = copy.deepcopy(module)
    assert other.cache is not module.cache
    assert other.prepare.__self__ is other
    assert not any('cache' in key or 'depths' in key for key in module.state_dict())


def test_default_shapes_are_those_of_the_specification() -> None:
    module = LiftSplatShoot(in_channels=768)
    assert module.lift.weight.shape == (98 + 64, 768, 1, 1)
    assert (module.grid.rows, module.grid.columns) == (98, 100)
