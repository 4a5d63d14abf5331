"""Trains epoch by epoch, on batches that are there before they are needed."""

from __future__ import annotations

from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop

from ..loaders import Place, PrefetchDataLoader
from .prefetching import TrainingBatches, build, prefetch_to_device


@LOOPS.register_module()
class PrefetchEpochBasedTrainLoop(EpochBasedTrainLoop):
    """mmengine's `EpochBasedTrainLoop` with a loader that goes on exactly where it was.

    Also within an epoch: a checkpoint of its middle is resumed there, and not at its start. The
    next epoch's first batches are made while this one ends and is evaluated.

    Example::

        train_cfg = dict(type='PrefetchEpochBasedTrainLoop', max_epochs=24, val_interval=1)

    Args:
        runner: The runner.
        dataloader: A stock dataloader dict, see `build_prefetch_dataloader`. A loader that is
            built already is used as `EpochBasedTrainLoop` does.
        **kwargs: As for `EpochBasedTrainLoop`.
    """

    def __init__(self, runner: Any, dataloader: Any, **kwargs: Any) -> None:
        loader = build(runner, dataloader, 'train_dataloader', endless=True)
        super().__init__(runner, loader, **kwargs)
        self._batches: TrainingBatches | None = None
        if isinstance(loader, PrefetchDataLoader):
            self._batches = TrainingBatches(runner, loader)

    @property
    def resumes_within_epoch(self) -> bool:
        """Whether a checkpoint of the middle of an epoch is resumed there."""
        return self._batches is not None

    def run(self) -> Any:
        """Train; returns the model."""
        if self._batches is None:
            return super().run()
        if self._iter > 0:
            self._batches.resume(lambda: Place(self._epoch))
        prefetch_to_device(self.dataloader, self.runner.model, training=True)
        try:
            return super().run()
        finally:
            self.dataloader.close()

    def run_epoch(self) -> None:
        """What is left of an epoch."""
        if self._batches is None:
            super().run_epoch()
            return
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        loader = self.dataloader
        while loader.place.epoch == self._epoch:
            number = loader.place.batches
            self.run_iter(number, next(self._batches))
        self._batches.tell()
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """One iteration."""
        if self._batches is None:
            super().run_iter(idx, data_batch)
        else:
            self._batches.step(self, idx, data_batch)
