"""Trains iteration by iteration, on batches that are there before they are needed."""

from __future__ import annotations

from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import IterBasedTrainLoop

from mmtempo.evaluation.owed_evaluation import evaluate_owed, is_due
from mmtempo.loaders import PrefetchDataLoader, ResumableInfiniteSampler, StreamPosition

from .accumulation import batches_per_iteration, check_wrapper, counted
from .shared_failure import shared_failure
from .training_batches import TrainingBatches, build, prefetch_to_device


@LOOPS.register_module()
class PrefetchIterBasedTrainLoop(IterBasedTrainLoop):
    """mmengine's `IterBasedTrainLoop` with a loader that goes on, at once, exactly where it was.

    Batches are a function of (seed, place in the stream), whatever the number of workers; the
    place is in every checkpoint. When resumed, no batch is made twice, and none is skipped. An
    evaluation that a signal has cut off (see `AsyncCheckpointHook`) is done first.

    Workers are started when the loop is built, as by mmengine 0.10, and not when a checkpoint has
    been loaded. A hook that changes the data set later sets
    `dataloader._iterator` to None, as mmdet's do; with `persistent_workers=False` workers start
    with the first batch, and anew with each epoch of the sampler. A hook may put an iterator of
    its choice into `dataloader_iterator`, as for stock's loop. `fast_forward_on_resume` has no
    effect: nothing is skipped batch by batch.

    Example::

        train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=200_000, val_interval=5000)

    Where gradients accumulate, an iteration may be an update of all of its batches. Then
    `max_iters`, `val_interval`, schedules, averages, log lines and checkpoints count updates, and
    the gradient is the mean over all samples of the update, as that of one large batch; the log
    has means over them, too. An update ends with the epoch, if the sampler has epochs; hooks are
    given the first of its batches::

        train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=50_000, count='updates')
        optim_wrapper = dict(type='SparseOptimWrapper', accumulative_counts=4, ...)

    It is that of the large batch for losses that are means over samples, in models that look at
    each sample alone, as those with batch normalisation do not.

    Args:
        runner: The runner.
        dataloader: A stock dataloader dict, see `build_prefetch_dataloader`. A loader that is
            built already is used as `IterBasedTrainLoop` does.
        count: What an iteration is: a batch, as in stock's 'iterations', or an update, which is
            'updates'. Defaults to 'iterations'.
        **kwargs: As for `IterBasedTrainLoop`.
    """

    def __init__(
        self, runner: Any, dataloader: Any, count: str = 'iterations', **kwargs: Any
    ) -> None:
        self.count, self.batches_per_iteration = count, batches_per_iteration(runner, count)
        loader = build(runner, dataloader, 'train_dataloader', endless=True)
        super().__init__(runner, counted(loader, self.batches_per_iteration), **kwargs)
        self._batches: TrainingBatches | None = None
        if isinstance(loader, PrefetchDataLoader):
            self._batches = TrainingBatches(runner, loader, self.batches_per_iteration)
            self.dataloader_iterator = self._batches
            loader.start_early()  # while a checkpoint may be loaded

    @property
    def repeats_evaluations(self) -> bool:
        """Whether an evaluation that a signal has cut off is done on resume."""
        return self._batches is not None

    def run(self) -> Any:
        """Train; returns the model."""
        check_wrapper(self.runner.optim_wrapper, self.count, self.batches_per_iteration)
        with shared_failure():
            return super().run() if self._batches is None else self._run(self._batches)

    def _run(self, batches: TrainingBatches) -> Any:
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')
        if self._iter > 0 and self._is_ours():
            batches.resume(self._place_by_count)
        prefetch_to_device(batches.loader, self.runner.model, training=True)
        try:
            evaluate_owed(self.runner)
            while self._iter < self._max_iters and not self.stop_training:
                self.runner.model.train()
                self.run_iter(next(self.dataloader_iterator))
                self._decide_current_val_interval()
                if is_due(self, self._iter):
                    batches.tell()
                    self.runner.val_loop.run()
            batches.tell()
        finally:
            batches.loader.close()
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model

    def run_iter(self, data_batch: Any) -> None:
        """Train on one batch, or on those of one update."""
        if self._batches is not None and self._is_ours():
            self._batches.step(self, self._iter, data_batch)
            return
        if self.batches_per_iteration > 1:
            raise ValueError(
                "train_cfg.count='updates' needs the loop's own dataloader_iterator, found a "
                f'{type(self.dataloader_iterator).__name__}, which a hook has put there; change '
                "it, or use train_cfg.count='iterations'"
            )
        super().run_iter(data_batch)

    def _is_ours(self) -> bool:
        return self.dataloader_iterator is self._batches

    def _place_by_count(self) -> StreamPosition:
        """Of a checkpoint of stock's, which counts iterations."""
        assert self._batches is not None
        # `dataloader` may be another one by now, that a hook has put there.
        loader = counted(self._batches.loader, self.batches_per_iteration)
        epoch, done = divmod(self._iter, len(loader))
        if isinstance(loader.sampler, ResumableInfiniteSampler):  # it counts no epochs
            epoch, done = 0, self._iter
        batches = done * self.batches_per_iteration
        samples = batches * (loader.batch_size or 1) * loader.processes
        return StreamPosition(epoch, batches, samples, loader.processes)
