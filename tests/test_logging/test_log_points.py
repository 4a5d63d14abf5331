"""`writes_line` agrees with mmengine's LoggerHook on when a line is logged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mmengine.hooks import LoggerHook

from mmtempo.logging.log_points import writes_line


@pytest.mark.parametrize('ignore_last', [True, False])
@pytest.mark.parametrize(('interval', 'length'), [(3, 7), (5, 4), (4, 8), (10, 10)])
def test_lines_are_those_of_stock(interval: int, length: int, ignore_last: bool) -> None:
    hook = LoggerHook(interval=interval, ignore_last=ignore_last)
    runner = SimpleNamespace(train_dataloader=range(length))
    expected = [
        number
        for number in range(length)
        if (number + 1) % interval == 0
        or (number + 1 == length and (not ignore_last or length <= interval))
    ]
    assert [number for number in range(length) if writes_line(hook, runner, number)] == expected
