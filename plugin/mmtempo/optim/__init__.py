"""Optimizer wrappers that do not synchronize with the device."""

from .sparse_amp_optim_wrapper import SparseAmpOptimWrapper
from .sparse_optim_wrapper import SparseOptimWrapper

__all__ = ['SparseAmpOptimWrapper', 'SparseOptimWrapper']
