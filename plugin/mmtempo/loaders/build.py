"""From a stock dataloader dict to a loader that prefetches."""

from __future__ import annotations

import copy
import difflib
import functools
import logging
import multiprocessing
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from mmengine.dataset import InfiniteSampler, pseudo_collate
from mmengine.dist import get_dist_info, sync_random_seed
from mmengine.logging import print_log
from mmengine.registry import DATA_SAMPLERS, DATASETS, FUNCTIONS
from mmengine.structures import BaseDataElement
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    SequentialSampler,
    default_collate,
)

from mmtempo.datasets.samplers.resumable_infinite_sampler import ResumableInfiniteSampler
from mmtempo.device.streams import current_device_index
from mmtempo.loaders.collate.stack_collate import stack_collate
from mmtempo.loaders.collate.stacked_inputs import takes_stacked_inputs
from mmtempo.system.limits import Limits
from mmtempo.utils.rng import seeded

from .planner import check_sample_bytes, count_segments, plan_loader
from .prefetch_dataloader import PrefetchDataLoader
from .shared_metadata import share_metadata
from .shared_slabs import SlabPool
from .worker import WorkerStart

TIMEOUT = 600.0
_alive: weakref.WeakSet[PrefetchDataLoader] = weakref.WeakSet()
PLANNED = ('num_workers', 'prefetch_factor', 'pin_memory', 'persistent_workers')
KEYS = (
    *('dataset', 'sampler', 'batch_sampler', 'batch_size', 'drop_last', 'num_batch_per_epoch'),
    *('collate_fn', 'worker_init_fn', 'disable_subprocess_warning', 'timeout'),
    *('multiprocessing_context', *PLANNED),
)


def build_prefetch_dataloader(
    cfg: dict,
    seed: int | None = None,
    diff_rank_seed: bool = False,
    endless: bool = False,
    name: str = 'dataloader',
    model: Any = None,
) -> PrefetchDataLoader:
    """Build what a stock dataloader dict describes; what it leaves open is chosen, and said.

    ======================  ==========================================================
    key                     where it is not given
    ======================  ==========================================================
    num_workers             'auto': by usable CPUs, processes on this node, and memory
    prefetch_factor         2, less where shared memory is small
    pin_memory              True with an accelerator
    persistent_workers      True with workers
    collate_fn              `stack_collate` where `model` is known to take stacked inputs and
                            there are data samples, else stock's `pseudo_collate`
    timeout                 600 seconds without a batch are an error
    ======================  ==========================================================

    `InfiniteSampler` becomes `ResumableInfiniteSampler`; any other sampler stays.

    Args:
        cfg: As for `Runner.build_dataloader`.
        seed: Of order and transforms. Defaults to None: drawn, the same for all processes.
        diff_rank_seed: Whether each process has a seed of its own, so that the order needs
            another one. Defaults to False.
        endless: Whether epoch follows on epoch, as in training. Defaults to False.
        name: The config's key, for messages. Defaults to 'dataloader'.
        model: The model that takes the batches, for the default of `collate_fn`. Defaults to None:
            unknown, so that batches are lists.
    """
    _check_keys(cfg, name)
    # What is built already is used as it is.
    cfg = {k: copy.deepcopy(v) if isinstance(v, dict) else v for k, v in cfg.items()}
    rank, processes = get_dist_info()
    dataset = _build_dataset(cfg, name, processes)
    sampler = _build_sampler(cfg, dataset, None if diff_rank_seed else seed)
    batch_sampler = _build_batch_sampler(cfg, sampler, name)
    if diff_rank_seed or seed is None:
        seed = getattr(sampler, 'seed', None)
        seed = sync_random_seed() if seed is None else seed
    only_first_warns = cfg.pop('disable_subprocess_warning', False)
    start = WorkerStart(
        _function(cfg.pop('worker_init_fn', None), f'{name}.worker_init_fn'), only_first_warns
    )
    default = stack_data_samples if takes_stacked_inputs(model) else pseudo_collate
    collate_fn = _function(cfg.pop('collate_fn', default), f'{name}.collate_fn')
    context = cfg.pop('multiprocessing_context', None)
    batch_size = getattr(batch_sampler, 'batch_size', None) or 1
    if hasattr(sampler, 'check_batch_size'):
        sampler.check_batch_size(batch_size)
    method = context or multiprocessing.get_start_method()
    if not isinstance(method, str):
        method = method.get_start_method()
    sample = _first_sample(dataset, seed) if cfg.get('num_workers', 'auto') else None
    sample_bytes = None if sample is None else check_sample_bytes(sample)
    limits, segments = _limits_left(), 1
    if sample_bytes and SlabPool.work_here():
        limits = replace(limits, shared_memory=None)  # slabs lie elsewhere
    else:
        segments = _segments(collate_fn, sample, batch_size)
    plan = plan_loader(
        cfg,
        sample_bytes=sample_bytes,
        batch_size=batch_size,
        name=name,
        start_method=method,
        has_accelerator=current_device_index() is not None,
        local_world_size=_processes_here(processes),
        limits=limits,
        segments_per_batch=segments,
    )
    level = logging.WARNING if plan.warnings else logging.INFO
    print_log(plan.describe(), logger='current', level=level)
    plan.apply()
    if plan.num_workers and method != 'fork':
        share_metadata(dataset)
    loader = PrefetchDataLoader(
        dataset,
        sampler,
        batch_sampler,
        plan,
        seed,
        rank=rank,
        processes=processes,
        endless=endless,
        collate_fn=collate_fn,
        start=start,
        batch_bytes=(sample_bytes or 0) * batch_size,
        timeout=TIMEOUT if plan.timeout is None else plan.timeout,
        context=context,
        name=name,
    )
    _alive.add(loader)
    return loader


def stack_data_samples(data_batch: Sequence[Any]) -> Any:
    """Stack samples that have a `data_samples` element; collate any others as stock does."""
    first = data_batch[0]
    if isinstance(first, dict) and isinstance(first.get('data_samples'), BaseDataElement):
        return stack_collate(data_batch)
    return pseudo_collate(data_batch)


class FirstSamples(Dataset):
    """The first samples of a data set, which it is like in everything else.

    Args:
        dataset: The data set.
        length: How many of its samples.
    """

    def __init__(self, dataset: Any, length: int) -> None:
        self.dataset = dataset
        self._length = length

    def __getattr__(self, name: str) -> Any:
        if name == 'dataset':  # not yet, while a worker unpickles it
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __len__(self) -> int:
        return self._length


def _check_keys(cfg: dict, name: str) -> None:
    unknown = [key for key in cfg if key not in KEYS]
    if unknown:
        close = difflib.get_close_matches(unknown[0], KEYS, n=1)
        meant = f'; did you mean {close[0]}?' if close else f'; known are {", ".join(KEYS)}'
        raise ValueError(f'{name}.{unknown[0]} is unknown{meant}')
    missing = [key for key in ('dataset', 'sampler') if key not in cfg]
    if missing:
        raise ValueError(f'{name}.{missing[0]} is missing')


def _build_dataset(cfg: dict, name: str, processes: int) -> Any:
    dataset = cfg.pop('dataset')
    if isinstance(dataset, dict):
        dataset = DATASETS.build(dataset)
        if hasattr(dataset, 'full_init'):
            dataset.full_init()
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, '__getitem__'):
        raise TypeError(
            f'{name}.dataset is a {type(dataset).__name__}, which has no samples by number; '
            "prefetching loops need that: use mmengine's own, as IterBasedTrainLoop"
        )
    batches = cfg.pop('num_batch_per_epoch', None)
    if batches is None:
        return dataset
    return FirstSamples(dataset, batches * cfg['batch_size'] * processes)


def _build_sampler(cfg: dict, dataset: Any, seed: int | None) -> Any:
    sampler = cfg.pop('sampler')
    if sampler is None:  # torch's default
        return SequentialSampler(dataset)
    if not isinstance(sampler, dict):
        return sampler
    kind = sampler.get('type')
    if (DATA_SAMPLERS.get(kind) if isinstance(kind, str) else kind) is InfiniteSampler:
        sampler['type'] = ResumableInfiniteSampler
    return DATA_SAMPLERS.build(sampler, default_args=dict(dataset=dataset, seed=seed))


def _build_batch_sampler(cfg: dict, sampler: Any, name: str) -> Any:
    batch_sampler, size = cfg.pop('batch_sampler', None), cfg.pop('batch_size', 1)
    drop_last = cfg.pop('drop_last', False)
    if batch_sampler is None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f'{name}.batch_size must be a positive integer, found {size!r}')
        return BatchSampler(sampler, size, drop_last)
    if isinstance(batch_sampler, dict):
        defaults = dict(sampler=sampler, batch_size=size)
        return DATA_SAMPLERS.build(batch_sampler, default_args=defaults)
    return batch_sampler


def _function(spec: Any, key: str) -> Callable | None:
    """What a config names; arguments beside its type are given to it at each call."""
    if spec is None or not isinstance(spec, dict):
        return spec
    arguments = dict(spec)
    kind = arguments.pop('type', None)
    found = FUNCTIONS.get(kind) if isinstance(kind, str) else kind
    if not callable(found):
        raise TypeError(f'{key}.type must be a function or the name of one, found {kind!r}')
    return functools.partial(found, **arguments) if arguments else found


def _first_sample(dataset: Any, seed: int) -> Any:
    """None where it has an error, which its batch will tell."""
    try:
        with seeded(seed):
            return dataset[0]
    except Exception:
        return None


def _segments(collate_fn: Callable | None, sample: Any, batch_size: int) -> int:
    """Pieces of shared memory that a batch takes."""
    try:
        return count_segments((collate_fn or default_collate)([sample] * batch_size))
    except Exception:  # no sample, or what only its own batches tell
        return 4


def _limits_left() -> Limits:
    """What the loaders that are there leave: a training's is full while another one validates."""
    limits = Limits.of_this_machine()
    for loader in list(_alive):
        if not loader.is_closed:
            limits = loader.plan.left(limits)
    return limits


def _processes_here(processes: int) -> int:
    """Of this training, on this node."""
    for name in ('LOCAL_WORLD_SIZE', 'SLURM_NTASKS_PER_NODE'):
        if os.environ.get(name, '').isdigit():
            return min(processes, int(os.environ[name]))
    return min(processes, torch.cuda.device_count() or processes)
