"""Samplers: endless and resumable, class-balanced, and P x K by identity."""

from .class_balanced_sampler import ClassBalancedSampler
from .pk_sampler import PKSampler
from .resumable_infinite_sampler import ResumableInfiniteSampler

__all__ = ['ClassBalancedSampler', 'PKSampler', 'ResumableInfiniteSampler']
