"""Trains iteration by iteration, on batches that are there before they are needed."""

from __future__ import annotations

from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import IterBasedTrainLoop

from ..loaders import Place, PrefetchDataLoader, ResumableInfiniteSampler
from .prefetching import TrainingBatches, build, prefetch_to_device


@LOOPS.register_module()
class PrefetchIterBasedTrainLoop(IterBasedTrainLoop):
    """mmengine's `IterBasedTrainLoop` with a loader that goes on, at once, exactly where it was.

    Batches are a function of (seed, place in the stream), whatever the number of workers; the
    place is in every checkpoint. When resumed, no batch is made twice, and none is skipped.

    Workers are started when the loop is built, as by mmengine 0.10, and not when a checkpoint has
    been loaded. A hook that changes the data set later sets
    `dataloader._iterator` to None, as mmdet's do. `fast_forward_on_resume` is of no use here.

    Example::

        train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=200_000, val_interval=5000)

    Args:
        runner: The runner.
        dataloader: A stock dataloader dict, see `build_prefetch_dataloader`. A loader that is
            built already is used as `IterBasedTrainLoop` does.
        **kwargs: As for `IterBasedTrainLoop`.
    """

    def __init__(self, runner: Any, dataloader: Any, **kwargs: Any) -> None:
        loader = build(runner, dataloader, 'train_dataloader', endless=True)
        super().__init__(runner, loader, **kwargs)
        self._batches: TrainingBatches | None = None
        if isinstance(loader, PrefetchDataLoader):
            self._batches = TrainingBatches(runner, loader)
            self.dataloader_iterator = self._batches
            loader.start_early()  # beside the checkpoint that may be loaded now

    def run(self) -> Any:
        """Train; returns the model."""
        if self._batches is None:
            return super().run()
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')
        if self._iter > 0:
            self._batches.resume(self._place_by_count)
        prefetch_to_device(self.dataloader, self.runner.model, training=True)
        try:
            while self._iter < self._max_iters and not self.stop_training:
                self.runner.model.train()
                self.run_iter(next(self._batches))
                self._decide_current_val_interval()
                if self._is_to_be_evaluated():
                    self._batches.tell()
                    self.runner.val_loop.run()
            self._batches.tell()
        finally:
            self.dataloader.close()
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model

    def run_iter(self, data_batch: Any) -> None:
        """One iteration."""
        if self._batches is None:
            super().run_iter(data_batch)
        else:
            self._batches.step(self, self._iter, data_batch)

    def _is_to_be_evaluated(self) -> bool:
        if self.runner.val_loop is None or self._iter < self.val_begin:
            return False
        return self._iter % self.val_interval == 0 or self._iter == self._max_iters

    def _place_by_count(self) -> Place:
        """Of a checkpoint of stock's, which counts iterations."""
        loader = self.dataloader
        epoch, batches = divmod(self._iter, len(loader))
        if isinstance(loader.sampler, ResumableInfiniteSampler):  # it counts no epochs
            epoch, batches = 0, self._iter
        samples = batches * (loader.batch_size or 1) * loader.processes
        return Place(epoch, batches, samples, loader.processes)
