"""Content of the wheel."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.testing.common import ROOT


def test_wheel_built_from_an_sdist_contains_configs_and_tools(tmp_path: Path) -> None:
    """Built from a copy, since a build writes folders into its source."""
    source = tmp_path / 'source'
    files = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout.split('\0')  # fmt: skip
    for name in filter(None, files):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
    python(source, 'setup.py', '-q', 'sdist', '-d', tmp_path)
    with tarfile.open(next(tmp_path.glob('*.tar.gz'))) as archive:
        archive.extractall(tmp_path, filter='data')
    (unpacked,) = tmp_path.glob('mmtempo-*/')
    python(unpacked, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation', '.')
    names = zipfile.ZipFile(next(unpacked.glob('*.whl'))).namelist()
    assert 'mmtempo/workloads/bev/models/lift_splat_shoot.py' in names
    assert 'mmtempo/.mim/tools/train.py' in names
    assert 'mmtempo/.mim/model-index.yml' in names
    for config in (ROOT / 'configs').rglob('*.py'):
        assert f'mmtempo/.mim/{config.relative_to(ROOT).as_posix()}' in names
    assert not [name for name in names if '__pycache__' in name or name.startswith('tests')]


def python(folder: Path, *words: object) -> None:
    """Run Python in a folder; fail unless it succeeds."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
