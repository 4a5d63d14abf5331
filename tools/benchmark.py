"""Compare one part with its stock counterpart on this machine.

python tools/benchmark.py splat
python tools/benchmark.py splat --quick --json splat.json
python tools/benchmark.py family CONFIG     # each policy of train.py --tempo, with your own config

Prints the machine, the figures with their spread, and the bars; exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import sys

from mmtempo.benchmarks import BENCHMARKS, PolicyError


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('name', choices=sorted(BENCHMARKS), help='benchmark to run')
    parser.add_argument(
        'config', nargs='?', help='family only: config to train (default: the mini BEV config)'
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        metavar='KEY=VALUE',
        help='family only: config overrides, as for train.py',
    )
    parser.add_argument('--quick', action='store_true', help='run fewer rounds, about a minute')
    parser.add_argument('--json', metavar='FILE', help='write the figures to FILE as well')
    args = parser.parse_args()
    if args.name != 'family' and (args.config or args.cfg_options):
        parser.error(
            f'config, --cfg-options: found with {args.name}, expected with family only; remove them'
        )
    # A measurement takes minutes, so check now that its figures can be written.
    folder = os.path.dirname(os.path.abspath(args.json or ''))
    if not os.path.isdir(folder):
        parser.error(f'--json: the folder {folder} does not exist; create it first')
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
    return report.finish(args.json)


if __name__ == '__main__':
    sys.exit(main())
