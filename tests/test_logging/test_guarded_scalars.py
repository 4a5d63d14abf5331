"""A visualizer whose writes fail does not end the training."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mmtempo.logging.guarded_scalars import GuardedScalars
from mmtempo.utils.write_guard import WriteGuard


class Visualizer:
    """Writes lines; on a full disk, only their start."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_full, self.name = path, False, 'vis'

    def add_scalars(self, scalars: dict, step: int) -> None:
        line = f'{step} {scalars}\n'
        with open(self.path, 'a') as file:
            file.write(line[:3] if self.is_full else line)
        if self.is_full:
            raise OSError(errno.ENOSPC, 'No space left on device')

    def close(self) -> None:
        raise OSError(errno.EIO, 'Input/output error')


def make(tmp_path: Path, **options: Any) -> tuple[GuardedScalars, Visualizer, list[str], Path]:
    (tmp_path / 'vis_data').mkdir()
    path = tmp_path / 'vis_data/run.json'
    visualizer, said = Visualizer(path), []
    runner = SimpleNamespace(visualizer=visualizer, log_dir=str(tmp_path))
    guard = WriteGuard('scalars', said.append)
    return GuardedScalars(runner, guard, 'run.json', **options), visualizer, said, path


def test_a_failed_write_leaves_complete_lines(tmp_path: Path) -> None:
    scalars, visualizer, said, path = make(tmp_path)
    scalars.add_scalars({'a': 1}, step=1)
    visualizer.is_full = True
    scalars.add_scalars({'a': 2}, step=2)
    visualizer.is_full = False
    scalars.add_scalars({'a': 3}, step=3)
    assert path.read_text() == "1 {'a': 1}\n3 {'a': 3}\n"
    assert ['cannot write' in text for text in said] == [True, False]


def test_scalars_of_other_hooks_are_added(tmp_path: Path) -> None:
    scalars, _, _, path = make(tmp_path, along={'b': 7})
    scalars.add_scalars({'a': 1}, step=1)
    assert path.read_text() == "1 {'a': 1, 'b': 7}\n"


def test_a_failed_close_is_reported(tmp_path: Path) -> None:
    scalars, _, said, _ = make(tmp_path)
    scalars.close()
    assert len(said) == 1
    assert 'Input/output error' in said[0]


def test_other_attributes_are_those_of_the_visualizer(tmp_path: Path) -> None:
    assert make(tmp_path)[0].name == 'vis'
