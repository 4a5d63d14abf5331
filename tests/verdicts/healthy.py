"""The 24 healthy trainings of all kinds: there is nothing to change about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.config import Config

from tests.verdicts.trainings import (
    HEALTHY,
    Case,
    evaluated,
    in_epochs,
    training,
    with_stock_parts,
)

# The stock loader passes each tensor through a file descriptor, which takes time for each sample.
ONE = dict(train_dataloader__batch_size=1)


def of(**options: Any) -> Callable[[Path], Config]:
    """Return the function of a training with options, as of `training`."""
    return lambda work: training(work, **options)


def without_workers(work: Path) -> Config:
    return training(
        work, train_dataloader__num_workers=0, train_dataloader__persistent_workers=False
    )


def cached(work: Path) -> Config:
    """Return the config of a training on small files whose decoded content is cached."""
    folder = work / 'numbers'
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(60):
        (folder / f'{number}.bin').write_bytes(bytes([number] * 100))
    cfg = training(work)
    cfg.train_dataloader.dataset = dict(
        type='CachedDataset',
        dataset=dict(
            type='GradedNumbers',
            folder=str(folder),
            count=60,
            pipeline=[dict(type='GradedDecode'), dict(type='GradedPack')],
        ),
    )
    return cfg


def stock_loop(work: Path) -> Config:
    return with_stock_parts(training(work, 250, model__waits=0.025, **ONE))


def stock_epochs(work: Path) -> Config:
    cfg = in_epochs(work, length=40, epochs=6, model__waits=0.025, **ONE)
    cfg.train_dataloader.dataset.count = 40
    return with_stock_parts(cfg)


def accumulation(work: Path) -> Config:
    return training(work, optim_wrapper__accumulative_counts=4)


def updates(work: Path) -> Config:
    cfg = training(work, 250, model__waits=0.008)
    cfg.train_cfg.count = 'updates'
    cfg.optim_wrapper.update(type='SparseOptimWrapper', accumulative_counts=2)
    return cfg


def rare_saves(work: Path) -> Config:
    return training(
        work, 360, model__waits=0.02, model__ballast=2, default_hooks__checkpoint__interval=120
    )


def one_late_batch(work: Path) -> Config:
    cfg = training(work, 360, model__waits=0.02)
    cfg.train_dataloader.dataset.update(slow=(200,), slow_waits=0.25, once=f'{work}/late')
    return cfg


def two_shapes(work: Path) -> Config:
    cfg = training(work)
    cfg.train_dataloader.batch_size = 1
    cfg.train_dataloader.dataset.sizes = (8, 16)
    return cfg


def two_ranks(work: Path) -> Config:
    return training(work, train_dataloader__num_workers=1, launcher='pytorch')


def cases() -> list[Case]:
    """Return the cases."""
    described: list[tuple[str, str, Callable[[Path], Config], dict[str, Any]]] = [
        ('tiny', 'steps of 5 ms',
         of(iterations=800, model__waits=0.005, default_hooks__logger__interval=50), {}),
        ('large', 'steps that compute a large layer',
         of(iterations=220, model__waits=0.0, model__width=3000), {}),
        ('cpu_bound', 'steps of 15 ms of CPU',
         of(model__waits=0.0, model__burns=0.015, train_dataloader__num_workers=1), {}),
        ('waiting_steps', 'steps that wait 20 ms', of(model__waits=0.02), {}),
        ('noisy_steps', 'steps whose work varies by 15 %',
         of(model__waits=0.0, model__cause=dict(type='noise', seconds=0.02, spread=0.15)), {}),
        ('without_workers', 'no workers, cheap samples', without_workers, {}),
        ('four_workers', 'four workers', of(train_dataloader__num_workers=4), {}),
        ('waiting_samples', 'samples wait 4 ms, which 2 workers cover',
         of(model__waits=0.02, train_dataloader__dataset__waits=0.004), {}),
        ('cached', 'CachedDataset with all samples cached', cached, {}),
        ('epochs', '7 epochs of 40 iterations',
         lambda work: in_epochs(work, length=40, epochs=7), {}),
        ('stock_epochs', "epochs with mmengine's loop, loader and hooks", stock_epochs, {}),
        ('stock_loop', "mmengine's loop, loader and hooks", stock_loop, {}),
        ('resumed', 'resumed at iteration 120', of(iterations=360),
         dict(first={'train_cfg.max_iters': 120, 'default_hooks.checkpoint.save_last': True})),
        ('interrupted', 'Ctrl-C at iteration 260',
         of(iterations=400, hooks=[dict(type='InterruptAt', iteration=260)]), {}),
        ('accumulation', 'updates each 4 iterations', accumulation, {}),
        ('updates', 'iterations of two batches', updates, {}),
        ('gc_frozen', 'garbage collections exclude what was built before',
         of(hooks=[dict(type='FreezeGarbage')]), {}),
        ('cheap_evaluation', 'two short evaluations',
         lambda work: evaluated(training(work), interval=140, count=4, waits=0.002), {}),
        ('few_log_lines', 'a log line each 100 iterations',
         of(default_hooks__logger__interval=100), {}),
        ('rare_saves', 'three saves of 2 MB', rare_saves, {}),
        ('one_late_batch', 'one batch of 360 is 0.2 s late', one_late_batch, {}),
        ('two_shapes', 'two input shapes of equal cost', two_shapes, {}),
        ('fresh_pages', 'steps touch 16 MiB of new memory, minor page faults only',
         of(model__cause=dict(type='fresh_pages', megabytes=16)), {}),
        ('two_ranks', 'two processes', two_ranks, dict(ranks=2)),
    ]  # fmt: skip
    return [
        Case(name, HEALTHY, about, config, **options) for name, about, config, options in described
    ]


ALL = cases()
