"""Test with a prefetching dataloader."""

from __future__ import annotations

from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import TestLoop

from .training_batches import build, evaluate, prefetch_to_device


@LOOPS.register_module()
class PrefetchTestLoop(TestLoop):
    """mmengine's `TestLoop` with a prefetching dataloader.

    Example::

        test_cfg = dict(type='PrefetchTestLoop')

    Args:
        runner: The runner.
        dataloader: A stock dataloader dict, see `build_prefetch_dataloader`. A loader that is
            built already is used as `TestLoop` does.
        **kwargs: Arguments of `TestLoop`.
    """

    def __init__(self, runner: Any, dataloader: Any, **kwargs: Any) -> None:
        super().__init__(runner, build(runner, dataloader, 'test_dataloader'), **kwargs)

    def run(self) -> dict:
        """Evaluate, and return the metrics."""
        prefetch_to_device(self.dataloader, self.runner.model, training=False)
        runner = self.runner
        runner.call_hook('before_test')
        runner.call_hook('before_test_epoch')
        samples = len(self.dataloader.dataset)
        metrics = evaluate(self, getattr(self, 'test_loss', {}), 'test', samples)
        runner.call_hook('after_test_epoch', metrics=metrics)
        runner.call_hook('after_test')
        return metrics
