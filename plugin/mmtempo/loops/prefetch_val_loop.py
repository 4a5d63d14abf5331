"""Evaluates on batches that are there before they are needed."""

from __future__ import annotations

from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import ValLoop

from .prefetching import build, prefetch_to_device


@LOOPS.register_module()
class PrefetchValLoop(ValLoop):
    """mmengine's `ValLoop` with a prefetching loader.

    Example::

        val_cfg = dict(type='PrefetchValLoop')

    Args:
        runner: The runner.
        dataloader: A stock dataloader dict, see `build_prefetch_dataloader`. A loader that is
            built already is used as `ValLoop` does.
        **kwargs: As for `ValLoop`.
    """

    def __init__(self, runner: Any, dataloader: Any, **kwargs: Any) -> None:
        super().__init__(runner, build(runner, dataloader, 'val_dataloader'), **kwargs)

    def run(self) -> dict:
        """Evaluate; returns the metrics."""
        prefetch_to_device(self.dataloader, self.runner.model, training=False)
        return super().run()
