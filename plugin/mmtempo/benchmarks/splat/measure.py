"""Measure the formulations of the splat against the classic cumulative sum."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from mmengine.logging import MMLogger

from mmtempo.benchmarks.harness import (
    Report,
    Timing,
    allocated_bytes,
    interleave,
    ratio,
)
from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.workloads.bev.models.frustum import SplatGeometry
from mmtempo.workloads.bev.models.lift_splat_shoot import LiftSplatShoot
from mmtempo.workloads.bev.models.splat import SPLATS, splat
from mmtempo.workloads.bev.structures.calibration import pixel_to_bev

from .model_step import TrainingStep

CHANNELS = 64
REFERENCE = 'cumsum'
# Bars.
MIN_SPEEDUP = dict(mono=15.0, six=8.0)
MAX_BYTES = dict(mono=1 / 4, six=1 / 3)
MIN_SPEEDUP_OWN_CALIBRATION = 8.0
# Gradients are sums of up to 98 products, each of which float32 rounds by 6e-8.
MAX_GRADIENT_ERROR = 1e-6
# Config below `configs/`, height and width of the images, number of samples.
QUICK_STEP = ('lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py', (224, 400), 4)
FULL_STEP = ('lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py', (600, 800), 2)


@dataclass(frozen=True)
class Workload:
    """Shapes and cameras of a view transform.

    Attributes:
        title: Shapes as they are printed.
        kind: Key of the bars, 'mono' or 'six'.
        batch: Number of samples.
        cameras: Number of cameras of a sample.
        image_size: Height and width of the images.
        arguments: Arguments of `LiftSplatShoot`, as pairs.
    """

    title: str
    kind: str
    batch: int
    cameras: int
    image_size: tuple[int, int]
    arguments: tuple[tuple[str, Any], ...]

    def view(self, formulation: str = 'auto') -> LiftSplatShoot:
        """Return the view transform with a formulation of the splat."""
        # A single feature channel makes the lift cheap, which is not measured.
        return LiftSplatShoot(
            1, CHANNELS, splat=formulation, cache_size=self.batch, **dict(self.arguments)
        )

    def pix2bev(self, seed: int) -> np.ndarray:
        """Return calibrations (batch, cameras, 4, 4) that differ by sample and seed."""
        rng = np.random.default_rng(seed)
        height, width = self.image_size
        intrinsics = np.zeros((self.batch, self.cameras, 3, 3))
        focal = rng.uniform(0.55, 0.85, (self.batch, self.cameras)) * width
        intrinsics[..., 0, 0] = intrinsics[..., 1, 1] = focal
        intrinsics[..., 0, 2] = width / 2 + rng.uniform(-9, 9, focal.shape)
        intrinsics[..., 1, 2] = height / 2 + rng.uniform(-9, 9, focal.shape)
        intrinsics[..., 2, 2] = 1
        poses = np.broadcast_to(np.eye(4), (self.batch, self.cameras, 4, 4)).copy()
        if self.cameras > 1:
            for sample in range(self.batch):
                for camera in range(self.cameras):
                    yaw = 2 * np.pi * camera / self.cameras + rng.uniform(-0.1, 0.1)
                    poses[sample, camera] = _pose(yaw, *rng.uniform(-0.02, 0.02, 2))
        return pixel_to_bev(intrinsics, poses)


def _pose(yaw: float, pitch: float, roll: float) -> np.ndarray:
    """Return the pose of a camera 1.5 m above the ground and 1.5 m off the center; in radians."""
    c, s = np.cos([yaw, pitch, roll]), np.sin([yaw, pitch, roll])
    turn = np.array([[c[0], 0, s[0]], [0, 1, 0], [-s[0], 0, c[0]]])
    nod = np.array([[1, 0, 0], [0, c[1], -s[1]], [0, s[1], c[1]]])
    lean = np.array([[c[2], -s[2], 0], [s[2], c[2], 0], [0, 0, 1]])
    pose = np.eye(4)
    pose[:3, :3] = turn @ nod @ lean
    pose[:3, 3] = 1.5 * s[0], -1.5, 1.5 * c[0]
    return pose


WORKLOADS = {
    'mono, 49 bins': Workload(
        '8 x 1 camera, 64x49x18x25 -> 98x100', 'mono', 8, 1, (600, 800), (('legacy', True),)
    ),
    'mono, 98 bins': Workload('8 x 1 camera, 64x98x19x25 -> 98x100', 'mono', 8, 1, (600, 800), ()),
    'six cameras': Workload(
        '4 x 6 cameras, 64x41x8x22 -> 200x200',
        'six',
        4,
        6,
        (128, 352),
        (
            ('stride', 16),
            ('depth', (4.0, 45.0, 1.0)),
            ('grid', dict(x=(-50.0, 50.0, 0.5), z=(-50.0, 50.0, 0.5))),
        ),
    ),
}


def make_inputs(geometry: SplatGeometry, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return context, depth distribution and a gradient of the grid."""
    torch.manual_seed(0)
    images, bins, height, width = geometry.inside.shape
    context = torch.randn(images, CHANNELS, height, width, dtype=dtype)
    depth = torch.randn(images, bins, height, width).softmax(1).to(dtype)
    grad = torch.randn(geometry.num_cells, CHANNELS)
    return [context.requires_grad_(), depth.requires_grad_(), grad]


def step(inputs: list[torch.Tensor], geometry: SplatGeometry) -> tuple[torch.Tensor, ...]:
    """Run forward and backward; return the grid and the gradients of context and depth."""
    context, depth, grad = inputs
    grid = splat(context, depth, geometry)
    return (grid.detach(), *torch.autograd.grad(grid, [context, depth], grad))


def exact(inputs: list[torch.Tensor], geometry: SplatGeometry) -> tuple[torch.Tensor, ...]:
    """Return the result of `step` in float64, by a formulation that is not measured."""
    context, depth = (tensor.detach().double().requires_grad_() for tensor in inputs[:2])
    points = (context.unsqueeze(2) * depth.unsqueeze(1)).permute(0, 3, 4, 2, 1)
    inside = geometry.inside.permute(0, 2, 3, 1).flatten().unsqueeze(1)
    grid = torch.zeros(geometry.num_cells, CHANNELS, dtype=torch.double)
    grid = grid.index_add(0, geometry.cells, points.reshape(-1, CHANNELS) * inside)
    grads = torch.autograd.grad(grid, [context, depth], inputs[2].double())
    return (grid.detach(), *grads)


def _errors(
    found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]
) -> dict[str, list[float]]:
    """Return the largest errors of the grid and of the gradients of context and depth."""
    error = [(a.double() - b).abs().max().item() for a, b in zip(found, expected)]
    return dict(
        error=error,
        # Relative to the largest value of each, which makes the three comparable.
        relative_error=[e / b.abs().max().item() for e, b in zip(error, expected)],
    )


def peak_rss(workload: str, formulation: str) -> float | None:
    """Return the megabytes that forward and backward add to a fresh process; None without Linux."""
    if not os.access('/proc/self/clear_refs', os.W_OK):
        return None
    command = [sys.executable, '-m', 'mmtempo.benchmarks.splat.memory', workload, formulation]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(result.stdout.split()[-1])


def _arms_of(workload: Workload) -> dict[str, LiftSplatShoot]:
    """Return a view transform for each formulation that the cameras allow."""
    column = workload.kind == 'mono'
    return {name: workload.view(name) for name in SPLATS if column or name != 'column'}


def measure_splat(quick: bool) -> Report:
    """Measure time, bytes, memory, errors and synchronizations of all formulations."""
    # The view transform logs its choice at each of many constructions.
    MMLogger.get_instance('benchmark', log_level='WARNING')
    rounds = 5 if quick else 25
    report = Report('splat')
    for name, workload in WORKLOADS.items():
        _measure(report, name, workload, torch.float32, rounds, peaks=not quick)
        if not quick:
            _measure(report, name, workload, torch.bfloat16, rounds)
        _own_calibrations(report, name, workload, rounds)
        _count_synchronizations(report, name, workload)
    _share_of_a_step(report, quick)
    report.notes.append(
        'ms: median [quartiles] of forward + backward with a prepared geometry; prepare: a batch '
        'of new calibrations. Errors: largest difference from float64, of grid and gradients.'
    )
    return report


def _measure(
    report: Report,
    name: str,
    workload: Workload,
    dtype: torch.dtype,
    rounds: int,
    peaks: bool = False,
) -> None:
    """Measure all formulations on one workload in one precision."""
    precision = str(dtype).removeprefix('torch.')
    pix2bev = workload.pix2bev(0)
    views = _arms_of(workload)
    chosen = workload.view().prepare(pix2bev, workload.image_size).formulation
    geometries = {arm: view.prepare(pix2bev, workload.image_size) for arm, view in views.items()}
    inputs = make_inputs(geometries[REFERENCE], dtype)
    expected = exact(inputs, geometries[REFERENCE])

    work = {arm: partial(step, inputs, geometry) for arm, geometry in geometries.items()}
    timings = interleave(dict(work), rounds)
    figures: dict[str, dict[str, Any]] = {}
    for arm in views:
        figures[arm] = timings[arm].figures() | dict(
            times_faster=ratio(timings[REFERENCE], timings[arm]).median,
            bytes=allocated_bytes(work[arm]),
            peak_rss_mb=peak_rss(name, arm) if peaks else None,
            **_errors(work[arm](), expected),
        )
        report.arms[f'{name}, {precision}, {arm}'] = figures[arm]
    title = f'{name}: {workload.title}, {precision}'
    _tabulate(report, title, chosen, timings, figures)
    if dtype == torch.float32:
        _check(report, name, workload.kind, figures[chosen], figures[REFERENCE])


def _tabulate(
    report: Report,
    title: str,
    chosen: str,
    timings: dict[str, Timing],
    figures: dict[str, dict[str, Any]],
) -> None:
    errors = ('error: grid', 'd context', 'd depth')
    columns = ('splat', 'ms', f'x {REFERENCE}', 'MB allocated', 'peak MB', *errors)
    table = report.add_table(title, columns, left=('splat',))
    for arm, found in figures.items():
        peak = found['peak_rss_mb']
        table.add_row(
            f'{arm} (auto)' if arm == chosen else arm,
            str(timings[arm]),
            f'{found["times_faster"]:.1f}',
            f'{found["bytes"] / 1e6:.1f}',
            '-' if peak is None else f'{peak:.0f}',
            *(f'{error:.1e}' for error in found['error']),
        )


def _check(report: Report, name: str, kind: str, ours: dict, classic: dict) -> None:
    report.at_least(f'{name}: times faster', ours['times_faster'], MIN_SPEEDUP[kind])
    share = ours['bytes'] / classic['bytes']
    report.at_most(f'{name}: share of the bytes', share, MAX_BYTES[kind])
    report.at_most(f'{name}: error of the grid', ours['error'][0], classic['error'][0])
    for what, error in zip(('context', 'depth'), ours['relative_error'][1:]):
        report.at_most(
            f'{name}: error of the gradient of {what}, of its largest value',
            error,
            MAX_GRADIENT_ERROR,
        )


def _own_calibrations(report: Report, name: str, workload: Workload, rounds: int) -> None:
    """Measure batches in which the calibration of each sample is new."""
    views = _arms_of(workload) | dict(auto=workload.view())
    size = workload.image_size
    fresh = {arm: iter(range(1, 10_000)) for arm in views}
    inputs = make_inputs(views[REFERENCE].prepare(workload.pix2bev(0), size), torch.float32)
    batches = [workload.pix2bev(seed) for seed in range(rounds + 8)]

    def prepare(arm: str) -> SplatGeometry:
        # The cache holds one batch, so that any older batch is new to it.
        return views[arm].prepare(batches[next(fresh[arm]) % len(batches)], size)

    def both(arm: str) -> Any:
        return step(inputs, prepare(arm))

    arms: dict[str, Callable[[], Any]] = {}
    for arm in views:
        arms[f'{arm}, prepare'] = partial(prepare, arm)
        arms[f'{arm}, both'] = partial(both, arm)
    cached = workload.view()
    cached.prepare(batches[0], size)
    arms['auto, prepare from the cache'] = lambda: cached.prepare(batches[0], size)
    timings = interleave(arms, rounds)
    for view in views.values():
        if view.cache.hits:
            raise RuntimeError(f'cache of calibrations: expected no hits, found {view.cache.hits}')
    title = f'{name}: every sample with its own calibration'
    columns = ('splat', 'prepare, ms', 'prepare + splat, ms', f'x {REFERENCE}')
    table = report.add_table(title, columns, left=('splat',))
    for arm in views:
        total = timings[f'{arm}, both']
        table.add_row(
            arm,
            str(timings[f'{arm}, prepare']),
            str(total),
            f'{ratio(timings[f"{REFERENCE}, both"], total).median:.1f}',
        )
    table.add_row('auto, from the cache', str(timings['auto, prepare from the cache']), '', '')
    for arm, timing in timings.items():
        report.arms[f'{name}, own calibrations, {arm}'] = timing.figures()
    if workload.kind == 'mono':
        faster = ratio(timings[f'{REFERENCE}, both'], timings['auto, both']).median
        report.at_least(
            f'{name}, own calibrations: times faster', faster, MIN_SPEEDUP_OWN_CALIBRATION
        )


def _count_synchronizations(report: Report, name: str, workload: Workload) -> None:
    """Count the operations that synchronize the host with a device, preparation included."""
    found = {}
    for formulation in ('auto', REFERENCE):
        view = workload.view(formulation)
        pix2bev = workload.pix2bev(0)
        inputs = make_inputs(view.prepare(pix2bev, workload.image_size), torch.float32)
        view = workload.view(formulation)
        with SyncCensus() as counter:
            step(inputs, view.prepare(pix2bev, workload.image_size))
        found[formulation] = len(counter.waits)
        waits = [asdict(wait) for wait in counter.waits]
        report.arms[f'{name}, waits, {formulation}'] = dict(waits=waits)
    report.at_most(f'{name}: host waits (cumsum: {found[REFERENCE]})', found['auto'], 0)


def _share_of_a_step(report: Report, quick: bool) -> None:
    """Measure the share of the splat in a whole training step."""
    config, size, batch = QUICK_STEP if quick else FULL_STEP
    steps = {arm: TrainingStep(config, size, batch, arm) for arm in ('auto', REFERENCE)}
    rounds = 3 if quick else 7
    timings = interleave(dict(steps), rounds, warm_up=1)
    alone = interleave({arm: run.splat_only() for arm, run in steps.items()}, rounds)
    table = report.add_table(
        f'whole training step: {config}, {batch} x {size[0]}x{size[1]}, float32',
        ('splat', 'step, ms', 'splat alone, ms', 'share'),
        left=('splat',),
    )
    for arm in steps:
        share = alone[arm].median / timings[arm].median
        table.add_row(arm, str(timings[arm]), str(alone[arm]), f'{share:.1%}')
        report.arms[f'step, {arm}'] = timings[arm].figures() | dict(share=share)
    gain = ratio(timings[REFERENCE], timings['auto'])
    report.notes.append(
        f'whole step, {REFERENCE} against auto: {gain.text(2)}, n = {rounds}; the share of the '
        'splat alone limits it'
    )
