"""Dataloaders that prefetch batches and resume at a position of their stream."""

from mmtempo.datasets.cache.sample_cache import SharedSampleCache
from mmtempo.datasets.cached_dataset import CachedDataset
from mmtempo.datasets.samplers.class_balanced_sampler import ClassBalancedSampler
from mmtempo.datasets.samplers.pk_sampler import PKSampler
from mmtempo.datasets.samplers.resumable_infinite_sampler import ResumableInfiniteSampler

from .batch_stream import StreamPosition
from .build import build_prefetch_dataloader
from .collate.pad_collate import pad_collate
from .collate.sample_batch import SampleBatch
from .collate.stack_collate import stack_collate
from .prefetch_dataloader import PrefetchDataLoader
from .worker_errors import LoaderError

Place = StreamPosition  # the former name

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
    'StreamPosition',
    'build_prefetch_dataloader',
    'pad_collate',
    'stack_collate',
]
