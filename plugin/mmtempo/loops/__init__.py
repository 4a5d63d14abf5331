"""Loops that own a prefetching loader: the seam in a config's train_cfg, val_cfg and test_cfg."""

from .prefetch_epoch_based_train_loop import PrefetchEpochBasedTrainLoop
from .prefetch_iter_based_train_loop import PrefetchIterBasedTrainLoop
from .prefetch_test_loop import PrefetchTestLoop
from .prefetch_val_loop import PrefetchValLoop

__all__ = [
    'PrefetchEpochBasedTrainLoop',
    'PrefetchIterBasedTrainLoop',
    'PrefetchTestLoop',
    'PrefetchValLoop',
]
