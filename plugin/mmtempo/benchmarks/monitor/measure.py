"""Measure the cost of the throughput monitor per iteration, against stock and no timer."""

from __future__ import annotations

import contextlib
import copy
import gc
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.runner import Runner

from mmtempo.benchmarks.harness import Report, Timing
from mmtempo.benchmarks.side_effects import measure_side_effects
from mmtempo.doctor.sync_report import count_host_syncs
from mmtempo.system.readings import MachineReadings
from mmtempo.system.sampler import MachineSampler

from .simulation import INTERVAL, STALL, held

# Bars.
MAX_MICROSECONDS = 60.0
MAX_WAITS = 0
MAX_GROWTH = 1.02
# Consecutive iterations of an arm. The first finds the CPU caches filled by another arm, as after
# the forward pass of a large model; it is reported separately.
TURN = 6
# Number of processes, since the addresses of an arm's objects influence its speed, and of rounds in
# each process; a round has one turn of each arm.
SETS = dict(quick=4, full=8)
ROUNDS = dict(quick=150, full=400)
WARM_UP = 20
# Iterations of a simulated training; memory at the second number is compared with the first.
SIMULATED = dict(quick=(30_000, 60_000), full=(100_000, 1_000_000))
TIMERS: dict[str, dict | None] = {
    'no timer': None,
    'stock': dict(type='IterTimerHook'),
    'ours': dict(type='ThroughputMonitorHook'),
}
# The second arm without a timer shows the noise of the measurement.
ARMS = {**TIMERS, 'no timer, again': None}


class _Points(torch.utils.data.Dataset):
    """Data set of small tensors."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=torch.full((8,), index / 64))


class _Small(BaseModel):
    """Model whose step takes little time, so that the hooks are a large share."""

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
            model=dict(type=f'{__name__}._Small'),  # 0.10.7 cannot print a config with classes
            work_dir=folder,
            experiment_name=name,
            train_dataloader=dict(
                batch_size=2,
                num_workers=0,
                dataset=dict(type=f'{__name__}._Points'),
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
    """Training that runs a given number of iterations at a time.

    Args:
        timer: Config of its timer hook; None for no timer.
        folder: Its work dir.
    """

    def __init__(self, timer: dict | None, folder: str) -> None:
        self.runner = runner = Runner.from_cfg(_config(timer, folder))
        # The first lines of `Runner.train`.
        runner._train_loop = runner.build_train_loop(runner._train_loop)
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        runner.optim_wrapper.initialize_count_status(runner.model, 0, 10**9)
        for stage in ('before_run', 'before_train', 'before_train_epoch'):
            runner.call_hook(stage)
        self._loop: Any = runner.train_loop

    def run(self, iterations: int) -> list[float]:
        """Run iterations; return the microseconds of each."""
        taken = []
        for _ in range(iterations):
            start = time.perf_counter_ns()
            self.runner.model.train()
            self._loop.run_iter(next(self._loop.dataloader_iterator))
            taken.append((time.perf_counter_ns() - start) / 1000)
        return taken

    def close(self) -> None:
        """End the training and its workers."""
        for stage in ('after_train_epoch', 'after_train', 'after_run'):
            self.runner.call_hook(stage)
        self._loop.dataloader.close()


def measure_monitor(quick: bool) -> Report:
    """Time trainings with different timers, count synchronizations, and simulate a long run."""
    report, extent = Report('monitor'), 'quick' if quick else 'full'
    _add_cost(report, [_in_a_process(ROUNDS[extent], seed) for seed in range(SETS[extent])])
    counts = {name: _synchronizations(copy.deepcopy(timer)) for name, timer in TIMERS.items()}
    report.arms['waits an iteration'] = counts
    added = counts['ours'] - counts['no timer']
    report.at_most('waits for the device that it adds to an iteration', added, MAX_WAITS)
    _add_memory(report, *SIMULATED[extent])
    measure_side_effects(report, ['nothing', 'monitor'], ['monitor'], quick)
    return report


# Microseconds of each iteration of a turn, by arm.
Round = dict[str, list[float]]


def _in_a_process(rounds: int, seed: int) -> list[Round]:
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context('fork' if 'fork' in methods else 'spawn')
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(take_set, rounds, seed).result()


def take_set(rounds: int, seed: int) -> list[Round]:
    """Run all arms in this process, in turns.

    Args:
        rounds: Number of rounds that count; a round has one turn of each arm.
        seed: Seed of the order in which arms are built, and of their order in each round.
    """
    order, taken, threads = random.Random(seed), [], torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(1)  # a forked process has none of its parent's threads
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-'))
        arms: dict[str, Arm] = {}
        for name in order.sample(list(ARMS), len(ARMS)):
            folder = os.path.join(root, f'{os.path.basename(root)}-{len(arms)}')
            arms[name] = Arm(copy.deepcopy(ARMS[name]), folder)
            stack.callback(arms[name].close)
        for number in range(WARM_UP + rounds):
            if number == WARM_UP:
                gc.collect()
                stack.callback(gc.unfreeze)
                gc.freeze()  # existing objects need not be traversed by each collection
            turns = {name: arms[name].run(TURN) for name in order.sample(list(arms), len(arms))}
            if number >= WARM_UP:
                taken.append(turns)
    return taken


def _synchronizations(timer: dict | None) -> float:
    """Return the synchronizations of an iteration with the device."""
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as folder:
        return count_host_syncs(_config(timer, folder), iterations=20).per_iteration


def _add_cost(report: Report, sets: list[list[Round]]) -> None:
    title = 'an iteration of a training that does next to nothing; us'
    columns = ('timer', 'median', 'it costs', 'with cold caches', 'mean with log lines')
    table = report.add_table(title, columns, left=('timer',))
    found = {name: _values(name, sets) for name in ARMS}
    for name, figures in found.items():
        row, arm = [name], report.arms.setdefault(name, {})
        for what, values in figures.items():
            own = Timing(values)
            cost = Timing([one - none for one, none in zip(values, found['no timer'][what])])
            if what == 'median':
                row.append(own.text(1))
            row.append('' if name == 'no timer' else cost.text(1))
            for key, timing in ((what, own), (f'{what}_cost', cost)):
                arm[key] = dict(
                    microseconds=timing.median, iqr=list(timing.quartiles), n=len(values)
                )
        table.add_row(*row)
    count = len(found['ours']['median'])
    report.notes.append(
        f'Runner with our loop, runtime info, optimizer wrapper and logger, a line every '
        f'{INTERVAL} iterations; {len(sets)} processes with one torch thread, each with all arms '
        f'in turns of {TURN} iterations, {count} rounds in total. median: of the iterations of a '
        'turn. Other columns: difference from "no timer" in the same round, of the median '
        'iteration of a turn, and of its first iteration, whose CPU caches another arm has '
        'filled; medians [quartiles] over the rounds. Last column: of the means over all '
        f'iterations of a process. The machine is read once a second, for {_read_ms():.1f} ms, in '
        'a thread that runs during the turns of all arms.'
    )
    cost = report.arms['ours']['median_cost']['microseconds']
    report.at_most('microseconds an iteration, median', cost, MAX_MICROSECONDS)


def _values(name: str, sets: list[list[Round]]) -> dict[str, list[float]]:
    """Return two figures of an arm for each round, and its mean for each process."""
    turns = [turns[name] for rounds in sets for turns in rounds]
    return dict(
        median=[statistics.median(turn) for turn in turns],
        cold=[turn[0] for turn in turns],
        mean=[statistics.fmean(one for turns in rounds for one in turns[name]) for rounds in sets],
    )


def _read_ms() -> float:
    """Return the milliseconds of a reading of the machine."""
    sampler, took = MachineSampler(1.0, readings=MachineReadings(torch.device('cpu'))), []
    for _ in range(10):
        start = time.perf_counter()
        sampler.sample()
        took.append(1000 * (time.perf_counter() - start))
    return statistics.median(took)


def _add_memory(report: Report, first: int, iterations: int) -> None:
    """Simulate a long training, whose memory must not grow."""
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as folder:
        early, late = held(folder, first, iterations)
    report.arms['simulated'] = dict(
        iterations=[first, iterations],
        bytes=[early.bytes, late.bytes],
        objects=[early.objects, late.objects],
    )
    report.notes.append(
        f'{iterations:,} simulated iterations, a stall every {STALL}, with evidence, windows, '
        f'files and verdicts: {late.bytes:,} bytes, {early.bytes:,} after {first:,}; '
        f'{late.objects:,} objects in the process, {early.objects:,} after {first:,}'
    )
    name = f'held after {iterations:,} simulated iterations, x {first:,}'
    report.at_most(f'bytes {name}', late.bytes / early.bytes, MAX_GROWTH)
    report.at_most(f'objects {name}', late.objects / early.objects, MAX_GROWTH)
