"""Checkpoints to load, and comparison of what was loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader

from tests.testing import pickles
from tests.testing.pickles import Call, array, dtype

OBJECTS = Call(pickles.DTYPE, ('O8', False, True))
# Its elements are subarrays of one object each, so numpy takes 8 bytes of the file for a pointer.
POINTER = dtype('f8', (3, '|', (OBJECTS, (1,)), None, None, 8, 8, 0))


def load(path: Path) -> Any:
    """Load a file as the Runner does for `--resume` and `load_from`."""
    return CheckpointLoader.load_checkpoint(str(path), map_location='cpu')


def follows_pointer() -> Call:
    """Describe a history whose values are objects at addresses that the file chooses."""
    objects = Call(pickles.NDARRAY, ((2,), POINTER, b'\x41' * 16))
    return Call(pickles.HISTORY, (objects, array(b'\0' * 16, (2,))))


def assert_like(found: Any, expected: Any) -> None:
    """Assert that two values have the same types, values and memory layout."""
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


def middle(history: HistoryBuffer) -> float:
    return float(np.median(history.data[0]))


class Statistics:
    @staticmethod
    def spread(history: HistoryBuffer) -> float:
        return float(np.ptp(history.data[0]))


def register_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a function and a static method as statistics of HistoryBuffer."""
    methods = dict(HistoryBuffer._statistics_methods, middle=middle, spread=Statistics.spread)
    monkeypatch.setattr(HistoryBuffer, '_statistics_methods', methods)
