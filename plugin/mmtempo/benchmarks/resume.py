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

from mmtempo.benchmarks.checkpoint.measure import take_rounds
from mmtempo.benchmarks.loader.pictures import write_pictures
from mmtempo.benchmarks.loader.rounds import as_in_training
from mmtempo.loaders import StreamPosition, build_prefetch_dataloader, stack_collate

from .harness import Report, Timing, ratio
from .side_effects import measure_side_effects

# The bars of the issue that asked for this benchmark.
PLAIN = 20
MAX_TO_PLAIN = 1.0
MAX_TO_STOCK = 1.0
BAR_AT = '100k'
AT = {'1k': 1_000, '10k': 10_000, '100k': 100_000}
# Before mmengine could skip, all batches up to there were made; more would take minutes.
MADE_AT_MOST = {'mini': 1_000, 'nuScenes': 0}
MADE_ROUNDS = 2
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
        at: Of `AT`.
        rounds: That count.
    """

    pictures: int
    at: list[str]
    rounds: int


# Width and height of the pictures, and of what is made of them: as in the configurations.
WORKLOADS = {'mini': ((800, 450), (400, 224)), 'nuScenes': ((1600, 900), (800, 600))}
QUICK = Plan(16, ['1k', '100k'], 5)
FULL = Plan(64, list(AT), 15)


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
    cfg = {**config, 'collate_fn': stack_collate}  # as for mmseg's models
    loader = build_prefetch_dataloader(cfg, seed=SEED, endless=True)
    loader.start_early()  # as the loop's constructor does, and that of mmengine 0.10
    place = StreamPosition(0, iteration, iteration * BATCH)
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


def is_measured(workload: str, name: str, iteration: int) -> bool:
    """Whether it takes less than minutes."""
    return name == 'ours' or stock_can_skip() or iteration <= MADE_AT_MOST[workload]


def measure_resume(quick: bool) -> Report:
    """Resume with both at all iterations, interleaved."""
    plan = QUICK if quick else FULL
    with as_in_training():
        report = Report('resume')
        for workload in WORKLOADS:
            with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as root:
                write_pictures(root, plan.pictures, WORKLOADS[workload][0])
                _tell(report, plan, workload, _measure(plan, workload, root))
    measure_side_effects(report, ['nothing', 'resume'], ['resume'], quick)
    report.notes.append(
        "from the start of the loop's resume to the first batch; loops have been built, in which "
        'ours and that of mmengine 0.10 start their workers, and that of onedl-mmengine does not; '
        f'{SAMPLES:,} samples ({plan.pictures} pictures again and again), batches of {BATCH}. '
        'Plain: of the same loader, when it runs. Medians [quartiles]; ratios round by round'
    )
    return report


def _measure(plan: Plan, workload: str, root: str) -> dict[str, list[Resumed]]:
    config = dataloader_config(root, plan.pictures, WORKLOADS[workload][1])
    works: dict[str, Callable[[], Any]] = {
        f'{name} {at}': partial(arm, config, AT[at])
        for name, arm in ARMS.items()
        for at in plan.at
        if is_measured(workload, name, AT[at])
    }
    slow = {} if stock_can_skip() else {n: works.pop(n) for n in [*works] if 'stock' in n}
    order = random.Random(0)
    found = by_name(take_rounds(works, 2 + plan.rounds, order)[2:])
    return found | by_name(take_rounds(slow, MADE_ROUNDS, order))


def by_name(rounds: list[dict[str, Resumed]]) -> dict[str, list[Resumed]]:
    """What each arm took, round by round."""
    return {name: [each[name] for each in rounds] for name in rounds[0]} if rounds else {}


def dataloader_config(root: str, pictures: int, scale: tuple[int, int]) -> dict:
    """A BEV training's."""
    pipeline = [
        dict(type='LoadCameraImage'),
        dict(type='LoadBEVAnnotation'),
        dict(type='BEVResize', scale=scale),
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


def _tell(report: Report, plan: Plan, workload: str, found: dict[str, list[Resumed]]) -> None:
    width, height = WORKLOADS[workload][0]
    table = Table(title=f'{workload}, {width} x {height}: after a resume, {WORKERS} workers; ms')
    for column in ('iteration', 'loader', 'first batch', f'{PLAIN} plain batches', 'ratio'):
        table.add_column(column, justify='left' if column == 'loader' else 'right')
    firsts = {name: Timing([each.first for each in rounds]) for name, rounds in found.items()}
    ratios: dict[str, Timing] = {}
    for at in plan.at:
        for name in ARMS:
            title = f'{name} {at}'
            if title not in found:
                table.add_row(at, name, 'not measured: makes all batches up to there', '', '')
                continue
            plain = Timing([each.plain for each in found[title]])
            ratios[title] = ratio(firsts[title], plain)
            report.arms[f'{workload}, {title}'] = dict(
                first=firsts[title].figures(),
                plain=plain.figures(),
                to_plain=_figures(ratios[title]),
            )
            table.add_row(at, name, str(firsts[title]), str(plain), _show(ratios[title]))
        table.add_section()
    report.tables.append(table)
    ours, stock, bar = f'ours {BAR_AT}', f'stock {BAR_AT}', f'{workload}, {BAR_AT}: first batch'
    report.at_most(f'{bar}, x {PLAIN} plain ones', ratios[ours].median, MAX_TO_PLAIN)
    if stock in firsts:
        less = ratio(firsts[ours], firsts[stock])
        report.arms[f'{workload}, {ours}']['to_stock'] = _figures(less)
        report.notes.append(f'{bar}, x stock {_show(less)}')
        report.at_most(f'{bar}, x stock', less.median, MAX_TO_STOCK)


def _figures(timing: Timing) -> dict[str, Any]:
    return dict(median=timing.median, iqr=list(timing.quartiles), n=len(timing.seconds))


def _show(timing: Timing) -> str:
    low, high = timing.quartiles
    return f'{timing.median:.2f} [{low:.2f}, {high:.2f}]'
