"""Print the megabytes that one splat adds to the peak memory of this process.

python -m mmtempo.benchmarks.splat.memory 'six cameras' bag
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch

from .measure import WORKLOADS, make_inputs, step


def _kilobytes(field: str) -> int:
    match = re.search(rf'{field}:\s+(\d+) kB', Path('/proc/self/status').read_text())
    if match is None:
        raise RuntimeError(f'/proc/self/status: expected a field {field}, found none')
    return int(match[1])


def main() -> None:
    name, formulation = sys.argv[1:]
    workload = WORKLOADS[name]
    geometry = workload.view(formulation).prepare(workload.pix2bev(0), workload.image_size)
    inputs = make_inputs(geometry, torch.float32)
    # Writing 5 resets the peak to the current resident size.
    Path('/proc/self/clear_refs').write_text('5')
    before = _kilobytes('VmRSS')
    step(inputs, geometry)
    print((_kilobytes('VmHWM') - before) / 1000)


if __name__ == '__main__':
    main()
