"""mm-style checkpoints load in torch's safe mode, and nothing in them runs."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer, MessageHub

import mmtempo  # noqa: F401 - registers the safe globals


def test_message_hub_survives_safe_loading(tmp_path: Path) -> None:
    hub = MessageHub('test_safe_loading')
    for value in (1.0, 2.0, 4.0):
        hub.update_scalar('train/loss', value)
    hub.update_info('numpy', np.float64(3.0))
    path = tmp_path / 'hub.pth'
    torch.save(dict(message_hub=hub.state_dict()), path)
    loaded = torch.load(path, weights_only=True)['message_hub']
    history = loaded['log_scalars']['train/loss']
    assert isinstance(history, HistoryBuffer)
    assert history.mean() == pytest.approx(7 / 3)
    assert history.statistics('max') == 4.0
    assert loaded['runtime_info']['numpy'] == 3.0


class _ReadsAnything:
    """Pickles as `getattr(HistoryBuffer, '__init__')`, a first step to reach anything."""

    def __reduce__(self) -> tuple:
        return getattr, (HistoryBuffer, '__init__')


class _RunsCommand:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        import os

        return os.system, (self.command,)


def test_getattr_reads_nothing_but_statistics(tmp_path: Path) -> None:
    path = tmp_path / 'hostile.pth'
    torch.save(dict(x=_ReadsAnything()), path)
    with pytest.raises(ValueError, match=r"attribute '__init__'"):
        torch.load(path, weights_only=True)


def test_hostile_checkpoint_runs_nothing(tmp_path: Path) -> None:
    path, trace = tmp_path / 'hostile.pth', tmp_path / 'trace'
    torch.save(dict(x=_RunsCommand(f'touch {trace}')), path)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    assert not trace.exists()
