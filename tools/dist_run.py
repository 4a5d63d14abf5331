"""Run torchrun, and exit with the code of the training: 143 after SIGTERM, 130 after Ctrl-C.

Used by dist_train.sh; takes the arguments of `python -m torch.distributed.run`, which exits with
code 1 and a traceback in each of these cases.
"""

from __future__ import annotations

import signal
import sys

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def run() -> int:
    try:
        main()
    except KeyboardInterrupt:  # no process has been started yet
        return STOPPED[0]
    except SignalException as error:  # all processes have ended
        return 128 + error.sigval
    except ChildFailedError as error:
        return report(error)
    return 0


def report(error: ChildFailedError) -> int:
    """Print the processes that failed; return the exit code of one that no signal has stopped."""
    codes = {
        # The exit code of a killed process is the negative number of the signal.
        rank: failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
        for rank, failure in sorted(error.failures.items())
    }
    failed = {rank: code for rank, code in codes.items() if code not in STOPPED}
    if not failed:
        return next(iter(codes.values()))
    shown = ', '.join(f'rank {rank} with exit code {code}' for rank, code in failed.items())
    print(f'torchrun: processes failed: {shown}; their messages are above', file=sys.stderr)
    return next(iter(failed.values()))


if __name__ == '__main__':
    sys.exit(run())
