"""Measure how long a resumed training waits for its first batch, stock against ours."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmengine.runner import Runner
from mmengine.runner.loops import _InfiniteDataloaderIterator

from mmtempo.benchmarks.loader.pictures import bev_dataset, write_pictures
from mmtempo.benchmarks.loader.rounds import as_in_training
from mmtempo.loaders import StreamPosition, build_prefetch_dataloader, stack_collate

from .harness import Report, Timing, ratio, take_rounds
from .side_effects import measure_side_effects

# Bars, and the number of plain batches that they compare with.
PLAIN = 20
MAX_TO_PLAIN = 1.0
MAX_TO_STOCK = 1.0
BAR_AT = '100k'
AT = {'1k': 1_000, '10k': 10_000, '100k': 100_000}
# Older mmengine loads all batches before the iteration; more of them would take minutes.
MADE_AT_MOST = {'mini': 1_000, 'nuScenes': 0}
MADE_ROUNDS = 2
BATCH, WORKERS, SEED = 4, 2, 0
# Samples of nuScenes.
SAMPLES = 28_130
# Batches after the first that do not count as plain, until the workers run steadily.
LEAD = 5


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement.

    Attributes:
        pictures: Number of images; the samples repeat them.
        at: Keys of `AT`.
        rounds: Number of rounds that count.
    """

    pictures: int
    at: list[str]
    rounds: int


# Width and height of the images and of the resized images, as in the configs.
WORKLOADS = {'mini': ((800, 450), (400, 224)), 'nuScenes': ((1600, 900), (800, 600))}
QUICK = Plan(16, ['1k', '100k'], 5)
FULL = Plan(64, list(AT), 15)


@dataclass(frozen=True)
class Resumed:
    """Times of one resume.

    Attributes:
        first: Seconds until the first batch.
        plain: Seconds of `PLAIN` later batches, after `LEAD` others.
    """

    first: float
    plain: float


def stock_can_skip() -> bool:
    """Return whether the installed mmengine advances the sampler instead of loading batches."""
    return hasattr(_InfiniteDataloaderIterator, 'skip_iter')


def resume_stock(config: dict, iteration: int) -> Resumed:
    """Resume as `IterBasedTrainLoop.run` does, whose loader has been built before."""
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
        batches._iterator = None  # ends the workers


def resume_ours(config: dict, iteration: int) -> Resumed:
    """Resume as `PrefetchIterBasedTrainLoop.run` does."""
    cfg = {**config, 'collate_fn': stack_collate}  # as for models of mmseg
    loader = build_prefetch_dataloader(cfg, seed=SEED, endless=True)
    loader.start_early()  # as the constructors of our loop and of mmengine 0.10's do
    position = StreamPosition(0, iteration, iteration * BATCH)
    try:
        return _time(partial(loader.seek, position), loader.take)
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
    """Return whether an arm can be measured at an iteration within seconds."""
    return name == 'ours' or stock_can_skip() or iteration <= MADE_AT_MOST[workload]


def measure_resume(quick: bool) -> Report:
    """Time resumes of both arms at all iterations, interleaved."""
    plan = QUICK if quick else FULL
    with as_in_training():
        report = Report('resume')
        for workload in WORKLOADS:
            with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as root:
                write_pictures(root, plan.pictures, WORKLOADS[workload][0])
                _tell(report, plan, workload, _measure(plan, workload, root))
    measure_side_effects(report, ['nothing', 'resume'], ['resume'], quick)
    report.notes.append(
        "first batch: from the start of the loop's resume to the first batch, without building "
        'the loop (our loop and that of mmengine 0.10 start their workers when they are built, '
        f'that of onedl-mmengine does not). {SAMPLES:,} samples (repeats of {plan.pictures} '
        f'images), batches of {BATCH}. plain: batches of the same loader while it runs. '
        'Medians [quartiles]; ratios of each round'
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
    return take_rounds(works, plan.rounds, warm_up=2) | take_rounds(slow, MADE_ROUNDS)


def dataloader_config(root: str, pictures: int, scale: tuple[int, int]) -> dict:
    """Return the dataloader config of a BEV training.

    Args:
        root: Folder that `write_pictures` has filled.
        pictures: Number of images in it.
        scale: Width and height of the resized images.
    """
    dataset, times = bev_dataset(root, scale), -(-SAMPLES // pictures)
    return dict(
        dataset=dict(type='RepeatDataset', dataset=dataset, times=times),
        sampler=dict(type='InfiniteSampler', shuffle=True),
        batch_size=BATCH,
        num_workers=WORKERS,
    )


def _tell(report: Report, plan: Plan, workload: str, found: dict[str, list[Resumed]]) -> None:
    width, height = WORKLOADS[workload][0]
    title = f'{workload}, {width} x {height}: after a resume, {WORKERS} workers; ms'
    columns = ('iteration', 'loader', 'first batch', f'{PLAIN} plain batches', 'ratio')
    table = report.add_table(title, columns, left=('loader',))
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
                to_plain=ratios[title].plain_figures(),
            )
            table.add_row(at, name, str(firsts[title]), str(plain), ratios[title].text(2))
        table.add_section()
    ours, stock, bar = f'ours {BAR_AT}', f'stock {BAR_AT}', f'{workload}, {BAR_AT}: first batch'
    report.at_most(f'{bar}, x {PLAIN} plain ones', ratios[ours].median, MAX_TO_PLAIN)
    if stock in firsts:
        less = ratio(firsts[ours], firsts[stock])
        report.arms[f'{workload}, {ours}']['to_stock'] = less.plain_figures()
        report.notes.append(f'{bar}, x stock {less.text(2)}')
        report.at_most(f'{bar}, x stock', less.median, MAX_TO_STOCK)
