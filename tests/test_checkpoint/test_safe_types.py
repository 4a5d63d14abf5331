"""Stand-ins for what a checkpoint names: they accept what stock writes, and nothing else."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler import OneCycleLR
from mmengine.registry import PARAM_SCHEDULERS

import mmtempo  # noqa: F401 - registers the safe loader
from mmtempo.checkpoint.loading import UnreadableCheckpointError
from mmtempo.checkpoint.safe_types import NUMBERS, StandIn, resolve
from tests.testing import pickles
from tests.testing.loading import OBJECTS, POINTER, assert_like, load, register_statistics
from tests.testing.pickles import Call, Global, array, dtype


class _ReadsAnything:
    """Pickle as `getattr(HistoryBuffer, '__init__')`, a first step to any attribute."""

    def __reduce__(self) -> tuple:
        return getattr, (HistoryBuffer, '__init__')


def test_getattr_reads_only_statistics(tmp_path: Path) -> None:
    path = tmp_path / 'hostile.pth'
    torch.save(dict(x=_ReadsAnything()), path)
    with pytest.raises(ValueError, match=r"cannot be read safely(.|\n)*attribute '__init__'"):
        load(path)


BAD_STATE = (3, '<', None, None, None, 8, 8, 0)


@pytest.mark.parametrize(
    ('content', 'says'),
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
        (array(b'\xff' * 4, (1,), dtype('U1')), 'outside of Unicode'),
        (Call(pickles.NDARRAY, ((1,), OBJECTS)), 'argument'),
        (Call(pickles.NDARRAY, (), new=True), 'malformed'),
        (Call(pickles.RECONSTRUCT, (pickles.HISTORY, (0,), b'b')), 'does not start'),
        (Call(pickles.RECONSTRUCT, (pickles.NDARRAY, (9,), b'b')), 'does not start'),
        (Call(pickles.SCALAR, (dtype(), b'\0')), '1 bytes for shape'),
        (Call(pickles.SCALAR, (OBJECTS, [1])), 'expected a plain type'),
        (pickles.NDARRAY, 'found a type, expected a value'),
        (Call(pickles.HISTORY, (array(b'\0' * 8, (1,)), array(b'', (0,)))), '1 values, but 0'),
        (Call(pickles.HISTORY, ([1.0], [1])), 'are not numpy arrays'),
        (Call(pickles.HISTORY, (), ({},), new=True), 'other keys'),
        (Call(Global('mmengine.config.config', 'ConfigDict'), ([1],)), 'dict of its items'),
        (Call(pickles.GETATTR, (pickles.NDARRAY, 'tofile')), "attribute 'tofile'"),
        (Call(pickles.GETATTR, ('', 'format')), "attribute 'format' of str"),
        # A function of torch that calls its first argument, whether that is allowed or not.
        (
            Call(
                Global('torch._tensor', '_rebuild_from_type_v2'),
                (Call(pickles.GETATTR, (pickles.HISTORY, 'min')), pickles.HISTORY, (), {}),
            ),
            'not callable',
        ),
    ],
)
def test_content_that_stock_does_not_write_is_refused(
    content: Any, says: str, tmp_path: Path
) -> None:
    path = pickles.write(tmp_path / 'odd.pth', dict(x=content))
    with pytest.raises(UnreadableCheckpointError) as error:
        load(path)
    assert says in str(error.value)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('module', ['numpy.core.multiarray', 'numpy._core.multiarray'])
def test_both_names_of_the_numpy_core_load(module: str, tmp_path: Path) -> None:
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


def test_plain_numpy_types_load_as_in_stock(tmp_path: Path) -> None:
    values = list(plain_values())
    torch.save(values, tmp_path / 'a.pth')
    stock = torch.load(tmp_path / 'a.pth', weights_only=False)
    for found, expected in zip(load(tmp_path / 'a.pth'), stock):
        assert_like(found, expected)


def test_containers_and_shared_values_keep_their_identity(tmp_path: Path) -> None:
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
    found[0] = 7  # its memory is writable


def test_list_may_contain_itself_and_a_tuple_may_not() -> None:
    endless: list = [1]
    endless.append(endless)
    assert resolve(endless) is endless
    pair: tuple[list, int] = ([], 1)
    pair[0].append(pair)
    with pytest.raises(ValueError, match='a tuple contains itself'):
        resolve(pair)


def test_stand_ins_are_not_hashable() -> None:
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


def test_registered_statistics_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_statistics(monkeypatch)
    torch.save(dict(x=HistoryBuffer([1, 2, 6], [1, 1, 1])), tmp_path / 'a.pth')
    loaded = load(tmp_path / 'a.pth')['x']
    assert loaded.statistics('middle') == 2
    assert loaded.statistics('spread') == 5
    stock = torch.load(tmp_path / 'a.pth', weights_only=False)['x']
    assert_like(loaded, stock)


def test_file_cannot_redefine_a_statistic(tmp_path: Path) -> None:
    state = dict(
        max_length=10, _log_history=array(b'', (0,)), _count_history=array(b'', (0,)),
        statistics_methods=dict(mean=Call(pickles.GETATTR, (pickles.HISTORY, 'max'))),
    )  # fmt: skip
    history = Call(pickles.HISTORY, (), (state,), new=True)
    loaded = load(pickles.write(tmp_path / 'a.pth', dict(x=history)))['x']
    loaded.update(1.0)
    loaded.update(4.0)
    assert loaded.statistics('mean') == 2.5
    assert HistoryBuffer._statistics_methods.get('mean', HistoryBuffer.mean) is HistoryBuffer.mean


def test_error_names_a_statistic_that_is_not_registered(tmp_path: Path) -> None:
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
