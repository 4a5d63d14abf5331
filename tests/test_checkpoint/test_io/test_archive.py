"""Files are as `torch.save` writes them, and each damage of a file is found."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from mmtempo.checkpoint.io import archive
from mmtempo.checkpoint.io.archive import check_archive, records_of
from mmtempo.checkpoint.io.host_buffer import HostBuffer
from mmtempo.checkpoint.io.snapshot import Snapshot
from mmtempo.checkpoint.io.writer_process import _open, write_archive
from tests.testing.trees import History, same, tree, write


def load(file: Any, **options: Any) -> Any:
    return torch.load(file, weights_only=True, **options)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / 'a.pth')


@pytest.mark.parametrize('mmap', [False, True])
def test_loads_as_a_file_of_torch(path: str, mmap: bool) -> None:
    torch.save(tree(), path)
    stock = load(path)
    write(path, tree())
    ours = load(path, mmap=mmap)
    for loaded in (stock, ours):  # the tensors of a state_dict are detached
        loaded['state_dict']['grad'].requires_grad_(False)
    assert same(ours, stock)
    assert ours['state_dict']._metadata == {'': {'version': 2}}
    state = ours['state_dict']
    assert state['tied'].data_ptr() == state['plain'].data_ptr()
    for name in ('channels_last', 'transposed', 'one_long'):
        assert state[name].stride() == stock['state_dict'][name].stride()


def test_other_objects_are_pickled_as_torch_does(path: str) -> None:
    given = dict(history=History(), parameter=torch.nn.Parameter(torch.ones(3)))
    write(path, given)
    loaded = torch.load(path, weights_only=False)
    assert same(loaded, given)
    assert loaded['parameter'].requires_grad


def test_records_contain_tensors_outside_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied at once: `bytes` of a storage takes seconds for a megabyte."""
    monkeypatch.setattr(
        torch.UntypedStorage, '__getitem__', lambda *_: pytest.fail('copied one element at a time')
    )
    buffer = HostBuffer()
    outside = torch.arange(3, dtype=torch.int16)
    records = dict(records_of([outside, outside.untyped_storage()], buffer))
    assert records['data/0'] == bytes([0, 0, 1, 0, 2, 0])
    assert 'data/1' not in records
    buffer.close()


def test_records_refer_to_tensors_in_the_buffer() -> None:
    buffer = HostBuffer()
    snapshot = Snapshot(buffer)
    [frozen] = snapshot.take([[torch.ones(3), torch.ones(20), torch.empty(0)]])
    records = records_of(frozen, buffer)
    assert [name for name, _ in records] == [
        'data.pkl', 'byteorder', 'data/0', 'data/1', 'data/64', 'version',
    ]  # fmt: skip
    assert [content for _, content in records[2:5]] == [(0, 12), (64, 80), b'']
    buffer.close()


def test_content_that_cannot_be_pickled_raises() -> None:
    buffer = HostBuffer()
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        records_of(dict(function=lambda: None), buffer)
    buffer.close()


def small() -> dict[str, Any]:
    return dict(a=torch.arange(6.0).view(2, 3), b=torch.tensor(True))


@pytest.mark.parametrize('save', [write, lambda path, content: torch.save(content, path)])
def test_every_flipped_byte_is_found_or_harmless(path: str, save: Any) -> None:
    """Including the bytes that torch's zip reader uses, but Python's does not."""
    save(path, small())
    assert check_archive(path) is None
    with open(path, 'rb') as file:
        whole = file.read()
    assert len(whole) < 4096
    expected = load(io.BytesIO(whole))
    table = whole.index(b'PK\1\2')
    found = 0
    for position in range(len(whole)):
        # In the table of contents, 0x10 makes a folder of a file for torch.
        for mask in (0xFF, 0x10) if position >= table else (0xFF,):
            damaged = bytearray(whole)
            damaged[position] ^= mask
            with open(path, 'wb') as file:
                file.write(damaged)
            if check_archive(path) is None:
                assert same(load(io.BytesIO(damaged)), expected), (position, mask)
            else:
                found += 1
    assert found > len(whole) // 2


@pytest.mark.parametrize('save', [write, lambda path, content: torch.save(content, path)])
def test_truncation_is_found(path: str, save: Any) -> None:
    save(path, tree())
    with open(path, 'rb') as file:
        whole = file.read()
    for twentieth in range(20):
        with open(path, 'wb') as file:
            file.write(whole[: len(whole) * twentieth // 20])
        problem = check_archive(path)
        assert problem is not None
        assert (problem == 'it is empty') is (twentieth == 0)
        assert '\n' not in problem


def test_problem_is_described(path: str, tmp_path: Path) -> None:
    assert check_archive(path) == 'FileNotFoundError: No such file or directory'
    assert str(check_archive(str(tmp_path))).startswith('IsADirectoryError: ')
    write(path, small())
    with open(path, 'r+b') as file:
        file.seek(file.read().index(torch.arange(6.0).numpy().tobytes()))
        file.write(b'x')
    assert check_archive(path) == 'the checksum of its record archive/data/0 is wrong'
    with open(path, 'wb') as file:
        file.write(b'no zip')
    assert check_archive(path) == 'it is not a complete zip file (File is not a zip file)'
    with zipfile.ZipFile(path, 'w') as other:
        other.writestr('a', 'b')
    assert str(check_archive(path)).startswith('it is not a complete zip file (')
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as other:
        other.writestr('archive/data.pkl', 'b')
    assert check_archive(path) == 'its record archive/data.pkl is not a stored file'


def test_a_missing_record_of_the_table_is_found(path: str) -> None:
    """A flipped bit in a name makes two records of one name, so that one of them is lost."""
    write(path, small())
    with open(path, 'rb') as file:
        whole = file.read()
    at = whole.rindex(b'archive/data/0')
    with open(path, 'wb') as file:
        file.write(whole[:at] + b'archive/data/1' + whole[at + 14 :])
    assert check_archive(path) == 'the checksum of its record archive/data/1 is wrong'


def test_a_file_is_read_once_until_it_changes(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    original = archive._problem

    def noting(file: Any) -> str | None:
        read.append(file.name)
        return original(file)

    monkeypatch.setattr(archive, '_problem', noting)
    monkeypatch.setattr(archive, 'CLOCK_TICK', -(10**12))  # as if the file were old
    write(path, small())
    assert [check_archive(path) for _ in range(3)] == [None] * 3
    assert read == [path]
    os.utime(path, ns=(1, 1))
    assert check_archive(path) is None
    assert read == [path] * 2
    with open(path, 'r+b') as file:
        file.seek(file.read().index(torch.arange(6.0).numpy().tobytes()))
        file.write(b'x')
    for _ in range(2):  # a damaged file is read each time
        assert check_archive(path) is not None
    assert read == [path] * 4
    write(path, tree())
    assert check_archive(path) is None
    assert read == [path] * 5


def test_damage_within_a_tick_of_the_clock_is_found(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time stamps may have a resolution of 2 s, so a file that was just written is read again."""
    write(path, small())
    same_times = os.stat(path)
    monkeypatch.setattr(os, 'stat', lambda *args, **options: same_times)
    assert check_archive(path) is None
    with open(path, 'r+b') as file:
        file.seek(100)
        file.write(b'x')
    assert check_archive(path) is not None


def test_gil_is_released_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that is bound by the host waits for the GIL at each operator."""
    now, breaths, longest, since = 0.0, 0, 0, 0

    def clock() -> float:
        nonlocal now, since, longest
        now += 1e-6  # time to pickle an object
        since += 1
        longest = max(longest, since)
        return now

    def breathe(seconds: float) -> None:
        nonlocal breaths, since
        assert seconds == archive.BREATH
        breaths, since = breaths + 1, 0

    monkeypatch.setattr(archive.time, 'perf_counter', clock)
    monkeypatch.setattr(archive.time, 'sleep', breathe)
    many = [dict(number=number, text=str(number)) for number in range(2000)]
    records_of(many, HostBuffer())
    assert breaths > 20
    assert longest * 1e-6 < 2 * archive.SLICE


def test_cached_pieces_are_used_for_equal_tensors_and_keys_only(path: str) -> None:
    """A tensor of another shape, dtype or slot, and another key, are pickled anew."""
    buffer = HostBuffer()
    snapshot = Snapshot(buffer)
    one, two = torch.arange(6.0), torch.arange(8.0)
    names = OrderedDict(a=one, b=two)
    names._metadata = OrderedDict(x=dict(version=1))  # type: ignore[attr-defined]
    grown = {'a': one, 'b': two, 'c': torch.ones(3, 3)}
    for given in (
        dict(state={0: names, 1: dict(step=one)}),
        dict(state={0: names, 1: dict(step=one)}),
        dict(state={0: names, 1: dict(step=one, more=two * 2)}),  # a new key
        dict(state={True: dict(a=two, b=one), 'x': 1, 1.5: -0.0}),  # exchanged
        dict(state={1: dict(a=one.view(2, 3), b=two.view(2, 4).t())}),  # other shapes
        dict(state={1: dict(a=one.int(), b=two.bfloat16())}),
        dict(state={1: dict(a=one + 1, b=two)}),  # replaced
        dict(groups=[dict(lr=0.1), dict(lr=0.2)], tied=(one, one[2:4]), state=grown),
        dict(groups=[dict(lr=0.2)], state={}, none=None, empty=torch.empty(0, 2)),
    ):
        [frozen] = snapshot.take([given])
        snapshot.finish()
        records = records_of(frozen, buffer)
        assert buffer.address is not None
        with open(path, 'wb') as file:
            write_archive(file, records, _open(buffer.address[0]))
        stock = io.BytesIO()
        torch.save(given, stock)
        stock.seek(0)
        assert same(load(path), load(stock)), given
        state = load(path)['state']
        assert [*map(type, state)] == [*map(type, given['state'])]
    buffer.close()


def test_tensor_in_the_buffer_is_pickled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = []
    original = torch.Tensor.__reduce_ex__

    def noting(tensor: torch.Tensor, protocol: int) -> Any:
        pickled.append(tuple(tensor.shape))
        return original(tensor, protocol)

    monkeypatch.setattr(torch.Tensor, '__reduce_ex__', noting)
    buffer = HostBuffer()
    snapshot = Snapshot(buffer)
    given = {'a': torch.ones(3), 'b': {0: dict(step=torch.ones(2))}}
    for _ in range(3):
        records = records_of(snapshot.take([given])[0], buffer)
        assert len(records) == 5
        assert pickled == [(3,), (2,)]
    given['a'] = torch.ones(4)  # of the same slot size, but of another shape
    records_of(snapshot.take([given])[0], buffer)
    assert pickled[2] == (4,)
    buffer.close()
