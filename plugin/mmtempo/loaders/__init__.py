"""Loaders: from a dataloader config to batches that are there before they are needed."""

from ..core.sample_cache import SharedSampleCache
from .batch_stream import Place
from .build import build_prefetch_dataloader
from .cached_dataset import CachedDataset
from .class_balanced_sampler import ClassBalancedSampler
from .errors import LoaderError
from .pad_collate import pad_collate
from .pk_sampler import PKSampler
from .prefetch_dataloader import PrefetchDataLoader
from .resumable_infinite_sampler import ResumableInfiniteSampler
from .sample_batch import SampleBatch
from .stack_collate import stack_collate

__all__ = [
    'CachedDataset',
    'ClassBalancedSampler',
    'LoaderError',
    'PKSampler',
    'Place',
    'PrefetchDataLoader',
    'ResumableInfiniteSampler',
    'SampleBatch',
    'SharedSampleCache',
    'build_prefetch_dataloader',
    'pad_collate',
    'stack_collate',
]
