"""Build a prefetching loader from the config of a stock dataloader."""

from __future__ import annotations

import copy
import functools
import logging
import multiprocessing
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

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
from mmtempo.system.limits import Limits
from mmtempo.system.machine import processes_here
from mmtempo.utils.checks import is_whole
from mmtempo.utils.rng import seeded
from mmtempo.utils.suggest import did_you_mean

from .collate.stack_collate import stack_collate
from .collate.stacked_inputs import takes_stacked_inputs
from .plan import LoaderPlan
from .planner import count_bytes, count_segments, plan_loader
from .prefetch_dataloader import PrefetchDataLoader
from .shared_metadata import share_metadata
from .shared_slabs import SlabPool
from .worker import WorkerStart

TIMEOUT = 600.0  # seconds
PLANNED = ('num_workers', 'prefetch_factor', 'pin_memory', 'persistent_workers')
KEYS = (
    *('dataset', 'sampler', 'batch_sampler', 'batch_size', 'drop_last', 'num_batch_per_epoch'),
    *('collate_fn', 'worker_init_fn', 'disable_subprocess_warning', 'timeout'),
    *('multiprocessing_context', *PLANNED),
)
_loaders: weakref.WeakSet[PrefetchDataLoader] = weakref.WeakSet()


def build_prefetch_dataloader(
    cfg: dict,
    seed: int | None = None,
    diff_rank_seed: bool = False,
    endless: bool = False,
    name: str = 'dataloader',
    model: Any = None,
) -> PrefetchDataLoader:
    """Build a prefetching loader from the config of a stock dataloader.

    Keys that the config leaves open are chosen, and the choice is logged.

    ======================  ==========================================================
    key                     default
    ======================  ==========================================================
    num_workers             'auto': by usable CPUs, processes on this node, and memory
    prefetch_factor         2, less where shared memory is small
    pin_memory              True with an accelerator
    persistent_workers      True with workers
    collate_fn              `stack_collate` where `model` is known to take stacked inputs and
                            samples have data samples, else mmengine's `pseudo_collate`
    timeout                 600 seconds without a batch are an error
    ======================  ==========================================================

    `InfiniteSampler` is replaced by `ResumableInfiniteSampler`; other samplers are kept.

    Args:
        cfg: Config as for `Runner.build_dataloader`.
        seed: Seed of the order and of the transforms. Defaults to None: drawn, and the same in
            all processes.
        diff_rank_seed: Whether each process has a different seed; the order then uses a seed
            that all processes share. Defaults to False.
        endless: Whether epochs follow each other without end, as in training. Defaults to False.
        name: The config's key of the dataloader, for messages. Defaults to 'dataloader'.
        model: The model that receives the batches, for the default of `collate_fn`. Defaults to
            None: unknown, so that batches are lists.
    """
    _check_keys(cfg, name)
    # Only dicts are copied: objects that are built already are used as they are.
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
    plan, sample_bytes = _plan(cfg, name, dataset, seed, batch_size, collate_fn, method, processes)
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
        batch_bytes=sample_bytes * batch_size,
        timeout=TIMEOUT if plan.timeout is None else plan.timeout,
        context=context,
        name=name,
    )
    _loaders.add(loader)
    return loader


def _plan(
    cfg: dict,
    name: str,
    dataset: Any,
    seed: int,
    batch_size: int,
    collate_fn: Callable | None,
    start_method: str,
    processes: int,
) -> tuple[LoaderPlan, int]:
    """Return the plan of a loader, which is logged, and the bytes of a sample, 0 if unknown."""
    sample = _first_sample(dataset, seed) if cfg.get('num_workers', 'auto') else None
    sample_bytes = None if sample is None else count_bytes(sample)
    limits, segments = _remaining_limits(), 1
    if sample_bytes and SlabPool.is_supported():
        limits = replace(limits, shared_memory=None)  # slabs are not in /dev/shm
    else:
        segments = _segments(collate_fn, sample, batch_size)
    plan = plan_loader(
        cfg,
        sample_bytes=sample_bytes,
        batch_size=batch_size,
        name=name,
        start_method=start_method,
        has_accelerator=current_device_index() is not None,
        local_world_size=processes_here(processes),
        limits=limits,
        segments_per_batch=segments,
    )
    level = logging.WARNING if plan.warnings else logging.INFO
    print_log(plan.describe(), logger='current', level=level)
    return plan, sample_bytes or 0


def stack_data_samples(data_batch: Sequence[Any]) -> Any:
    """Stack samples that have a `data_samples` element; collate others by `pseudo_collate`."""
    first = data_batch[0]
    if isinstance(first, dict) and isinstance(first.get('data_samples'), BaseDataElement):
        return stack_collate(data_batch)
    return pseudo_collate(data_batch)


class FirstSamples(Dataset):
    """A dataset reduced to its first samples, with all other attributes of the original.

    Args:
        dataset: Dataset to wrap.
        length: Number of samples to keep.
    """

    def __init__(self, dataset: Any, length: int) -> None:
        self.dataset = dataset
        self._length = length

    def __getattr__(self, name: str) -> Any:
        if name == 'dataset':  # not set yet while a worker unpickles it
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __len__(self) -> int:
        return self._length


def _check_keys(cfg: dict, name: str) -> None:
    unknown = [key for key in cfg if key not in KEYS]
    if unknown:
        hint = did_you_mean(unknown[0], KEYS) or f'; known keys are {", ".join(KEYS)}'
        raise ValueError(f'{name}.{unknown[0]} is unknown{hint}')
    missing = [key for key in ('dataset', 'sampler') if key not in cfg]
    if missing:
        raise ValueError(f'{name}.{missing[0]} is missing; add it to the config')


def _build_dataset(cfg: dict, name: str, processes: int) -> Any:
    dataset = cfg.pop('dataset')
    if isinstance(dataset, dict):
        dataset = DATASETS.build(dataset)
        if hasattr(dataset, 'full_init'):
            dataset.full_init()
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, '__getitem__'):
        raise TypeError(
            f'{name}.dataset must be indexable for prefetching loops, found a '
            f"{type(dataset).__name__}; use one of mmengine's loops, such as IterBasedTrainLoop"
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
        if not is_whole(size):
            raise ValueError(f'{name}.batch_size must be a positive integer, found {size!r}')
        return BatchSampler(sampler, size, drop_last)
    if isinstance(batch_sampler, dict):
        defaults = dict(sampler=sampler, batch_size=size)
        return DATA_SAMPLERS.build(batch_sampler, default_args=defaults)
    return batch_sampler


def _function(spec: Any, key: str) -> Callable | None:
    """Return the function that a config names, with the config's other keys as arguments."""
    if spec is None or not isinstance(spec, dict):
        return spec
    arguments = dict(spec)
    kind = arguments.pop('type', None)
    found = FUNCTIONS.get(kind) if isinstance(kind, str) else kind
    if not callable(found):
        raise TypeError(f'{key}.type must be a function or its registered name, found {kind!r}')
    return functools.partial(found, **arguments) if arguments else found


def _first_sample(dataset: Any, seed: int) -> Any:
    """Return the first sample; None where it raises an error, which its batch will report."""
    try:
        with seeded(seed):
            return dataset[0]
    except Exception:
        return None


def _segments(collate_fn: Callable | None, sample: Any, batch_size: int) -> int:
    """Return the number of shared memory segments of a batch."""
    try:
        return count_segments((collate_fn or default_collate)([sample] * batch_size))
    except Exception:  # no sample, or a collate function that needs different samples
        return 4


def _remaining_limits() -> Limits:
    """Return the machine's limits less what open loaders take.

    The training loader keeps its batches and workers while another loader validates.
    """
    limits = Limits.of_this_machine()
    for loader in list(_loaders):
        if not loader.is_closed:
            limits = loader.plan.left(limits)
    return limits
