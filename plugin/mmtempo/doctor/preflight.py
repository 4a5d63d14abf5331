"""Finds out before a run starts, and before anything is written, whether it can work."""

from __future__ import annotations

import copy
import inspect
import os.path as osp
import re
from collections.abc import Mapping
from typing import Any
from zipfile import is_zipfile

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, HOOKS, LOOPS, METRICS, MODELS, DefaultScope, Registry
from mmengine.runner import find_latest_checkpoint
from torch.torch_version import TorchVersion
from torch.utils.data import DataLoader

from ..stack import OPS_COMMAND, has_compiled_ops, installed_versions

# Classes that mmcv registers only together with its compiled operators.
OPS_TYPES = re.compile(
    r'\b(DCN(v2)?|DeformConv2dPack|ModulatedDeformConv2dPack|carafe|CARAFEPack|SAConv2d|'
    r'MultiScaleDeformableAttention|MaskedConv2d|CrissCrossAttention|PSAMask)\b'
)
OPS_WORDS = re.compile(r'mmcv[._]ops|mmcv\._ext|for \w+ ops')
DATALOADER_EXTRAS = {'dataset', 'sampler', 'batch_sampler', 'collate_fn', 'num_batch_per_epoch'}


def preflight(cfg: Config, test: bool = False) -> None:
    """Build what can be built without side effects; raise on the first thing that cannot.

    Builds every data set that the run uses, and the model; resolves the types and
    checks the keys of loops, hooks and dataloaders; compares a checkpoint with the
    model. mmengine's own messages come through unchanged.

    Args:
        cfg: The config, complete.
        test: Whether it is for testing rather than training. Defaults to False.
    """
    # Stock classes write into the dictionaries they are built from.
    cfg = copy.deepcopy(cfg)
    splits = ['test'] if test else ['train', 'val']
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope') or 'mmengine'):
        for split in splits:
            _check_split(cfg, split)
        for where, hook in _hooks(cfg):
            _check_type(HOOKS, hook, where)
        model = _build_model(cfg.model)
    _check_checkpoint(cfg, model, test)


def _check_split(cfg: Config, split: str) -> None:
    loader = cfg.get(f'{split}_dataloader')
    if loader is None:
        if split != 'val':
            raise ValueError(f'{split}_dataloader is missing from the config')
        return
    key = f'{split}_dataloader'
    known = set(inspect.signature(DataLoader.__init__).parameters) | DATALOADER_EXTRAS
    unknown = sorted(set(loader) - known)
    if unknown:
        raise TypeError(
            f'{key}: unexpected key {unknown[0]!r}; it takes {", ".join(sorted(known - {"self"}))}'
        )
    loop = cfg.get(f'{split}_cfg')
    if loop and 'type' in loop:
        _check_type(LOOPS, loop, f'{split}_cfg', provided={'runner', 'dataloader', 'evaluator'})
    evaluators = cfg.get(f'{split}_evaluator') or []
    for evaluator in [evaluators] if isinstance(evaluators, dict) else evaluators:
        _check_type(METRICS, evaluator, f'{split}_evaluator')
    where = f'{key}.dataset ({loader["dataset"].get("type")})'
    try:
        dataset = DATASETS.build(loader['dataset'])
        empty = len(dataset) == 0
    except FileNotFoundError as error:
        # Stock data sets name the file only; the user needs the key.
        raise FileNotFoundError(
            f'{error}\n  in {where}; set its folder with --cfg-options {key}.dataset.data_root=...'
        ) from error
    except ValueError as error:
        # How mmengine's BaseDataset answers an empty list when it packs it.
        if 'need at least one array' not in str(error):
            raise
        empty = True
    if empty:
        raise ValueError(
            f'{where} is empty; check its data_root '
            f'({loader["dataset"].get("data_root")!r}) and data_prefix'
        )


def _hooks(cfg: Config) -> list[tuple[str, Mapping]]:
    named = [(f'default_hooks.{k}', v) for k, v in (cfg.get('default_hooks') or {}).items()]
    custom = [(f'custom_hooks[{i}]', v) for i, v in enumerate(cfg.get('custom_hooks') or [])]
    return [(where, hook) for where, hook in named + custom if isinstance(hook, dict)]


def _check_type(
    registry: Registry,
    cfg: Mapping,
    where: str,
    provided: set[str] = frozenset(),  # type: ignore
) -> None:
    """The type exists, and takes the keys that are given."""
    kind = cfg.get('type')
    # `get` alone does not look into the default scope.
    with registry.switch_scope_and_registry(cfg.get('_scope_')) as scoped:
        cls = scoped.get(kind) if isinstance(kind, str) else kind
    if cls is None:
        registry.build(dict(cfg))  # raises mmengine's own message
        return
    parameters = inspect.signature(cls).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = sorted(set(cfg) - {'type', '_scope_', 'priority'} - set(parameters))
    if unknown:
        takes = ', '.join(sorted(set(parameters) - provided))
        raise TypeError(f'{where}: {cls.__name__} takes no {unknown[0]!r}; it takes {takes}')


def _build_model(model: dict) -> torch.nn.Module:
    try:
        return MODELS.build(model)
    except Exception as error:
        text = f'{type(error).__name__}: {error}'
        if not has_compiled_ops() and (OPS_WORDS.search(text) or OPS_TYPES.search(text)):
            found = ', '.join(f'{k} {v}' for k, v in installed_versions().items())
            raise ImportError(
                "this model needs mmcv's compiled operators, and the installed mmcv has none.\n"
                f'  found:  {found}\n  mend:   {OPS_COMMAND}\n  it said: {text}'
            ) from error
        raise


def _check_checkpoint(cfg: Config, model: torch.nn.Module, test: bool) -> None:
    """A checkpoint of another model would be loaded in silence, as far as names agree."""
    path = cfg.get('load_from')
    if cfg.get('resume') and path is None:
        if not osp.isfile(osp.join(cfg.work_dir, 'last_checkpoint')):
            return
        path = find_latest_checkpoint(cfg.work_dir)
    if path is None or re.match(r'\w+://', str(path)):
        return
    if not osp.isfile(path):
        raise FileNotFoundError(f'checkpoint {path} does not exist')
    saved = _state_dict(path)
    wanted = model.state_dict()
    fits = [k for k, v in wanted.items() if k in saved and saved[k].shape == v.shape]
    complete = len(fits) == len(wanted)
    if complete or (fits and not test and not cfg.get('resume')):
        return
    misfits = [k for k in wanted if k not in fits]
    raise ValueError(
        f'checkpoint {path} is of another model: {len(fits)} of the {len(wanted)} tensors of this '
        f'model are in it with the same shape; the first that is not: {misfits[0]}.\n'
        'Name the config that it was trained with, or train anew without it'
        + ('' if test else ' (without --resume, load_from takes what fits)')
    )


def _state_dict(path: str) -> Mapping[str, Any]:
    """Tensors of a checkpoint, read lazily and without running anything in it."""
    # From torch 2.6 on safe is the default, and torch's own switch for trusted files works.
    safe = {} if torch.__version__ >= TorchVersion('2.6') else dict(weights_only=True)
    try:
        checkpoint = torch.load(path, map_location='cpu', mmap=is_zipfile(path), **safe)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f'checkpoint {path} cannot be read safely: {reason}\nA file that you trust is read '
            'with TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in the environment; it may run code'
        ) from error
    state = checkpoint.get('state_dict', checkpoint) if isinstance(checkpoint, dict) else None
    if not isinstance(state, Mapping):
        raise ValueError(f'checkpoint {path} has no state_dict')
    return {k.removeprefix('module.'): v for k, v in state.items() if hasattr(v, 'shape')}
