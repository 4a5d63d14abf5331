"""Measure one part against its stock counterpart, side by side on this machine.

python tools/benchmark.py splat
python tools/benchmark.py splat --quick --json splat.json

Prints the machine, the figures with their spread, and the bars; exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import os
import sys

from rich.console import Console

from mmtempo.benchmarks import BENCHMARKS


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('name', choices=sorted(BENCHMARKS), help='what to measure')
    parser.add_argument('--quick', action='store_true', help='fewer rounds: within a minute')
    parser.add_argument('--json', metavar='FILE', help='also write the figures there')
    args = parser.parse_args()
    # Before minutes are spent on figures that could not be written.
    folder = os.path.dirname(os.path.abspath(args.json or ''))
    if not os.path.isdir(folder):
        parser.error(f'--json: the folder {folder} does not exist')
    return args


def main() -> int:
    args = parse_args()
    report = BENCHMARKS[args.name](args.quick)
    report.show(Console(width=None if sys.stdout.isatty() else 140))
    if args.json:
        report.write(args.json)
    return 0 if report.ok else 1


if __name__ == '__main__':
    sys.exit(main())
