"""Generators of nearly valid checkpoints: mutations, a grammar of objects, random opcodes."""

from __future__ import annotations

import io
import itertools
import pickle
import pickletools
import random
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler import OneCycleLR

from tests.testing import pickles
from tests.testing.pickles import Call, Global, Stored

STORAGES = (bytes(range(64)), b'\0' * 32)
CANARIES = '__main__'  # module of the canaries in the process that loads the files


def named(*paths: str) -> list[Global]:
    return [Global(*path.rpartition('.')[::2]) for path in paths]


def checkpoint() -> dict:
    """Return a checkpoint as mmengine writes it, with every type that a file may contain."""
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
    schedule = OneCycleLR(optimizer, eta_max=0.1, total_steps=10)
    state = OrderedDict(
        weight=weight.detach(), part=weight.detach()[:, 1:], low=torch.ones(2).half()
    )
    state._metadata = {'': dict(version=2)}  # type: ignore[attr-defined]
    hub = dict(
        log_scalars=OrderedDict(loss=HistoryBuffer([1.0, 2.0], [1, 1]), lr=HistoryBuffer()),
        runtime_info=OrderedDict(
            iter=4,
            best=np.float64(3),
            name=np.str_('abc'),
            flag=np.bool_(True),
            arrays=[np.eye(2), np.array(['a', 'bc']), np.asfortranarray(np.eye(3, dtype='i4'))],
        ),
        resumed_keys=dict(loss=True),
    )
    meta = dict(
        epoch=1,
        iter=4,
        cfg='a = 1\n',
        seed=1,
        version=torch.__version__,
        device=torch.device('cpu'),
        dataset_meta=ConfigDict(classes=('a', 'b'), nested=dict(palette=[[1, 2, 3]])),
    )
    return dict(
        meta=meta,
        state_dict=state,
        message_hub=hub,
        parameter=weight,
        optimizer=optimizer.state_dict(),
        param_schedulers=[schedule.state_dict()],
    )


def saved(value: Any) -> tuple[bytes, list[bytes]]:
    """Return torch's pickle of a value and the storages that the pickle names."""
    file = io.BytesIO()
    torch.save(value, file)
    with zipfile.ZipFile(file) as archive:
        names = [name.partition('/')[2] for name in archive.namelist()]
        root = archive.namelist()[0].partition('/')[0]
        storages = [name for name in names if name.startswith('data/')]
        storages.sort(key=lambda name: int(name[5:]))
        return archive.read(f'{root}/data.pkl'), [archive.read(f'{root}/{n}') for n in storages]


class Mutations:
    """Generator of real pickles with random changes to bytes or opcodes."""

    def __init__(self) -> None:
        whole = checkpoint()
        parts = [whole, *whole.values(), *whole['message_hub'].values()]
        self._seeds = [saved(part) for part in parts]
        self._opcodes = [self._split(pickled) for pickled, _ in self._seeds]

    @staticmethod
    def _split(pickled: bytes) -> list[bytes]:
        starts = [position for _, _, position in pickletools.genops(pickled)] + [len(pickled)]
        return [pickled[a:b] for a, b in itertools.pairwise(starts)]

    def __call__(self, rng: random.Random) -> tuple[bytes, list[bytes]]:
        which = rng.randrange(len(self._seeds))
        pickled, storages = self._seeds[which]
        if rng.random() < 0.4:
            return self._bytes(rng, bytearray(pickled)), storages
        return self._steps(rng, list(self._opcodes[which])), storages

    @staticmethod
    def _bytes(rng: random.Random, pickled: bytearray) -> bytes:
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            at = rng.randrange(2, len(pickled))
            kind = rng.randrange(4)
            if kind == 0:
                pickled[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                pickled[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            elif kind == 2:
                del pickled[at : at + rng.randrange(1, 9)]
            else:
                other = rng.randrange(2, len(pickled))
                pickled[at:at] = pickled[other : other + rng.randrange(1, 33)]
            if len(pickled) < 4:
                break
        return bytes(pickled)

    def _steps(self, rng: random.Random, steps: list[bytes]) -> bytes:
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            at = rng.randrange(1, len(steps))
            kind = rng.randrange(5)
            if kind == 0:
                steps[at] = rng.choice(steps)
            elif kind == 1:
                steps.insert(at, rng.choice(rng.choice(self._opcodes)))
            elif kind == 2 and len(steps) > 3:
                del steps[at]
            elif kind == 3:
                other = rng.randrange(1, len(steps))
                steps[at], steps[other] = steps[other], steps[at]
            else:
                steps[at] = pickles.dumps(rng.choice(NUMBERS))[2:-1]
        return b''.join(steps)


NUMBERS = (
    0,
    1,
    2,
    3,
    5,
    7,
    8,
    -1,
    -8,
    64,
    255,
    1 << 20,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 40,
    1 << 63,
    -(1 << 70),
)
TEXTS = (
    '',
    'a',
    'f8',
    'O8',
    'V8',
    'U3',
    'S0',
    'M8[s]',
    'i4,O',
    '<',
    '|',
    'min',
    '__init__',
    '__class__',
    'latin1',
    'cpu',
    'storage',
    '0',
    '1',
    'mean',
    '_annealing_cos',
    'zip',
    '\udc80',
)
OURS = named(
    'numpy.ndarray',
    'numpy.dtype',
    'numpy._core.multiarray._reconstruct',
    'numpy.core.multiarray._reconstruct',
    'numpy._core.multiarray.scalar',
    'numpy.core.multiarray.scalar',
    'builtins.getattr',
    'builtins.slice',
    'builtins.bytes',
    'mmengine.logging.history_buffer.HistoryBuffer',
    'mmengine.config.config.ConfigDict',
    'torch.torch_version.TorchVersion',
    'mmengine.optim.scheduler.param_scheduler.OneCycleParamScheduler',
    f'{CANARIES}.canary',
    f'{CANARIES}.Canary',
)
OTHERS = named(
    'os.system',
    'posix.system',
    'builtins.eval',
    'builtins.exec',
    'builtins.open',
    'builtins.object',
    'builtins.type',
    'numpy.frombuffer',
    'numpy.core.multiarray.fromfile',
    'numpy.dtypes.Float64DType',
    'numpy.dtypes.ObjectDType',
    'subprocess.Popen',
    'torch.load',
    'torch.hub.load',
    'mmengine.config.config.Config',
    'mmtempo.checkpoint.safe_types._Array',
    'sys.exit',
    'ctypes.CDLL',
)


class Grammar:
    """Generator of nested, nearly valid objects."""

    def __init__(self, torchs: list[Global]) -> None:
        self._torchs = torchs

    def __call__(self, rng: random.Random) -> tuple[bytes, list[bytes]]:
        self._rng = rng
        value = self._value(4)
        return pickles.dumps(value), list(STORAGES)

    def _value(self, depth: int) -> Any:
        rng = self._rng
        if depth <= 0 or rng.random() < 0.15:
            return self._leaf()
        make: Callable[[int], Any] = rng.choice(
            (
                self._dtype,
                self._array,
                self._array,
                self._history,
                self._scalar,
                self._attribute,
                self._any_call,
                self._any_call,
                self._tensor,
                self._torch_call,
                self._container,
                self._container,
            )
        )
        return make(depth - 1)

    def _leaf(self) -> Any:
        rng = self._rng
        return rng.choice(
            (
                rng.choice(NUMBERS),
                rng.choice(TEXTS),
                rng.choice((None, True, False, 1.5, float('nan'))),
                rng.randbytes(rng.choice((0, 1, 4, 8, 16, 24))),
                rng.choice(OURS),
                rng.choice(self._torchs),
                rng.choice(OTHERS) if rng.random() < 0.2 else (),
                [],
                {},
            )
        )

    def _or(self, right: Any, depth: int, odds: float = 0.12) -> Any:
        """Return the valid value, or with probability `odds` a random one."""
        return self._value(depth - 1) if self._rng.random() < odds else right

    def _dtype(self, depth: int) -> Any:
        rng = self._rng
        code = self._or(
            rng.choice(('b1', 'u1', 'i4', 'f8', 'c16', 'U3', 'S5', 'U0', 'O8', 'V8')), depth
        )
        state = [3, rng.choice('<>|='), None, None, None, -1, -1, 0]
        if isinstance(code, str) and code[:1] in 'US' and code[1:].isdigit():
            state[5:7] = [int(code[1:]) * (4 if code[0] == 'U' else 1), 4 if code[0] == 'U' else 1]
        if rng.random() < 0.25:
            state[rng.randrange(8)] = self._value(depth - 1)
        if rng.random() < 0.1:
            state[2] = (self._dtype(0), rng.choice(((1,), (2, 3), 1)))
        return Call(
            pickles.DTYPE,
            (code, False, True),
            self._states(tuple(state), depth),
            rng.random() < 0.1,
        )

    def _states(self, state: Any, depth: int) -> list:
        rng = self._rng
        states = [self._or(state, depth)] * rng.choice((1, 1, 1, 1, 0, 2))
        return [*states, self._value(depth - 1)] if rng.random() < 0.1 else states

    def _array(self, depth: int) -> Any:
        rng = self._rng
        shape = tuple(rng.choice((0, 1, 2, 3)) for _ in range(rng.randrange(4)))
        raw = rng.choice((b'\0', b'\1', b'\x41', b'\xff')) * (
            8 * int(np.prod(shape)) if rng.random() < 0.8 else 7
        )
        if rng.random() < 0.1:
            shape = tuple(rng.choice(NUMBERS) for _ in range(rng.choice((1, 2, 40))))
        kind = self._dtype(depth - 1) if rng.random() < 0.6 else pickles.dtype()
        state = (
            self._or(1, depth, 0.05),
            self._or(shape, depth),
            kind,
            rng.random() < 0.3,
            self._or(raw, depth),
        )
        if rng.random() < 0.15:  # without the function that makes an empty array
            return Call(
                pickles.NDARRAY, self._or((shape, kind, raw), depth, 0.3), (), rng.random() < 0.5
            )
        start = (self._or(pickles.NDARRAY, depth, 0.05), (0,), self._or(b'b', depth, 0.05))
        return Call(pickles.RECONSTRUCT, self._or(start, depth, 0.03), self._states(state, depth))

    def _scalar(self, depth: int) -> Any:
        raw = self._rng.randbytes(self._rng.choice((1, 4, 8, 12)))
        return Call(pickles.SCALAR, (self._dtype(depth), self._or(raw, depth)))

    def _history(self, depth: int) -> Any:
        rng = self._rng
        arrays = [self._or(pickles.array(b'\0' * 16, (2,)), depth, 0.4) for _ in range(2)]
        if rng.random() < 0.4:
            return Call(pickles.HISTORY, self._or(tuple(arrays), depth))
        methods = {
            name: self._attribute(0) for name in rng.sample(['mean', 'min', 'statistic', 'x'], 2)
        }
        methods['canary'] = Global(CANARIES, 'canary')
        state = dict(
            max_length=self._or(10, depth),
            _log_history=arrays[0],
            _count_history=arrays[1],
            statistics_methods=self._or(methods, depth),
        )
        if rng.random() < 0.2:
            state[rng.choice(TEXTS)] = self._value(depth - 1)
        return Call(pickles.HISTORY, (), self._states(state, depth), True)

    def _attribute(self, depth: int) -> Any:
        owner = self._or(self._rng.choice(OURS), depth, 0.3)
        name = self._rng.choice(
            ('min', 'mean', 'statistic', '_annealing_cos', '__init__', '__subclasses__', 'tofile')
        )
        return Call(pickles.GETATTR, (owner, self._or(name, depth, 0.1)))

    def _any_call(self, depth: int) -> Any:
        rng = self._rng
        what = rng.choice(OURS) if rng.random() < 0.6 else self._value(depth - 1)
        arguments = tuple(self._value(depth - 1) for _ in range(rng.randrange(4)))
        states = [self._value(depth - 1)] if rng.random() < 0.4 else []
        return Call(what, self._or(arguments, depth, 0.1), states, rng.random() < 0.4)

    def _torch_call(self, depth: int) -> Any:
        rng = self._rng
        if rng.random() < 0.4:  # it calls its argument, allowed or not
            arguments = tuple(self._value(depth - 1) for _ in range(rng.randrange(3)))
            parts = (
                rng.choice((self._attribute(depth), self._value(depth - 1))),
                rng.choice(OURS),
                arguments,
            )
            return Call(
                Global('torch._tensor', '_rebuild_from_type_v2'), (*parts, self._value(depth - 1))
            )
        arguments = tuple(self._value(depth - 1) for _ in range(rng.randrange(4)))
        return Call(rng.choice(self._torchs), arguments, [], rng.random() < 0.3)

    def _tensor(self, depth: int) -> Any:
        rng = self._rng
        storage = Stored(('storage', Global('torch', 'FloatStorage'), rng.choice('01'), 'cpu', 8))
        sizes = (self._or(2, depth, 0.05), 2)
        arguments = (
            storage,
            0,
            sizes,
            (2, 1),
            False,
            Call(Global('collections', 'OrderedDict'), ()),
        )
        tensor = Call(Global('torch._utils', '_rebuild_tensor_v2'), arguments)
        if rng.random() < 0.3:
            state = {rng.choice(TEXTS): self._value(depth - 1)}
            parts = (
                Global('torch._utils', '_rebuild_tensor_v2'),
                Global('torch', 'Tensor'),
                arguments,
                state,
            )
            return Call(Global('torch._tensor', '_rebuild_from_type_v2'), parts)
        return tensor

    def _container(self, depth: int) -> Any:
        rng = self._rng
        items = [self._value(depth - 1) for _ in range(rng.randrange(4))]
        kind = rng.randrange(5)
        if kind == 0:
            return items
        if kind == 1:
            return tuple(items)
        if kind == 2:
            return Call(Global('collections', 'OrderedDict'), (), [{'a': item} for item in items])
        if kind == 3:
            return Call(
                rng.choice((Global('builtins', 'set'), Global('collections', 'Counter'))), (items,)
            )
        return dict(zip(rng.sample(TEXTS, len(items)), items))


class Opcodes:
    """Generator of random opcode sequences over all allowed globals."""

    PLAIN = tuple(
        map(
            bytes,
            (
                pickle.MARK,
                pickle.TUPLE,
                pickle.TUPLE1,
                pickle.TUPLE2,
                pickle.TUPLE3,
                pickle.EMPTY_TUPLE,
                pickle.EMPTY_LIST,
                pickle.EMPTY_DICT,
                pickle.EMPTY_SET,
                pickle.NONE,
                pickle.NEWTRUE,
                pickle.REDUCE,
                pickle.REDUCE,
                pickle.NEWOBJ,
                pickle.BUILD,
                pickle.BUILD,
                pickle.APPEND,
                pickle.APPENDS,
                pickle.SETITEM,
                pickle.SETITEMS,
                pickle.BINPERSID,
            ),
        )
    )

    def __init__(self, torchs: list[Global]) -> None:
        self._named = [*OURS * 4, *torchs]
        self._grammar = Grammar(torchs)

    def __call__(self, rng: random.Random) -> tuple[bytes, list[bytes]]:
        steps = [b'\x80\x02']
        for _ in range(rng.randrange(3, 40)):
            kind = rng.randrange(6)
            if kind == 0:
                steps.append(pickles.dumps(rng.choice(self._named))[2:-1])
            elif kind == 1:
                steps.append(pickles.dumps(rng.choice((*NUMBERS, *TEXTS)))[2:-1])
            elif kind == 2:
                steps.append(rng.choice((b'q', b'h')) + bytes([rng.randrange(4)]))
            elif kind == 3:
                steps.append(self._grammar(rng)[0][2:-1])
            else:
                steps.append(rng.choice(self.PLAIN))
        return b''.join(steps) + pickle.STOP, list(STORAGES)
