"""Files of a run, readable however the run ends."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

from mmtempo.utils.atomic_file import replace_file
from mmtempo.utils.write_guard import WriteGuard, append_whole

LINES, SUMMARY = 'tempo.jsonl', 'tempo_summary.json'
VERSION = 1


class RunFiles:
    """Files of a run: lines that are appended at once, and a summary that is replaced at intervals.

    A write that fails is reported once and does not end the training; the next one is tried
    again, and a recovery is reported with the number of lines lost.

    Args:
        folder: Folder of both files.
        say: Called with messages about failed writes.
        at_least: Minimum seconds between two summaries, and before the first one: a summary takes
            as long to write as a short iteration. A run that is killed before has its lines only.
            Defaults to 60.0.
        clock: Clock in seconds, `time.monotonic` by default.
    """

    def __init__(
        self,
        folder: str,
        say: Callable[[str], None],
        at_least: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self._at_least, self._clock = at_least, clock
        self._summarised = clock()
        self._lines, self._summary = WriteGuard(LINES, say), WriteGuard(SUMMARY, say)
        self._begun = False

    def append(self, lines: list[dict]) -> None:
        """Append one JSON object per line."""
        if not lines:
            return
        text = ''.join(f'{to_json(line)}\n' for line in lines)
        self._begun |= self._lines.write(lambda: self._append(text), len(lines))

    def _append(self, text: str) -> None:
        path = os.path.join(self.folder, LINES)
        if not self._begun and _is_cut(path):
            text = '\n' + text
        append_whole(path, text)

    @property
    def is_due(self) -> bool:
        """Return whether the last summary is older than `at_least`."""
        return self._clock() - self._summarised >= self._at_least

    def summarise(self, summary: dict) -> None:
        """Replace the summary atomically."""
        self._summarised = self._clock()
        text, path = to_json(summary).encode(), os.path.join(self.folder, SUMMARY)
        self._summary.write(lambda: _replace(path, text), lines=0)


def _replace(path: str, content: bytes) -> None:
    try:
        replace_file(path, lambda file: file.write(content))
    except OSError as error:
        error.filename = path  # what the message names; not the temporary file
        raise


def _is_cut(path: str) -> bool:
    """Return whether the last line is incomplete, because an earlier run was killed in it."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return False
    with open(path, 'rb') as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b'\n'


def to_json(value: Any) -> str:
    """Return compact JSON: non-finite numbers are null, and floats have six decimals."""
    return json.dumps(_plain(value), separators=(',', ':'), allow_nan=False)


def _plain(value: Any) -> Any:
    """Convert a value to types of JSON; unknown ones to their `str`."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if hasattr(value, 'tolist'):  # arrays and scalars of numpy
        return _plain(value.tolist())
    if isinstance(value, float):
        return (
            float(f'{value:.6f}' if abs(value) < 1e6 else value) if math.isfinite(value) else None
        )
    return str(value)
