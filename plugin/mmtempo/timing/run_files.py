"""Files that tell how a run went; legible however it ends."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

from mmtempo.utils.write_guard import WriteGuard, append_whole

LINES, SUMMARY = 'tempo.jsonl', 'tempo_summary.json'
VERSION = 1


class RunFiles:
    """Append lines as things happen, and replace the summary now and then.

    A write that fails is reported once and does not end the training; the next one is tried
    again, and a recovery is reported with the number of lines lost.

    Args:
        folder: Folder of both files.
        say: Takes the messages.
        at_least: Seconds between two summaries, and before the first: to make one takes as long as
            a short iteration, and until then the lines say the same. Defaults to 60.0.
        clock: Gives seconds; `time.monotonic` if none is given.
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
        """Append one JSON object a line."""
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
        """Whether the last summary is old enough."""
        return self._clock() - self._summarised >= self._at_least

    def summarise(self, summary: dict) -> None:
        """Replace the summary atomically."""
        self._summarised = self._clock()
        text, path = to_json(summary), os.path.join(self.folder, SUMMARY)
        self._summary.write(lambda: _replace(path, text), lines=0)


def _replace(path: str, text: str) -> None:
    part = f'{path}.tmp'
    try:
        with open(part, 'w', encoding='utf-8') as file:
            file.write(text)
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(part)
        raise


def _is_cut(path: str) -> bool:
    """Whether a run before this was killed within a line."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return False
    with open(path, 'rb') as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b'\n'


def to_json(value: Any) -> str:
    """As JSON has it: what is not finite is null, and seconds have six digits."""
    return json.dumps(_plain(value), separators=(',', ':'), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if hasattr(value, 'tolist'):  # numpy's
        return _plain(value.tolist())
    if isinstance(value, float):
        return (
            float(f'{value:.6f}' if abs(value) < 1e6 else value) if math.isfinite(value) else None
        )
    return str(value)
