"""Small training configs for the arms of the checkpoint benchmark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from mmengine.config import Config

from mmtempo.benchmarks.checkpoint import arms as checkpoint_arms

MINI = 'mmtempo::lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py'


@pytest.fixture(scope='module')
def small_config() -> Iterator[None]:
    """Train the mini config with one torch thread, since idle threads would spin.

    The text of the config is replaced, which takes half of the time of building a Runner.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_arms, 'CONFIG', MINI)
        patch.setattr(Config, 'pretty_text', property(lambda cfg: 'the config'))
        yield
    torch.set_num_threads(threads)
