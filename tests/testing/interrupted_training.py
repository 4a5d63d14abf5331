"""A hook that stops a training by a signal, and a dataset with a failing sample."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS

from tests.testing.noisy import NoisyDataset


@HOOKS.register_module()
class StopAt(Hook):
    """Sends SIGTERM to the training, as a scheduler does."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter + 1 == self.iteration:
            os.kill(os.getpid(), signal.SIGTERM)


@DATASETS.register_module()
class Interrupted(NoisyDataset):
    """A dataset that fails once, at one of its samples.

    Args:
        how: 'raise' an error, 'stop' with a StopIteration, or 'die'.
        at: Index of the sample.
        mark: Path of a file that is created at the failure; if it exists, no sample fails.
    """

    def __init__(self, how: str, at: int, mark: str) -> None:
        super().__init__()
        self.how, self.at, self.mark = how, at, mark

    def __getitem__(self, index: int) -> dict:
        if index == self.at and not os.path.exists(self.mark):
            Path(self.mark).touch()
            if self.how == 'die':
                os.kill(os.getpid(), signal.SIGKILL)
            raise StopIteration if self.how == 'stop' else ZeroDivisionError('no such pixel')
        return super().__getitem__(index)
