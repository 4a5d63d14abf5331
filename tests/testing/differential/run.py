"""Compare trainings with stock parts and with ours for a range of seeds, or for one case.

::

    python -m tests.testing.differential.run --seeds 0:500 --jobs 2
    python -m tests.testing.differential.run --seeds 17 --verbose
    python -m tests.testing.differential.run --case "{'loop': 'epoch'}" --all-directions
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault('OMP_NUM_THREADS', '1')

from tests.testing.differential.cases import Case, case_of, described, settled
from tests.testing.differential.documented import explained
from tests.testing.differential.run_case import Found, prepare, run_case
from tests.testing.differential.shrink import shrunk

MEMORY = '/dev/shm'  # each save is synced, which is slow on a disk
Result = tuple[int, Case, list[Found], int, bool]


def run_seed(seed: int, directions: int | None = 2, case: Case | None = None) -> Result:
    """Return seed, case, differences, number of trainings, and whether the stock one fails."""
    case = case_of(seed) if case is None else settled(case)
    folder = MEMORY if os.path.isdir(MEMORY) else None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        found, count, fails = run_case(case, Path(scratch), seed, directions)
    return seed, case, found, count, fails


def _results(options: argparse.Namespace) -> Iterator[Result]:
    directions = None if options.all_directions else 2
    if options.case is not None:
        yield run_seed(0, directions, ast.literal_eval(options.case))
    elif options.jobs == 1:
        for seed in options.seeds:
            yield run_seed(seed, directions)
    else:
        pool = ProcessPoolExecutor(options.jobs, get_context('spawn'), initializer=prepare)
        with pool:
            yield from pool.map(run_seed, options.seeds, [directions] * len(options.seeds))


def _seeds(text: str) -> range:
    first, _, last = text.partition(':')
    return range(int(first), int(last) if last else int(first) + 1)


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--seeds', type=_seeds, default=range(20), help='such as 0:500, or 17')
    parser.add_argument('--case', help='case as a Python dict, instead of seeds')
    parser.add_argument('--jobs', type=int, default=1, help='number of processes')
    parser.add_argument('--all-directions', action='store_true', help='resume in all 15 directions')
    parser.add_argument('--known', action='store_true', help='with --verbose: known ones too')
    parser.add_argument('--verbose', action='store_true', help='print each difference')
    parser.add_argument('--shrink', action='store_true', help='shrink the first case of each kind')
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 1 if no entry explains a difference."""
    options = _parsed(arguments)
    prepare()
    start, trainings, cases = time.perf_counter(), 0, 0
    known: dict[str, list[int]] = defaultdict(list)
    unknown: dict[str, list[tuple[int, Case, Found]]] = defaultdict(list)
    failing = []
    for seed, case, found, count, fails in _results(options):
        trainings, cases = trainings + count, cases + 1
        failing += [seed] * fails
        for one in found:
            entry = explained(one, case)
            if options.verbose and (entry is None or options.known):
                print(f'seed {seed}: {one.leg} {one.arm}: {one.difference}')
            if entry is None:
                unknown[one.difference.kind].append((seed, case, one))
            else:
                known[entry.issue and f'{entry.issue}: {entry.reason}'].append(seed)
    seconds = time.perf_counter() - start
    print(f'{cases} cases, {trainings} trainings, {seconds:.0f} s')
    if failing:  # only the error is compared
        print(f'stock fails: {len(failing)} cases, first {failing[:8]}')
    for name in sorted(filter(None, known)):
        print(f'open {name}: {len(set(known[name]))} seeds, first {known[name][0]}')
    for kind, rows in sorted(unknown.items(), key=lambda item: -len(item[1])):
        seeds = list(dict.fromkeys(seed for seed, _, _ in rows))
        print(f'{kind}: {len(rows)} in {len(seeds)} seeds, first {seeds[:8]}')
        seed, case, one = rows[0]
        print(f'  {one.leg} {one.arm}: {one.difference}')
        if options.shrink:
            case = shrunk(case, one)
        print(f'  python -m tests.testing.differential.run --case "{described(case)}"')
    return 1 if unknown else 0


if __name__ == '__main__':
    sys.exit(main())
