"""The table of replacements names classes that exist."""

from __future__ import annotations

import mmengine.registry
import pytest
from mmengine.registry import Registry
from mmengine.utils import get_object_from_string

import mmtempo  # noqa: F401
from mmtempo.replacements import ACCURACY_HEAD, BY_NAME, DEFAULT_HOOKS, OURS, REASONS, WITH_AMP


def registered(name: str) -> bool:
    registries = vars(mmengine.registry).values()
    return any(name in one.module_dict for one in registries if isinstance(one, Registry))


@pytest.mark.parametrize(('stock', 'ours'), OURS.items())
def test_stock_class_and_replacement_exist(stock: str, ours: str) -> None:
    assert isinstance(get_object_from_string(stock), type)
    assert registered(ours)
    assert REASONS[ours]


def test_each_reason_is_of_a_replacement() -> None:
    assert set(REASONS) == {*OURS.values(), ACCURACY_HEAD}
    assert len(BY_NAME) == len(OURS)


def test_default_hooks_have_a_replacement() -> None:
    assert {path for path, _ in DEFAULT_HOOKS.values()} <= set(OURS)


@pytest.mark.parametrize(('plain', 'amp'), WITH_AMP.items())
def test_wrappers_with_mixed_precision_exist(plain: str, amp: str) -> None:
    assert registered(plain)
    assert registered(amp)
