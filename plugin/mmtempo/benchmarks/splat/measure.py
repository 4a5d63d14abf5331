"""The view transform's splat against the classic cumulative sum."""

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
from rich.table import Table

from mmtempo.benchmarks.harness import Report, Timing, allocated_bytes, interleave, ratio
from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.workloads.bev.models.frustum import SplatGeometry
from mmtempo.workloads.bev.models.lift_splat_shoot import LiftSplatShoot
from mmtempo.workloads.bev.models.splat import SPLATS, splat
from mmtempo.workloads.bev.structures.calibration import pixel_to_bev

from .model_step import TrainingStep

CHANNELS = 64
REFERENCE = 'cumsum'
# The bars of the issue that asked for this benchmark.
MIN_SPEEDUP = dict(mono=15.0, six=8.0)
MAX_BYTES = dict(mono=1 / 4, six=1 / 3)
MIN_SPEEDUP_OWN_CALIBRATION = 8.0
# Gradients are plain sums of up to 98 products: float32 rounds each of them by 6e-8.
MAX_GRADIENT_ERROR = 1e-6
# Config below `configs/`, height and width of the images, samples.
QUICK_STEP = ('lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py', (224, 400), 4)
FULL_STEP = ('lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py', (600, 800), 2)


@dataclass(frozen=True)
class Workload:
    """A view transform's shapes, and its cameras."""

    title: str
    kind: str
    batch: int
    cameras: int
    image_size: tuple[int, int]
    arguments: tuple[tuple[str, Any], ...]

    def view(self, formulation: str = 'auto') -> LiftSplatShoot:
        # One feature channel: the lift is not what is measured.
        return LiftSplatShoot(
            1, CHANNELS, splat=formulation, cache_size=self.batch, **dict(self.arguments)
        )

    def pix2bev(self, seed: int) -> np.ndarray:
        """Calibrations (batch, cameras, 4, 4), different in each sample and for each seed."""
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
    """A camera 1.5 m above the ground and 1.5 m out from the middle, tilted a little."""
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
    """Context, depth distribution, and a gradient for the grid."""
    torch.manual_seed(0)
    images, bins, height, width = geometry.inside.shape
    context = torch.randn(images, CHANNELS, height, width, dtype=dtype)
    depth = torch.randn(images, bins, height, width).softmax(1).to(dtype)
    grad = torch.randn(geometry.num_cells, CHANNELS)
    return [context.requires_grad_(), depth.requires_grad_(), grad]


def step(inputs: list[torch.Tensor], geometry: SplatGeometry) -> tuple[torch.Tensor, ...]:
    """Forward and backward."""
    context, depth, grad = inputs
    grid = splat(context, depth, geometry)
    return (grid.detach(), *torch.autograd.grad(grid, [context, depth], grad))


def exact(inputs: list[torch.Tensor], geometry: SplatGeometry) -> tuple[torch.Tensor, ...]:
    """The same in float64, point by point: none of the formulations that are measured."""
    context, depth = (tensor.detach().double().requires_grad_() for tensor in inputs[:2])
    points = (context.unsqueeze(2) * depth.unsqueeze(1)).permute(0, 3, 4, 2, 1)
    inside = geometry.inside.permute(0, 2, 3, 1).flatten().unsqueeze(1)
    grid = torch.zeros(geometry.num_cells, CHANNELS, dtype=torch.double)
    grid = grid.index_add(0, geometry.cells, points.reshape(-1, CHANNELS) * inside)
    grads = torch.autograd.grad(grid, [context, depth], inputs[2].double())
    return (grid.detach(), *grads)


def _errors(
    found: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]
) -> dict[str, list[float]]:
    """Largest errors of the grid and of the gradients of context and depth."""
    error = [(a.double() - b).abs().max().item() for a, b in zip(found, right)]
    return dict(
        error=error,
        # Relative to the largest value of each, so that the three can be compared.
        relative_error=[e / b.abs().max().item() for e, b in zip(error, right)],
    )


def peak_rss(workload: str, formulation: str) -> float | None:
    """Megabytes that forward and backward add to a process of their own; Linux only."""
    if not os.access('/proc/self/clear_refs', os.W_OK):
        return None
    command = [sys.executable, '-m', 'mmtempo.benchmarks.splat.memory', workload, formulation]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(result.stdout.split()[-1])


def _arms_of(workload: Workload) -> dict[str, LiftSplatShoot]:
    """One view transform a formulation that is possible here; `auto` under its own name."""
    column = workload.kind == 'mono'
    return {name: workload.view(name) for name in SPLATS if column or name != 'column'}


def measure_splat(quick: bool) -> Report:
    """All formulations on the reference shapes: time, bytes, memory, error, waits."""
    # The view transform's own words on its choice would be repeated for each of many.
    MMLogger.get_instance('benchmark', log_level='WARNING')
    rounds = 5 if quick else 25
    report = Report('splat')
    for name, workload in WORKLOADS.items():
        _measure(report, name, workload, torch.float32, rounds, peaks=not quick)
        if not quick:
            _measure(report, name, workload, torch.bfloat16, rounds)
        _own_calibrations(report, name, workload, rounds)
        _count_waits(report, name, workload)
    _share_of_a_step(report, quick)
    report.notes.append(
        'ms: median [quartiles] of forward + backward, geometry prepared; prepare: a batch of '
        'new calibrations. Errors: largest against float64, of the grid and of both gradients.'
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
    """Every formulation, on one workload in one precision."""
    precision = str(dtype).removeprefix('torch.')
    pix2bev = workload.pix2bev(0)
    views = _arms_of(workload)
    chosen = workload.view().prepare(pix2bev, workload.image_size).formulation
    geometries = {arm: view.prepare(pix2bev, workload.image_size) for arm, view in views.items()}
    inputs = make_inputs(geometries[REFERENCE], dtype)
    right = exact(inputs, geometries[REFERENCE])

    work = {arm: partial(step, inputs, geometry) for arm, geometry in geometries.items()}
    timings = interleave(dict(work), rounds)
    figures: dict[str, dict[str, Any]] = {}
    for arm in views:
        figures[arm] = timings[arm].figures() | dict(
            times_faster=ratio(timings[REFERENCE], timings[arm]).median,
            bytes=allocated_bytes(work[arm]),
            peak_rss_mb=peak_rss(name, arm) if peaks else None,
            **_errors(work[arm](), right),
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
    table = Table(title=title, title_justify='left')
    errors = ('error: grid', 'd context', 'd depth')
    for column in ('splat', 'ms', f'x {REFERENCE}', 'MB allocated', 'peak MB', *errors):
        table.add_column(column, justify='left' if column == 'splat' else 'right')
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
    report.tables.append(table)


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
    """Every sample of every batch with a calibration never seen before."""
    views = _arms_of(workload) | dict(auto=workload.view())
    size = workload.image_size
    fresh = {arm: iter(range(1, 10_000)) for arm in views}
    inputs = make_inputs(views[REFERENCE].prepare(workload.pix2bev(0), size), torch.float32)
    batches = [workload.pix2bev(seed) for seed in range(rounds + 8)]

    def prepare(arm: str) -> SplatGeometry:
        # The cache holds one batch: the one before the last is new again.
        return views[arm].prepare(batches[next(fresh[arm]) % len(batches)], size)

    def both(arm: str) -> Any:
        return step(inputs, prepare(arm))

    arms: dict[str, Callable[[], Any]] = {}
    for arm in views:
        arms[f'{arm}, prepare'] = partial(prepare, arm)
        arms[f'{arm}, both'] = partial(both, arm)
    known = workload.view()
    known.prepare(batches[0], size)
    arms['auto, prepare from the cache'] = lambda: known.prepare(batches[0], size)
    timings = interleave(arms, rounds)
    for view in views.values():
        if view.cache.hits:
            raise RuntimeError('a calibration that should have been new came from the cache')
    table = Table(title=f'{name}: every sample with its own calibration', title_justify='left')
    for column in ('splat', 'prepare, ms', 'prepare + splat, ms', f'x {REFERENCE}'):
        table.add_column(column, justify='left' if column == 'splat' else 'right')
    for arm in views:
        total = timings[f'{arm}, both']
        table.add_row(
            arm,
            str(timings[f'{arm}, prepare']),
            str(total),
            f'{ratio(timings[f"{REFERENCE}, both"], total).median:.1f}',
        )
    table.add_row('auto, from the cache', str(timings['auto, prepare from the cache']), '', '')
    report.tables.append(table)
    for arm, timing in timings.items():
        report.arms[f'{name}, own calibrations, {arm}'] = timing.figures()
    if workload.kind == 'mono':
        faster = ratio(timings[f'{REFERENCE}, both'], timings['auto, both']).median
        report.at_least(
            f'{name}, own calibrations: times faster', faster, MIN_SPEEDUP_OWN_CALIBRATION
        )


def _count_waits(report: Report, name: str, workload: Workload) -> None:
    """Operations that would make the host wait for a device, preparation included."""
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
    """What the splat is of a whole training step, so that nobody over-reads its ratio."""
    config, size, batch = QUICK_STEP if quick else FULL_STEP
    steps = {arm: TrainingStep(config, size, batch, arm) for arm in ('auto', REFERENCE)}
    rounds = 3 if quick else 7
    timings = interleave(dict(steps), rounds, warm_up=1)
    alone = interleave({arm: run.splat_only() for arm, run in steps.items()}, rounds)
    table = Table(
        title=f'whole training step: {config}, {batch} x {size[0]}x{size[1]}, float32',
        title_justify='left',
    )
    for column in ('splat', 'step, ms', 'splat alone, ms', 'share'):
        table.add_column(column, justify='left' if column == 'splat' else 'right')
    for arm in steps:
        share = alone[arm].median / timings[arm].median
        table.add_row(arm, str(timings[arm]), str(alone[arm]), f'{share:.1%}')
        report.arms[f'step, {arm}'] = timings[arm].figures() | dict(share=share)
    report.tables.append(table)
    gain = ratio(timings[REFERENCE], timings['auto'])
    low, high = gain.quartiles
    report.notes.append(
        f'whole step, {REFERENCE} against auto: {gain.median:.2f} [{low:.2f}, {high:.2f}], '
        f'n = {rounds}; the share of the splat alone says what it can be at most'
    )
