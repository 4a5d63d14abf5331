"""Files that tell how a run went; legible however it ends."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

LINES, SUMMARY = 'tempo.jsonl', 'tempo_summary.json'
VERSION = 1


class RunRecord:
    """Appends lines as things happen, and replaces the summary now and then.

    What cannot be written is said once, and never again: a full disk is no reason to end a
    training.

    Args:
        folder: Where they lie.
        say: Is told of the first failure.
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
        self._say, self._at_least, self._clock = say, at_least, clock
        self._summarised = clock()
        self._failed = self._begun = False

    def append(self, lines: list[dict]) -> None:
        """One JSON object a line."""
        if not lines:
            return
        text = ''.join(f'{to_json(line)}\n' for line in lines)
        with self._saying():
            path = os.path.join(self.folder, LINES)
            if not self._begun and _is_cut(path):
                text = '\n' + text
            with open(path, 'a', encoding='utf-8') as file:
                file.write(text)
            self._begun = True

    @property
    def is_due(self) -> bool:
        """Whether the last summary is old enough."""
        return self._clock() - self._summarised >= self._at_least

    def summarise(self, summary: dict) -> None:
        """Replace the summary; whoever reads it meanwhile has the old one."""
        self._summarised = self._clock()
        path = os.path.join(self.folder, SUMMARY)
        with self._saying():
            with open(f'{path}.tmp', 'w', encoding='utf-8') as file:
                file.write(to_json(summary))
            os.replace(f'{path}.tmp', path)

    @contextlib.contextmanager
    def _saying(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._say(
                    f'{error.filename or self.folder} cannot be written ({error.strerror}): the '
                    'training goes on, its throughput is not recorded'
                )


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
