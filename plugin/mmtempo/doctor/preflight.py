"""Check a config before a run starts and before anything is written."""

from __future__ import annotations

import copy
import inspect
import os.path as osp
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zipfile import is_zipfile

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.hooks import CheckpointHook
from mmengine.logging import MMLogger
from mmengine.model import BaseTTAModel
from mmengine.optim import build_optim_wrapper
from mmengine.registry import (
    DATA_SAMPLERS,
    DATASETS,
    EVALUATOR,
    FUNCTIONS,
    HOOKS,
    LOOPS,
    METRICS,
    MODELS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    VISUALIZERS,
    DefaultScope,
    Registry,
)
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmtempo import loops
from mmtempo.checkpoint.loading import load_from_local
from mmtempo.checkpoint.resume import newest_of
from mmtempo.dependencies import OPS_COMMAND, has_compiled_ops, installed_versions
from mmtempo.workloads.bev.models.bev_segmentor import BEVSegmentor

from .label_check import check_labels

# Classes that mmcv registers only together with its compiled operators.
OPS_TYPES = re.compile(
    r'\b(DCN(v2)?|DeformConv2dPack|ModulatedDeformConv2dPack|carafe|CARAFEPack|SAConv2d|'
    r'MultiScaleDeformableAttention|MaskedConv2d|CrissCrossAttention|PSAMask)\b'
)
OPS_WORDS = re.compile(r'mmcv[._]ops|mmcv\._ext|for \w+ ops')
DATALOADER_EXTRAS = {'num_batch_per_epoch'}
ANYTHING = '**'  # in a set of argument names: any name
PREFETCHING = tuple(getattr(loops, name) for name in loops.__all__)
# Arguments that the Runner passes itself; a config does not set them.
PROVIDED = {'runner', 'dataloader', 'evaluator', 'self', 'filename', 'optimizer'}


def preflight(cfg: Config, test: bool = False) -> None:
    """Build the parts of a run without side effects; raise for the first that fails.

    ::

        data sets            built, and one sample of each is loaded
        model, optimizer     built; a model of mmtempo also processes each sample
        labels               compared with the heads of the model
        checkpoint           compared with the model
        all other parts      types are looked up, keys compared with their arguments

    Errors of mmengine are not changed.

    Args:
        cfg: The config, complete; it is not changed.
        test: Whether the config is for testing rather than training. Defaults to False.
    """
    # Model and optimizer log the same in the run; without this they would do so twice.
    if not MMLogger.check_instance_created('preflight'):
        MMLogger.get_instance('preflight', log_level='WARNING')
    # Stock classes change the dictionaries that they are built from.
    cfg = copy.deepcopy(cfg)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope') or 'mmengine'):
        samples = {
            split: _check_split(cfg, split, optional=split == 'val')
            for split in (['test'] if test else ['train', 'val'])
        }
        for where, registry, part in _parts(cfg):
            _check_type(registry, part, where)
        model = _build_model(cfg.model)
        # A strategy builds the optimizer differently.
        if not test and 'strategy' not in cfg:
            build_optim_wrapper(model, cfg.optim_wrapper)
        if not test:
            _check_hooks(cfg, model)
    if not test:
        check_labels(model, samples['train'], 'train_dataloader.dataset')
    if isinstance(model, BEVSegmentor):
        for split, sample in samples.items():
            if sample is not None:
                _try_model(model, sample, split)
    _check_checkpoint(cfg, model, test)


def _try_model(model: BEVSegmentor, sample: dict, split: str) -> None:
    """Run a model on a sample, so that sizes that do not fit raise before the run."""
    try:
        data = model.data_preprocessor(pseudo_collate([sample]))
        with torch.no_grad():
            model.eval()(**data, mode='loss' if split == 'train' else 'predict')
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f'the model fails on a sample of {split}_dataloader.dataset: {error}\n'
            '  if sizes disagree, compare channels, stride and grid of backbone, view_transform '
            'and decode_head, and label_size of the data set'
        ) from error


def _check_split(cfg: Config, split: str, optional: bool) -> Any:
    """Check the loader, loop and evaluators of a split; return one sample, or None without them."""
    loader, loop = cfg.get(f'{split}_dataloader'), cfg.get(f'{split}_cfg')
    if loader is None and loop is None and optional:
        return None
    for key, value in ((f'{split}_dataloader', loader), (f'{split}_cfg', loop)):
        if value is None:
            raise ValueError(f'{key} is missing from the config')
    if 'type' in loop:
        _check_type(LOOPS, loop, f'{split}_cfg')
    for evaluator in _listed(cfg.get(f'{split}_evaluator')):
        _check_evaluator(evaluator, f'{split}_evaluator')
    _check_workers(loader, f'{split}_dataloader', loop.get('type'))
    return _check_dataloader(loader, f'{split}_dataloader')


def _check_workers(loader: Mapping, key: str, loop: Any) -> None:
    cls = LOOPS.get(loop) if isinstance(loop, str) else loop
    # A prefetching loop chooses num_workers where the config does not set it.
    prefetches = isinstance(cls, type) and issubclass(cls, PREFETCHING)
    workers = loader.get('num_workers')
    if workers is None and prefetches:
        workers = 'auto'
    if workers == 'auto' and not prefetches:
        raise ValueError(
            f"{key}.num_workers='auto' needs a prefetching loop such as "
            f'{PREFETCHING[0].__name__}, found {loop}; set a number'
        )
    if loader.get('persistent_workers') and not workers:
        raise ValueError(
            f'{key}: persistent_workers=True needs num_workers of at least 1; '
            f'set {key}.persistent_workers=False as well'
        )


def _check_evaluator(evaluator: Mapping, where: str) -> None:
    if 'metrics' not in evaluator:
        _check_type(METRICS, evaluator, where)
        return
    if 'type' in evaluator:
        _check_type(EVALUATOR, evaluator, where)
    for metric in _listed(evaluator['metrics']):
        _check_type(METRICS, metric, f'{where}.metrics')


def _listed(parts: Any) -> Sequence[Any]:
    """Return parts that a config gives as a list, as one dict, or not at all."""
    return [parts] if isinstance(parts, dict) else parts or []


def _check_dataloader(loader: Mapping, key: str) -> Any:
    known = set(inspect.signature(DataLoader).parameters) | DATALOADER_EXTRAS
    unknown = sorted(set(loader) - known)
    if unknown:
        raise TypeError(
            f'{key}: unexpected key {unknown[0]!r}; it takes {", ".join(sorted(known))}'
        )
    parts = dict(sampler=DATA_SAMPLERS, batch_sampler=DATA_SAMPLERS, collate_fn=FUNCTIONS)
    for part, registry in parts.items():
        _check_type(registry, loader.get(part), f'{key}.{part}')
    if loader.get('dataset') is None:
        raise ValueError(f'{key}.dataset is missing from the config')
    return _check_dataset(loader['dataset'], f'{key}.dataset')


def _check_dataset(cfg: Mapping, key: str) -> Any:
    """Build a data set and return its first sample."""
    where = f'{key} ({cfg.get("type")})'
    try:
        dataset = DATASETS.build(cfg)
        empty = len(dataset) == 0
    except FileNotFoundError as error:
        # Errors of stock data sets name the file, but not the config key.
        raise FileNotFoundError(
            f'{error}\n  in {where}; set its folder with --cfg-options {key}.data_root=...'
        ) from error
    except ValueError as error:
        # Error of numpy when mmengine's BaseDataset serializes an empty list.
        if 'need at least one array' not in str(error):
            raise
        empty = True
    if empty:
        raise ValueError(
            f'{where} is empty; check its data_root ({cfg.get("data_root")!r}) and data_prefix'
        )
    return dataset[0]  # runs the whole pipeline


def _parts(cfg: Config) -> Iterator[tuple[str, Registry, Mapping]]:
    """Yield key, registry and config of the parts that the Runner builds late or on demand."""
    for key, hook in (cfg.get('default_hooks') or {}).items():
        yield f'default_hooks.{key}', HOOKS, hook
    for i, hook in enumerate(cfg.get('custom_hooks') or []):
        yield f'custom_hooks[{i}]', HOOKS, hook
    wrapper = cfg.get('optim_wrapper') or {}
    if wrapper.get('optimizer'):
        yield 'optim_wrapper.optimizer', OPTIMIZERS, wrapper['optimizer']
        if 'constructor' not in wrapper:  # a constructor may take more keys
            own = {key: wrapper[key] for key in set(wrapper) - {'optimizer', 'paramwise_cfg'}}
            yield 'optim_wrapper', OPTIM_WRAPPERS, {'type': 'OptimWrapper', **own}
    for scheduler in _listed(cfg.get('param_scheduler')):
        if 'type' in scheduler:
            yield 'param_scheduler', PARAM_SCHEDULERS, scheduler
    if 'type' in (cfg.get('visualizer') or {}):
        yield 'visualizer', VISUALIZERS, cfg.visualizer


def _check_type(registry: Registry, cfg: Any, where: str) -> None:
    """Raise unless the type of a part exists and takes the keys that the config sets."""
    if not isinstance(cfg, dict):
        return  # None disables a default part; an object needs no check
    cls = _class_of(registry, cfg)
    if cls is None:
        registry.build(dict(cfg))  # raises the error of mmengine
        return
    parameters = _parameters(cls)
    if inspect.isclass(cls) and issubclass(cls, CheckpointHook):
        # It passes unknown arguments to save_checkpoint, which fails at the first save.
        parameters.discard(ANYTHING)
        parameters |= set(inspect.signature(Runner.save_checkpoint).parameters)
    if ANYTHING in parameters:
        return
    unknown = sorted(set(_own_keys(cfg)) - parameters)
    if unknown:
        takes = ', '.join(sorted(parameters - PROVIDED))
        raise TypeError(f'{where}: {cls.__name__} takes no {unknown[0]!r}; it takes {takes}')


def _class_of(registry: Registry, cfg: Mapping) -> Any:
    """Return the class that the type of a part stands for; None if it is not registered."""
    kind = cfg.get('type')
    # `get` alone does not look into the default scope.
    with registry.switch_scope_and_registry(cfg.get('_scope_')) as scoped:
        return scoped.get(kind) if isinstance(kind, str) else kind


def _own_keys(cfg: Mapping) -> dict[str, Any]:
    """Return the keys that are passed to the constructor."""
    return {key: cfg[key] for key in cfg if key not in ('type', '_scope_', 'priority')}


def _check_hooks(cfg: Config, model: torch.nn.Module) -> None:
    """Let hooks of mmtempo check that the modules they name exist in the model."""
    for _, registry, part in _parts(cfg):
        if registry is HOOKS and isinstance(part, dict):
            cls = _class_of(registry, part)
            if hasattr(cls, 'check_model'):
                cls(**_own_keys(part)).check_model(model)


def _parameters(cls: Any) -> set[str]:
    """Return the names of the arguments of a class; with ANYTHING if it takes any `**kwargs`.

    Classes of mmtempo and mmengine's wrappers pass `**kwargs` to their base class, so its
    arguments count as well. Other classes may do anything with them.
    """
    layers = [cls]
    if inspect.isclass(cls) and cls.__module__.startswith(
        ('mmtempo.', 'mmengine.optim.optimizer.')
    ):
        layers = [base for base in cls.__mro__ if '__init__' in vars(base)]
    names: set[str] = set()
    for layer in layers:
        found = inspect.signature(layer).parameters.values()
        names |= {p.name for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if not any(p.kind is p.VAR_KEYWORD for p in found):
            return names
    return names | {ANYTHING}


def _build_model(model: dict) -> torch.nn.Module:
    """Build the model; explain an error that missing operators of mmcv cause."""
    try:
        return MODELS.build(model)
    except Exception as error:
        text = f'{type(error).__name__}: {error}'
        if not has_compiled_ops() and (OPS_WORDS.search(text) or OPS_TYPES.search(text)):
            found = ', '.join(f'{k} {v}' for k, v in installed_versions().items())
            raise ImportError(
                "this model needs mmcv's compiled operators, and the installed mmcv has none.\n"
                f'  found:   {found}\n  install: {OPS_COMMAND}\n  error:   {text}'
            ) from error
        raise


def _check_checkpoint(cfg: Config, model: torch.nn.Module, test: bool) -> None:
    """Raise if a checkpoint is of another model; loading it would only log a warning."""
    path = cfg.get('load_from')
    if cfg.get('resume') and path is None:
        path, _ = newest_of(cfg)
    if path is None or re.match(r'[\w+.:-]+://', str(path)) or osp.isdir(path):
        return
    if isinstance(model, BaseTTAModel):
        model = model.module
    saved = _state_dict(path)
    wanted = model.state_dict()
    fits = [k for k, v in wanted.items() if k in saved and saved[k].shape == v.shape]
    complete = len(fits) == len(wanted)
    if complete or (fits and not test and not cfg.get('resume')):
        return
    misfits = [k for k in wanted if k not in fits]
    raise ValueError(
        f'checkpoint {path} is of another model: it contains {len(fits)} of the {len(wanted)} '
        f'tensors of this model in the same shape; the first missing: {misfits[0]}.\n'
        'Use the config that it was trained with, or train without it'
        + ('' if test else ' (without --resume, load_from loads the tensors that fit)')
    )


def _state_dict(path: str) -> Mapping[str, Any]:
    """Return the tensors of a checkpoint, mapped lazily and without executing any of its code."""
    checkpoint = load_from_local(path, 'cpu', mmap=is_zipfile(osp.expanduser(path)))
    state = checkpoint.get('state_dict', checkpoint) if isinstance(checkpoint, dict) else None
    if not isinstance(state, Mapping):
        raise ValueError(
            f'checkpoint {path} has no state_dict; use a checkpoint that contains the weights'
        )
    return {k.removeprefix('module.'): v for k, v in state.items() if hasattr(v, 'shape')}
