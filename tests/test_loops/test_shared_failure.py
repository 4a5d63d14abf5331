"""An error that follows from another process's failure names that process."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch

from mmtempo.loops.shared_failure import FailureNote, RankFailedError, explain, shared_failure

GLOO = '[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer'


@pytest.fixture
def notes() -> list[FailureNote]:
    store = torch.distributed.TCPStore(
        '127.0.0.1', 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10)
    )
    return [FailureNote(store, rank) for rank in range(3)]


def test_first_failure_is_named_by_the_others(notes: list[FailureNote]) -> None:
    assert explain(OSError('no such sample'), notes[1]) is None
    for rank in (0, 2):
        found = explain(RuntimeError(GLOO), notes[rank])
        assert str(found) == 'rank 1 failed: OSError: no such sample'


def test_own_error_is_kept(notes: list[FailureNote]) -> None:
    explain(OSError('no such sample'), notes[1])
    assert explain(ZeroDivisionError('another'), notes[0]) is None
    assert notes[2].of_other() == (1, 'OSError: no such sample')  # the first one is kept


def test_error_common_to_all_processes_is_shown_once(notes: list[FailureNote]) -> None:
    assert explain(ValueError('wrong'), notes[2]) is None
    assert str(explain(ValueError('wrong'), notes[0])) == 'rank 2 failed: ValueError: wrong'


def test_killed_process_is_inferred_from_gloo(notes: list[FailureNote]) -> None:
    assert 'has left without a message' in str(explain(RuntimeError(GLOO), notes[0]))
    assert explain(RuntimeError('shapes differ'), notes[0]) is None
    assert notes[1].of_other() == (0, 'RuntimeError: shapes differ')


def test_lost_store_does_not_replace_the_error() -> None:
    class Gone:
        def check(self, *args: object) -> bool:
            raise torch.distributed.DistNetworkError('recvValue failed')

        compare_set = check

    assert explain(ValueError('wrong'), FailureNote(Gone(), 1)) is None


def test_single_process_keeps_its_error() -> None:
    with pytest.raises(RuntimeError, match='by peer') as caught, shared_failure():
        raise RuntimeError(GLOO)
    assert type(caught.value) is not RankFailedError
