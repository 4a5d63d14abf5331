"""Loops with a prefetching dataloader, for `train_cfg`, `val_cfg` and `test_cfg`."""

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
