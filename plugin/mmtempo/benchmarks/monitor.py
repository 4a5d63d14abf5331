"""What the throughput monitor costs an iteration, beside stock's timer and no timer at all."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner
from rich.table import Table

from ..doctor.wait_report import count_waits
from .checkpoint import take_rounds
from .harness import Report, Timing
from .monitor_simulation import INTERVAL, STALL, held

# The bars of the issue that asked for this benchmark.
MAX_MICROSECONDS = 60.0
MAX_WAITS = 0
MAX_GROWTH = 1.02
# Iterations of a round, with two log lines among them.
ROUND = 100
# Processes begun anew, and rounds with each. Where a process lies in memory makes up more than all
# that is measured, so that many sets tell more than many rounds of one.
SETS = dict(quick=8, full=24)
ROUNDS = dict(quick=4, full=4)
WARM_UP = 2
# Iterations of a simulated training: memory at the second number against the first.
SIMULATED = dict(quick=(30_000, 60_000), full=(100_000, 1_000_000))
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


class Apart:
    """An arm in a process of its own: what watches in one does not slow the others down.

    Processes are forked where that is possible, so that they lie in memory alike.

    Args:
        timer: Its timer hook.
        folder: Its work dir.
    """

    def __init__(self, timer: dict | None, folder: str) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context('fork' if 'fork' in methods else 'spawn')
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=serve, args=(there, timer, folder), daemon=True)
        self._process.start()
        there.close()
        self._answer()

    def run(self) -> list[float]:
        """Microseconds of each iteration of a round."""
        self._pipe.send(True)
        return self._answer()

    def close(self) -> None:
        self._pipe.send(False)
        self._process.join()

    def _answer(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(
                f'an arm ended with exit code {self._process.exitcode}; see above'
            ) from None


def serve(pipe: Connection, timer: dict | None, folder: str) -> None:
    """What an arm's process does: a round whenever it is asked."""
    torch.set_num_threads(1)  # those of whoever has forked it are not here
    arm = Arm(timer, folder)
    gc.collect()
    gc.freeze()  # what is there already need not be looked through again and again
    pipe.send('ready')
    while pipe.recv():
        gc.collect()  # collections of the round itself belong to it
        pipe.send(arm.run())
    arm.close()


def measure_monitor(quick: bool) -> Report:
    """Time trainings that differ in their timer alone; count waits; and simulate a long one."""
    report, extent = Report('monitor'), 'quick' if quick else 'full'
    order, rounds = random.Random(0), []
    for _ in range(SETS[extent]):
        rounds += _take_set(ROUNDS[extent], order)
    _tell_cost(report, rounds, SETS[extent])
    waits = {name: _waits(copy.deepcopy(timer)) for name, timer in TIMERS.items()}
    report.arms['waits an iteration'] = waits
    added = waits['ours'] - waits['no timer']
    report.at_most('waits for the device that it adds to an iteration', added, MAX_WAITS)
    _tell_memory(report, *SIMULATED[extent])
    return report


def _take_set(count: int, order: random.Random) -> list[dict[str, list[float]]]:
    """Rounds of arms that are begun for them."""
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as root:
        arms = {}
        for name, timer in TIMERS.items():
            folder = os.path.join(root, f'{os.path.basename(root)}-{name.replace(" ", "-")}')
            arms[name] = Apart(copy.deepcopy(timer), folder)
        works = {name: arm.run for name, arm in arms.items()}
        rounds = take_rounds(works, WARM_UP + count, order)[WARM_UP:]
        for arm in arms.values():
            arm.close()
    return rounds


def _waits(timer: dict | None) -> float:
    """For the device, in an iteration."""
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as folder:
        found = count_waits(_config(timer, folder), iterations=20)
    return found.per_iteration


def _tell_cost(report: Report, rounds: list[dict[str, list[float]]], sets: int) -> None:
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
        f'{INTERVAL} iterations; {len(rounds)} rounds of {ROUND} iterations, interleaved, each arm '
        f'in a process of its own with one torch thread, {sets} times begun anew; medians '
        '[quartiles] over the rounds; a cost is the difference to "no timer" in the same round. '
        'The watch of memory runs in its thread meanwhile, once a second.'
    )
    cost = report.arms['ours']['median_cost']['microseconds']
    report.at_most('microseconds an iteration, median', cost, MAX_MICROSECONDS)


def _tell_memory(report: Report, first: int, iterations: int) -> None:
    """A long training on a made-up clock: memory must not grow with it."""
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as folder:
        early, late = held(folder, first, iterations)
    report.arms['simulated'] = dict(
        iterations=[first, iterations],
        bytes=[early.bytes, late.bytes],
        objects=[early.objects, late.objects],
    )
    report.notes.append(
        f'{iterations:,} simulated iterations, a stall every {STALL}, with evidence, windows, '
        f'files and verdicts: {late.bytes:,} bytes held, {early.bytes:,} after {first:,}; '
        f'{late.objects:,} objects in the process, {early.objects:,} after {first:,}'
    )
    name = f'held after {iterations:,} simulated iterations, x {first:,}'
    report.at_most(f'bytes {name}', late.bytes / early.bytes, MAX_GROWTH)
    report.at_most(f'objects {name}', late.objects / early.objects, MAX_GROWTH)


def _show(timing: Timing) -> str:
    low, high = timing.quartiles
    return f'{timing.median:.1f} [{low:.1f}, {high:.1f}]'
