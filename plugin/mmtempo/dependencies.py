"""Check which mm-stack is installed, and whether mmtempo supports it.

Reads package metadata only: importing a half-installed stack would fail first, with a misleading
message.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib import metadata

from packaging.specifiers import SpecifierSet
from packaging.version import Version

MIN_PYTHON = (3, 10)
MIN_TORCH = '2.3'

# Distributions of each stack, with the supported versions.
STACKS: dict[str, dict[str, str]] = {
    'onedl': {
        'onedl-mmengine': '>=0.10.10,<0.12',
        'onedl-mmcv': '>=2.3,<2.4',
        'onedl-mmsegmentation': '>=1.4,<1.5',
    },
    'openmmlab': {
        'mmengine': '>=0.10.4,<0.11',
        'mmcv': '>=2.0.0,<2.2',
        'mmsegmentation': '>=1.2,<1.3',
    },
}
# Other names under which the same import packages are published.
ALIASES = {'mmengine': 'mmengine-lite', 'mmcv': 'mmcv-lite'}

INSTALL = {
    'onedl': 'pip install onedl-mmengine==0.10.12 onedl-mmcv==2.3.6 onedl-mmsegmentation==1.4.2',
    'openmmlab': (
        'pip install "setuptools<81" wheel ninja psutil && pip install mmengine==0.10.7 && '
        'MMCV_WITH_OPS=1 pip install --no-build-isolation mmcv==2.1.0 && '
        'pip install mmsegmentation==1.2.2 ftfy regex'
    ),
}
OPS_COMMAND = (
    'pip uninstall -y onedl-mmengine onedl-mmcv onedl-mmsegmentation mmcv-lite; '
    + INSTALL['openmmlab']
)


def installed_versions() -> dict[str, str]:
    """Return the versions of the installed distributions that `explain_problem` looks at."""
    names = ['torch', *ALIASES.values()]
    for stack in STACKS.values():
        names += stack
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def has_compiled_ops() -> bool:
    """Return whether the installed mmcv has compiled operators (`mmcv._ext`)."""
    return importlib.util.find_spec('mmcv') is not None and (
        importlib.util.find_spec('mmcv._ext') is not None
    )


def active_stack(found: Mapping[str, str]) -> str | None:
    """Return the name of the installed stack; None where neither or both are installed."""
    present = [
        name
        for name, packages in STACKS.items()
        if any(package in found or ALIASES.get(package) in found for package in packages)
    ]
    return present[0] if len(present) == 1 else None


def explain_problem(
    found: Mapping[str, str], python: tuple[int, ...] = sys.version_info[:2]
) -> str | None:
    """Return the problem of an installation and the command that fixes it; None if it is fine."""
    listing = ', '.join(f'{name} {version}' for name, version in sorted(found.items())) or 'none'

    def problem(what: str, command: str) -> str:
        title = f'mmtempo cannot run with this installation: {what}'
        return f'{title}\n  found:  {listing}\n  fix:    {command}'

    if tuple(python[:2]) < MIN_PYTHON:
        wanted = '.'.join(map(str, MIN_PYTHON))
        return problem(
            f'Python {".".join(map(str, python))} is too old, {wanted} or newer is needed',
            f'python{wanted} -m venv .venv',
        )
    if 'torch' not in found:
        return problem('PyTorch is not installed', 'pip install torch==2.13.0')
    if Version(found['torch']) < Version(MIN_TORCH):
        return problem(
            f'torch {found["torch"]} is too old, {MIN_TORCH} or newer is needed',
            'pip install --upgrade torch==2.13.0',
        )
    stack = active_stack(found)
    if stack is None:
        if any(name in found for name in STACKS['onedl']):
            return problem(
                'two mm-stacks are installed over each other (they share import names)',
                'pip uninstall -y mmengine mmengine-lite mmcv mmcv-lite mmsegmentation; '
                'pip install --force-reinstall --no-deps '
                + INSTALL['onedl'].removeprefix('pip install '),
            )
        return problem('mmengine, mmcv and mmseg are not installed', INSTALL['onedl'])
    for package, wanted in STACKS[stack].items():
        alias = ALIASES.get(package, package)
        version = found.get(package, found.get(alias))
        if version is None:
            return problem(f'{package} is missing from the {stack} stack', INSTALL[stack])
        if not SpecifierSet(wanted, prereleases=True).contains(version):
            return problem(
                f'{package} {version} is not supported, {wanted} is needed', INSTALL[stack]
            )
    return None


def check_stack() -> None:
    """Raise ImportError, with the versions found and the command that fixes them."""
    message = explain_problem(installed_versions())
    if message is not None:
        raise ImportError(message)
