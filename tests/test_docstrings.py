"""Defaults that a docstring states equal those of the signature."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest

import mmtempo


def our_classes() -> list:
    """Return all classes of the package except exceptions."""
    found = set()
    for module in pkgutil.walk_packages(mmtempo.__path__, 'mmtempo.'):
        for _, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if cls.__module__.startswith('mmtempo.') and not issubclass(cls, Exception):
                found.add(cls)
    return sorted(found, key=lambda cls: cls.__qualname__)


def stated_defaults(cls: type) -> dict[str, str]:
    """Return X of each 'Defaults to X' in the Args section, by argument."""
    text = inspect.cleandoc(cls.__doc__ or '').partition('Args:\n')[2]
    stated = {}
    for entry in re.split(r'\n(?=    \w+: )', '\n' + text):
        match = re.match(r'\s*(\w+): .*?Defaults to\s+(.+?)(?::\s|\.\s|\.?\s*$)', entry, re.S)
        if match:
            stated[match[1]] = ' '.join(match[2].split())
    return stated


@pytest.mark.parametrize('cls', our_classes(), ids=lambda cls: cls.__qualname__)
def test_stated_defaults_are_true(cls: type) -> None:
    parameters = inspect.signature(cls).parameters
    for name, stated in stated_defaults(cls).items():
        assert name in parameters, f'{cls.__name__} documents {name}, which it does not take'
        default = parameters[name].default
        if stated.startswith('dict('):  # the value that None stands for
            assert default is None
            continue
        described = re.match(r"nuScenes' (\d+) \w+", stated)
        if described:
            assert len(default) == int(described[1])
            continue
        assert eval(stated) == default, f'{cls.__name__}.{name}: says {stated}, is {default!r}'


def test_stated_defaults_are_found() -> None:
    from mmtempo.workloads.bev.models.lift_splat_shoot import LiftSplatShoot

    assert stated_defaults(LiftSplatShoot)['stride'] == '32'
    assert sum(len(stated_defaults(cls)) for cls in our_classes()) > 25
