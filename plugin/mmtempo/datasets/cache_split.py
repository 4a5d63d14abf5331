"""Where a pipeline is split: what is the same for each draw of a sample, and what is not."""

from __future__ import annotations

import random
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mmtempo.utils.rng import generator_states, seeded

# Of those that mmcv's `cache_randomness` does not mark.
RANDOM_NAMES = re.compile(
    'Random|PhotoMetric|Jitter|Noise|Shuffle|Albu|Mosaic|MixUp|Mixup|CutOut|CutMix|CopyPaste'
    '|RandAugment|AutoAugment|AugMix|GlobalRotScaleTrans|PointSample'
)
# Nobody but their owner seeds them, so that what they give depends on what was drawn before.
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
BOUND = (types.MethodType, types.BuiltinMethodType)
# How many samples are tried before it is given up: some may be unreadable.
TRIALS = 4
# How often a sample is made: what is random at times may be the same twice.
REPEATS = 8


def name_of(transform: Any) -> str:
    return type(transform).__name__


def find_random(transform: Any) -> str | None:
    """The name of a transform that is known to be random: this one, or one inside it."""
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
    """The type of a random generator that an object holds, however deep: nobody seeds it."""
    left, seen = [value], {}
    while left:
        one = left.pop()
        if isinstance(one, GENERATORS):
            return name_of(one)
        if id(one) in seen or isinstance(one, (type, types.ModuleType)):
            continue
        seen[id(one)] = one  # kept: nothing else gets its place in memory
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            left += one
        elif isinstance(one, BOUND):
            left.append(one.__self__)
        left += getattr(one, '__dict__', {}).values()
    return None


def cache_point(transforms: Sequence[Any], until: str | int | None) -> int:
    """How many transforms come before the cache; ValueError where there is no such place.

    Args:
        transforms: The pipeline.
        until: Name of the type that is the last one before the cache, or how many there are;
            None for as many as are not known to be random.
    """
    names = [name_of(transform) for transform in transforms]
    known = [find_random(transform) for transform in transforms]
    if until is None:
        count = next((k for k, found in enumerate(known) if found), len(known))
        if count == 0:
            raise ValueError(
                f'CachedDataset: there is nothing to cache in the pipeline {names}: '
                + ('it is empty' if not names else f'{known[0]} comes first and is random')
            )
        return count
    if isinstance(until, str):
        if until not in names:
            raise ValueError(f'CachedDataset.until={until!r} is not in the pipeline {names}')
        count = len(names) - names[::-1].index(until)
    elif isinstance(until, int) and not isinstance(until, bool) and 1 <= until <= len(names):
        count = until
    else:
        raise ValueError(
            'CachedDataset.until must be the type of a transform, how many are cached '
            f'(1 to {len(names)}), or None, found {until!r}'
        )
    for place, found in enumerate(known[:count]):
        if found is not None:
            raise ValueError(_refusal(until, place, names, f'{found} is random'))
    return count


def check_by_trial(
    transforms: Sequence[Any],
    count: int,
    until: str | int | None,
    get_info: Callable[[int], dict],
    samples: int,
) -> tuple[int, str | None]:
    """Make a sample eight times, with the global generators seeded differently, and compare.

    Returns:
        How many transforms can be cached, and why a check could not be made. With `until` given,
        fewer than `count` is a ValueError.
    """
    problem: str | None = 'there are no samples'
    for number in range(min(TRIALS, samples)):
        try:
            infos = [get_info(number) for _ in range(REPEATS)]
            place, why = _try(transforms[:count], infos)
        except Exception as error:  # an unreadable file, say: whoever draws it is told
            problem = f'sample {number}: {type(error).__name__}: {error}'
            continue
        if place is None:
            problem = why
            if why is not None:
                continue
            return count, None
        text = f'{name_of(transforms[place])} {why}'
        if until is not None or place == 0:
            names = [name_of(transform) for transform in transforms]
            raise ValueError(_refusal(until, place, names, text))
        return place, None
    return count, problem


def _try(transforms: Sequence[Any], samples: list[Any]) -> tuple[int | None, str | None]:
    """The first transform that is not always the same, and what it did; or why nobody knows."""
    for place, transform in enumerate(transforms):
        drew = False
        for repeat, sample in enumerate(samples):
            with seeded(repeat + 1, place):
                before = generator_states()
                samples[repeat] = transform(sample)
                drew = drew or not same(before, generator_states())
        if drew:
            return place, 'draws random numbers'
        if any(sample is None for sample in samples):
            return None, f'{name_of(transform)} gives None'
        if not all(same(samples[0], sample) for sample in samples[1:]):
            return place, 'does not give the same twice'
    return None, None


def _refusal(until: str | int | None, place: int, names: Sequence[str], what: str) -> str:
    possible = f'; the last that can be cached is {names[place - 1]!r}' if place else ''
    return (
        f'CachedDataset.until={until!r}: {what} (transform {place + 1} of {len(names)}), and would '
        f'be the same in each epoch{possible}'
    )


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal to the bit, arrays and plain objects included."""
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
