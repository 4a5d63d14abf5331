"""Measure the throughput of a training before and after its first save, in fresh processes.

python -m mmtempo.benchmarks.training_after_save --repeats 5      # from a checkout, after make data

Trains the mini BEV config with `tools/train.py`, once with a save at iteration 100 and once
without, in random order, and reads the windows of `tempo.jsonl`. Exits with 1 if the training is
slower after the save than the bar allows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from .harness import Report, Timing, take_rounds

# Bar for the time of an iteration, after / before.
MAX_RATIO = 1.02
CONFIG = 'configs/lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py'
TRAIN = Path(__file__).resolve().parents[3] / 'tools/train.py'
SAVED, WARM_UP, SETTLE, WINDOW = 100, 20, 10, 10  # iterations
NEVER = 10**6
ARMS = {'no save': NEVER, 'save': SAVED}


def before_and_after(path: Path) -> tuple[float, float]:
    """Return the median seconds of an iteration in the windows before and after the save.

    Args:
        path: Path of a `tempo.jsonl`.
    """
    lines = [json.loads(line) for line in path.read_text('utf-8').splitlines()]
    before, after = [], []
    for line in lines:
        if line['kind'] != 'window':
            continue
        last = line['iter'] + 1  # numbers from 1, as in the name of a checkpoint
        first, seconds = last - line['iterations'] + 1, line['seconds'] / line['iterations']
        if first > WARM_UP and last < SAVED:
            before.append(seconds)
        elif first > SAVED + SETTLE and last < 2 * SAVED:
            after.append(seconds)
    if not before or not after:
        raise ValueError(
            f'{path}: found {len(before)} windows before and {len(after)} after iteration '
            f'{SAVED}, expected at least one of each; the training ended early, see its log'
        )
    return statistics.median(before), statistics.median(after)


def train(config: str, interval: int) -> tuple[float, float]:
    """Train in a fresh process; return the seconds of an iteration before and after the save."""
    options = [
        f'train_cfg.max_iters={2 * SAVED + SETTLE}',
        f'train_cfg.val_interval={NEVER}',
        f'default_hooks.checkpoint.interval={interval}',
        f'default_hooks.logger.interval={WINDOW}',
    ]
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-', dir='.') as folder:
        command = [sys.executable, str(TRAIN), config, '--work-dir', folder]
        command += ['--cfg-options', *options]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f'{command} failed: {result.stderr.strip()}')
        return before_and_after(Path(folder, 'tempo.jsonl'))


def measure(config: str, repeats: int) -> Report:
    """Run `repeats` trainings of each arm; check the arm that saves."""
    report = Report('training_after_save')
    works = {name: partial(train, config, interval) for name, interval in ARMS.items()}
    table = report.add_table(
        f'{config}: an iteration before and after iteration {SAVED}',
        ('arm', 'before, ms', 'after, ms', 'after / before'),
        left=('arm',),
    )
    for name, pairs in take_rounds(works, repeats).items():
        before, after = (Timing(list(seconds)) for seconds in zip(*pairs))
        ratios = Timing([late / early for early, late in pairs])
        report.arms[name] = dict(
            before=before.figures(), after=after.figures(), after_to_before=ratios.plain_figures()
        )
        table.add_row(name, str(before), str(after), ratios.text(3))
    ratio = report.arms['save']['after_to_before']['median']
    report.at_most('iteration time after / before the first save', ratio, MAX_RATIO)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', nargs='?', default=CONFIG)
    parser.add_argument(
        '--repeats', type=int, default=5, help='number of trainings of each arm, at least 2'
    )
    parser.add_argument('--json', metavar='FILE', help='write the figures to FILE as well')
    args = parser.parse_args()
    if args.repeats < 2:
        parser.error(f'--repeats: found {args.repeats}, expected 2 or more, for the quartiles')
    return measure(args.config, args.repeats).finish(args.json)


if __name__ == '__main__':
    sys.exit(main())
