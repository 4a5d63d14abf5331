"""Datasets, samplers and transforms that work with any dataset of MMEngine."""

from . import transforms
from .cached_dataset import CachedDataset
from .samplers import ClassBalancedSampler, PKSampler, ResumableInfiniteSampler

__all__ = [
    'CachedDataset',
    'ClassBalancedSampler',
    'PKSampler',
    'ResumableInfiniteSampler',
    'transforms',
]
