"""The visualizer, as hooks that must not fail write to it."""

from __future__ import annotations

import os.path as osp
from typing import Any

from mmtempo.utils.write_guard import WriteGuard, drop_cut_line


class GuardedScalars:
    """The visualizer, whose failing writes do not end the training.

    Args:
        runner: Of the visualizer.
        guard: Reports and counts what is not written.
        file_path: Name of the file of this run, next to `scalars.json`. Defaults to None.
        along: Further scalars of the same step. Defaults to None.
    """

    def __init__(
        self,
        runner: Any,
        guard: WriteGuard,
        file_path: str | None = None,
        along: dict | None = None,
    ) -> None:
        self._visualizer, self._guard, self._along = runner.visualizer, guard, along or {}
        self._runner, self._names = runner, [name for name in (file_path, 'scalars.json') if name]

    def add_scalars(self, scalars: dict, *args: Any, **kwargs: Any) -> None:
        scalars = {**scalars, **self._along}
        if not self._guard.write(lambda: self._visualizer.add_scalars(scalars, *args, **kwargs)):
            for name in self._names:  # stock tools read them line by line
                drop_cut_line(osp.join(self._runner.log_dir, 'vis_data', name))

    def close(self) -> None:
        self._guard.write(self._visualizer.close, lines=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._visualizer, name)
