"""State and result of a save."""

from __future__ import annotations

from mmtempo.checkpoint.io.save import Save


def test_first_end_counts() -> None:
    save = Save(['a'])
    assert not save.is_done
    assert not save.wait(0)
    error = TimeoutError('no progress')
    save.end(error)
    save.end()
    assert save.is_done
    assert save.wait()
    assert save.error is error


def test_each_report_changes_progress() -> None:
    save = Save(['a'])
    seen = [save.progress]
    for size in (10, 20, 20, 0):  # a sync reports the same size, the next file begins with 0
        save.report(size)
        assert save.written == size
        seen.append(save.progress)
    assert len(set(seen)) == 5


def test_progress_of_an_awaited_save_counts() -> None:
    first, second, third = (Save([name]) for name in 'abc')
    second._after, third._after = first, second
    before = third.progress
    first.report(10)
    assert third.progress != before
    assert (second.reports, third.reports) == (0, 0)
