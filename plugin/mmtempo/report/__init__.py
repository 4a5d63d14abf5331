"""Reports on a run: terminal table, single-file HTML page, Perfetto trace, comparison."""

from .run_log import RunLog, read_log

__all__ = ['RunLog', 'read_log']
