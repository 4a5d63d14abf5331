"""The 24 sick trainings: each has one cause, and measures itself what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.config import Config

from tests.verdicts.trainings import Case, evaluated, in_epochs, training
from tests.verdicts.truth import Truth, around

MONITOR, LOGGER = 50, 60  # priorities of the hooks that make log lines
GPU = 'NVIDIA GeForce RTX 4090'


def caused(name: str = 'cause') -> Any:
    """Return a function for the seconds that the training has counted under a name."""
    return lambda truth: truth.of(name)


def on_a_gpu(summary: dict) -> None:
    """Edit a summary as if the training had run on the device whose readings were made."""
    summary['machine']['accelerator'] = GPU


def with_cause(work: Path, waits: float = 0.015, **cause: Any) -> Config:
    return training(work, model__waits=waits, model__cause=cause)


def network_disk(work: Path) -> Config:
    return training(work, 250, train_dataloader__dataset__waits=0.016)


def few_workers(work: Path) -> Config:
    return training(
        work, 250, train_dataloader__dataset__waits=0.008, train_dataloader__num_workers=1
    )


def no_workers(work: Path) -> Config:
    return training(
        work,
        250,
        train_dataloader__dataset__waits=0.004,
        train_dataloader__num_workers=0,
        train_dataloader__persistent_workers=False,
    )


def cpu_samples(work: Path) -> Config:
    return training(work, 220, model__waits=0.008, train_dataloader__dataset__burns=0.010)


def slow_samples(work: Path) -> Config:
    cfg = training(work, 300, model__waits=0.02, train_dataloader__dataset__count=240)
    cfg.train_dataloader.dataset.update(slow=(8, 17), slow_waits=0.22)
    return cfg


def slow_disk(work: Path) -> Config:
    return training(
        work,
        250,
        train_dataloader__dataset__waits=0.016,
        default_hooks__timer__watch_interval=0.25,
    )


def slow_hook(work: Path) -> Config:
    return training(work, hooks=[dict(type='PeriodicHook', every=30, seconds=0.25)])


def stock_save(work: Path) -> Config:
    cfg = training(work, model__ballast=40)
    cfg.default_hooks.checkpoint.update(type='CheckpointHook', interval=40, max_keep_ckpts=1)
    return cfg


def frequent_save(work: Path) -> Config:
    cfg = training(work, 220, model__ballast=60)
    cfg.default_hooks.checkpoint.update(interval=8, max_keep_ckpts=1)
    return cfg


def evaluation(work: Path) -> Config:
    cfg = training(work, hooks=[*around(1, 'evaluation')], model__waits=0.02)
    return evaluated(cfg, interval=25, count=8, waits=0.005)


def log_lines(work: Path) -> Config:
    return training(
        work,
        400,
        around(MONITOR, 'logging', LOGGER),
        model__waits=0.008,
        default_hooks__logger__interval=1,
    )


def slow_visualizer(work: Path) -> Config:
    cfg = training(work, hooks=around(MONITOR, 'logging', LOGGER))
    cfg.visualizer.vis_backends = [dict(type='SlowVisBackend')]
    return cfg


def garbage(work: Path) -> Config:
    hooks = [dict(type='ManyObjects', count=1_500_000)]
    cause = dict(type='collection', every=25)
    return training(work, hooks=hooks, model__cause=cause)


def busy_machine(work: Path) -> Config:
    hooks = [dict(type='Neighbors', count=4)]
    return training(
        work, 250, hooks, model__waits=0, model__burns=0.015, train_dataloader__num_workers=1
    )


def recompilation(work: Path) -> Config:
    sizes = [8] * 400
    for place, size in enumerate((9, 10, 11, 12, 13, 14), 1):
        sizes[50 * place] = size
    cfg = training(work, model__waits=0.0, model__width=2500)
    cfg.compile = dict(backend='eager', dynamic=False)
    cfg.train_dataloader.batch_size = 1
    cfg.train_dataloader.dataset.sizes = tuple(sizes)
    cfg.train_dataloader.sampler.shuffle = False
    return cfg


def compiling(truth: Truth) -> float:
    """Return the seconds of steps that took over three times the median, beyond the median."""
    steps = sorted(truth.steps[5:])
    usual = steps[len(steps) // 2]
    return sum(step - usual for step in steps if step > 3 * usual)


def shapes(work: Path) -> Config:
    cfg = with_cause(work, type='kernel_search', seconds=0.12)
    cfg.env_cfg = dict(cudnn_benchmark=True)
    sizes = [8] * 400
    for place in range(1, 21):
        sizes[14 * place] = 8 + place
    cfg.train_dataloader.batch_size = 1
    cfg.train_dataloader.dataset.sizes = tuple(sizes)
    cfg.train_dataloader.sampler.shuffle = False
    return cfg


def slow_rank(work: Path) -> Config:
    cfg = with_cause(work, type='slow_rank', rank=1, extra=0.012)
    cfg.train_dataloader.num_workers = 1
    cfg.launcher = 'pytorch'
    return cfg


def tiny_epochs(work: Path) -> Config:
    return in_epochs(work, length=10, epochs=24, train_dataloader__persistent_workers=False)


def often_read(cfg: Config) -> Config:
    """Read the machine more often, as a longer training would have more readings."""
    cfg.default_hooks.timer.watch_interval = 0.1
    return cfg


def memory_pressure(work: Path) -> Config:
    return often_read(with_cause(work, type='delays', every=20, extra=0.15, reading='memory'))


def swap(work: Path) -> Config:
    return often_read(with_cause(work, type='delays', every=20, extra=0.15, reading='swap'))


def device(work: Path, begin: int, until: int, reason: str) -> Config:
    cause = dict(type='throttled_device', begin=begin, until=until, reason=reason, extra=0.012)
    return often_read(with_cause(work, **cause))


SICK = [
    Case('network_disk', 'data: workers', 'each sample waits 16 ms, 2 workers', network_disk,
         Truth.blocked, 'train_dataloader.num_workers'),
    Case('few_workers', 'data: workers', 'each sample waits 8 ms, 1 worker', few_workers,
         Truth.blocked, 'train_dataloader.num_workers'),
    Case('no_workers', 'data: workers', 'each sample waits 4 ms, no workers', no_workers,
         Truth.blocked, 'train_dataloader.num_workers'),
    Case('cpu_samples', 'data: cpu', 'each sample takes 10 ms of CPU, 2 workers', cpu_samples,
         Truth.blocked),
    Case('slow_samples', 'data: samples', 'samples 8 and 17 of 240 take 0.22 s', slow_samples,
         Truth.blocked, 'train_dataloader.prefetch_factor'),
    Case('slow_disk', 'data: disk', 'each sample waits 16 ms; made pressure of I/O', slow_disk,
         Truth.blocked, 'train_dataloader.num_workers', readings='disk'),
    Case('slow_hook', 'hook', 'a custom hook takes 0.25 s each 30th iteration', slow_hook,
         caused('hook')),
    Case('stock_save', 'save', 'CheckpointHook saves 40 MB each 40 iterations', stock_save,
         Truth.saving, 'default_hooks.checkpoint.type'),
    Case('frequent_save', 'save', 'AsyncCheckpointHook saves 60 MB each 8 iterations',
         frequent_save, Truth.saving, 'default_hooks.checkpoint.interval'),
    Case('evaluation', 'evaluation', 'evaluates each 25 iterations', evaluation,
         caused('evaluation val'), 'train_cfg.val_interval'),
    Case('log_lines', 'logging', 'a log line each iteration', log_lines, caused('logging'),
         'default_hooks.logger.interval'),
    Case('slow_visualizer', 'logging', 'a backend takes 15 ms a row', slow_visualizer,
         caused('logging'), 'default_hooks.logger.interval'),
    Case('garbage', 'gc', 'collects 1.5 M objects each 25 iterations', garbage, caused('gc')),
    Case('busy_machine', 'busy machine', 'four other processes compute', busy_machine,
         caused('off CPU')),
    Case('recompilation', 'recompilation', 'compiled for each of 6 new shapes', recompilation,
         compiling, 'compile.dynamic'),
    Case('shapes', 'shapes', '20 input shapes, 0.12 s of kernel search each', shapes, caused(),
         'env_cfg.cudnn_benchmark', edit=on_a_gpu),
    Case('slow_rank', 'rank: step', 'steps of rank 1 take 12 ms longer', slow_rank, caused(),
         ranks=2),
    Case('tiny_epochs', 'epochs', '24 epochs of 10 iterations, workers end with each', tiny_epochs,
         Truth.between_epochs, 'train_dataloader.persistent_workers'),
    Case('pace', 'pace', 'from iteration 150 on, steps take 27 instead of 15 ms',
         lambda work: with_cause(work, type='pace', begin=150, extra=0.012), caused()),
    Case('drift', 'drift', 'each step takes 0.06 ms longer than the previous one',
         lambda work: with_cause(work, type='drift', extra=6e-5), caused()),
    Case('memory_pressure', 'memory', 'made readings: RAM 97 % full, pressure of memory',
         memory_pressure, caused(), readings='memory'),
    Case('swap', 'swap', 'made readings: pages are swapped in', swap, caused(), readings='swap'),
    Case('thermal_limit', 'device throttled', 'made NVML readings: hot from iteration 120 on',
         lambda work: device(work, 120, 10_000, 'temperature'), caused(), readings='device',
         edit=on_a_gpu),
    Case('power_limit', 'device throttled', 'made NVML readings: power limit for 110 iterations',
         lambda work: device(work, 100, 210, 'power limit'), caused(), readings='device',
         edit=on_a_gpu),
]  # fmt: skip
