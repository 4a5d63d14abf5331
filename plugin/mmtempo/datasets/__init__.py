"""Datasets, samplers and transforms for any dataset of mmengine."""

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
