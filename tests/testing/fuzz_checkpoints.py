"""Program that feeds the safe loader with hostile files, in a process that may crash.

    python -m tests.testing.fuzz_checkpoints SEED COUNT CASE

A case is a function of its seed and is in the file CASE while it is loaded, so a crash leaves the
case that caused it there. The last line of the output has the number of cases by outcome.
"""

from __future__ import annotations

import faulthandler
import io
import json
import random
import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch
import torch._subclasses.schema_check_mode  # torch's functions import these modules lazily
import torch.nested._internal.nested_tensor
import torch.nested._internal.ops
from mmengine.logging import HistoryBuffer

import mmtempo  # noqa: F401 - as in a run
from mmtempo.checkpoint.loading import UnreadableCheckpointError, load_safely
from mmtempo.checkpoint.safe_types import StandIn
from tests.testing import pickles
from tests.testing.hostile_files import Grammar, Mutations, Opcodes, checkpoint, named, saved
from tests.testing.pickles import Global

MEMORY = 12 << 30  # bytes of address space; torch itself maps about two thirds
# Events that torch's own functions raise, and that execute no code of the file.
QUIET = ('object.__', 'sys._getframe', 'gc.', 'builtins.id', 'marshal.', 'sys.unraisablehook')
calls: list[str] = []


def canary(*args: Any, **kwargs: Any) -> None:
    """Record a call; represents any function, and is a registered statistic that files may name."""
    calls.append('canary')


class Canary:
    """Class that records its construction; represents any class and the owner of a statistic."""

    def __new__(cls, *args: Any) -> Canary:
        calls.append('Canary')
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        calls.append('Canary.__setstate__')

    @staticmethod
    def statistic(*args: Any) -> None:
        calls.append('Canary.statistic')


def watch(event: str, args: tuple) -> None:
    """Record audit events that data never causes: imports, processes, files, sockets, ctypes."""
    if not watch.on or event.startswith(QUIET):  # type: ignore[attr-defined]
        return
    # `_codecs.encode`, which torch allows, imports the codec that the file names.
    if event == 'import' and str(args[0]).startswith('encodings.'):
        return
    if event in ('open', 'os.listdir', 'compile', 'exec') and 'encodings' in str(args[0]):
        return
    calls.append(f'{event}: {str(args)[:200]}')


watch.on = False  # type: ignore[attr-defined]


def torch_globals() -> list[Global]:
    """Return the globals that torch allows by default; the list has no public name."""
    from torch._weights_only_unpickler import _get_allowed_globals

    return named(*sorted(_get_allowed_globals()))


LEAVES = (str, int, float, bool, type(None), bytes, complex, bytearray, slice, np.generic, np.dtype)


def use(value: Any, seen: dict[int, Any]) -> None:
    """Read everything that was loaded, including each byte of the NumPy arrays."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, StandIn):
        raise AssertionError(f'{type(value).__name__}: not replaced after loading')
    if isinstance(value, np.ndarray):
        assert type(value) is np.ndarray
        assert not value.dtype.hasobject
        value.copy().tobytes()
        value.tolist()
    elif isinstance(value, HistoryBuffer):
        assert type(value) is HistoryBuffer
        use(list(value.data), seen)
        if len(value.data[0]):
            value.mean(2)
    elif isinstance(value, dict):
        for item in list(dict.items(value)):
            use(item[1], seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            use(item, seen)
    elif isinstance(value, LEAVES):
        str(value)


def outcome(file: io.BytesIO) -> str:
    """Load a file and return 'loaded' or 'refused'; any error but ours propagates."""
    watch.on = True  # type: ignore[attr-defined]
    try:
        loaded = load_safely(file, 'case', 'cpu')
    except UnreadableCheckpointError:
        return 'refused'
    finally:
        watch.on = False  # type: ignore[attr-defined]
    use(loaded, {})
    return 'loaded'


def main(seed: int, count: int, case: str) -> None:
    faulthandler.enable()
    warnings.simplefilter('ignore')
    if sys.platform == 'linux':
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    np.seterr(all='ignore')
    torch.set_num_threads(1)
    HistoryBuffer._statistics_methods.update(canary=canary, statistic=Canary.statistic)
    torchs = torch_globals()
    makers = dict(mutations=Mutations(), grammar=Grammar(torchs), opcodes=Opcodes(torchs))
    whole = checkpoint()  # also triggers the lazy imports
    assert outcome(pickles.archive(*saved(whole))) == 'loaded'
    sys.addaudithook(watch)
    counts: Counter[str] = Counter()
    with open(case, 'wb', buffering=0) as note:
        for number in range(seed, seed + count):
            rng = random.Random(number)
            kind = rng.choice(list(makers))
            pickled, storages = makers[kind](rng)
            note.seek(0)
            note.truncate()
            note.write(b'%d %s\n%s' % (number, kind.encode(), pickled))
            counts[f'{kind} {outcome(pickles.archive(pickled, storages))}'] += 1
            if calls:
                raise AssertionError(f'case {number} executed code: {calls}')
    assert outcome(pickles.archive(*saved(whole))) == 'loaded'  # no global state has changed
    print(json.dumps(counts))


if __name__ == '__main__':
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
