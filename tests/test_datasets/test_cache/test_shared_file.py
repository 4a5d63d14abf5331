"""Processes find the same file by its name, and lock it against each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mmtempo.datasets.cache.shared_file import SharedFile, open_shared
from tests.testing.processes import FORK, in_child
from tests.testing.sample_caches import Caches, put_some, right_ones

pytestmark = [
    pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are forked'),
    pytest.mark.usefixtures('own_temporary_folder'),
]


def write_word(descriptor: int) -> None:
    os.write(descriptor, b'content')


def opened(
    folder: str | None,
    problem: Callable[[int], str | None] = lambda descriptor: None,
    report: Callable[[str], None] = pytest.fail,
) -> tuple[SharedFile, bool]:
    with open_shared('name', folder, problem, write_word, report) as found:
        return found


@pytest.fixture(params=['memory', 'folder'])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """Return the folder of the file; None for memory."""
    return str(tmp_path / 'cache') if request.param == 'folder' else None


def test_second_open_finds_the_file_of_the_first(where: str | None) -> None:
    first, first_alone = opened(where)
    second, second_alone = opened(where)
    assert (first_alone, second_alone) == (True, False)
    assert os.path.samestat(os.fstat(first.descriptor), os.fstat(second.descriptor))
    assert os.pread(second.descriptor, 99, 0) == b'content'


def test_closed_file_survives_in_a_folder_only(where: str | None) -> None:
    first, _ = opened(where)
    before = os.fstat(first.descriptor)
    os.pwrite(first.descriptor, b'changed', 0)
    first.close()
    second, alone = opened(where)
    assert alone
    assert os.pread(second.descriptor, 99, 0) == (b'content' if where is None else b'changed')
    if where is not None:
        assert os.path.samestat(before, os.fstat(second.descriptor))


def test_unusable_file_is_replaced_and_reported(where: str | None) -> None:
    first, _ = opened(where)
    messages: list[str] = []
    second, alone = opened(where, lambda descriptor: 'wrong content', messages.append)
    assert alone
    assert not os.path.samestat(os.fstat(first.descriptor), os.fstat(second.descriptor))
    assert len(messages) == 1
    assert messages[0].endswith(': wrong content; starting with an empty cache')


def test_damaged_list_of_holders_is_ignored(where: str | None, tmp_path: Path) -> None:
    first, _ = opened(where)
    (lock,) = Path(where or tmp_path / 'tmp').glob('*.lock')
    lock.write_bytes(b'\xff 1\n1\n1 2 3\n' + lock.read_bytes() + b'x y\n99999999 3\n')
    second, alone = opened(where)
    assert not alone
    assert os.path.samestat(os.fstat(first.descriptor), os.fstat(second.descriptor))


def write_order(file: SharedFile, text: bytes) -> None:
    with file.locked() as descriptor:
        size = os.fstat(descriptor).st_size
        os.pwrite(descriptor, text, size)


def test_lock_excludes_other_processes_until_released(where: str | None) -> None:
    file, _ = opened(where)
    with file.locked() as descriptor:
        process = FORK.Process(target=write_order, args=(file, b' second'))
        process.start()
        process.join(0.3)
        assert process.is_alive()
        assert os.fstat(descriptor).st_size == len(b'content')
        os.pwrite(descriptor, b' first', len(b'content'))
    process.join()
    assert os.pread(file.descriptor, 99, 0) == b'content first second'


def content_at(address: str) -> bytes:
    file = SharedFile.at(address)
    return os.pread(file.descriptor, 99, 0)


def test_address_opens_the_file_until_it_ends(where: str | None) -> None:
    file, _ = opened(where)
    assert in_child(content_at, file.address) == b'content'
    address = file.address
    file.close()
    if where is None:
        with pytest.raises(OSError, match=r'/proc/\d+/fd'):
            SharedFile.at(address)


def test_ranks_share_a_cache_by_its_key(caches: Caches) -> None:
    """Only the key is shared, and the creator of the cache may end first."""
    first, second = caches(), caches()
    put_some(first, range(4))
    assert right_ones(second, range(8)) == [0, 1, 2, 3]
    del first
    third = caches()
    assert right_ones(third, range(8)) == [0, 1, 2, 3]
    assert caches(key='another').stats().samples == 0
    assert not caches.messages


def test_file_is_private(stored: Caches) -> None:
    assert stored.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not hasattr(os, 'getuid') or os.getuid() != 0, reason='chown')
def test_file_of_another_user_is_refused(stored: Caches) -> None:
    os.chown(stored.path, 12345, 12345)
    cache = stored()
    assert right_ones(cache, range(8)) == []
    assert 'belongs to another user' in stored.messages[0]
