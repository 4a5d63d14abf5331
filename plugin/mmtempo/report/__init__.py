"""What a run left behind, for people: terminal, single-file HTML, Perfetto trace, comparison."""

from .run_log import RunLog, read_log

__all__ = ['RunLog', 'read_log']
