"""A visualizer whose failing writes do not end the training."""

from __future__ import annotations

import os.path as osp
from typing import Any

from mmtempo.utils.write_guard import WriteGuard, drop_cut_line


class GuardedScalars:
    """The visualizer of a runner, with guarded writes.

    Args:
        runner: The runner.
        guard: Reports failures and counts lost lines.
        file_path: Name of the JSON file of this run, next to `scalars.json`. Defaults to None.
        along: Further scalars to write with the same step. Defaults to None.
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
        """Write scalars; on failure remove partly written lines."""
        scalars = {**scalars, **self._along}
        if not self._guard.write(lambda: self._visualizer.add_scalars(scalars, *args, **kwargs)):
            for name in self._names:  # stock tools read them line by line
                drop_cut_line(osp.join(self._runner.log_dir, 'vis_data', name))

    def close(self) -> None:
        """Close the visualizer."""
        self._guard.write(self._visualizer.close, lines=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._visualizer, name)
