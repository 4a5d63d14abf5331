"""Any chain of resizes, crops and flips projects a 3-D point to the same image content."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmtempo.workloads.bev.datasets.transforms.bev_random_crop import BEVRandomCrop
from mmtempo.workloads.bev.datasets.transforms.bev_random_flip import BEVRandomFlip
from mmtempo.workloads.bev.datasets.transforms.bev_resize import BEVResize
from mmtempo.workloads.bev.structures.calibration import (
    Calibration,
    check_intrinsics,
    check_pose,
    pixel_to_bev,
)

WIDTH, HEIGHT = 640, 360


def picture_with_dot(pixel: np.ndarray) -> np.ndarray:
    """Return an image with a smooth bright dot, centered with subpixel accuracy."""
    v, u = np.mgrid[:HEIGHT, :WIDTH]
    dot = np.exp(-((u - pixel[0]) ** 2 + (v - pixel[1]) ** 2) / (2 * 6.0**2))
    return np.repeat((255 * dot)[..., None], 3, 2).astype(np.uint8)


def find_dot(image: np.ndarray) -> np.ndarray:
    """Return the center of the dot in pixels."""
    weight = image[..., 0].astype(np.float64)
    v, u = np.mgrid[: image.shape[0], : image.shape[1]]
    return np.array([(u * weight).sum(), (v * weight).sum()]) / weight.sum()


step = st.one_of(
    st.tuples(st.just('resize'), st.integers(300, 700), st.integers(200, 400)),
    st.tuples(st.just('flip'), st.just(0), st.just(0)),
    st.tuples(st.just('crop'), st.integers(0, 12), st.integers(0, 12)),
)


@given(
    chain=st.lists(step, max_size=5),
    focal=st.floats(250, 700),
    center=st.tuples(st.floats(250, 390), st.floats(140, 220)),
    skew=st.floats(-20, 20),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_point_projects_to_the_same_content_after_any_transforms(
    chain: list, focal: float, center: tuple, skew: float, seed: int
) -> None:
    intrinsics = np.array([[focal, skew, center[0]], [0, focal, center[1]], [0, 0, 1.0]])
    target = np.array([330.0, 170.0, 1.0])
    point = np.linalg.inv(intrinsics) @ target * 17.0  # 17 m ahead, near the middle
    calibration = Calibration.native(intrinsics, (WIDTH, HEIGHT))
    results = dict(img=picture_with_dot(target[:2]), calibration=calibration)
    np.random.seed(seed)
    for kind, a, b in chain:
        height, width = results['img'].shape[:2]
        if kind == 'resize':
            results = BEVResize(scale=(a, b))(results)
        elif kind == 'flip':
            results = BEVRandomFlip(prob=1.0)(results)
        else:
            results = BEVRandomCrop(size=(width - a, height - b))(results)
    assert results['calibration'].size == results['img'].shape[1::-1]
    found, expected = find_dot(results['img']), results['calibration'].project(point)
    np.testing.assert_allclose(found, expected, atol=0.15)


def test_flip_mirrors_label_and_scene() -> None:
    """The label cell of a ground point moves with the point."""
    intrinsics = np.array([[300.0, 0, 333], [0, 300, 180], [0, 0, 1]])
    label = np.zeros((196, 200), np.uint16)
    label[40, 150] = 7  # x = 12.625, z = 11.125
    results = dict(
        img=np.zeros((HEIGHT, WIDTH, 3), np.uint8),
        calibration=Calibration.native(intrinsics, (WIDTH, HEIGHT)),
        gt_bev=label,
    )
    results = BEVRandomFlip(prob=1.0)(results)
    assert results['gt_bev'][40, 49] == 7
    mirrored_point = np.array([-12.625, 1.5, 11.125])
    pixel = results['calibration'].intrinsics @ mirrored_point
    before = intrinsics @ np.array([12.625, 1.5, 11.125])
    assert pixel[0] / pixel[2] == pytest.approx(WIDTH - 1 - before[0] / before[2])
    assert results['calibration'].intrinsics[0, 0] > 0


def test_resize_matches_pixel_centers_of_opencv() -> None:
    """A resize shifts the principal point by a part of a pixel."""
    calibration = Calibration.native(np.diag([100.0, 100, 1]), (640, 360)).resized(320, 180)
    assert calibration.intrinsics[0, 2] == pytest.approx(-0.25)
    ramp = np.tile(np.arange(8, dtype=np.float32), (8, 1))  # the value of a pixel is its column
    small = cv2.resize(ramp, (4, 4), interpolation=cv2.INTER_LINEAR)
    half = Calibration.native(np.eye(3), (8, 8)).resized(4, 4)
    for column in range(4):
        projected = half.project(np.array([small[0, column], 0, 1.0]))[0]
        assert projected == pytest.approx(column)


def test_legacy_intrinsics_ignore_size_crop_and_flip() -> None:
    native = np.array([[1266.0, 0, 816], [0, 1266, 491], [0, 0, 1]])
    calibration = Calibration.native(native, (1600, 900)).cropped(10, 20, 800, 600).flipped()
    legacy = calibration.legacy_intrinsics((800, 600))
    np.testing.assert_allclose(legacy[0], native[0] * 0.5)
    np.testing.assert_allclose(legacy[1], native[1] * 600 / 900)


@pytest.mark.parametrize(
    ('matrix', 'message'),
    [
        ([[1, 0], [0, 1]], r'must be 3x3, found shape \(2, 2\)'),
        ([[1, 0, 0], [0, 0, 0], [0, 0, 1]], 'not invertible'),
        ([[1, 0, 0], [0, 1e-14, 0], [0, 0, 1]], 'not invertible'),
        ([[float('nan'), 0, 0], [0, 1, 0], [0, 0, 1]], 'NaN or infinity'),
        ('focal 3', 'matrix of numbers'),
        ([[1, 2, 3], [4]], 'matrix of numbers'),
    ],
)
def test_errors_name_where_invalid_intrinsics_are(matrix: object, message: str) -> None:
    with pytest.raises(ValueError, match=f'calib/token7: .*{message}'):
        check_intrinsics(matrix, 'calib/token7')


def test_small_intrinsics_are_invertible() -> None:
    check_intrinsics(np.diag([1e-4, 1e-4, 1.0]), 'tiny')


@given(
    yaw=st.floats(-3.1, 3.1),
    tilt=st.floats(-0.3, 0.3),
    skew=st.floats(-20, 20),
    flips=st.integers(0, 2),
)
def test_pixel_to_bev_inverts_project(yaw: float, tilt: float, skew: float, flips: int) -> None:
    """A point that is projected and taken back along its pixel's ray is the same point."""
    turn = np.array([[np.cos(yaw), 0, np.sin(yaw)], [0, 1, 0], [-np.sin(yaw), 0, np.cos(yaw)]])
    lean = [[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]]
    pose = np.eye(4)
    pose[:3, :3] = turn @ np.array(lean)
    pose[:3, 3] = 1.0, -1.5, 2.0
    intrinsics = np.array([[300, skew, 320], [0, 310, 180], [0, 0, 1.0]])
    camera = Calibration.native(intrinsics, (WIDTH, HEIGHT), pose).resized(320, 200)
    camera = camera.cropped(3, 5, 300, 190)
    for _ in range(flips):
        camera = camera.flipped()
    depth = 12.5
    point = pose[:3, :3] @ [1.5, 0.7, depth] + pose[:3, 3]
    matrix = pixel_to_bev(camera.intrinsics, camera.cam2bev)
    ray = matrix[:, :3] @ [*camera.project(point), 1]
    found = depth * ray[:3] / ray[3] + matrix[:3, 3]
    mirror = np.array([-1 if flips == 1 else 1, 1, 1])
    np.testing.assert_allclose(found, point * mirror, atol=1e-9)


@pytest.mark.parametrize(
    ('pose', 'message'),
    [
        (np.eye(3).tolist(), 'must be 4x4'),
        ('none', '4x4 matrix of numbers'),
        ((2 * np.eye(4)).tolist(), 'a rotation and a translation'),
        (np.diag([-1.0, 1, 1, 1]).tolist(), 'a rotation and a translation'),
        (np.full((4, 4), np.nan).tolist(), 'contain NaN'),
    ],
)
def test_poses_must_be_rigid(pose: object, message: str) -> None:
    with pytest.raises(ValueError, match=f'here: .*{message}'):
        check_pose(pose, 'here')
    moved = np.eye(4)
    moved[:3, 3] = 5
    assert check_pose(moved.tolist(), 'here').dtype == np.float64
