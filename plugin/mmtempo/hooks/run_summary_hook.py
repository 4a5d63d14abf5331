"""Log where the results of a run are."""

from __future__ import annotations

import os.path as osp
import time
from typing import Any

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmtempo.utils.units import counted, duration


@HOOKS.register_module()
class RunSummaryHook(Hook):
    """A summary at the end of a training: its duration, its files and the skipped samples.

    Example::

        custom_hooks = [dict(type='RunSummaryHook')]

    It logs one block of text and no keys.

    Args:
        show: Largest number of skipped samples to list by name. Defaults to 5.
    """

    # Last of all hooks, so that the checkpoint of the last iteration is on disk by then.
    priority = 'LOWEST'

    def __init__(self, show: int = 5) -> None:
        self.show = show
        self._started = 0.0
        self._first_iter = 0

    def before_train(self, runner: Any) -> None:
        self._started = time.perf_counter()
        self._first_iter = runner.iter

    def after_train(self, runner: Any) -> None:
        took = duration(time.perf_counter() - self._started)
        done = counted(runner.iter - self._first_iter, 'iteration')
        lines = [f'{done} in {took}, evaluations included']
        checkpoint = runner.message_hub.runtime_info.get('last_ckpt')
        if checkpoint:
            lines.append(f'checkpoint  {checkpoint}')
        config = runner.cfg.filename
        if config:
            # The dumped copy includes the changes by --cfg-options.
            config = osp.join(runner.work_dir, osp.basename(config))
            lines.append(f'config      {config}')
        lines.append(f'logs        {runner.log_dir}')
        if config and checkpoint:
            lines.append(f'test it     python tools/test.py {config} {checkpoint}')
        runner.logger.info('\n  '.join(['Training has ended.', *lines]))
        for split, loop in (('train', runner.train_loop), ('val', runner.val_loop)):
            self._report_skipped(runner, split, loop)

    def after_test(self, runner: Any) -> None:
        self._report_skipped(runner, 'test', runner.test_loop)

    def _report_skipped(self, runner: Any, split: str, loop: Any) -> None:
        dataset = getattr(getattr(loop, 'dataloader', None), 'dataset', None)
        names = sorted(set().union(*all_gather_object(_bad_samples(dataset))))
        if names:
            more = f'\n  ... and {len(names) - self.show} more' if len(names) > self.show else ''
            listing = ''.join(f'\n  {name}' for name in names[: self.show])
            runner.logger.warning(
                f'{counted(len(names), "bad sample")} of {split} skipped:{listing}{more}'
            )


def _bad_samples(dataset: Any) -> list[str]:
    """Return the samples that a dataset skipped, also within wrappers as `RepeatDataset`."""
    if hasattr(dataset, 'bad_samples'):
        return dataset.bad_samples()
    inner = [*getattr(dataset, 'datasets', []), getattr(dataset, 'dataset', None)]
    return [name for part in inner if part is not None for name in _bad_samples(part)]
