"""Save once; the memory of this process is measured by `process_memory.peak_of`.

python -m mmtempo.benchmarks.checkpoint.memory ours 51 FOLDER
"""

from __future__ import annotations

import sys

from .arms import SHAPES, Arm


def main() -> None:
    name, width, folder = sys.argv[1:]
    arm = Arm(name, int(width), folder)
    arm.runner.model.work = SHAPES['sleep'].work
    for _ in range(3):
        arm.loop.step()
    print('ready', arm.state_bytes, flush=True)
    sys.stdin.readline()
    arm.run(SHAPES['sleep'].work)
    print('done', flush=True)
    sys.stdin.readline()
    arm.close()


if __name__ == '__main__':
    main()
