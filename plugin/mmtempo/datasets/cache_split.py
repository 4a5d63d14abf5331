"""Split of a pipeline into a deterministic part, which is cached, and the rest."""

from __future__ import annotations

import random
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mmtempo.utils.checks import is_whole
from mmtempo.utils.rng import generator_states, seeded
from mmtempo.utils.suggest import did_you_mean

# Names of random transforms that mmcv's `cache_randomness` does not mark.
RANDOM_NAMES = re.compile(
    'Random|PhotoMetric|Jitter|Noise|Shuffle|Albu|Mosaic|MixUp|Mixup|CutOut|CutMix|CopyPaste'
    '|RandAugment|AutoAugment|AugMix|GlobalRotScaleTrans|PointSample'
)
# Only their owner seeds them, so their values depend on all earlier draws.
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
BOUND = (types.MethodType, types.BuiltinMethodType)
# The maximum number of samples to try, as some may be unreadable.
TRIALS = 4
# How often a sample is computed: a transform that is random at times may repeat a result.
REPEATS = 8


def name_of(transform: Any) -> str:
    """Return the name of a transform's type."""
    return type(transform).__name__


def find_random(transform: Any) -> str | None:
    """Return the name of a known random transform, this one or one inside it, or None."""
    cls = type(transform)
    if RANDOM_NAMES.search(cls.__name__) or getattr(cls, '_methods_with_randomness', None):
        return cls.__name__
    inner = getattr(transform, 'transforms', None)
    if not isinstance(inner, (list, tuple)):  # in a Compose
        inner = getattr(inner, 'transforms', None)
    for one in inner if isinstance(inner, (list, tuple)) else []:
        found = find_random(one)
        if found is not None:
            return found if found == cls.__name__ else f'{found} in {cls.__name__}'
    generator = _find_generator(transform)
    return None if generator is None else f'{generator} in {cls.__name__}'


def _find_generator(value: Any) -> str | None:
    """Return the type of a random generator that an object holds at any depth, or None."""
    left, seen = [value], {}
    while left:
        one = left.pop()
        if isinstance(one, GENERATORS):
            return name_of(one)
        if id(one) in seen or isinstance(one, (type, types.ModuleType)):
            continue
        seen[id(one)] = one  # holds the object, so that its `id` is not reused
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            left += one
        elif isinstance(one, BOUND):
            left.append(one.__self__)
        left += getattr(one, '__dict__', {}).values()
    return None


def cache_point(transforms: Sequence[Any], until: str | int | None) -> int:
    """Return the number of transforms before the cache; raise ValueError where none can be.

    Args:
        transforms: The transforms of the pipeline.
        until: Type of the last transform before the cache, or the number of transforms before it;
            None for all up to the first one that is known to be random.
    """
    names = [name_of(transform) for transform in transforms]
    randoms = [find_random(transform) for transform in transforms]
    if until is None:
        count = next((k for k, found in enumerate(randoms) if found), len(randoms))
        if count == 0:
            raise ValueError(
                f'CachedDataset: nothing to cache in the pipeline {names}: '
                + ('it is empty' if not names else f'its first transform, {randoms[0]}, is random')
            )
        return count
    if isinstance(until, str):
        if until not in names:
            raise ValueError(
                f'CachedDataset.until={until!r} is not in the pipeline {names}'
                f'{did_you_mean(until, names)}'
            )
        count = len(names) - names[::-1].index(until)
    elif isinstance(until, int) and is_whole(until) and until <= len(names):
        count = until
    else:
        raise ValueError(
            'CachedDataset.until must be the type of a transform, the number of cached transforms '
            f'(1 to {len(names)}), or None, found {until!r}'
        )
    for index, found in enumerate(randoms[:count]):
        if found is not None:
            raise ValueError(_refusal(until, index, names, f'{found} is random'))
    return count


def check_by_trial(
    transforms: Sequence[Any],
    count: int,
    until: str | int | None,
    get_info: Callable[[int], dict],
    samples: int,
) -> tuple[int, str | None]:
    """Compute a sample eight times with different seeds of the global generators, and compare.

    Args:
        transforms: The transforms of the pipeline.
        count: The number of transforms before the cache.
        until: The argument of `cache_point`; with a value, fewer than `count` cacheable
            transforms are a ValueError.
        get_info: Returns the data info of a sample.
        samples: The number of samples of the data set.

    Returns:
        How many transforms can be cached, and why the trial could not be made, or None.
    """
    problem: str | None = 'the data set has no samples'
    for number in range(min(TRIALS, samples)):
        try:
            infos = [get_info(number) for _ in range(REPEATS)]
            index, why = _try(transforms[:count], infos)
        except Exception as error:  # such as of an unreadable file; drawing it raises it again
            problem = f'sample {number}: {type(error).__name__}: {error}'
            continue
        if index is None:
            problem = why
            if why is not None:
                continue
            return count, None
        text = f'{name_of(transforms[index])} {why}'
        if until is not None or index == 0:
            names = [name_of(transform) for transform in transforms]
            raise ValueError(_refusal(until, index, names, text))
        return index, None
    return count, problem


def _try(transforms: Sequence[Any], samples: list[Any]) -> tuple[int | None, str | None]:
    """Return the first transform that is not deterministic and why, or why the trial failed."""
    for index, transform in enumerate(transforms):
        drew = False
        for repeat, sample in enumerate(samples):
            with seeded(repeat + 1, index):
                before = generator_states()
                samples[repeat] = transform(sample)
                drew = drew or not same(before, generator_states())
        if drew:
            return index, 'draws random numbers'
        if any(sample is None for sample in samples):
            return None, f'{name_of(transform)} returned None'
        if not all(same(samples[0], sample) for sample in samples[1:]):
            return index, 'returns different results for the same sample'
    return None, None


def _refusal(until: str | int | None, index: int, names: Sequence[str], what: str) -> str:
    possible = f'; set until={names[index - 1]!r} or an earlier transform' if index else ''
    return (
        f'CachedDataset.until={until!r}: {what} (transform {index + 1} of {len(names)}), so its '
        f'output cannot be cached{possible}'
    )


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal to the bit, including arrays and plain objects."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        alike = one.dtype == other.dtype and one.shape == other.shape
        if alike and one.dtype.hasobject:
            return same(one.tolist(), other.tolist())
        return alike and one.tobytes() == other.tobytes()
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        pair = (each.detach().cpu().reshape(-1).view(torch.uint8) for each in (one, other))
        return torch.equal(*pair)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one).__eq__ is object.__eq__ and hasattr(one, '__dict__'):
        return same(vars(one), vars(other))
    return bool(one == other) or (one != one and other != other)
