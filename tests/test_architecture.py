"""The tree of HOUSE.md: rooms, registries, mirrored tests, import contracts and plain words."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mmengine.registry
import pytest
from mmengine.registry import Registry

from tests.testing.common import ROOT

PACKAGE = ROOT / 'plugin/mmtempo'
MOST_MODULES = 12  # in a folder
MOST_LINES = 400  # in a module
# Folder of each registry, below the package or below a workload.
FOLDERS = {
    'HOOKS': 'hooks',
    'LOOPS': 'loops',
    'OPTIM_WRAPPERS': 'optim',
    'MODELS': 'models',
    'METRICS': 'evaluation',
    'DATASETS': 'datasets',
    'DATA_SAMPLERS': 'datasets/samplers',
    'TRANSFORMS': 'datasets/transforms',
    'FUNCTIONS': 'loaders/collate',
}
BANNED = (
    r'nobody|somebody|whoever|lies|mend(s|ed|ing)?|of its own|so many|is told|is said|goes on'
    r'|the one before|behind(?! (the|a) (camera|ego))|beside'
)
COVERS = re.compile(r'Also covers `(mmtempo[\w.]*)`')


def modules() -> Iterator[Path]:
    for path in sorted(PACKAGE.rglob('*.py')):
        if path.name != '__init__.py':
            yield path.relative_to(PACKAGE)


def ours(registry: Registry) -> dict[str, type]:
    return {
        name: kind
        for name, kind in registry.module_dict.items()
        if kind.__module__.startswith('mmtempo.')
    }


REGISTERED = [
    (registry_name, name, kind)
    for registry_name, registry in inspect.getmembers(
        mmengine.registry, lambda value: isinstance(value, Registry)
    )
    for name, kind in ours(registry).items()
]


def too_full(paths: Iterator[Path]) -> dict[str, int]:
    counts = Counter(path.parent.as_posix() for path in paths)
    return {folder: count for folder, count in counts.items() if count > MOST_MODULES}


def test_no_folder_has_more_than_twelve_modules() -> None:
    assert too_full(modules()) == {}
    assert too_full(Path(f'room/{number}.py') for number in range(13)) == {'room': 13}


def test_no_module_is_longer_than_400_lines() -> None:
    lines = {path.as_posix(): (PACKAGE / path).read_text('utf-8').count('\n') for path in modules()}
    assert len(lines) > 200
    longer = {path: count for path, count in lines.items() if count > MOST_LINES}
    assert longer == {}


@pytest.mark.parametrize(('registry', 'name', 'kind'), REGISTERED)
def test_each_registered_class_is_in_the_folder_of_its_registry(
    registry: str, name: str, kind: type
) -> None:
    module = re.sub(r'^mmtempo\.(workloads\.\w+\.)?', '', kind.__module__)
    folder, _, file = module.rpartition('.')
    assert folder.replace('.', '/') == FOLDERS[registry]
    assert file.replace('_', '') == name.replace('_', '').lower()


def test_registries_are_not_empty() -> None:
    assert {registry for registry, _, _ in REGISTERED} == set(FOLDERS)
    assert len(REGISTERED) > 35


@pytest.mark.parametrize(
    'path', sorted((PACKAGE / 'hooks').glob('*_hook.py')), ids=lambda p: p.stem
)
def test_each_hook_file_defines_one_registered_hook(path: Path) -> None:
    classes = [
        node.name
        for node in ast.parse(path.read_text('utf-8')).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith('_')
    ]
    registered = {name for registry, name, _ in REGISTERED if registry == 'HOOKS'}
    assert len(classes) == 1
    assert set(classes) <= registered


def test_the_hooks_folder_holds_hooks_only() -> None:
    names = {path.name for path in (PACKAGE / 'hooks').glob('*.py')} - {'__init__.py'}
    assert [name for name in names if not name.endswith('_hook.py')] == []


def test_each_module_has_a_mirrored_test() -> None:
    covered = set()
    for path in (ROOT / 'tests').rglob('test_*.py'):
        text = ast.get_docstring(ast.parse(path.read_text('utf-8'))) or ''
        covered |= set(COVERS.findall(text.replace('\n', ' ')))
    missing = []
    for path in modules():
        mirror = ROOT / 'tests' / '/'.join(f'test_{part}' for part in path.parts)
        name = 'mmtempo.' + '.'.join(path.with_suffix('').parts)
        if not mirror.exists() and name not in covered:
            missing.append(name)
    assert missing == []


def test_no_test_module_imports_another() -> None:
    found = []
    for path in (ROOT / 'tests').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text('utf-8'))):
            module = getattr(node, 'module', None) or ''
            if isinstance(node, ast.ImportFrom) and (
                re.search(r'(^|\.)(test_\w+|conftest)$', module) or node.level
            ):
                found.append(f'{path.relative_to(ROOT)}: {module}')
    assert found == []


def test_no_banned_words() -> None:
    """Plain technical English, see "How it is told" in HOUSE.md; also in names of tests."""
    pattern = re.compile(rf'\b({BANNED})\b', re.IGNORECASE)
    assert pattern.search('it lies behind')
    assert not pattern.search('relies; behind the camera')
    files = [
        *(ROOT / 'plugin').rglob('*.py'), *(ROOT / 'tests').rglob('*.py'),
        *(ROOT / 'tools').rglob('*.py'), *(ROOT / 'configs').rglob('*.py'),
        *(ROOT / 'docs').rglob('*.md'), *ROOT.glob('*.md'), *PACKAGE.glob('*.md'),
        *(ROOT / 'configs').rglob('*.md'), ROOT / 'Makefile',
    ]  # fmt: skip
    found = [
        f'{path.relative_to(ROOT)}:{number}: {line.strip()}'
        for path in files
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text('utf-8').splitlines(), 1)
        if pattern.search(line.replace('_', ' '))
    ]
    assert len(files) > 400
    assert found == []


def test_the_map_of_the_package_names_files_that_exist() -> None:
    text = (PACKAGE / 'README.md').read_text('utf-8')
    named = re.findall(r'`([\w/]+\.py)`', text)
    assert len(named) > 25
    assert [name for name in named if not (PACKAGE / name).is_file()] == []
    rooms = {path.parent.name for path in PACKAGE.glob('*/__init__.py')}
    assert set(re.findall(r'^\|- (\w+)/', text, re.MULTILINE)) == rooms


def test_readme_and_docs_are_short_and_narrow() -> None:
    files = [*ROOT.glob('README*.md'), *(ROOT / 'docs').rglob('*.md'), PACKAGE / 'README.md']
    assert len(files) > 10
    wide = [
        f'{path.relative_to(ROOT)}:{number}'
        for path in files
        for number, line in enumerate(path.read_text('utf-8').splitlines(), 1)
        if len(line) > 100
    ]
    assert wide == []
    assert all(len(path.read_text('utf-8').splitlines()) <= 150 for path in ROOT.glob('README*.md'))
