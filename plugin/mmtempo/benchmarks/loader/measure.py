"""Measure the cost of a sample: the stock loader, and ours cold and warm."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from mmtempo.benchmarks.harness import Report, Timing, ratio, take_rounds
from mmtempo.benchmarks.side_effects import measure_side_effects

from .arms import ARMS, BATCH, FILLING, ROUNDED, STOCK, UNCACHED, WARM, Source
from .batches import bev_batches, weigh
from .memory import measure_memory
from .pictures import SIZE, SUFFIXES, write_pictures
from .pk_sampler import measure_pk_sampler
from .rounds import MOST_LEVELS, Window, as_in_training, check_same_pixels, run_round, time_start

# Bars.
MIN_WARM = {('jpg', WARM): 5.0, ('png', ROUNDED): 10.0}
MAX_COLD_CPU = 1 / 1.3
MAX_BEV_BYTES = 1 / 3
MAX_BEV_SEGMENTS = 4


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement.

    Attributes:
        pictures: Number of images, which is an epoch.
        workers: Numbers of workers.
        rounds: Number of rounds that count.
        lead: Number of batches at the start of each round that do not count.
        count: Numbers of batches that count: without, and with a warm cache.
        memory: Numbers of workers whose memory is compared.
        budget: Bytes of the cache when memory is measured. Defaults to 2_000_000_000.
    """

    pictures: int
    workers: list[int]
    rounds: int
    lead: int
    count: tuple[int, int]
    memory: list[int]
    budget: int = 2_000_000_000

    def count_of(self, name: str) -> int:
        """Return the number of batches of an arm that count."""
        return self.count[ARMS[name].cache == 'all']


# Lead, count and prefetched batches stay within one epoch: the next would find a full cache.
QUICK = Plan(40, [2], 3, 2, (6, 24), [1, 8])
FULL = Plan(96, [0, 1, 2], 7, 6, (14, 60), [1, 2, 4, 8])


def measure_loader(quick: bool) -> Report:
    """Time all arms; measure the size of batches, memory, and P x K batches."""
    plan = QUICK if quick else FULL
    with as_in_training():
        report = Report('loader')
        with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as root:
            write_pictures(root, plan.pictures)
            for suffix in SUFFIXES:
                check_same_pixels(root, suffix, BATCH)
            _measure_speed(report, plan, root)
            _measure_starts(report, plan, root)
            _measure_batches(report, root)
        measure_memory(report, plan.budget, plan.memory)
        measure_pk_sampler(report, quick)
    measure_side_effects(report, ['nothing', 'loader'], ['loader'], quick)
    return report


def _measure_speed(report: Report, plan: Plan, root: str) -> None:
    works: dict[str, Callable[[], Any]] = {}
    for suffix in SUFFIXES:
        for name, arm in ARMS.items():
            source = Source(arm, root, suffix)
            for workers in plan.workers:
                run = partial(run_round, source, workers, plan.lead, plan.count_of(name))
                works[_title(suffix, workers, name)] = run
    taken = take_rounds(works, plan.rounds, warm_up=1)
    for suffix in SUFFIXES:
        _add_speed(report, plan, suffix, taken)
    report.notes.append(
        f'BaseSegDataset, the same {SIZE[0]} x {SIZE[1]} images and maps for all arms: '
        f'resized to 800 x 600, cropped to 512 x 512 (cat_max_ratio 0.75), flipped, distorted, '
        f'packed, in batches of {BATCH}; two prefetched batches per worker; one thread for OpenCV '
        'and torch in each process. Stock: Runner.build_dataloader, mmseg transforms. Before the '
        'measurement, our pixels and labels were verified to equal those of stock with the same '
        'random numbers. '
        f'"{FILLING}": the first epoch with an empty cache; "{WARM}": a later one; "{ROUNDED}": '
        'FastPhotoMetricDistortion(exact=False), which rounds once less where both saturation and '
        f'hue change, verified to be within {MOST_LEVELS} levels of stock; "{UNCACHED}": '
        'ResizeRandomCrop instead. CPU: of this process and its workers, while batches are taken. '
        'Medians [quartiles] of the rounds; x stock: of the ratios of each round.'
    )
    if taken[_title('jpg', plan.workers[0], STOCK)][0].cpu is None:
        report.notes.append('CPU of workers: not measured here, it needs Linux')
    decoder = 'pyspng' if find_spec('pyspng') else 'OpenCV'
    report.notes.append(
        f'png: ours uses zlib-ng and {decoder}, stock OpenCV (images) and Pillow (maps)'
    )


def _title(suffix: str, workers: int, name: str) -> str:
    return f'{suffix}, {workers} worker{"s" * (workers != 1)}, {name}'


def _add_speed(report: Report, plan: Plan, suffix: str, taken: dict[str, list[Window]]) -> None:
    columns = ('workers', 'loader', 'samples/s', 'x stock', 'CPU ms a sample', 'x stock ')
    table = report.add_table(f'{suffix}: from files to batches', columns, left=('loader',))
    for workers in plan.workers:
        stock = _timings(taken[_title(suffix, workers, STOCK)])
        for name in ARMS:
            title = _title(suffix, workers, name)
            seconds, cpu = _timings(taken[title])
            faster = ratio(stock[0], seconds)
            rates = Timing([1 / each for each in seconds.seconds])
            figures: dict[str, Any] = dict(
                samples_per_second=rates.plain_figures(), speed_to_stock=faster.plain_figures()
            )
            row = [str(workers) * (name == STOCK), name, rates.text(0), faster.text(2)]
            if cpu is not None and stock[1] is not None:
                less = ratio(cpu, stock[1])
                figures.update(cpu=cpu.figures(), cpu_to_stock=less.plain_figures())
                row += [str(cpu), less.text(3)]
                if name in (FILLING, UNCACHED):
                    report.at_most(f'{title}: CPU a sample, x stock', less.median, MAX_COLD_CPU)
            if (suffix, name) in MIN_WARM:
                bar = MIN_WARM[suffix, name]
                report.at_least(f'{title}: samples/s, x stock', faster.median, bar)
            report.arms[title] = figures
            table.add_row(*row)
        table.add_section()


def _timings(windows: list[Window]) -> tuple[Timing, Timing | None]:
    """Return elapsed seconds and CPU seconds of a sample in the order of the rounds."""
    used = [window.cpu for window in windows if window.cpu is not None]
    cpu = Timing(used) if len(used) == len(windows) else None
    return Timing([window.seconds for window in windows]), cpu


def _measure_starts(report: Report, plan: Plan, root: str) -> None:
    workers = plan.workers[-1]
    works: dict[str, Callable[[], Any]] = {
        name: partial(time_start, Source(ARMS[name], root, 'jpg'), workers)
        for name in (STOCK, FILLING, UNCACHED)
    }
    title = f'from configuration to first batch, {workers} workers, jpg'
    table = report.add_table(title, ('loader', 'ms'), left=('loader',))
    for name, seconds in take_rounds(works, plan.rounds, warm_up=1).items():
        timing = Timing(seconds)
        report.arms[f'start-up, {name}'] = timing.figures()
        table.add_row(name, str(timing))


def _measure_batches(report: Report, root: str) -> None:
    parcels = {name: weigh(batch) for name, batch in bev_batches(root, BATCH).items()}
    title = f'a BEV batch of {BATCH} from worker to training'
    columns = ('packed and collated', 'bytes', 'of it pickled', 'segments', 'x stock')
    table = report.add_table(title, columns, left=columns[:1])
    stock, ours = parcels['stock, int64 planes'], parcels['ours']
    for name, parcel in parcels.items():
        share = parcel.bytes / stock.bytes
        report.arms[f'BEV batch, {name}'] = dict(
            bytes=parcel.bytes, pickled=parcel.pickled, segments=parcel.segments, to_stock=share
        )
        values = f'{parcel.bytes:,}', f'{parcel.pickled:,}', str(parcel.segments), f'{share:.3f}'
        table.add_row(name, *values)
    report.notes.append(
        'BEV batch: images of 800 x 600 as bytes, labels of 196 x 200 cells. "stock, int64 '
        'planes": pseudo_collate and PackSegInputs of mmseg, which stores the label as 15 planes '
        '(14 classes and ignore) of 8 bytes a cell. "stock, our packed label": pseudo_collate with '
        'our 2 bytes a cell. The images have the same bytes in all'
    )
    report.at_most('BEV batch: bytes, x stock', ours.bytes / stock.bytes, MAX_BEV_BYTES)
    report.at_most('BEV batch: segments', ours.segments, MAX_BEV_SEGMENTS)
