"""Change crop size, image size and batch size during a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmtempo.loaders import StreamPosition
from mmtempo.loops import PrefetchEpochBasedTrainLoop, PrefetchIterBasedTrainLoop
from mmtempo.loops.training_batches import PLACE
from mmtempo.progressive.live_transforms import LiveTransforms
from mmtempo.progressive.lr_factor import LRFactor
from mmtempo.progressive.stages import Stage, parse_stages
from mmtempo.utils.runner import unwrapped

NEEDED = (PrefetchEpochBasedTrainLoop, PrefetchIterBasedTrainLoop)


@HOOKS.register_module()
class ProgressiveTrainingHook(Hook):
    """Training in stages: small crops in large batches first, large crops in small ones later.

    Example::

        custom_hooks = [
            dict(
                type='ProgressiveTrainingHook',
                stages=[
                    dict(begin=0, crop_size=(128, 128), batch_size=8),
                    dict(begin=4000, crop_size=(256, 256), batch_size=4),
                ])]

    A stage inherits what it does not name from the previous stage, except `lr_scale`:

    ===============  ================================================================
    key              what it changes
    ===============  ================================================================
    ``begin``        iterations before the stage, also where `train_cfg` counts epochs
    ``crop_size``    height and width of `RandomCrop` and classes derived from it, of
                     `BEVRandomCrop`, and of the preprocessor's `size` if it has one
    ``scale``        width and height of `Resize`, `RandomResize`, `RandomChoiceResize`
    ``pipeline``     attributes of any transform, which most transforms name like their
                     arguments: ``{'RandomCrop': dict(cat_max_ratio=0.9)}``
    ``batch_size``   samples per batch in each process
    ``lr_scale``     a factor, or a rule: 'linear' or 'sqrt' in the ratio of the batch
                     size to `train_dataloader.batch_size`. 'linear' where not given
    ===============  ================================================================

    A resumed run equals one that was not interrupted: the stage follows from the iteration. A
    change of stage within an epoch neither skips nor repeats a sample. The factor on the learning
    rate applies during iterations only, so that schedules never see it: the rate is
    `schedule(iteration) * factor` for any schedule, also in the log, and checkpoints hold the
    rate of the schedule.

    It needs a prefetching train loop. A loop that counts epochs trains `max_epochs` epochs, and a
    stage may begin within one; numbers of iterations that are computed when the loop is built, as
    for the remaining time and for schedules with `convert_to_iter_based`, assume the configured
    batch size.

    It logs no keys; each change of stage writes a line to the log.

    Args:
        stages: Dicts, in the order in which the stages begin. Defaults to (): no change.
    """

    # First, so that the log shows the scaled rate, and schedules see the rate that they have set.
    priority = 'HIGHEST'

    def __init__(self, stages: Sequence[dict] = ()) -> None:
        self.stages = parse_stages(stages)
        self._rate = LRFactor()
        self._transforms: Any = None
        # The batch size that the configured learning rate is for.
        self._configured: int | None = None

    def before_train(self, runner: Any) -> None:
        self._rate = LRFactor()
        if not self.stages:
            return
        loop, loader = runner.train_loop, runner.train_dataloader
        if not isinstance(loop, NEEDED) or not hasattr(loader, 'seek'):
            raise ValueError(
                'ProgressiveTrainingHook needs train_cfg.type='
                f'{" or ".join(one.__name__ for one in NEEDED)}, with train_dataloader as a dict; '
                f'found {type(loop).__name__} with a {type(loader).__name__}'
            )
        self._transforms = LiveTransforms(loader.dataset)
        self._configured = self._configured or loader.batch_size
        for stage in self.stages:
            stage.check(self._transforms, loader)
        begun = [stage for stage in self.stages if stage.begin <= runner.iter]
        if begun:
            self._enter(runner, begun[-1], runner.iter)

    def before_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self._rate.begin(runner.optim_wrapper)

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self._rate.end(runner.optim_wrapper)
        for stage in self.stages:
            if stage.begin == runner.iter + 1:
                self._enter(runner, stage, runner.iter + 1)

    def before_save_checkpoint(self, runner: Any, checkpoint: dict) -> None:
        if 'optimizer' in checkpoint:
            self._rate.restore(runner.optim_wrapper, checkpoint['optimizer'])

    def _enter(self, runner: Any, stage: Stage, done: int) -> None:
        """Begin or continue a stage.

        Args:
            runner: The runner of the training.
            stage: The stage.
            done: Number of completed iterations.
        """
        loader, before = runner.train_dataloader, self._rate.factor
        changes = [
            change
            for targets in stage.targets.values()
            for target in targets
            for change in self._transforms.set(*target)
        ]
        changes += _pad_to(runner, stage.pad_size)
        if stage.batch_size not in (None, loader.batch_size):
            changes.append(f'batch_size {loader.batch_size} -> {stage.batch_size}')
            loader.batch_sampler.batch_size = loader.batch_size = stage.batch_size
        hint = ''
        if changes:
            # Workers hold copies of the transforms, so they are restarted after received batches.
            # With drop_last the rest may be less than a batch of the new size: `seek` checks it.
            loader.seek(_position(runner, loader, done))
            loader.close()
            searched = ', cudnn.benchmark searches again' * torch.backends.cudnn.benchmark
            hint = f'; modules compiled for a fixed shape are compiled again{searched}'
        self._rate.factor = stage.learning_rate(self._configured)
        if self._rate.factor != before:
            changes.append(f'learning rate x {before:g} -> x {self._rate.factor:g}')
        runner.logger.info(
            f'Stage {self.stages.index(stage) + 1} of {len(self.stages)}, after {done} iterations: '
            f'{", ".join(changes) or "no change"}{hint}'
        )


def _pad_to(runner: Any, size: tuple[int, int] | None) -> list[str]:
    """Set the size that the data preprocessor pads to, if it has one; return what changed.

    mmseg's preprocessor and ours have a size; one that pads to a multiple has none.
    """
    preprocessor: Any = getattr(unwrapped(runner.model), 'data_preprocessor', None)
    before = getattr(preprocessor, 'size', None)
    if size is None or not isinstance(before, (list, tuple)) or tuple(before) == size:
        return []
    preprocessor.size = size
    return [f'data_preprocessor.size {tuple(before)} -> {size}']


def _position(runner: Any, loader: Any, done: int) -> StreamPosition:
    """Return the position after the batches that the training has received.

    In a resumed training it is that of the checkpoint: the loop has sought it already, but with
    the configured batch size.
    """
    noted = dict(runner.message_hub.runtime_info.get(PLACE) or {})
    noted.pop('per_iteration', None)
    seen = noted.pop('iter', None), noted.pop('seed', None)
    return StreamPosition(**noted) if seen[0] == done else loader.place
