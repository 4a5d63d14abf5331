"""Datasets with random or failing samples."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset


class Noisy(Dataset):
    """Dataset of 23 samples, each with a number from each of the three generators."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> dict[str, Any]:
        draws = random.getrandbits(30), np.random.randint(1 << 30), int(torch.randint(1 << 30, ()))
        return dict(inputs=torch.tensor([index, *draws]))


class Shifted(Noisy):
    """Dataset that adds `shift`, which may change between epochs, to its samples."""

    shift = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(inputs=super().__getitem__(index)['inputs'] + self.shift)


class Failing(Noisy):
    """Dataset that fails at sample 6.

    Args:
        how: 'raise' an error, 'stop' with a StopIteration, 'die' by SIGKILL, 'hang' or 'exit'.
    """

    def __init__(self, how: str) -> None:
        self.how = how

    def get_data_info(self, index: int) -> dict[str, str]:
        return dict(img_path=f'pictures/{index}.png')

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 6:
            if self.how == 'raise':
                raise ZeroDivisionError('no such pixel')
            if self.how == 'stop':
                next(iter(()))
            if self.how == 'die':
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == 'exit':
                os._exit(3)
            if self.how == 'hang':
                time.sleep(600)
        return super().__getitem__(index)


class Taking(Noisy):
    """Dataset whose samples take 20 ms each.

    Args:
        how: 'sleep' waits, as for a disk; 'spin' computes.
        slow: Index of a sample that takes twenty times as long. Defaults to None.
    """

    def __init__(self, how: str, slow: int | None = None) -> None:
        self.how, self.slow = how, slow

    def __getitem__(self, index: int) -> dict[str, Any]:
        seconds = 0.02 * (20 if index == self.slow else 1)
        if self.how == 'sleep':
            time.sleep(seconds)
        end = time.thread_time() + seconds * (self.how == 'spin')
        while time.thread_time() < end:
            pass
        return super().__getitem__(index)
