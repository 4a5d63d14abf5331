"""How long a resumed training waits for its first batch: stock's way and ours."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmengine.runner import Runner
from mmengine.runner.loops import _InfiniteDataloaderIterator
from rich.table import Table

from ..loaders import Place, build_prefetch_dataloader
from .checkpoint import take_rounds
from .harness import Report, Timing, ratio
from .loader_pictures import write_pictures
from .loader_rounds import as_in_training

# The bars of the issue that asked for this benchmark.
PLAIN = 20
MAX_TO_PLAIN = 1.0
MAX_TO_STOCK = 1.0
BAR_AT = '100k'
AT = {'1k': 1_000, '10k': 10_000, '100k': 100_000}
# Before mmengine could skip, all batches up to there were made; more would take minutes.
MADE_AT_MOST = 1_000
BATCH, WORKERS, SEED = 4, 2, 0
# As many samples as nuScenes has.
SAMPLES = 28_130
# Batches after the first one that do not count as plain: workers find their rhythm.
LEAD = 5


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        pictures: How many; samples are these again and again.
        size: Width and height of each.
        at: Of `AT`.
        rounds: That count.
    """

    pictures: int
    size: tuple[int, int]
    at: list[str]
    rounds: int


QUICK = Plan(16, (800, 450), ['1k', '100k'], 5)
FULL = Plan(64, (800, 450), list(AT), 21)


@dataclass(frozen=True)
class Resumed:
    """Seconds after a resume.

    Attributes:
        first: To the first batch.
        plain: For `PLAIN` more, a little later.
    """

    first: float
    plain: float


def stock_can_skip() -> bool:
    """Whether the installed mmengine advances the sampler instead of making batches."""
    return hasattr(_InfiniteDataloaderIterator, 'skip_iter')


def resume_stock(config: dict, iteration: int) -> Resumed:
    """As `IterBasedTrainLoop.run` does it; the loader is there, as it is in a loop."""
    batches = _InfiniteDataloaderIterator(Runner.build_dataloader(config, seed=SEED))

    def advance() -> None:
        if stock_can_skip():
            batches.skip_iter(iteration)
        else:
            for _ in range(iteration):
                next(batches)

    try:
        return _time(advance, partial(next, batches))
    finally:
        batches._iterator = None  # which ends the workers


def resume_ours(config: dict, iteration: int) -> Resumed:
    """As `PrefetchIterBasedTrainLoop.run` does it."""
    loader = build_prefetch_dataloader(config, seed=SEED, endless=True)
    place = Place(0, iteration, iteration * BATCH)
    try:
        return _time(partial(loader.seek, place), loader.take)
    finally:
        loader.close()


ARMS: dict[str, Callable[[dict, int], Resumed]] = dict(stock=resume_stock, ours=resume_ours)


def _time(advance: Callable[[], Any], take: Callable[[], Any]) -> Resumed:
    start = time.perf_counter()
    advance()
    take()
    first = time.perf_counter() - start
    for _ in range(LEAD):
        take()
    start = time.perf_counter()
    for _ in range(PLAIN):
        take()
    return Resumed(first, time.perf_counter() - start)


def is_measured(name: str, iteration: int) -> bool:
    """Whether it takes less than minutes."""
    return name == 'ours' or stock_can_skip() or iteration <= MADE_AT_MOST


def measure_resume(quick: bool) -> Report:
    """Resume with both at all iterations, interleaved."""
    plan = QUICK if quick else FULL
    with as_in_training():
        report = Report('resume')
        with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as root:
            write_pictures(root, plan.pictures, plan.size)
            works: dict[str, Callable[[], Any]] = {
                f'{name} {at}': partial(arm, dataloader_config(root, plan.pictures), AT[at])
                for name, arm in ARMS.items()
                for at in plan.at
                if is_measured(name, AT[at])
            }
            taken = take_rounds(works, 2 + plan.rounds, random.Random(0))[2:]
    _tell(report, plan, taken)
    return report


def dataloader_config(root: str, pictures: int) -> dict:
    """A BEV training's, at the size of the mini configuration."""
    pipeline = [
        dict(type='LoadCameraImage'),
        dict(type='LoadBEVAnnotation'),
        dict(type='BEVResize', scale=(400, 224)),
        dict(type='BEVRandomFlip', prob=0.5),
        dict(type='PackBEVInputs'),
    ]
    dataset = dict(
        type='NuScenesBEVDataset',
        data_root=root,
        data_prefix=dict(img_path='img_dir/jpg', bev_path='ann_bev_dir'),
        pipeline=pipeline,
    )
    return dict(
        dataset=dict(type='RepeatDataset', dataset=dataset, times=-(-SAMPLES // pictures)),
        sampler=dict(type='InfiniteSampler', shuffle=True),
        batch_size=BATCH,
        num_workers=WORKERS,
    )


def _tell(report: Report, plan: Plan, rounds: list[dict[str, Resumed]]) -> None:
    table = Table(title=f'first batch after a resume, {WORKERS} workers; ms')
    for column in ('iteration', 'loader', 'first batch', f'{PLAIN} plain batches', 'ratio'):
        table.add_column(column, justify='left' if column == 'loader' else 'right')
    firsts: dict[str, Timing] = {}
    ratios: dict[str, Timing] = {}
    for at in plan.at:
        for name in ARMS:
            title = f'{name} {at}'
            if title not in rounds[0]:
                table.add_row(at, name, 'not measured: makes all batches up to there', '', '')
                continue
            firsts[title] = Timing([each[title].first for each in rounds])
            plain = Timing([each[title].plain for each in rounds])
            ratios[title] = ratio(firsts[title], plain)
            report.arms[title] = dict(
                first=firsts[title].figures(),
                plain=plain.figures(),
                to_plain=_figures(ratios[title]),
            )
            table.add_row(at, name, str(firsts[title]), str(plain), _show(ratios[title]))
        table.add_section()
    report.tables.append(table)
    report.notes.append(
        f"from the start of the loop's resume to the first batch, with the start of the workers; "
        f'{SAMPLES:,} samples (pictures of {plan.size[0]} x {plan.size[1]} again and again), '
        f'batches of {BATCH}. Plain: of the same loader, when it runs. Medians [quartiles]; '
        'ratios round by round'
    )
    title = f'ours {BAR_AT}'
    report.at_most(
        f'{BAR_AT}: first batch, x {PLAIN} plain ones', ratios[title].median, MAX_TO_PLAIN
    )
    if f'stock {BAR_AT}' in firsts:
        less = ratio(firsts[title], firsts[f'stock {BAR_AT}'])
        report.arms[title]['to_stock'] = _figures(less)
        report.notes.append(f'{BAR_AT}: ours, x stock {_show(less)}')
        report.at_most(f'{BAR_AT}: first batch, x stock', less.median, MAX_TO_STOCK)


def _figures(timing: Timing) -> dict[str, Any]:
    return dict(median=timing.median, iqr=list(timing.quartiles), n=len(timing.seconds))


def _show(timing: Timing) -> str:
    low, high = timing.quartiles
    return f'{timing.median:.2f} [{low:.2f}, {high:.2f}]'
