"""mm-style checkpoints load in torch's safe mode, and nothing in them runs."""

from __future__ import annotations

import collections
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.optim.scheduler import OneCycleLR
from mmengine.registry import DATASETS, PARAM_SCHEDULERS
from mmengine.runner import CheckpointLoader, Runner

import mmtempo  # noqa: F401 - registers the safe loader
from mmtempo.checkpoint.loading import UnreadableCheckpointError, why_refused
from mmtempo.checkpoint.safe_types import NUMBERS, StandIn, resolve
from tests.testing import pickles
from tests.testing.checkpoints import KINDS, logged_lines, run_config
from tests.testing.checkpoints import load as load_freely
from tests.testing.common import MINI
from tests.testing.pickles import Call, Global, array, dtype
from tests.testing.tool_commands import run, tiny
from tests.testing.toy import ToyDataset


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


OBJECTS = Call(pickles.DTYPE, ('O8', False, True))
# Its elements are subarrays of one object each: 8 bytes of the file are taken for a pointer.
POINTER = dtype('f8', (3, '|', (OBJECTS, (1,)), None, None, 8, 8, 0))


def follows_pointer() -> Call:
    """Describe a history whose values are objects at addresses of the file's choice."""
    objects = Call(pickles.NDARRAY, ((2,), POINTER, b'\x41' * 16))
    return Call(pickles.HISTORY, (objects, array(b'\0' * 16, (2,))))


def test_pointer_in_a_file_is_not_followed(tmp_path: Path) -> None:
    path = pickles.write(tmp_path / 'pointer.pth', dict(meta=follows_pointer()))
    code = 'import sys, mmtempo; from mmtempo.checkpoint.loading import load_from_local'
    code += '; load_from_local(sys.argv[1], "cpu")'
    done = subprocess.run([sys.executable, '-c', code, path], capture_output=True, text=True)
    assert done.returncode == 1, (done.returncode, done.stderr[-2000:])  # and no signal
    assert f'checkpoint {path} cannot be read safely' in done.stderr


def test_tool_says_in_one_line_what_it_refuses(bev_root: str, tmp_path: Path) -> None:
    path = pickles.write(tmp_path / 'pointer.pth', dict(meta=follows_pointer()))
    text = run('test.py', MINI, path, options=tiny(bev_root, tmp_path / 'work'), code=2)
    assert f'test.py: error: UnreadableCheckpointError: checkpoint {path} cannot be read' in text
    assert 'Traceback' not in text


BAD_STATE = (3, '<', None, None, None, 8, 8, 0)


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        (dtype('O8'), "dtype 'O8': expected a plain"),
        (dtype('V8'), "dtype 'V8'"),
        (dtype('M8'), "dtype 'M8'"),
        (dtype('f16'), "dtype 'f16'"),
        (dtype('U99999999'), "dtype 'U99999999'"),
        (dtype('f8,f8'), "dtype 'f8,f8'"),
        (dtype(7), "dtype 'int'"),
        (dtype('f8', (3, '<', None, ('a',), None, -1, -1, 0)), 'not that of a plain type'),
        (dtype('f8', (3, '<', None, None, {}, -1, -1, 0)), 'not that of a plain type'),
        (dtype('f4', BAD_STATE), 'not that of a plain type'),
        (dtype('f8', (3, '<')), 'malformed'),
        (Call(pickles.DTYPE, (), (), new=True), 'dtype'),
        (POINTER, 'not that of a plain type'),
        (array(b'\0' * 8, (2,)), '8 bytes for shape'),
        (array(b'\0' * 8, (-1,)), 'not that of plain numbers'),
        (array(b'\0' * 8, (True,)), 'not that of plain numbers'),
        (array(b'\0' * 8, (1,) * 40), 'not that of plain numbers'),
        (array(b'', (0, 1 << 70)), 'cannot be read safely'),
        (array(b'', (1 << 40, 1 << 40)), '0 bytes for shape'),
        (array([1], (1,)), 'not that of plain numbers'),
        (array([1], (1,), dtype('O8')), 'not that of plain numbers'),
        (array(b'\2', (1,), dtype('b1')), 'neither 0 nor 1'),
        (array(b'\xff' * 4, (1,), dtype('U1')), 'none of Unicode'),
        (Call(pickles.NDARRAY, ((1,), OBJECTS)), 'argument'),
        (Call(pickles.NDARRAY, (), new=True), 'malformed'),
        (Call(pickles.RECONSTRUCT, (pickles.HISTORY, (0,), b'b')), 'does not start'),
        (Call(pickles.RECONSTRUCT, (pickles.NDARRAY, (9,), b'b')), 'does not start'),
        (Call(pickles.SCALAR, (dtype(), b'\0')), '1 bytes for shape'),
        (Call(pickles.SCALAR, (OBJECTS, [1])), 'expected a plain type'),
        (pickles.NDARRAY, 'a type stands where'),
        (Call(pickles.HISTORY, (array(b'\0' * 8, (1,)), array(b'', (0,)))), '1 values, but 0'),
        (Call(pickles.HISTORY, ([1.0], [1])), 'no numpy arrays'),
        (Call(pickles.HISTORY, (), ({},), new=True), 'other keys'),
        (Call(Global('mmengine.config.config', 'ConfigDict'), ([1],)), 'dict of its items'),
        (Call(pickles.GETATTR, (pickles.NDARRAY, 'tofile')), "attribute 'tofile'"),
        (Call(pickles.GETATTR, ('', 'format')), "attribute 'format' of str"),
        # torch's own function that calls whatever it is given, allowed or not.
        (
            Call(
                Global('torch._tensor', '_rebuild_from_type_v2'),
                (Call(pickles.GETATTR, (pickles.HISTORY, 'min')), pickles.HISTORY, (), {}),
            ),
            'not callable',
        ),
    ],
)
def test_file_describes_something_else(content: Any, said: str, tmp_path: Path) -> None:
    path = pickles.write(tmp_path / 'odd.pth', dict(x=content))
    with pytest.raises(UnreadableCheckpointError) as error:
        load(path)
    assert said in str(error.value)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('module', ['numpy.core.multiarray', 'numpy._core.multiarray'])
def test_both_names_of_numpys_core(module: str, tmp_path: Path) -> None:
    start = Call(Global(module, '_reconstruct'), (pickles.NDARRAY, (0,), b'b'))
    value = np.array([[1.0, 2.0], [3.0, 4.0]])
    content = start._replace(states=((1, (2, 2), dtype(), False, value.tobytes()),))
    number = Call(Global(module, 'scalar'), (dtype(), value.tobytes()[8:16]))
    loaded = load(pickles.write(tmp_path / 'a.pth', dict(array=content, number=number)))
    assert np.array_equal(loaded['array'], value)
    assert loaded['number'] == 2.0


def plain_values() -> Iterator[Any]:
    for code in (*sorted(NUMBERS), '>f8', '>i2', 'U3', '>U3', 'S3'):
        values = np.arange(6).reshape(2, 3).astype(code)
        yield from (values, np.asfortranarray(values), values[0, 1], values[:0], values[0, :1][0])
        yield values.dtype
    yield from (np.str_(''), np.str_('caf\u00e9'), np.bytes_(b''), np.array(3.0), np.array([]))
    yield from (
        slice(1),
        slice(None, 2, -1),
        torch.__version__,
        b'',
        {},
        {1, 2},
        (np.ones(2), [()]),
    )


def test_numpys_plain_types_are_as_stock_loads_them(tmp_path: Path) -> None:
    values = list(plain_values())
    torch.save(values, tmp_path / 'a.pth')
    stock = torch.load(tmp_path / 'a.pth', weights_only=False)
    for found, expected in zip(load(tmp_path / 'a.pth'), stock):
        assert_like(found, expected)


def assert_like(found: Any, expected: Any) -> None:
    """Same types, values and layout."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (found.dtype.str, found.shape) == (expected.dtype.str, expected.shape)
        assert str(found.flags) == str(expected.flags)
        assert expected.size == 0 or found.strides == expected.strides
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert_like(one, other)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_like(found[key], value)
    elif isinstance(expected, HistoryBuffer):
        assert_like(vars(found), vars(expected))
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


def test_containers_and_shared_values_stay_what_they_are(tmp_path: Path) -> None:
    shared = np.arange(3.0)
    ordered = collections.OrderedDict(a=shared)
    ordered._metadata = dict(version=shared)  # type: ignore[attr-defined]
    given = dict(both=[shared, (shared, 1)], ordered=ordered, weight=torch.ones(2))
    given['weight'].note = shared
    torch.save(given, tmp_path / 'a.pth')
    loaded = load(tmp_path / 'a.pth')
    found = loaded['both'][0]
    assert type(found) is np.ndarray
    assert loaded['both'][1][0] is found
    assert loaded['ordered']['a'] is found
    assert loaded['ordered']._metadata['version'] is found
    assert loaded['weight'].note is found
    found[0] = 7  # it has memory that can be written


def test_values_that_contain_themselves() -> None:
    endless: list = [1]
    endless.append(endless)
    assert resolve(endless) is endless
    pair: tuple[list, int] = ([], 1)
    pair[0].append(pair)
    with pytest.raises(ValueError, match='a tuple contains itself'):
        resolve(pair)


def test_stand_ins_are_no_keys() -> None:
    with pytest.raises(TypeError, match='unhashable'):
        hash(StandIn())


@pytest.mark.parametrize('strategy', ['cos', 'linear'])
def test_one_cycle_schedule_survives(strategy: str, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1, momentum=0.9)
    schedule = OneCycleLR(optimizer, eta_max=0.1, total_steps=10, anneal_strategy=strategy)
    state = schedule.state_dict()
    torch.save(dict(param_schedulers=[state]), tmp_path / 'a.pth')
    (loaded,) = load(tmp_path / 'a.pth')['param_schedulers']
    assert loaded == state
    assert loaded['anneal_func'] is state['anneal_func']


SCHEDULES = dict(
    CosineAnnealingLR=dict(T_max=3),
    CosineRestartLR=dict(periods=[2], restart_weights=[1], eta_min=0),
    ExponentialLR=dict(gamma=0.9),
    MultiStepLR=dict(milestones=[2]),
    OneCycleLR=dict(eta_max=0.1, total_steps=10),
    StepLR=dict(step_size=2),
)


def test_every_schedule_of_mmengine_survives(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1, momentum=0.9)
    names = [n for n in PARAM_SCHEDULERS.module_dict if n.endswith('LR')]
    assert set(names) >= set(SCHEDULES)
    for name in names:
        if not PARAM_SCHEDULERS.get(name).__module__.startswith('mmengine.'):
            continue
        state = PARAM_SCHEDULERS.get(name)(optimizer, **SCHEDULES.get(name, {})).state_dict()
        torch.save(state, tmp_path / 'a.pth')
        stock = torch.load(tmp_path / 'a.pth', weights_only=False)
        assert_like(load(tmp_path / 'a.pth'), stock)


def middle(history: HistoryBuffer) -> float:
    return float(np.median(history.data[0]))


class Statistics:
    @staticmethod
    def spread(history: HistoryBuffer) -> float:
        return float(np.ptp(history.data[0]))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = dict(HistoryBuffer._statistics_methods, middle=middle, spread=Statistics.spread)
    monkeypatch.setattr(HistoryBuffer, '_statistics_methods', methods)


def test_registered_statistics_survive(registered: None, tmp_path: Path) -> None:
    torch.save(dict(x=HistoryBuffer([1, 2, 6], [1, 1, 1])), tmp_path / 'a.pth')
    loaded = load(tmp_path / 'a.pth')['x']
    assert loaded.statistics('middle') == 2
    assert loaded.statistics('spread') == 5
    stock = torch.load(tmp_path / 'a.pth', weights_only=False)['x']
    assert_like(loaded, stock)


@DATASETS.register_module()
class DescribedByConfig(ToyDataset):
    """As a metainfo that a config has given, and a file of numpy's."""

    metainfo = dict(
        classes=('road', 'sky'), nested=ConfigDict(palette=[[1, 2, 3]]), version=np.str_('v1')
    )


@pytest.mark.parametrize('kind', KINDS)
def test_resumes_what_mmengine_writes(
    kind: str, registered: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule with a function, custom statistics, a nested config, a numpy string."""

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
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')  # reads as stock does
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


def test_file_cannot_redefine_a_statistic(tmp_path: Path) -> None:
    state = dict(
        max_length=10, _log_history=array(b'', (0,)), _count_history=array(b'', (0,)),
        statistics_methods=dict(mean=Call(pickles.GETATTR, (pickles.HISTORY, 'max'))),
    )  # fmt: skip
    history = Call(pickles.HISTORY, (), (state,), new=True)
    with pytest.raises(UnreadableCheckpointError, match="statistic 'mean' is another function"):
        load(pickles.write(tmp_path / 'a.pth', dict(x=history)))
    assert HistoryBuffer._statistics_methods.get('mean', HistoryBuffer.mean) is HistoryBuffer.mean


def test_statistic_that_is_not_registered_here_is_named(tmp_path: Path) -> None:
    state = dict(
        max_length=10, _log_history=array(b'', (0,)), _count_history=array(b'', (0,)),
        statistics_methods=dict(middle=Global('my.statistics', 'middle')),
    )  # fmt: skip
    path = pickles.write(tmp_path / 'a.pth', Call(pickles.HISTORY, (), (state,), new=True))
    with pytest.raises(UnreadableCheckpointError, match=r'it names my\.statistics\.middle, which'):
        load(path)


def test_config_dicts_survive(tmp_path: Path) -> None:
    metainfo = ConfigDict(classes=('a',), nested=dict(palette=[[1, 2]], name=np.str_('b')))
    metainfo.nested.colours = np.arange(3)
    torch.save(dict(meta=dict(dataset_meta=metainfo)), tmp_path / 'a.pth')
    loaded = load(tmp_path / 'a.pth')['meta']['dataset_meta']
    assert type(loaded) is type(loaded.nested) is ConfigDict
    assert type(loaded.nested.colours) is np.ndarray
    assert_like(loaded, torch.load(tmp_path / 'a.pth', weights_only=False)['meta']['dataset_meta'])


class Mine:
    """What a user may have put into a checkpoint."""


def test_every_refused_name_is_told_with_the_remedy(tmp_path: Path) -> None:
    torch.save(dict(x=Mine(), y=collections.deque()), tmp_path / 'a.pth')
    names = f'collections.deque, {__name__}.Mine'
    with pytest.raises(UnreadableCheckpointError) as error:
        load(tmp_path / 'a.pth')
    text = str(error.value)
    assert f'it names {names}, which mmtempo does not load' in text
    assert f'torch.serialization.add_safe_globals([{names}])' in text
    assert 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1' in text
    assert '\x1b' not in text


def test_what_the_user_allows_is_loaded_and_stays_allowed(tmp_path: Path) -> None:
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


def test_process_wide_allow_list_is_left_alone(tmp_path: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    torch.save(dict(x=np.ones(2)), tmp_path / 'a.pth')
    load(tmp_path / 'a.pth')
    assert set(torch.serialization.get_safe_globals()) == before
    assert not [entry for entry in before if 'mmtempo' in repr(entry)]


def test_refusal_is_known_from_names_alone(tmp_path: Path) -> None:
    torch.save(dict(x=Mine()), tmp_path / 'a.pth')
    reason = why_refused(str(tmp_path / 'a.pth'), {'collections.OrderedDict', 'a.text'})
    assert reason is not None
    assert 'Mine' in reason
    usual = {'collections.OrderedDict', '__builtin__.getattr', 'numpy.dtype'}
    assert why_refused(str(tmp_path / 'is not read.pth'), usual) is None
    assert why_refused(str(tmp_path / 'is gone.pth'), {'a.text'}) is None
