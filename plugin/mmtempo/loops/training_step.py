"""The base of the training loops: their dataloader, and the step on a batch."""

from __future__ import annotations

from typing import Any

from mmengine.runner import BaseLoop

from mmtempo.loaders import PrefetchDataLoader
from mmtempo.monitor.hook_calls import call_hooks
from mmtempo.utils.phases import RELEASE, charged_to

from .accumulation import LogMeans, batches_per_iteration, check_wrapper, count_iterations
from .shared_failure import shared_failure
from .step_rescue import StepRescue
from .training_batches import PLACE, TrainingBatches, build


class PrefetchTraining(BaseLoop):
    """The base of the training loops, before one of mmengine's in the order of base classes.

    In an iteration of several batches, each batch is taken after training on the previous one,
    and the iteration ends with the epoch at the latest. A failure within the iteration, such as
    a batch that cannot be made, loses that iteration only: weights are those of the last update.
    Running statistics, as of batch normalization, already include the batches before the
    failure.

    Args:
        runner: The runner.
        dataloader: A stock dataloader dict, or a loader that is built already.
        count: The unit of an iteration. Defaults to 'iterations'.
        **kwargs: Arguments of mmengine's loop.
    """

    dataloader: Any
    _iter: int

    def __init__(
        self, runner: Any, dataloader: Any, count: str = 'iterations', **kwargs: Any
    ) -> None:
        self.count, self.batches_per_iteration = count, batches_per_iteration(runner, count)
        loader = build(runner, dataloader, 'train_dataloader')
        count_iterations(loader, self.batches_per_iteration)
        super().__init__(runner, loader, **kwargs)
        self._rescue = StepRescue(runner, infos=(PLACE,))
        self._use(loader)

    def _use(self, loader: Any) -> None:
        self._used = loader
        self._batches: TrainingBatches | None = None  # of a loader that is not ours
        if isinstance(loader, PrefetchDataLoader):
            self._batches = TrainingBatches(self.runner, loader)

    @property
    def repeats_evaluations(self) -> bool:
        """Whether an evaluation that was interrupted by a signal is repeated on resume."""
        return self._batches is not None

    def run(self) -> Any:
        """Train, and return the model."""
        check_wrapper(self.runner.optim_wrapper, self.count, self.batches_per_iteration)
        with shared_failure():
            return self._run()

    def _run(self) -> Any:
        raise NotImplementedError

    def _step(self, batches: TrainingBatches, number: int, batch: Any) -> None:
        """Train one iteration, as stock's loops do.

        Args:
            batches: The batches of the training.
            number: Index of the iteration, which hooks get as `batch_idx`.
            batch: The first, or only, batch of the iteration; hooks get this one.
        """
        call_hooks(self.runner, 'before_train_iter', batch_idx=number, data_batch=batch)
        self._rescue.begin()  # before the position changes: a failed step restores it
        if self.batches_per_iteration == 1:
            batches.update_position()
            outputs = self._train_step(batch)
        else:
            outputs = self._update_with(batches, batch)
        arguments = dict(batch_idx=number, data_batch=batch, outputs=outputs)
        call_hooks(self.runner, 'after_train_iter', **arguments)
        with charged_to(RELEASE):  # else it would be charged to the wait for the next batch
            del outputs, arguments
        self._iter += 1

    def _train_step(self, batch: Any) -> dict[str, Any]:
        self._rescue.begin_step()
        try:
            return self.runner.model.train_step(batch, optim_wrapper=self.runner.optim_wrapper)
        except Exception:
            self._rescue.save()
            raise

    def _update_with(self, batches: TrainingBatches, batch: Any) -> dict[str, Any]:
        """Train on a batch and its successors up to an update; return the values to log."""
        wrapper, means = self.runner.optim_wrapper, LogMeans()
        usual = self.batches_per_iteration * (batches.loader.batch_size or batches.samples)
        wrapper.begin_update(self.runner.iter, usual)
        for left in reversed(range(self.batches_per_iteration)):
            is_last = not left or batches.loader.place.batches == 0  # the epoch has ended
            if is_last:
                batches.update_position()
            samples = batches.samples
            wrapper.announce(samples, is_last)
            means.add(self._train_step(batch), samples)
            if is_last:
                break
            with charged_to('data'):
                batch = batches.take()  # not `next`: a signal waits for the end of the update
        return means.take()
