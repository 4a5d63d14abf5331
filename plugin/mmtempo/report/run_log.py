"""Read the files of a run, from the monitor or from stock mmengine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmtempo.timing.run_files import LINES, SUMMARY, VERSION
from mmtempo.utils.units import counted

from .format import number
from .stock_log import MONITOR, find_stock, stock_content, timestamped, unmonitored_since

# Kind of a line of `tempo.jsonl` -> list of `RunLog` that collects it. The other kinds are for
# readers of the file: the summary contains them.
_LISTS = dict(run='runs', window='windows', stall='stalls')
_NO_FIGURES = (
    'the last run has no figures, as a run writes its first summary after a minute. The charts '
    f'over iterations are from {LINES}.'
)
_REQUIRED = {'status', 'iterations', 'seconds'}  # a summary has at least one of these keys


@dataclass
class RunLog:
    """A run as the monitor wrote it, or as much of it as stock logs contain.

    ::

        tempo_summary.json -> summary       of the last run in the folder
        tempo.jsonl        -> windows, stalls, runs, end of all runs; each line has the number
                              of its run as 'run'

    Args:
        source: The folder or file that was read.
        kind: 'tempo', or 'stock' for logs of mmengine's hooks. Defaults to 'tempo'.
        summary: The content of `tempo_summary.json`; unknown values are absent. A run that was
            killed in its first minute has none: then only what its opening line says.
        windows: Lines of log windows, in the order in which they were written.
        stalls: Lines of slow iterations.
        runs: Lines that open a run; each resume adds one.
        end: The line that ends the last run. Defaults to None.
        notes: Limits of these files, for the reader of a report.
        newer: A sentence about a newer run in the folder. Defaults to None: there is none.
    """

    source: Path
    kind: str = 'tempo'
    summary: dict[str, Any] = field(default_factory=dict)
    windows: list[dict[str, Any]] = field(default_factory=list)
    stalls: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    newer: str | None = None

    @property
    def folder(self) -> Path:
        """Folder of the files."""
        return self.source if self.source.is_dir() else self.source.parent

    @property
    def name(self) -> str:
        """Name of the config if it is known, else of the work dir."""
        config = self.setting.get('config')
        if config:
            return Path(config).stem
        # Stock logs are in WORK_DIR/TIMESTAMP/vis_data.
        parts = self.folder.resolve().parts
        return [part for part in parts if part != 'vis_data' and not part[:8].isdigit()][-1]

    @property
    def setting(self) -> dict[str, Any]:
        """Settings of the run."""
        return self.summary.get('setting') or {}

    @property
    def machine(self) -> dict[str, Any]:
        """Facts of the machine."""
        return self.summary.get('machine') or {}

    def of_last_run(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of these lines that belong to the last run."""
        last = max(0, len(self.runs) - 1)
        return [line for line in lines if line.get('run', 0) == last]


def read_log(path: str | Path) -> RunLog:
    """Read the log of a run, from stock logs if the monitor wrote none.

    Args:
        path: A work dir, or one of its log files.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f'{path}: no such file or folder; expected a work dir of a training'
        )
    if path.is_file() and path.name not in (LINES, SUMMARY):
        return _stock(path)
    folder = path if path.is_dir() else path.parent
    for candidate in (folder, *timestamped(folder)):
        if (candidate / LINES).is_file() or (candidate / SUMMARY).is_file():
            try:
                log = _tempo(candidate)
            except (FileNotFoundError, ValueError) as error:
                return _stock_instead(folder, error)
            _look_for_newer(log, folder)
            return log
    return _stock(folder)


def _stock_instead(folder: Path, error: Exception) -> RunLog:
    """Read stock logs if the monitor's files are empty; without any, raise `error`."""
    try:
        log = _stock(folder)
    except FileNotFoundError:
        raise error from None
    log.notes.insert(0, f"Read from stock logs, as the monitor's files have no data: {error}")
    return log


def _look_for_newer(log: RunLog, folder: Path) -> None:
    """Note a newer run without the monitor, which leaves the files of an older run in place."""
    started = number(log.summary.get('started'))
    newer = None if started is None else unmonitored_since(folder, started)
    if newer is not None:
        log.newer = (
            f'{newer.name} is a newer run, without {MONITOR}: these figures are those of an older '
            f'run. For the stock logs of the newer run, pass {newer}'
        )
        log.notes.insert(0, f'{log.newer}.')


def _stock(path: Path) -> RunLog:
    file = path if path.is_file() else find_stock(path)
    content = stock_content(file) if file else None
    if file is None or content is None:
        raise FileNotFoundError(
            f'{path}: found no log of a training. Expected a work dir with {SUMMARY} or {LINES} of '
            'ThroughputMonitorHook, or with stock logs (*.json or vis_data/scalars.json, also in '
            "TIMESTAMP/) that contain training lines with 'time' and 'iter'; a run has them from "
            'its first log line on'
        )
    summary, windows, notes = content
    return RunLog(file, 'stock', summary, windows, notes=notes)


def _tempo(folder: Path) -> RunLog:
    log = RunLog(folder)
    if (folder / LINES).is_file():
        _read_lines(log, folder / LINES)
    summary = _read_summary(log, folder / SUMMARY)
    if summary is None:
        if not log.runs and not log.windows:
            raise FileNotFoundError(
                f'{folder}: {LINES} contains no complete line and there is no {SUMMARY}; the run '
                'ended before it wrote any'
            )
        summary = _opening(log) | _ending(log)
    elif summary.get('status') == 'running' and log.end is not None:
        summary.update(_ending(log))  # the last summary could not be written
        log.notes.append(
            f'{SUMMARY} was last written at iteration {summary.get("last_iter")}; the run ended '
            f'at iteration {log.end.get("iter")}. The figures do not cover the iterations between.'
        )
    log.summary = summary
    if summary.get('status') == 'running':
        log.notes.append('The run has no end line: it is still running, or it was killed.')
    if len(log.runs) > 1:
        log.notes.append(
            f'{len(log.runs)} runs are in this folder. Figures and tables are those of the last '
            'run; charts over iterations show all runs.'
        )
    if (summary.get('version') or VERSION) > VERSION:
        log.notes.append(
            'A newer mmtempo wrote these files: this version may not read all of their content.'
        )
    return log


def _read_lines(log: RunLog, path: Path) -> None:
    broken = 0
    with open(path, encoding='utf-8', errors='replace') as file:
        for line in file:
            if not line.strip():
                continue
            entries = list(_objects(line))
            broken += not entries
            for entry in entries:
                _add(log, entry)
    if broken:
        lines = counted(broken, 'broken line')
        log.notes.append(f'Skipped {lines} of {LINES}: a run was killed while writing.')


def _objects(line: str) -> Iterator[dict[str, Any]]:
    """Yield the object of a line.

    A resumed run may have appended its first line to the half line of a killed run.
    """
    for text in (line, line[line.rfind('{"kind"') :]):
        try:
            entry = json.loads(text, parse_constant=lambda _: None)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry
        return


def _add(log: RunLog, entry: dict[str, Any]) -> None:
    """Add a line to the list of its kind, with the number of its run."""
    kind = entry.get('kind')
    if kind == 'run':
        log.end = None
    if kind == 'end':
        log.end = entry
    elif kind in _LISTS:
        getattr(log, _LISTS[kind]).append(entry)
    entry['run'] = max(0, len(log.runs) - 1)


def _read_summary(log: RunLog, path: Path) -> dict[str, Any] | None:
    """Return the summary if it exists and belongs to the last run, else None."""
    if not path.is_file():
        log.notes.append(f'{SUMMARY} is missing: {_NO_FIGURES}')
        return None
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            summary = json.load(file, parse_constant=lambda _: None)
        if not isinstance(summary, dict):
            raise ValueError(f'expected an object, found {type(summary).__name__}')
        if not _REQUIRED & summary.keys():
            raise ValueError(f'expected one of {", ".join(sorted(_REQUIRED))}, found none')
    except ValueError as error:
        if not log.runs and not log.windows:
            raise ValueError(
                f'{path}: not readable as the summary of a run ({error}), and there is no line of '
                f'a run in {LINES}'
            ) from error
        log.notes.append(f'{SUMMARY} is not readable: {_NO_FIGURES}')
        return None
    started = log.runs[-1].get('time') if log.runs else None
    written = summary.get('ended')
    if started is not None and written is not None and written < started:
        log.notes.append(f'{SUMMARY} is that of an earlier run: {_NO_FIGURES}')
        return None
    return summary


def _opening(log: RunLog) -> dict[str, Any]:
    """Return the keys of a summary that the opening line of the last run determines."""
    run = log.runs[-1] if log.runs else {}
    found = dict(
        version=run.get('version'),
        started=run.get('time'),
        first_iter=run.get('iter'),
        max_iters=run.get('max_iters'),
        machine=run.get('machine'),
        setting=run.get('setting'),
    )
    return {key: value for key, value in found.items() if value is not None}


def _ending(log: RunLog) -> dict[str, Any]:
    """Return the keys of a summary that the end line of the run determines."""
    if log.end is None:
        return dict(status='running', error=None)
    ending = dict(status=log.end.get('status', 'running'), error=log.end.get('error'))
    if log.end.get('time') is not None:
        ending['ended'] = log.end['time']
    return ending
