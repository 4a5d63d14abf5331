"""Parse and check the stages of a progressive training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler

from mmtempo.utils.checks import is_number, is_whole
from mmtempo.utils.suggest import did_you_mean

from .live_transforms import LiveTransforms

KEY = 'custom_hooks.ProgressiveTrainingHook.stages'
KEYS = ('begin', 'batch_size', 'lr_scale', 'crop_size', 'scale', 'pipeline')
RULES = ('linear', 'sqrt')


class Target(NamedTuple):
    """A value for an attribute of all transforms of a type."""

    type: str
    attribute: str
    value: Any


@dataclass(frozen=True)
class Stage:
    """The settings from an iteration on, with those inherited from the previous stage.

    Attributes:
        key: Config key of the stage, for messages.
        begin: Number of iterations before the stage.
        batch_size: Samples per batch in each process; None leaves it as configured.
        lr_scale: Factor on the learning rate, or the name of a rule.
        targets: Targets by config key; at least one target of a key must match a transform.
        pad_size: Height and width to pad to, in pixels; None leaves them as configured.
    """

    key: str
    begin: int
    batch_size: int | None
    lr_scale: float | str
    targets: dict[str, list[Target]] = field(default_factory=dict)
    pad_size: tuple[int, int] | None = None

    def learning_rate(self, configured: int | None) -> float:
        """Return the factor on the learning rate.

        Args:
            configured: Batch size that the configured learning rate is for.
        """
        if not isinstance(self.lr_scale, str):
            return self.lr_scale
        ratio = self.batch_size / configured if self.batch_size and configured else 1.0
        return ratio if self.lr_scale == 'linear' else math.sqrt(ratio)

    def check(self, transforms: LiveTransforms, loader: Any) -> None:
        """Raise ValueError if the stage cannot begin; called before the training for all stages.

        Args:
            transforms: The transforms of the training dataset.
            loader: The training dataloader.
        """
        for name, targets in self.targets.items():
            key = f'{self.key}.{name}'
            found = [(target, transforms.find(target.type)) for target in targets]
            if not any(some for _, some in found):
                names = ', '.join(target.type for target in targets)
                raise ValueError(
                    f'{key} needs one of {names} in the pipeline of train_dataloader.dataset, '
                    f'found {", ".join(transforms.names())}'
                )
            for target, some in found:
                for one in some:
                    if not hasattr(one, target.attribute):
                        raise ValueError(
                            f'{key}: {type(one).__name__} has no attribute {target.attribute!r}, '
                            f'found {", ".join(sorted(vars(one))) or "none"}'
                        )
        if self.batch_size is not None:
            _check_batch_size(f'{self.key}.batch_size={self.batch_size}', self.batch_size, loader)


def parse_stages(stages: Any) -> list[Stage]:
    """Return the stages of a config; raise ValueError naming the key of a wrong value.

    Args:
        stages: A list of dicts, in the order in which the stages begin.
    """
    if not isinstance(stages, (list, tuple)):
        raise ValueError(f'{KEY} must be a list of dicts, found {stages!r}')
    parsed: list[Stage] = []
    for number, cfg in enumerate(stages):
        parsed.append(_parse(f'{KEY}[{number}]', cfg, parsed[-1] if parsed else None))
    return parsed


def _parse(key: str, cfg: Any, before: Stage | None) -> Stage:
    if not isinstance(cfg, Mapping):
        raise ValueError(f'{key} must be a dict with {", ".join(KEYS)}, found {cfg!r}')
    for name in cfg:
        if name not in KEYS:
            hint = did_you_mean(name, KEYS) or f'; known keys: {", ".join(KEYS)}'
            raise ValueError(f'{key}.{name} is unknown{hint}')
    begin: Any = cfg.get('begin')
    least = 0 if before is None else before.begin + 1
    if not is_whole(begin, least):
        than = f' and greater than that of the previous stage ({least - 1})' if before else ''
        raise ValueError(
            f'{key}.begin must be a number of iterations of at least 0{than}, found {begin!r}'
        )
    batch_size = cfg.get('batch_size', None if before is None else before.batch_size)
    if batch_size is not None and not is_whole(batch_size):
        raise ValueError(f'{key}.batch_size must be a positive integer, found {batch_size!r}')
    targets = dict(before.targets) if before else {}
    pad_size = before.pad_size if before else None
    for name, new in _targets(key, cfg).items():
        targets.pop(name, None)  # moves it to the end: later settings are applied later
        targets[name] = new
    if 'crop_size' in cfg:
        pad_size = _pair(f'{key}.crop_size', cfg['crop_size'])
    return Stage(
        key=key,
        begin=begin,
        batch_size=batch_size,
        lr_scale=_lr_scale(key, cfg.get('lr_scale')),
        targets=targets,
        pad_size=pad_size,
    )


def _targets(key: str, cfg: Mapping) -> dict[str, list[Target]]:
    found = {}
    if 'crop_size' in cfg:
        height, width = _pair(f'{key}.crop_size', cfg['crop_size'])
        found['crop_size'] = [
            Target('RandomCrop', 'crop_size', (height, width)),
            Target('BEVRandomCrop', 'size', (width, height)),
        ]
    if 'scale' in cfg:
        scale = _pair(f'{key}.scale', cfg['scale'])
        found['scale'] = [
            Target('Resize', 'scale', scale),
            Target('RandomResize', 'scale', scale),
            Target('RandomChoiceResize', 'scales', [scale]),
        ]
    pipeline = cfg.get('pipeline', {})
    if not isinstance(pipeline, Mapping) or not all(
        isinstance(one, Mapping) and one for one in pipeline.values()
    ):
        raise ValueError(
            f"{key}.pipeline must be a dict of types and their attributes, as {{'RandomCrop': "
            f'dict(cat_max_ratio=0.9)}}, found {pipeline!r}'
        )
    for name, arguments in pipeline.items():
        for attribute, value in arguments.items():
            found[f'pipeline.{name}.{attribute}'] = [Target(name, attribute, value)]
    return found


def _check_batch_size(key: str, size: int, loader: Any) -> None:
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        raise ValueError(
            f'{key} needs train_dataloader without a batch_sampler, found {type(batches).__name__}'
        )
    if hasattr(loader.sampler, 'check_batch_size'):
        try:
            loader.sampler.check_batch_size(size)
        except ValueError as error:
            raise ValueError(f'{key}: {error}') from error
    if batches.drop_last and len(loader.sampler) < size:
        raise ValueError(
            f'{key} with drop_last leaves no batch: each process has {len(loader.sampler)} samples'
        )


def _lr_scale(key: str, value: Any) -> float | str:
    if value is None:
        return 'linear'
    if isinstance(value, str) and value in RULES:
        return value
    if not is_number(value, above=0):
        raise ValueError(
            f"{key}.lr_scale must be 'linear', 'sqrt' or a positive number, found {value!r}"
        )
    return float(value)


def _pair(key: str, value: Any) -> tuple[int, int]:
    """Return two positive integers, given as two or as one for both."""
    pair = value if isinstance(value, Sequence) and not isinstance(value, str) else (value, value)
    if len(pair) != 2 or not all(map(is_whole, pair)):
        raise ValueError(f'{key} must be a positive integer, or two, found {value!r}')
    return pair[0], pair[1]
