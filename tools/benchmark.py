"""Measure one part and its stock counterpart on this machine.

python tools/benchmark.py splat
python tools/benchmark.py splat --quick --json splat.json
python tools/benchmark.py family CONFIG     # each policy of train.py --tempo, with your own config

Prints the machine, the figures with their spread, and the bars; the exit code is 1 if a bar is
missed.
"""

from __future__ import annotations

import argparse
import os
import sys

from rich.console import Console

from mmtempo.benchmarks import BENCHMARKS, PolicyError


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('name', choices=sorted(BENCHMARKS), help='what to measure')
    parser.add_argument('config', nargs='?', help='for family: a config instead of the mini config')
    parser.add_argument(
        '--cfg-options', nargs='+', metavar='KEY=VALUE', help='for family: as for train.py'
    )
    parser.add_argument('--quick', action='store_true', help='fewer rounds, within a minute')
    parser.add_argument('--json', metavar='FILE', help='write the figures to this file')
    args = parser.parse_args()
    if args.name != 'family' and (args.config or args.cfg_options):
        parser.error(f'{args.name} takes neither CONFIG nor --cfg-options; only family does')
    # Checked first, so that no figures are measured that cannot be written.
    folder = os.path.dirname(os.path.abspath(args.json or ''))
    if not os.path.isdir(folder):
        parser.error(f'--json: the folder {folder} does not exist')
    return args


def main() -> int:
    args = parse_args()
    options = dict(config=args.config) if args.config else {}
    if args.cfg_options:
        options['options'] = args.cfg_options
    try:
        report = BENCHMARKS[args.name](args.quick, **options)
    except PolicyError as error:
        print(f'benchmark.py: error: {error}', file=sys.stderr)
        return 2
    report.show(Console(width=None if sys.stdout.isatty() else 140))
    if args.json:
        report.write(args.json)
    return 0 if report.ok else 1


if __name__ == '__main__':
    sys.exit(main())
