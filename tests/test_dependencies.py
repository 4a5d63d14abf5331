"""Each wrong installation is reported with the versions found and the command that fixes it."""

import pytest

from mmtempo.dependencies import active_stack, explain_problem, installed_versions

ONEDL = {
    'torch': '2.13.0+cpu',
    'onedl-mmengine': '0.10.12',
    'onedl-mmcv': '2.3.6',
    'onedl-mmsegmentation': '1.4.2',
}
ORIGINAL = {
    'torch': '2.13.0',
    'mmengine': '0.10.7',
    'mmcv': '2.1.0',
    'mmsegmentation': '1.2.2',
}


def without(stack: dict, *names: str, **more: str) -> dict:
    return {k: v for k, v in stack.items() if k not in names} | more


@pytest.mark.parametrize(
    'found', [ONEDL, ORIGINAL, without(ORIGINAL, 'mmcv') | {'mmcv-lite': '2.1.0'}]
)
def test_supported_stacks_pass(found: dict) -> None:
    assert explain_problem(found, (3, 11)) is None


def test_this_installation_passes() -> None:
    assert explain_problem(installed_versions()) is None
    assert active_stack(installed_versions()) in ('onedl', 'openmmlab')


@pytest.mark.parametrize(
    ('found', 'says', 'command'),
    [
        ({}, 'PyTorch is not installed', 'pip install torch'),
        ({'torch': '2.13.0'}, 'mmengine, mmcv and mmseg are not installed', 'onedl-mmengine=='),
        (without(ONEDL, 'torch') | {'torch': '2.1.0'}, 'torch 2.1.0 is too old', 'torch=='),
        (without(ONEDL, 'onedl-mmcv'), 'onedl-mmcv is missing', 'onedl-mmcv=='),
        (without(ORIGINAL, 'mmcv'), 'mmcv is missing', 'MMCV_WITH_OPS=1'),
        (without(ORIGINAL, 'mmcv') | {'mmcv': '2.2.0'}, 'mmcv 2.2.0 is not', 'mmcv==2.1.0'),
        (without(ORIGINAL, 'mmcv') | {'mmcv': '1.7.0'}, 'mmcv 1.7.0 is not', 'mmcv==2.1.0'),
        (ONEDL | {'mmengine': '0.10.7'}, 'two mm-stacks', 'pip uninstall -y mmengine'),
    ],
)
def test_problem_names_found_and_command(found: dict, says: str, command: str) -> None:
    message = explain_problem(found, (3, 11))
    assert message is not None
    assert says in message
    assert command in message
    for version in found.values():
        assert version in message


def test_old_python_is_named() -> None:
    message = explain_problem(ONEDL, (3, 8))
    assert message is not None
    assert 'Python 3.8 is too old' in message
