"""What all prefetching loops do with their loader."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from mmengine.dist import get_world_size

from mmtempo.checkpoint.loading import register_safe_downloads
from mmtempo.device.prefetcher import DevicePrefetcher
from mmtempo.device.streams import SideStream
from mmtempo.loaders import (
    LoaderError,
    PrefetchDataLoader,
    StreamPosition,
    build_prefetch_dataloader,
)
from mmtempo.utils.phases import charged_to

from .accumulation import LogMeans
from .device_stage import stage_for
from .saving import save_state
from .step_rescue import StepRescue

# In the message hub, which every checkpoint carries.
PLACE = 'train_loader_place'


def build(runner: Any, dataloader: Any, name: str, endless: bool = False) -> Any:
    """The loader that a config describes; one that is built already stays what it is."""
    register_safe_downloads()  # loops are built before a checkpoint is loaded
    if not isinstance(dataloader, dict):
        return dataloader
    return build_prefetch_dataloader(
        dataloader,
        seed=runner.seed,
        diff_rank_seed=runner._randomness_cfg.get('diff_rank_seed', False),
        endless=endless,
        name=name,
        model=runner.model,
    )


def prefetch_to_device(loader: Any, model: Any, training: bool) -> None:
    """Have batches brought to where the model is, one ahead."""
    if not isinstance(loader, PrefetchDataLoader):
        return
    stage = stage_for(model, training)
    if stage is None:
        loader.stage_with(None)
    else:
        side = _side_stream(stage.device)
        loader.stage_with(functools.partial(DevicePrefetcher, stage=stage, side=side))


def evaluate(loop: Any, losses: dict[str, Any], stage: str, samples: int) -> dict:
    """Run the model over all batches of an evaluation loop; returns the metrics.

    Args:
        loop: The loop, with its evaluator and `run_iter`.
        losses: Where the loop collects losses of the model; not each stack does.
        stage: 'val' or 'test'.
        samples: How many samples the metrics are over.
    """
    loop.runner.model.eval()
    losses.clear()
    loader = loop.dataloader
    is_ours = isinstance(loader, PrefetchDataLoader)
    for number, batch in enumerate(loader.batches() if is_ours else loader):
        loop.run_iter(number, batch)
    metrics = loop.evaluator.evaluate(samples)
    if losses:
        means = {name: history.mean() for name, history in losses.items()}
        total = sum(means[name] for name in means if 'loss' in name)
        metrics.update(means, **{f'{stage}_loss': total})
    return metrics


@functools.cache
def _side_stream(device: torch.device) -> SideStream:
    """One for all loops: the allocator keeps the memory of each stream for that."""
    return SideStream(device)


def samples_of_iteration(loop: Any) -> int | None:
    """Of all processes; None where the loader does not say."""
    batch = getattr(loop.dataloader, 'batch_size', None)
    return batch * getattr(loop, 'batches_per_iteration', 1) * get_world_size() if batch else None


class TrainingBatches(Iterator):
    """Takes batches of a training's loader, and keeps in its checkpoints how far that is.

    An iteration of several batches takes each when the one before has been trained on, and ends
    with the epoch. What ends a training within it, as a batch that does not come, loses that
    iteration alone: weights are those of the last update. Running statistics, as of batch
    normalisation, have seen the batches that did come.

    Args:
        runner: Of the training.
        loader: Of the training.
        per_iteration: Batches of an iteration. Defaults to 1.

    Attributes:
        loader: The loader.
    """

    def __init__(self, runner: Any, loader: PrefetchDataLoader, per_iteration: int = 1) -> None:
        self._runner, self.loader, self._per_iteration = runner, loader, per_iteration
        loader.endless = True
        self._told = 0
        self._rescue = StepRescue(runner, infos=(PLACE,))

    def __next__(self) -> Any:
        try:
            return self.loader.take()
        except LoaderError as error:
            self._runner.logger.error(str(error))
            save_state(self._runner)  # it is whole, though no batch comes
            raise

    @property
    def number(self) -> int:
        """Of the iteration that begins with the batch which came last, within its epoch."""
        length, most = len(self.loader), self._per_iteration
        left = length - (self.loader.place.batches or length) + 1
        return -(-length // most) - -(-left // most)

    def resume(self, by_count: Callable[[], StreamPosition]) -> None:
        """Go to where the checkpoint was.

        Args:
            by_count: The place that the number of iterations tells, for a checkpoint that does
                not say, or whose place is not of its iteration: stock's loops leave that of an
                earlier training as it is.
        """
        found = dict(self._runner.message_hub.runtime_info.get(PLACE) or {})
        seed, iteration = found.pop('seed', None), found.pop('iter', None)
        found.pop('per_iteration', None)
        how = ''
        if iteration == self._runner.iter:
            place = StreamPosition(**found)
        else:
            place, how = by_count(), ' (estimated from the iteration: no loader position is known)'
            # What the run has restored; where each process has its own, the order has another.
            differs = self._runner._randomness_cfg.get('diff_rank_seed', False)
            seed = None if differs else self._runner.seed
        self.loader.seek(place, seed)
        place = self.loader.place
        self._runner.logger.info(
            f'{self.loader.name}: resuming at epoch {place.epoch + 1} after {place.samples} '
            f'samples{how}'
        )

    def _note(self) -> None:
        """A checkpoint of this iteration is behind the batch that it was given."""
        place: dict[str, Any] = self.loader.place.as_dict()
        place.update(seed=self.loader.seed, iter=self._runner.iter + 1)
        place.update(per_iteration=samples_of_iteration(self._runner.train_loop))
        self._runner.message_hub.update_info(PLACE, place)

    def step(self, loop: Any, number: int, batch: Any) -> None:
        """Train one iteration, as stock's loops do; its place counts once a signal would wait.

        Args:
            loop: Of the training.
            number: Of the iteration.
            batch: Its first, or only one; hooks are given that.
        """
        runner = self._runner
        runner.call_hook('before_train_iter', batch_idx=number, data_batch=batch)
        self._rescue.begin()
        if self._per_iteration == 1:
            self._note()
            outputs = self._train_step(batch)
        else:
            outputs = self._update_with(batch)
        runner.call_hook('after_train_iter', batch_idx=number, data_batch=batch, outputs=outputs)
        loop._iter += 1

    def _train_step(self, batch: Any) -> dict[str, Any]:
        self._rescue.begin_step()
        try:
            return self._runner.model.train_step(batch, optim_wrapper=self._runner.optim_wrapper)
        except Exception:
            self._rescue.save()
            raise

    def _update_with(self, batch: Any) -> dict[str, Any]:
        """Train on a batch and those that follow it, up to an update; what is to be logged."""
        runner, loader, means = self._runner, self.loader, LogMeans()
        usual = self._per_iteration * (loader.batch_size or self._samples)
        runner.optim_wrapper.begin_update(runner.iter, usual)
        for left in reversed(range(self._per_iteration)):
            is_last = not left or loader.place.batches == 0  # behind the end of an epoch
            if is_last:
                self._note()
            samples = self._samples
            runner.optim_wrapper.announce(samples, is_last)
            means.add(self._train_step(batch), samples)
            if is_last:
                break
            with charged_to('data'):
                batch = next(self)
        return means.take()

    @property
    def _samples(self) -> int:
        """Of the batch that came last."""
        assert self.loader.delivery is not None
        return len(self.loader.delivery.samples)

    def tell(self) -> None:
        """What the loader has to say of itself, for the log."""
        waiting, name = self.loader.waiting, self.loader.name
        if waiting.batches == self._told:
            return
        self._told = waiting.batches
        lines = [
            f'{name}: {waiting.starved} of {waiting.batches} batches were late, the training has '
            f'waited {waiting.seconds:.1f} s for them'
        ]
        if hasattr(self.loader.dataset, 'describe'):
            lines.append(f'{name}: {self.loader.dataset.describe()}')
        for line in lines:
            self._runner.logger.info(line)
