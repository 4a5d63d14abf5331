"""The dataloader of a prefetching loop: build it, resume it, and take its batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict
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
from mmtempo.utils.units import duration

from .device_stage import stage_for
from .saving import save_state, stop_if_asked

# Key of the loader position in the message hub, which every checkpoint contains.
PLACE = 'train_loader_place'


def build(runner: Any, dataloader: Any, name: str) -> Any:
    """Build the dataloader of a config dict; return any other object as it is."""
    register_safe_downloads()  # loops are built before a checkpoint is loaded
    if not isinstance(dataloader, dict):
        return dataloader
    return build_prefetch_dataloader(
        dataloader,
        seed=runner.seed,
        diff_rank_seed=runner._randomness_cfg.get('diff_rank_seed', False),
        name=name,
        model=runner.model,
    )


def prefetch_to_device(loader: Any, model: Any, training: bool) -> None:
    """Have the dataloader move batches to the model's device, one batch ahead."""
    if not isinstance(loader, PrefetchDataLoader):
        return
    stage, loader.stage = stage_for(model, training), None
    if stage is not None:
        side = _side_stream(stage.device)
        loader.stage = functools.partial(DevicePrefetcher, stage=stage, side=side)


def evaluate(loop: Any, losses: dict[str, Any], stage: str, samples: int) -> dict:
    """Run the model on all batches of an evaluation loop, and return the metrics.

    Args:
        loop: The loop, with its evaluator and `run_iter`.
        losses: The dict in which the loop collects losses of the model; it stays empty with
            versions of mmengine that collect none.
        stage: 'val' or 'test'.
        samples: Number of samples that the metrics are computed over.
    """
    loop.runner.model.eval()
    losses.clear()
    batches = loader = loop.dataloader
    if isinstance(loader, PrefetchDataLoader):
        batches = loader.batches(on_wait=functools.partial(stop_if_asked, loop.runner))
    for number, batch in enumerate(batches):
        loop.run_iter(number, batch)
    metrics = loop.evaluator.evaluate(samples)
    if losses:
        means = {name: history.mean() for name, history in losses.items()}
        total = sum(means[name] for name in means if 'loss' in name)
        metrics.update(means, **{f'{stage}_loss': total})
    return metrics


@functools.cache
def _side_stream(device: torch.device) -> SideStream:
    """Return the side stream that all loops share.

    The allocator keeps the memory of each stream for that stream: another one could not reuse it.
    """
    return SideStream(device)


def samples_of_iteration(loop: Any) -> int | None:
    """Return the samples of an iteration in all processes; None if the loader does not know."""
    batch = getattr(loop.dataloader, 'batch_size', None)
    return batch * getattr(loop, 'batches_per_iteration', 1) * get_world_size() if batch else None


class TrainingBatches(Iterator):
    """An iterator over the batches of a training, whose position is in every checkpoint.

    Args:
        runner: The runner of the training.
        loader: The dataloader of the training.

    Attributes:
        loader: The dataloader.
    """

    def __init__(self, runner: Any, loader: PrefetchDataLoader) -> None:
        self._runner, self.loader = runner, loader
        loader.endless = True
        self._logged_batches = 0

    def __next__(self) -> Any:
        return self.take(on_wait=functools.partial(stop_if_asked, self._runner))

    def take(self, on_wait: Callable[[], None] | None = None) -> Any:
        """Return the next batch; save the training if it cannot be made."""
        try:
            return self.loader.take(on_wait)
        except LoaderError as error:
            self._runner.logger.error(str(error))
            save_state(self._runner)  # weights and position are those of a whole iteration
            raise

    @property
    def number(self) -> int:
        """Index, within its epoch, of the iteration that begins with the last taken batch."""
        length = len(self.loader.batch_sampler)
        left = length - (self.loader.place.batches or length) + 1
        return len(self.loader) - -(-left // self.loader.batches_per_iteration)

    def resume(self, by_count: Callable[[], StreamPosition]) -> None:
        """Move the dataloader to the position of the checkpoint.

        Args:
            by_count: Returns the position that the number of iterations implies. It is used if
                the checkpoint has no position of its iteration: stock's loops keep the position
                that an earlier training has left in the message hub.
        """
        saved = dict(self._runner.message_hub.runtime_info.get(PLACE) or {})
        seed, iteration = saved.pop('seed', None), saved.pop('iter', None)
        saved.pop('per_iteration', None)
        how = ''
        if iteration == self._runner.iter:
            position = StreamPosition(**saved)
        else:
            position = by_count()
            how = ' (estimated from the iteration; the checkpoint has no loader position for it)'
            # The run has restored its seed. With `diff_rank_seed` that is the process's own seed,
            # while the order of samples has one that all processes share.
            differs = self._runner._randomness_cfg.get('diff_rank_seed', False)
            seed = None if differs else self._runner.seed
        self.loader.seek(position, seed)
        position = self.loader.place
        self._runner.logger.info(
            f'{self.loader.name}: resuming at epoch {position.epoch + 1} after '
            f'{position.samples} samples{how}'
        )

    def update_position(self) -> None:
        """Put the position after the last taken batch into the message hub.

        A checkpoint of this iteration must resume after that batch. Call it after the hooks at
        `before_train_iter`, of which the first saves the previous iteration if a signal has
        arrived.
        """
        position: dict[str, Any] = asdict(self.loader.place)
        position.update(seed=self.loader.seed, iter=self._runner.iter + 1)
        position.update(per_iteration=samples_of_iteration(self._runner.train_loop))
        self._runner.message_hub.update_info(PLACE, position)

    @property
    def samples(self) -> int:
        """Number of samples of the last taken batch."""
        return len(self.loader.deliveries[-1].samples)

    def log_statistics(self) -> None:
        """Log how long the training waited for batches, and what the dataset reports."""
        waiting, name = self.loader.waiting, self.loader.name
        if waiting.batches == self._logged_batches:
            return
        self._logged_batches = waiting.batches
        lines = [
            f'{name}: {waiting.starved} of {waiting.batches} batches were late (training waited '
            f'{duration(waiting.seconds)})'
        ]
        if hasattr(self.loader.dataset, 'describe'):
            lines.append(f'{name}: {self.loader.dataset.describe()}')
        for line in lines:
            self._runner.logger.info(line)
