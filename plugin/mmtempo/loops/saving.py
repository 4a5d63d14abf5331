"""End a training from within its loop, with a checkpoint."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import CheckpointHook

from mmtempo.checkpoint.resume import INTERRUPTED


def save_state(runner: Any) -> None:
    """Save the state after the last iteration, if the run has a checkpoint hook."""
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook):
            if hasattr(hook, 'save_now'):
                hook.save_now(runner)
            else:
                runner.save_checkpoint(
                    hook.out_dir, INTERRUPTED, meta=dict(epoch=runner.epoch, iter=runner.iter)
                )
            return


def stop_if_asked(runner: Any) -> None:
    """End the run if a signal asks for it; call it between two iterations or while waiting."""
    for hook in runner.hooks:
        if hasattr(hook, 'stop_if_asked'):
            hook.stop_if_asked(runner)
