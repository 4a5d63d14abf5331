"""What the throughput monitor costs an iteration, beside stock's timer and no timer at all."""

from __future__ import annotations

import copy
import gc
import os
import random
import statistics
import tempfile
import time
import tracemalloc
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner
from rich.table import Table

from ..core.tempo_meter import TempoMeter
from ..core.timeline import Timeline
from ..doctor.wait_report import count_waits
from .checkpoint import take_rounds
from .harness import Report, Timing

# The bars of the issue that asked for this benchmark.
MAX_MICROSECONDS = 60.0
MAX_WAITS = 0
MAX_GROWTH = 1.02
# Iterations of a round, with two log lines among them.
ROUND, INTERVAL = 100, 50
# Iterations of a simulated training: memory at the second number against the first.
SIMULATED = dict(quick=(50_000, 100_000), full=(100_000, 1_000_000))
TIMERS: dict[str, dict | None] = {
    'no timer': None,
    'stock': dict(type='IterTimerHook'),
    'ours': dict(type='ThroughputMonitorHook'),
}


@DATASETS.register_module()
class _Points(torch.utils.data.Dataset):
    """A few numbers."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=torch.full((8,), index / 64))


@MODELS.register_module()
class _Small(BaseModel):
    """A step that takes little more than what surrounds it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'tensor') -> Any:
        batch = torch.stack(inputs) if isinstance(inputs, list) else inputs
        return dict(loss=self.layer(batch).square().mean())


def _config(timer: dict | None, folder: str) -> Config:
    name = os.path.basename(folder)
    return Config(
        dict(
            model=dict(type='_Small'),
            work_dir=folder,
            experiment_name=name,
            train_dataloader=dict(
                batch_size=2,
                num_workers=0,
                dataset=dict(type='_Points'),
                sampler=dict(type='InfiniteSampler', shuffle=True),
            ),
            optim_wrapper=dict(type='SparseOptimWrapper', optimizer=dict(type='SGD', lr=1e-3)),
            train_cfg=dict(type='PrefetchIterBasedTrainLoop', max_iters=10**9),
            default_hooks=dict(
                runtime_info=dict(type='SparseRuntimeInfoHook'),
                timer=timer,
                logger=dict(type='SparseLoggerHook', interval=INTERVAL, progress='off'),
                checkpoint=None,
                sampler_seed=dict(type='DistSamplerSeedHook'),
            ),
            log_processor=dict(by_epoch=False),
            visualizer=dict(type='Visualizer', name=name),
            log_level='ERROR',
            custom_imports=dict(imports=['mmtempo'], allow_failed_imports=False),
            default_scope='mmengine',
            launcher='none',
        )
    )


class Arm:
    """A training that goes on by as many iterations as it is asked to.

    Args:
        timer: Its timer hook.
        folder: Its work dir.
    """

    def __init__(self, timer: dict | None, folder: str) -> None:
        self.runner = runner = Runner.from_cfg(_config(timer, folder))
        # As `Runner.train` begins.
        runner._train_loop = runner.build_train_loop(runner._train_loop)
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        runner.optim_wrapper.initialize_count_status(runner.model, 0, 10**9)
        for stage in ('before_run', 'before_train', 'before_train_epoch'):
            runner.call_hook(stage)
        self._loop: Any = runner.train_loop

    def run(self) -> list[float]:
        """Microseconds of each iteration of a round."""
        taken = []
        for _ in range(ROUND):
            start = time.perf_counter_ns()
            self.runner.model.train()
            self._loop.run_iter(next(self._loop.dataloader_iterator))
            taken.append((time.perf_counter_ns() - start) / 1000)
        return taken

    def close(self) -> None:
        for stage in ('after_train_epoch', 'after_train', 'after_run'):
            self.runner.call_hook(stage)
        self._loop.dataloader.close()


def measure_monitor(quick: bool) -> Report:
    """Time trainings that differ in their timer alone; count waits; and simulate a long one."""
    report = Report('monitor')
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as root:
        arms = {}
        for name, timer in TIMERS.items():
            folder = os.path.join(root, f'{os.path.basename(root)}-{name.replace(" ", "-")}')
            arms[name] = Arm(copy.deepcopy(timer), folder)
        works = {name: arm.run for name, arm in arms.items()}
        rounds = take_rounds(works, 3 + (30 if quick else 100), random.Random(0))[3:]
        for arm in arms.values():
            arm.close()
        _tell_cost(report, rounds)
    waits = {name: _waits(copy.deepcopy(timer)) for name, timer in TIMERS.items()}
    report.arms['waits an iteration'] = waits
    added = waits['ours'] - waits['no timer']
    report.at_most('waits for the device that it adds to an iteration', added, MAX_WAITS)
    _simulate(report, *SIMULATED['quick' if quick else 'full'])
    return report


def _waits(timer: dict | None) -> float:
    """For the device, in an iteration."""
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as folder:
        found = count_waits(_config(timer, folder), iterations=20)
    return found.per_iteration


def _tell_cost(report: Report, rounds: list[dict[str, list[float]]]) -> None:
    table = Table(title='an iteration of a training that does next to nothing; us')
    for column in ('timer', 'median', 'it costs', 'mean, log lines included', 'that costs'):
        table.add_column(column, justify='left' if column == 'timer' else 'right')
    for name in TIMERS:
        row = [name]
        figures: dict[str, Any] = {}
        for what, of in (('median', statistics.median), ('mean', statistics.fmean)):
            own = Timing([of(each[name]) for each in rounds])
            cost = Timing([of(each[name]) - of(each['no timer']) for each in rounds])
            row += [_show(own), '' if name == 'no timer' else _show(cost)]
            figures[what] = dict(microseconds=own.median, iqr=list(own.quartiles))
            figures[f'{what}_cost'] = dict(microseconds=cost.median, iqr=list(cost.quartiles))
        report.arms[name] = dict(figures, n=len(rounds))
        table.add_row(*row)
    report.tables.append(table)
    report.notes.append(
        f'a real Runner with our loop, runtime-info, optimizer wrapper and logger, a line every '
        f'{INTERVAL} iterations; {len(rounds)} rounds of {ROUND} iterations, interleaved; medians '
        '[quartiles] over the rounds; a cost is the difference to "no timer" in the same round. '
        'The watch of memory runs in its thread meanwhile, once a second.'
    )
    cost = report.arms['ours']['median_cost']['microseconds']
    report.at_most('microseconds an iteration, median', cost, MAX_MICROSECONDS)


def _simulate(report: Report, first: int, iterations: int) -> None:
    """A long training on a made-up clock: memory must not grow with it."""
    now = 0
    timeline = Timeline('data', clock=lambda: now)
    meter = TempoMeter(timeline)
    phases = [timeline.phase(name) for name in ('data', 'forward', 'backward', 'step', 'hook:X')]
    noise = random.Random(0)
    held: list[int] = []
    tracemalloc.start()
    try:
        for number in range(1, iterations + 1):
            for phase in phases:
                now += int(2e7 * noise.lognormvariate(0, 0.1))
                if not number % 97 and phase == phases[-1]:
                    now += 10**9
                timeline.mark(phase)
            timeline.close(number)
            if not number % 256:
                meter.take()
            if number in (first, iterations):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    report.arms['simulated'] = dict(iterations=[first, iterations], bytes=held)
    report.notes.append(
        f'{iterations:,} simulated iterations, a stall every 97: {held[1]:,} bytes held, '
        f'{held[0]:,} after {first:,}'
    )
    name = f'bytes held after {iterations:,} simulated iterations, x {first:,}'
    report.at_most(name, held[1] / held[0], MAX_GROWTH)


def _show(timing: Timing) -> str:
    low, high = timing.quartiles
    return f'{timing.median:.1f} [{low:.1f}, {high:.1f}]'
