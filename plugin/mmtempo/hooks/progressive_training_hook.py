"""Changes crop, image and batch size while the training goes on."""

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
    """Small crops in large batches first, large crops in small batches later, in one run.

    Example::

        custom_hooks = [
            dict(
                type='ProgressiveTrainingHook',
                stages=[
                    dict(begin=0, crop_size=(128, 128), batch_size=8),
                    dict(begin=4000, crop_size=(256, 256), batch_size=4),
                ])]

    What a stage does not name stays as it was before, but for `lr_scale`:

    ===============  ================================================================
    key              what it changes
    ===============  ================================================================
    ``begin``        iterations before it, also where `train_cfg` counts epochs
    ``crop_size``    height and width of `RandomCrop` and those derived from it, of
                     `BEVRandomCrop`, and of the preprocessor's `size` if it has one
    ``scale``        width and height of `Resize`, `RandomResize`, `RandomChoiceResize`
    ``pipeline``     attributes of any transform, which most of them name as their
                     arguments: ``{'RandomCrop': dict(cat_max_ratio=0.9)}``
    ``batch_size``   samples of a batch in each process
    ``lr_scale``     a factor; 'linear' or 'sqrt': with the batch, against that of
                     `train_dataloader.batch_size`. Of each stage: 'linear' if not given
    ===============  ================================================================

    The run is the same whether it was resumed or not: the stage follows from the iteration. No
    sample of an epoch is left out or comes twice. Schedules never see the factor, which is on
    the learning rate during iterations only: it is `schedule(iteration) * factor` with any of
    them, in the log too, and checkpoints hold that of the schedule.

    It needs a prefetching train loop. One that counts epochs trains `max_epochs` of them, and a
    stage may begin within one; what was counted in iterations when the loop was built, as the
    remaining time and schedules with `convert_to_iter_based`, is for the config's batch size.

    It logs no keys; each change has a line in the log.

    Args:
        stages: Dicts, in the order in which they begin. Defaults to (): nothing changes.
    """

    # First: the log shows the learning rate that iterations have, schedules see their own.
    priority = 'HIGHEST'

    def __init__(self, stages: Sequence[dict] = ()) -> None:
        self.stages = parse_stages(stages)
        self._rate = LRFactor()
        self._transforms: Any = None
        self._configured: int | None = None  # batch size that the learning rate is for

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
            self._rate.mend(runner.optim_wrapper, checkpoint['optimizer'])

    def _enter(self, runner: Any, stage: Stage, done: int) -> None:
        """Begin a stage, or go on in it, behind so many iterations."""
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
            # Workers have copies of the transforms: they are started anew, behind what the
            # training was given. With drop_last that may be too near to an epoch's end for
            # one batch more, so the place is looked at again.
            loader.seek(_place(runner, loader, done))
            loader.close()
            searched = ', cudnn.benchmark searches again' * torch.backends.cudnn.benchmark
            hint = f'; what is compiled for one shape is compiled again{searched}'
        self._rate.factor = stage.learning_rate(self._configured)
        if self._rate.factor != before:
            changes.append(f'learning rate x {before:g} -> x {self._rate.factor:g}')
        runner.logger.info(
            f'Stage {self.stages.index(stage) + 1} of {len(self.stages)}, after {done} iterations: '
            f'{", ".join(changes) or "nothing changes"}{hint}'
        )


def _pad_to(runner: Any, size: tuple[int, int] | None) -> list[str]:
    """Of mmseg's preprocessor and ours; one that pads to a multiple has no size."""
    preprocessor: Any = getattr(unwrapped(runner.model), 'data_preprocessor', None)
    before = getattr(preprocessor, 'size', None)
    if size is None or not isinstance(before, (list, tuple)) or tuple(before) == size:
        return []
    preprocessor.size = size
    return [f'data_preprocessor.size {tuple(before)} -> {size}']


def _place(runner: Any, loader: Any, done: int) -> StreamPosition:
    """Behind what the training was given.

    As the checkpoint has it, if it was resumed: the loop has gone there already, but with the
    other batch size.
    """
    noted = dict(runner.message_hub.runtime_info.get(PLACE) or {})
    noted.pop('per_iteration', None)
    seen = noted.pop('iter', None), noted.pop('seed', None)
    return StreamPosition(**noted) if seen[0] == done else loader.place
