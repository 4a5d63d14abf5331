"""One run as its files tell it, whoever wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmtempo.timing.run_files import LINES, SUMMARY, VERSION
from mmtempo.utils.units import counted

from .format import number
from .recovery import recovered_summary
from .stock_log import MONITOR, find_stock, stock_content, timestamped, unmonitored_since

# Kinds of lines of `tempo.jsonl`, and the list of `RunLog` each goes to.
_LISTS = dict(
    run='runs', window='windows', stall='stalls', warning='warnings', stages='stages',
    change='changes',
)  # fmt: skip

_OF_A_RUN = {'status', 'iterations', 'seconds'}  # keys of any summary, whoever wrote it


@dataclass
class RunLog:
    """A run: what the monitor wrote of it, or as much of that as stock logs hold.

    ::

        tempo_summary.json -> summary       of the last run in the folder
        tempo.jsonl        -> windows, stalls, changes, warnings, stages, runs, end
                              of all runs; each line has the number of its run as 'run'

    Args:
        source: The folder or file it was read from.
        kind: 'tempo', or 'stock' for logs of mmengine's own. Defaults to 'tempo'.
        summary: As in `tempo_summary.json`; what is not known is absent.
        windows: Lines of log windows, in the order in which they were written.
        stalls: Lines of slow iterations.
        warnings: Lines of warnings.
        stages: Lines of stage profiles.
        changes: Lines of changes of the pace.
        runs: Lines that open a run; a resumed run adds one.
        end: The line that ends the last run. Defaults to None.
        notes: What a reader has to know about these files.
        newer: What there is to say of a newer run in the folder. Defaults to None: there is none.
    """

    source: Path
    kind: str = 'tempo'
    summary: dict[str, Any] = field(default_factory=dict)
    windows: list[dict[str, Any]] = field(default_factory=list)
    stalls: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    newer: str | None = None

    @property
    def folder(self) -> Path:
        return self.source if self.source.is_dir() else self.source.parent

    @property
    def name(self) -> str:
        """Of the config where it is known, else of the folder."""
        config = self.setting.get('config')
        if config:
            return Path(config).stem
        folder = self.folder.resolve()
        # Stock logs lie in WORK_DIR/TIMESTAMP/vis_data.
        below = [part for part in folder.parts if part != 'vis_data' and not part[:8].isdigit()]
        return below[-1]

    @property
    def setting(self) -> dict[str, Any]:
        return self.summary.get('setting') or {}

    @property
    def machine(self) -> dict[str, Any]:
        return self.summary.get('machine') or {}

    def of_last_run(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of these lines that the last run has written."""
        last = max(0, len(self.runs) - 1)
        return [line for line in lines if line.get('run', 0) == last]


def read_log(path: str | Path) -> RunLog:
    """Read a work dir, or one file of it; stock logs where the monitor left none."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f'{path}: no such file or folder; expected a work dir of a training'
        )
    if path.is_file() and path.name not in (LINES, SUMMARY):
        return _stock(path)
    folder = path if path.is_dir() else path.parent
    for place in (folder, *timestamped(folder)):
        if (place / LINES).is_file() or (place / SUMMARY).is_file():
            try:
                log = _tempo(place)
            except (FileNotFoundError, ValueError) as error:
                return _stock_instead(folder, error)
            _look_for_newer(log, folder)
            return log
    return _stock(folder)


def _stock_instead(folder: Path, error: Exception) -> RunLog:
    """The stock logs beside files of the monitor that say nothing; where there are none, why."""
    try:
        log = _stock(folder)
    except FileNotFoundError:
        raise error from None
    log.notes.insert(0, f'These are stock logs since the others say nothing: {error}')
    return log


def _look_for_newer(log: RunLog, folder: Path) -> None:
    """A run without the monitor leaves the files of an older one as they are."""
    started = number(log.summary.get('started'))
    place = None if started is None else unmonitored_since(folder, started)
    if place is not None:
        log.newer = (
            f'{place.name} is a newer run, without {MONITOR}: these figures are those of the run '
            f'before it. For what the stock logs of the newer one tell, name {place} instead'
        )
        log.notes.insert(0, f'{log.newer}.')


def _stock(path: Path) -> RunLog:
    file = path if path.is_file() else find_stock(path)
    content = stock_content(file) if file else None
    if file is None or content is None:
        raise FileNotFoundError(
            f'{path}: no log of a training there. Looked for {SUMMARY} and {LINES}, which '
            'ThroughputMonitorHook writes, and for stock logs: *.json and vis_data/scalars.json, '
            "also in TIMESTAMP/ below, with lines that hold 'time' and 'iter' of training. "
            'Expected WORK_DIR of a training that got as far as its first log line'
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
                f'{folder}: {LINES} holds no whole line and there is no {SUMMARY}; the run ended '
                'before it had written anything'
            )
        summary = recovered_summary(
            log.runs, log.windows, log.stalls, log.warnings, log.stages, log.changes
        )
        summary.update(_ending(log))
    elif summary.get('status') == 'running' and log.end is not None:
        summary.update(_ending(log))  # the last summary could not be written
        log.notes.append(
            f'{SUMMARY} was last written at iteration {summary.get("last_iter")}, and the run '
            f'ended at iteration {log.end.get("iter")}: figures are those until then.'
        )
    log.summary = summary
    if summary.get('status') == 'running':
        log.notes.append('No end was written: the run is still going on, or it was killed.')
    if len(log.runs) > 1:
        log.notes.append(
            f'{len(log.runs)} runs are in this folder. Figures and tables are those of the last '
            'one; what is drawn over iterations shows all of them.'
        )
    if (summary.get('version') or VERSION) > VERSION:
        log.notes.append('A newer mmtempo has written these files; this one may miss some of it.')
    return log


def _read_lines(log: RunLog, path: Path) -> None:
    broken = 0
    with open(path, encoding='utf-8', errors='replace') as file:
        for line in file:
            if not line.strip():
                continue
            found = list(_objects(line))
            broken += not found
            for entry in found:
                _sort_in(log, entry)
    if broken:
        lines = counted(broken, 'broken line')
        log.notes.append(f'Left out of {LINES}: {lines}; a run was cut short.')


def _objects(line: str) -> Iterator[dict[str, Any]]:
    """What a line holds; a resumed run may have gone on in the half line of a killed one."""
    for text in (line, line[line.rfind('{"kind"') :]):
        try:
            found = json.loads(text, parse_constant=lambda _: None)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found
        return


def _sort_in(log: RunLog, entry: dict[str, Any]) -> None:
    kind = entry.get('kind')
    if kind == 'run':
        log.end = None
    if kind == 'end':
        log.end = entry
    elif kind in _LISTS:
        getattr(log, _LISTS[kind]).append(entry)
    entry['run'] = max(0, len(log.runs) - 1)


def _read_summary(log: RunLog, path: Path) -> dict[str, Any] | None:
    """The summary, where there is one and where it is that of the last run."""
    if not path.is_file():
        log.notes.append(
            f'{SUMMARY} is missing: figures come from {LINES}, percentiles from its middle window.'
        )
        return None
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            summary = json.load(file, parse_constant=lambda _: None)
        if not isinstance(summary, dict):
            raise ValueError(f'expected an object, found {type(summary).__name__}')
        if not _OF_A_RUN & summary.keys():
            raise ValueError(f'expected one of {", ".join(sorted(_OF_A_RUN))}, found none')
    except ValueError as error:
        if not log.runs and not log.windows:
            raise ValueError(
                f'{path}: not readable as the summary of a run ({error}), and no line of a run is '
                f'in a {LINES} beside it'
            ) from error
        log.notes.append(f'{SUMMARY} is not readable: figures come from {LINES}.')
        return None
    started = log.runs[-1].get('time') if log.runs else None
    written = summary.get('ended')
    if started is not None and written is not None and written < started:
        log.notes.append(f'{SUMMARY} is that of an earlier run: figures come from {LINES}.')
        return None
    return summary


def _ending(log: RunLog) -> dict[str, Any]:
    if log.end is None:
        return dict(status='running', error=None)
    end = log.end
    found = dict(status=end.get('status', 'running'), error=end.get('error'))
    if end.get('time') is not None:
        found['ended'] = end['time']
    return found
