"""Grade the verdict: `python -m tests.verdicts.run [--cases NAME ...] [--record] [--markdown]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.verdicts.cases import CASES
from tests.verdicts.live import Grade, grade, record, recorded

HEADER = ('case', 'expected', 'found', 'headline', 'true s', 'found s', 'ratio', 'ok')


def row(graded: Grade) -> list[str]:
    """Return the cells of a case."""
    found, case = graded.found, graded.case
    is_ok = graded.is_right and (case.is_healthy or graded.is_close) and graded.fixed is not False
    seconds = ['', '', '']
    if not case.is_healthy:
        ratio = graded.ratio
        seconds = [
            f'{graded.true:.2f}', f'{found.seconds:.2f}', '' if ratio is None else f'{ratio:.2f}'
        ]  # fmt: skip
    return [case.name, case.key, found.key, found.headline, *seconds, 'yes' if is_ok else 'NO']


def score(grades: Sequence[Grade]) -> str:
    """Return the score in one line."""
    sick = [one for one in grades if not one.case.is_healthy]
    right = [one for one in sick if one.is_right]
    fixes = [one for one in sick if one.fixed is not None]
    healthy = [one for one in grades if one.case.is_healthy]
    wrong = [one for one in healthy if not one.is_right]
    false = sum(len(one.found.sentences) for one in healthy)
    return (
        f'sick: first finding right in {len(right)} of {len(sick)}, seconds within 15 % in '
        f'{sum(one.is_close for one in right)} of {len(right)}, override fixes '
        f'{sum(bool(one.fixed) for one in fixes)} of {len(fixes)}; healthy: {false} false '
        f'sentences in {len(wrong)} of {len(healthy)} runs'
    )


def misses(grades: Sequence[Grade]) -> list[str]:
    """Return a line for each thing that is wrong."""
    lines = []
    for one in grades:
        found, case = one.found, one.case
        if not one.is_right:
            said = ' | '.join(found.sentences) if case.is_healthy else found.headline
            lines.append(f'{case.name}: expected {case.key}, found {found.key}: {said}')
        elif not case.is_healthy and not one.is_close:
            lines.append(f'{case.name}: {found.seconds:.2f} s found, {one.true:.2f} s true')
        if one.fixed is False:
            lines.append(f'{case.name}: not fixed: {one.after}')
        if case.is_healthy and one.computing is not None and one.computing < 0.9:
            share = f'{one.computing:.0%}'
            lines.append(f'{case.name}: not a healthy run: {share} of the time in steps; run again')
    return lines


def table(rows: Sequence[Sequence[str]], is_markdown: bool) -> str:
    """Format rows with the header."""
    if is_markdown:
        lines = [HEADER, ['---'] * len(HEADER), *rows]
        return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)
    cells = [[*one[:3], one[3][:70], *one[4:]] for one in (HEADER, *rows)]
    widths = [max(len(one[column]) for one in cells) for column in range(len(HEADER))]
    return '\n'.join(
        '  '.join(cell.ljust(width) for cell, width in zip(one, widths)).rstrip() for one in cells
    )


def report(grades: Sequence[Grade], is_markdown: bool) -> str:
    """Format table, score and misses."""
    found = misses(grades)
    mark = '- ' if is_markdown else '  '
    lines = [table([row(one) for one in grades], is_markdown), '', score(grades), '']
    lines += [f'misses: {len(found)}', *(f'{mark}{line}' for line in found)]
    return '\n'.join(lines)


def main() -> int:
    """Run or judge the cases, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--cases', nargs='+', choices=CASES, default=list(CASES), metavar='NAME')
    parser.add_argument('--record', action='store_true', help='write recorded/NAME.json')
    parser.add_argument('--recorded', action='store_true', help='judge the recorded summaries')
    parser.add_argument('--no-fixes', action='store_true', help='do not run the overrides')
    parser.add_argument('--markdown', action='store_true', help='print a table for docs')
    parser.add_argument('--work', type=Path, help='folder for work dirs that is kept')
    options = parser.parse_args()
    grades: list[Grade] = []
    failed: list[str] = []
    if not options.recorded and hasattr(os, 'nice'):
        os.nice(5)
    # In memory: the speed of a disk that others use is not part of any case.
    memory = '/dev/shm' if os.path.isdir('/dev/shm') else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for name in options.cases:
            case = CASES[name]
            if options.recorded:
                grades.append(recorded(case))
                continue
            try:
                graded = grade(case, (options.work or Path(folder)) / name, not options.no_fixes)
            except RuntimeError as error:
                failed.append(name)
                print(error, file=sys.stderr, flush=True)
                continue
            grades.append(graded)
            if options.record:
                record(graded)
            share = f'{graded.computing or 0:.0%} in steps'
            print(*row(graded), share, graded.after, sep='; ', file=sys.stderr, flush=True)
    print(report(grades, options.markdown))
    if failed:
        print(f'failed: {", ".join(failed)}')
    return 1 if failed or misses(grades) else 0


if __name__ == '__main__':
    sys.exit(main())
