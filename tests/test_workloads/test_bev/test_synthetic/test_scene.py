"""Scenes are random, repeatable, and keep their distance to the viewer."""

from __future__ import annotations

import numpy as np

from mmtempo.workloads.bev.synthetic.scene import AROUND, make_scene


def test_scenes_differ_and_are_repeatable() -> None:
    first, again = (make_scene(np.random.default_rng(5)) for _ in range(2))
    assert repr(first) == repr(again)
    assert repr(first) != repr(make_scene(np.random.default_rng(6)))
    assert all(box.name != 'construction_vehicle' for box in first.boxes)


def test_scenes_of_one_camera_do_not_change_between_versions() -> None:
    """Data sets that earlier versions wrote can be written again."""
    scene = make_scene(np.random.default_rng(5))
    boxes = [(box.name, round(box.x, 4), round(box.z, 4)) for box in scene.boxes]
    assert boxes == [
        ('bicycle', 6.2454, 11.8965),
        ('truck', -0.4561, 28.0638),
        ('pedestrian', 8.7471, 39.0974),
        ('car', 0.3924, 14.577),
        ('trailer', 6.0764, 18.8858),
        ('car', 8.8943, 30.9839),
    ]
    names = ['carpark', 'walkway', 'drivable_area', 'drivable_area', 'ped_crossing']
    assert [ground.name for ground in scene.grounds] == names


def test_scenes_around_a_vehicle_fill_all_sides_and_leave_it_room() -> None:
    boxes = []
    for seed in range(20):
        scene = make_scene(np.random.default_rng(seed), layout=AROUND)
        assert 15 < len(scene.boxes) < 60
        boxes += scene.boxes
    positions = np.array([[box.x, box.z] for box in boxes])
    assert all(np.hypot(*box.corners.T).min() > 3 for box in boxes)
    quarters = np.histogram2d(*positions.T, bins=([-50, 0, 50], [-50, 0, 50]))[0]
    assert quarters.min() > 0.15 * len(boxes)
