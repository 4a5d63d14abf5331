"""mm-style checkpoints load in torch's safe mode, and nothing in them runs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.runner import CheckpointLoader

import mmtempo  # noqa: F401 - registers the safe loader


def test_message_hub_survives_safe_loading(tmp_path: Path) -> None:
    hub = MessageHub('test_safe_loading')
    for value in (1.0, 2.0, 4.0):
        hub.update_scalar('train/loss', value)
    hub.update_info('numpy', np.float64(3.0))
    path = tmp_path / 'hub.pth'
    torch.save(dict(message_hub=hub.state_dict()), path)
    for _ in range(2):  # loading once must not spoil the second time
        loaded = load(path)['message_hub']
    history = loaded['log_scalars']['train/loss']
    assert isinstance(history, HistoryBuffer)
    assert history.mean() == pytest.approx(7 / 3)
    assert history.statistics('max') == 4.0
    assert loaded['runtime_info']['numpy'] == 3.0


def load(path: Path) -> dict:
    """As the Runner loads what `--resume` and `load_from` name."""
    return CheckpointLoader.load_checkpoint(str(path), map_location='cpu')


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
    with pytest.raises(ValueError, match=r"cannot be read safely(.|\n)*attribute '__init__'"):
        load(path)


def test_hostile_checkpoint_runs_nothing(tmp_path: Path) -> None:
    path, trace = tmp_path / 'hostile.pth', tmp_path / 'trace'
    torch.save(dict(x=_RunsCommand(f'touch {trace}')), path)
    with pytest.raises(ValueError, match='cannot be read safely(.|\n)*you trust'):
        load(path)
    assert not trace.exists()


def test_trusted_file_is_read_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, trace = tmp_path / 'trusted.pth', tmp_path / 'trace'
    torch.save(dict(x=_RunsCommand(f'touch {trace}')), path)
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    with pytest.warns(UserWarning, match='forcing weights_only=False'):
        load(path)
    assert trace.exists()


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match='checkpoint .*gone.pth does not exist'):
        load(tmp_path / 'gone.pth')
