"""Report where the time of a training run went.

python tools/report.py work_dirs/my_run
python tools/report.py work_dirs/my_run --out report.html --trace trace.json --open
python tools/report.py compare work_dirs/before work_dirs/after --fail-if-slower 5%

Writes one HTML file that needs no network: verdict, throughput, phases, slow iterations with
their causes, memory, machine. Reads the files of ThroughputMonitorHook (tempo_summary.json and
tempo.jsonl, also of runs that crashed or are still running), or the stock logs of mmengine, which
contain less. `compare` compares two runs: see `report.py compare --help`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from mmtempo.cli.run import LaunchError, run_tool
from mmtempo.report import RunLog, read_log
from mmtempo.report.compare import Comparison, allowed_slowdown, compare
from mmtempo.report.format import size
from mmtempo.report.html.page import plotly_script, write_html
from mmtempo.report.trace import write_trace
from mmtempo.report.verdict.figures import FEW

COMPARE = f"""Compare two runs, and judge whether B is slower than A.

python tools/report.py compare work_dirs/before work_dirs/after
python tools/report.py compare work_dirs/before work_dirs/after --fail-if-slower 5%

Lists what differs first: settings, machine, pressure on CPU and memory, input sizes. Judges samples
per second end to end if both runs have them, else iterations per second. Runs of another model
cannot be compared, nor can one that crashed or has fewer than {FEW} iterations. The exit code is 0,
or 1 if B is slower than allowed, or 2 for an error such as a missing file, or if B should be judged
and cannot.
"""


def parse_args(words: list[str]) -> argparse.Namespace:
    """Parse the arguments of either form; the first word 'compare' selects the second.

    Args:
        words: The arguments.
    """
    comparing = words[:1] == ['compare']
    parser = argparse.ArgumentParser(
        prog='report.py compare' if comparing else 'report.py',
        description=COMPARE if comparing else __doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if comparing:
        parser.add_argument('a', metavar='A', type=Path, help='work dir of the reference run')
        parser.add_argument('b', metavar='B', type=Path, help='work dir of the run that is judged')
        parser.add_argument(
            '--fail-if-slower',
            metavar='SLOWDOWN',
            help='exit with 1 if B is slower than A by more than this: 5%% or 5 is five percent, '
            'as is 0.05 (a number below 1 without %% is a fraction)',
        )
        args = parser.parse_args(words[1:])
        args.allowed = None
        try:
            if args.fail_if_slower is not None:
                args.allowed = allowed_slowdown(args.fail_if_slower)
        except ValueError as error:
            parser.error(f'--fail-if-slower: {error}')
        return args
    parser.add_argument(
        'work_dir',
        metavar='WORK_DIR',
        type=Path,
        help="work dir of a run, or one of its log files (write ./compare for a folder 'compare')",
    )
    parser.add_argument(
        '--out', metavar='FILE.html', type=Path, help='default: WORK_DIR/tempo_report.html'
    )
    parser.add_argument(
        '--trace', metavar='FILE.json', type=Path,
        help='also write the last iterations as a trace for https://ui.perfetto.dev',
    )  # fmt: skip
    parser.add_argument('--open', action='store_true', help='open the report in a browser')
    args = parser.parse_args(words)
    for name in ('out', 'trace'):
        path = getattr(args, name)
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f'--{name}: the folder {path.absolute().parent} does not exist')
        if path is not None and path.is_dir():
            parser.error(f'--{name}: {path} is a folder; expected a file name')
    return args


def main() -> int:
    args = parse_args(sys.argv[1:])
    console = Console(width=None if sys.stdout.isatty() else 140)
    prepare, run = (_compared, _judge) if hasattr(args, 'a') else (_read, _write)
    return run_tool('report.py', lambda: prepare(args), lambda found: run(found, args, console))


def _read(args: argparse.Namespace) -> RunLog:
    """Read the run; raise here whatever leaves nothing to write."""
    log = _log(args.work_dir)
    try:
        plotly_script()
    except ModuleNotFoundError as error:
        raise LaunchError(str(error)) from error
    return log


def _log(path: Path) -> RunLog:
    try:
        return read_log(path)
    except (FileNotFoundError, ValueError) as error:
        raise LaunchError(str(error)) from error


def _write(log: RunLog, args: argparse.Namespace, console: Console) -> None:
    folder = args.work_dir if args.work_dir.is_dir() else args.work_dir.parent
    path = args.out or folder / 'tempo_report.html'
    with _reported(path, '--out'):
        write_html(log, path)
    verdict = log.summary.get('verdict') or {}
    lines = [verdict.get('headline'), *(f'  {reason}' for reason in verdict.get('why') or [])]
    overrides = [str(change['override']) for change in verdict.get('change') or []]
    if overrides:
        lines.append(f'  --cfg-options {" ".join(overrides)}')
    lines += log.notes
    lines.append(f'report  {path}  ({size(path.stat().st_size)})')
    for line in filter(None, lines):
        _say(console, line)
    if args.open:
        webbrowser.open(path.absolute().as_uri())
    if args.trace:  # after the page: a run may lack the data for a trace
        try:
            with _reported(args.trace, '--trace'):
                write_trace(log, args.trace)
        except ValueError as error:
            raise LaunchError(str(error)) from error
        written = size(args.trace.stat().st_size)
        _say(console, f'trace   {args.trace}  ({written}; https://ui.perfetto.dev)')


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _reported(path: Path, option: str) -> Iterator[None]:
    """Report a failure to write, such as a full disk, without a traceback.

    Args:
        path: The file that is written.
        option: The option that names it.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise LaunchError(
            f'{path}: cannot be written ({why}); pass another {option} FILE'
        ) from error


def _compared(args: argparse.Namespace) -> Comparison | ValueError:
    """Compare both runs; return an error for `_judge` to raise.

    If it was raised here, `run_tool` would add that nothing was written.
    """
    try:
        found = compare(_log(args.a), _log(args.b))
        _ = found.speed
    except ValueError as error:
        return error
    return found


def _judge(found: Comparison | ValueError, args: argparse.Namespace, console: Console) -> None:
    if isinstance(found, ValueError):
        raise LaunchError(str(found)) from found
    found.show(console)
    if args.allowed is None:
        return
    if found.unfit:
        raise LaunchError(f'--fail-if-slower: cannot judge these runs: {"; ".join(found.unfit)}')
    speed = found.speed
    change = f'{abs(100 * found.slower):.1f} % {"slower" if found.slower > 0 else "faster"}'
    text = f'B is {change} than A ({speed.name}); allowed: {100 * args.allowed:g} % slower'
    _say(console, text)
    if found.is_too_slow(args.allowed):
        raise SystemExit(1)


if __name__ == '__main__':
    sys.exit(main())
