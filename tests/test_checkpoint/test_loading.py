"""mm-style checkpoints load in torch's safe mode, and no code in them runs."""

from __future__ import annotations

import collections
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.registry import DATASETS
from mmengine.runner import Runner

import mmtempo  # noqa: F401 - registers the safe loader
from mmtempo.checkpoint.loading import UnreadableCheckpointError, why_refused
from tests.testing import pickles
from tests.testing.checkpoints import KINDS, logged_lines, run_config
from tests.testing.checkpoints import load as load_freely
from tests.testing.common import MINI
from tests.testing.loading import assert_like, follows_pointer, load, register_statistics
from tests.testing.tool_commands import run, tiny
from tests.testing.toy import ToyDataset


def test_message_hub_survives_safe_loading(tmp_path: Path) -> None:
    hub = MessageHub('test_safe_loading')
    for value in (1.0, 2.0, 4.0):
        hub.update_scalar('train/loss', value)
    hub.update_info('numpy', np.float64(3.0))
    path = tmp_path / 'hub.pth'
    torch.save(dict(message_hub=hub.state_dict()), path)
    for _ in range(2):  # loading must not change global state
        loaded = load(path)['message_hub']
    history = loaded['log_scalars']['train/loss']
    assert isinstance(history, HistoryBuffer)
    assert history.mean() == pytest.approx(7 / 3)
    assert history.statistics('max') == 4.0
    assert loaded['runtime_info']['numpy'] == 3.0


class _RunsCommand:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


def test_hostile_checkpoint_runs_nothing(tmp_path: Path) -> None:
    path, trace = tmp_path / 'hostile.pth', tmp_path / 'trace'
    torch.save(dict(x=_RunsCommand(f'touch {trace}')), path)
    with pytest.raises(ValueError, match='cannot be read safely(.|\n)*you trust'):
        load(path)
    assert not trace.exists()


def test_environment_variable_loads_a_trusted_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, trace = tmp_path / 'trusted.pth', tmp_path / 'trace'
    torch.save(dict(x=_RunsCommand(f'touch {trace}')), path)
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    with pytest.warns(UserWarning, match='forcing weights_only=False'):
        load(path)
    assert trace.exists()


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match='checkpoint .*gone.pth does not exist'):
        load(tmp_path / 'gone.pth')


def test_pointer_in_a_file_is_not_dereferenced(tmp_path: Path) -> None:
    path = pickles.write(tmp_path / 'pointer.pth', dict(meta=follows_pointer()))
    code = 'import sys, mmtempo; from mmtempo.checkpoint.loading import load_from_local'
    code += '; load_from_local(sys.argv[1], "cpu")'
    done = subprocess.run([sys.executable, '-c', code, path], capture_output=True, text=True)
    assert done.returncode == 1, (done.returncode, done.stderr[-2000:])  # and no signal
    assert f'checkpoint {path} cannot be read safely' in done.stderr


def test_tool_reports_a_refused_file_in_one_line(bev_root: str, tmp_path: Path) -> None:
    path = pickles.write(tmp_path / 'pointer.pth', dict(meta=follows_pointer()))
    text = run('test.py', MINI, path, options=tiny(bev_root, tmp_path / 'work'), code=2)
    assert f'test.py: error: UnreadableCheckpointError: checkpoint {path} cannot be read' in text
    assert 'Traceback' not in text


@DATASETS.register_module()
class DescribedByConfig(ToyDataset):
    """Dataset whose metainfo is partly from a config and partly from a numpy file."""

    metainfo = dict(
        classes=('road', 'sky'), nested=ConfigDict(palette=[[1, 2, 3]]), version=np.str_('v1')
    )


@pytest.mark.parametrize('kind', KINDS)
def test_resumes_what_mmengine_writes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Save a schedule with a function, custom statistics, a nested config and a numpy string."""
    register_statistics(monkeypatch)

    def described(cfg: Config) -> None:
        cfg.param_scheduler = dict(type='OneCycleLR', eta_max=1e-3, total_steps=12, by_epoch=False)
        cfg.train_dataloader.dataset.type = 'DescribedByConfig'

    def train(name: str, iterations: int, resume: bool = False) -> Runner:
        cfg = run_config(kind, tmp_path / name, described, interval=6)
        cfg.train_cfg.update(max_iters=iterations, val_interval=6)
        cfg.resume = resume
        runner = Runner.from_cfg(cfg)
        runner.train()
        return runner

    train('safe', 6)
    shutil.copytree(tmp_path / 'safe', tmp_path / 'free')
    (tmp_path / 'free/work/last_checkpoint').write_text(str(tmp_path / 'free/work/iter_6.pth'))
    runner = train('safe', 12, resume=True)
    assert 'resumed epoch: 0, iter: 6' in logged_lines(runner)
    assert 'metainfo from the resumed checkpoint is different' not in logged_lines(runner)
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')  # load as stock does
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        train('free', 12, resume=True)
    safe, free = (load_freely(tmp_path / name / 'work/iter_12.pth') for name in ('safe', 'free'))
    for part in ('state_dict', 'optimizer', 'param_schedulers'):
        assert_like(safe[part], free[part])
    assert_like(safe['meta']['dataset_meta'], free['meta']['dataset_meta'])
    names = ('train/loss_a', 'train/lr')
    for history in names:
        assert_like(*(part['message_hub']['log_scalars'][history] for part in (safe, free)))


class Mine:
    """Class of a user whose object is in a checkpoint."""


def test_error_names_each_refused_global_and_the_remedy(tmp_path: Path) -> None:
    torch.save(dict(x=Mine(), y=collections.deque()), tmp_path / 'a.pth')
    names = f'collections.deque, {__name__}.Mine'
    with pytest.raises(UnreadableCheckpointError) as error:
        load(tmp_path / 'a.pth')
    text = str(error.value)
    assert f'it names {names}, which mmtempo does not load' in text
    assert f'torch.serialization.add_safe_globals([{names}])' in text
    assert 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1' in text
    assert '\x1b' not in text


def test_globals_that_the_user_allows_are_loaded_and_stay_allowed(tmp_path: Path) -> None:
    mine = Mine()
    mine.values = np.ones(2)  # type: ignore[attr-defined]
    torch.save(dict(x=mine, y=np.ones(2)), tmp_path / 'a.pth')
    allowed = [Mine, np.ndarray, np.dtype, type(np.dtype('f8')), np._core.multiarray._reconstruct]
    with torch.serialization.safe_globals(allowed):
        before = set(torch.serialization.get_safe_globals())
        loaded = load(tmp_path / 'a.pth')
        assert set(torch.serialization.get_safe_globals()) == before
        path = pickles.write(tmp_path / 'pointer.pth', dict(x=follows_pointer()))
        with pytest.raises(UnreadableCheckpointError):
            load(path)
    assert type(loaded['x'].values) is np.ndarray
    assert type(loaded['y']) is np.ndarray


def test_allow_list_of_the_process_is_restored(tmp_path: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    torch.save(dict(x=np.ones(2)), tmp_path / 'a.pth')
    load(tmp_path / 'a.pth')
    assert set(torch.serialization.get_safe_globals()) == before
    assert not [entry for entry in before if 'mmtempo' in repr(entry)]


def test_why_refused_reads_a_file_only_for_unusual_names(tmp_path: Path) -> None:
    torch.save(dict(x=Mine()), tmp_path / 'a.pth')
    reason = why_refused(str(tmp_path / 'a.pth'), {'collections.OrderedDict', 'a.text'})
    assert reason is not None
    assert 'Mine' in reason
    usual = {'collections.OrderedDict', '__builtin__.getattr', 'numpy.dtype'}
    assert why_refused(str(tmp_path / 'is not read.pth'), usual) is None
    assert why_refused(str(tmp_path / 'is gone.pth'), {'a.text'}) is None
