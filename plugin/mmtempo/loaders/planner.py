"""Choose the number of workers of a loader and how far ahead they work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mmtempo.system.limits import Limits
from mmtempo.utils.checks import is_number_from, is_whole
from mmtempo.utils.units import size

from .plan import LoaderPlan, Needs
from .worker_errors import MORE_FILES, MORE_SHARED_MEMORY

MOST_WORKERS = 16  # with 'auto': one GPU hardly needs more
MOST_SPAWNED, MOST_ON_WINDOWS = 4, 2  # each starts an interpreter and imports all modules
AHEAD, AHEAD_ON_WINDOWS = 2, 1  # batches that a worker makes ahead of their use
# Batches outside the workers: two wait for the training, one is on its way to the device, one is
# in use. With pinning these are copies, and only one batch at a time remains in /dev/shm.
HELD, HELD_SHARED = 4, 1
HELD_ALONE = 2  # without workers: one in use, one being made
# Bytes of a worker by whether it is spawned. Measured with mmseg and torch for CPU: 14 MB forked,
# 275 MB spawned; reference counts copy a fork's pages, and torch for CUDA is larger.
WORKER_BYTES = {False: 100 << 20, True: 600 << 20}
SPARE_MEMORY = 256 << 20
SPARE_SHARED_MEMORY = 4 << 20  # locks, and files of other programs
SPARE_FILES = 64  # checkpoints, logs, the samples' files
PIPES = 4  # open files per worker, and the same once more for the loader
ENOUGH_FILES = 4096


def plan_loader(
    cfg: Mapping[str, Any],
    *,
    sample_bytes: int | None,
    batch_size: int,
    name: str = 'train_dataloader',
    start_method: str,
    has_accelerator: bool,
    local_world_size: int,
    limits: Limits,
    segments_per_batch: int = 4,
    worker_bytes: int | None = None,
) -> LoaderPlan:
    """Choose `num_workers`, `prefetch_factor`, `pin_memory` and `persistent_workers`.

    Each may be missing, None or 'auto'. A given number is kept unless it cannot work; then it is
    lowered, with a line in the plan's `warnings`.

    Args:
        cfg: Config of a dataloader.
        sample_bytes: Bytes of one sample in a batch; None if unknown.
        batch_size: Number of samples in a batch.
        name: The config's key of the dataloader. Defaults to 'train_dataloader'.
        start_method: How workers are started, such as 'fork'.
        has_accelerator: Whether the training runs on a device other than the CPU.
        local_world_size: Number of processes on this node that have such a loader.
        limits: Limits of the machine.
        segments_per_batch: Number of shared memory segments in a batch. Defaults to 4.
        worker_bytes: Bytes of a worker, without its batches. Defaults to None: `WORKER_BYTES`.

    Raises:
        ValueError: If a value of the config is invalid, or one batch does not fit into memory.
    """
    asked = _asked(cfg, name)
    spawned = start_method != 'fork'
    draft = _Draft(
        asked,
        name,
        limits,
        local_world_size,
        spawned,
        batch_bytes=(sample_bytes or 0) * batch_size,
        pinned=has_accelerator and asked['pin_memory'] is not False,
        segments=segments_per_batch,
        worker_bytes=WORKER_BYTES[spawned] if worker_bytes is None else worker_bytes,
    )
    draft.choose()
    draft.fit_memory()
    draft.fit_shared_memory()
    draft.fit_files()
    workers, reasons = draft.workers, draft.reasons
    if asked['pin_memory'] and not has_accelerator:
        reasons.append('pin_memory: True -> False, there is no accelerator')
    if not workers and (asked['persistent_workers'] or asked['prefetch_factor']):
        reasons.append('persistent_workers, prefetch_factor: ignored, there are no workers')
    return LoaderPlan(
        num_workers=workers,
        prefetch_factor=draft.ahead if workers else None,
        pin_memory=draft.pinned,
        persistent_workers=workers > 0 and asked['persistent_workers'] is not False,
        reasons=reasons,
        warnings=draft.warnings,
        timeout=asked['timeout'],
        name=name,
        needs=draft.needs(),
        open_files=draft.open_files,
    )


def _asked(cfg: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the value of each key, None where it is to be chosen."""
    rules: dict[str, tuple[str, Callable[[Any], bool]]] = {
        'num_workers': ('an integer of at least 0', lambda value: is_whole(value, 0)),
        'prefetch_factor': ('an integer of at least 1', is_whole),
        'pin_memory': ('True or False', lambda value: isinstance(value, bool)),
        'persistent_workers': ('True or False', lambda value: isinstance(value, bool)),
        'timeout': ('a number of seconds of at least 0', lambda value: is_number_from(value, 0)),
    }
    asked = {}
    for key, (expected, accepts) in rules.items():
        value = cfg.get(key)
        if isinstance(value, str) and value == 'auto':
            value = None
        if value is not None and not accepts(value):
            raise ValueError(f"{name}.{key} must be 'auto' or {expected}, found {value!r}")
        asked[key] = value
    return asked


@dataclass
class _Draft:
    """A plan in progress: chosen by the number of CPUs, then lowered to fit each limit."""

    asked: dict[str, Any]
    name: str
    limits: Limits
    world: int
    spawned: bool
    batch_bytes: int
    pinned: bool
    segments: int
    worker_bytes: int
    workers: int = 0
    ahead: int = AHEAD
    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    open_files: int | None = None

    def choose(self) -> None:
        """Set workers and batches ahead by the number of CPUs and the platform."""
        cpus, windows = self.limits.cpus, self.limits.platform == 'win32'
        auto, why = self._by_cpus(windows)
        asked = self.asked['num_workers']
        self.workers = auto if asked is None else asked
        if asked is None:
            self.reasons.append(why)
        elif asked * self.world > max(1, math.ceil(cpus.number)):
            self.warnings.append(
                f'num_workers={asked}: {asked * self.world} workers on this node share '
                f"{cpus.number:g} usable CPUs ({cpus.source}); 'auto' would choose {auto}"
            )
        self.ahead = self.asked['prefetch_factor'] or (AHEAD_ON_WINDOWS if windows else AHEAD)

    def _by_cpus(self, windows: bool) -> tuple[int, str]:
        cpus = self.limits.cpus
        each = cpus.number / self.world
        text = f"num_workers='auto': {cpus.number:g} usable CPUs ({cpus.source})"
        if self.world > 1:
            text += f', {self.world} processes on this node -> {each:g} each'
        workers = math.floor(each) - 1
        text += f', 1 reserved for the training -> {max(0, workers)}'
        if workers < 1:
            workers = 1
            text += ', at least 1'
        most, condition = MOST_WORKERS, ''
        if windows or self.spawned:
            most = MOST_ON_WINDOWS if windows else MOST_SPAWNED
            condition = ' where each imports all modules'
        if workers > most:
            workers = most
            text += f', at most {most}{condition}'
        return workers, text

    def fit_memory(self) -> None:
        """Fit workers and batches into memory, with a reserve if both numbers were chosen here."""
        if self.limits.memory is None:
            return
        available = self.limits.memory // self.world
        if self.batch_bytes > available:
            raise ValueError(
                f'{self.name}.batch_size: one batch takes {size(self.batch_bytes)}, and '
                f'{size(available)} of memory are available{self._each}; lower it'
            )
        chosen = self.asked['num_workers'] is None and self.asked['prefetch_factor'] is None
        spare = max(SPARE_MEMORY, available // 10) if chosen else 0
        text = 'memory: '
        if self.batch_bytes:
            count = self._in_flight(self.workers, self.ahead)
            total = size(count * self.batch_bytes)
            text += f'{count} batches of {size(self.batch_bytes)} in flight = {total}, '
        if self.workers:
            kind = 'spawned' if self.spawned else 'forked'
            text += f'{self.workers} {kind} workers of about {size(self.worker_bytes)}; '
        text += f'{size(available)} available{self._each}'
        change = self._lower(self._memory, available - spare)
        if change and (not chosen or not self.workers):
            self.warnings.append(f'{text}{change} (lower batch_size, or free memory)')
        else:
            self.reasons.append(text + change)

    def fit_shared_memory(self) -> None:
        """Fit batches of workers into /dev/shm: a process that writes to it when full is killed."""
        if self.limits.shared_memory is None or not self.workers:
            return
        available = self.limits.shared_memory // self.world
        needed = self._shared_memory(self.workers, self.ahead)
        text = f'/dev/shm: {size(available)} free{self._each}, {size(needed)} needed'
        change = self._lower(self._shared_memory, available)
        if change:
            advice = MORE_SHARED_MEMORY.format(size=_container_size(2 * needed * self.world))
            self.warnings.append(f'{text}{change} ({advice})')
        elif self.batch_bytes:
            self.reasons.append(text)

    def fit_files(self) -> None:
        """Fit shared tensors into the limit of open files.

        Each is an open file of the training process while the tensor is referenced.
        """
        files = self.limits.open_files
        shares_files = torch.multiprocessing.get_sharing_strategy() == 'file_descriptor'
        if files is None or not shares_files or not self.workers:
            return
        others = files.used + SPARE_FILES
        needed = self._files(self.workers, self.ahead)
        change = self._lower(self._files, files.hard - others)
        if change:
            advice = MORE_FILES.format(need=2 * (others + needed))
            self.warnings.append(
                f'open files: at most {files.hard} (hard limit), {others + needed} needed{change} '
                f'({advice})'
            )
        # Twice the estimate: it is rough, and the training opens other files too.
        ample = 2 * (others + self._files(self.workers, self.ahead))
        if self.workers and files.soft < min(ample, files.hard):
            self.open_files = min(files.hard, max(ENOUGH_FILES, ample))
            hard = ' (hard limit)' * (self.open_files == files.hard)
            self.reasons.append(f'open files: soft limit {files.soft} -> {self.open_files}{hard}')

    def needs(self) -> Needs:
        """Return the resources that the present numbers take."""
        numbers = self.workers, self.ahead
        memory = self._memory(*numbers) * self.world
        if not self.workers:
            return Needs(memory)
        return Needs(memory, self._shared_memory(*numbers) * self.world, self._files(*numbers))

    @property
    def _each(self) -> str:
        return ' per process' if self.world > 1 else ''

    def _in_flight(self, workers: int, ahead: int) -> int:
        return workers * ahead + HELD if workers else HELD_ALONE

    def _shared(self, workers: int, ahead: int) -> int:
        return workers * ahead + (HELD_SHARED if self.pinned else HELD)

    def _memory(self, workers: int, ahead: int) -> int:
        return workers * self.worker_bytes + self._in_flight(workers, ahead) * self.batch_bytes

    def _shared_memory(self, workers: int, ahead: int) -> int:
        return self._shared(workers, ahead) * self.batch_bytes + SPARE_SHARED_MEMORY

    def _files(self, workers: int, ahead: int) -> int:
        # Of the training process: a worker has only its batches open, and inherited files.
        return PIPES * (workers + 1) + self._shared(workers, ahead) * self.segments

    def _lower(self, takes: Callable[[int, int], int], available: int) -> str:
        """Lower the batches ahead, then the workers, until they fit; return the changes.

        Workers are lowered first where the config sets the batches ahead but not the workers.
        """
        before = self.ahead, self.workers
        numbers = [(ahead, count) for count in _down(self.workers) for ahead in _down(self.ahead)]
        if self.asked['prefetch_factor'] and self.asked['num_workers'] is None:
            numbers.sort(reverse=True)
        fitting = ((ahead, count) for ahead, count in numbers if takes(count, ahead) <= available)
        self.ahead, self.workers = next(fitting, (self.ahead, 0))
        changes = [
            f'{key} {old} -> {new}'
            for key, old, new in zip(
                ('prefetch_factor', 'num_workers'), before, (self.ahead, self.workers)
            )
            if old != new
        ]
        return ' -> ' * bool(changes) + ', '.join(changes)


def _down(most: int) -> range:
    """Return the numbers from `most` down to 1."""
    return range(most, 0, -1)


def _container_size(number: int) -> str:
    """Return a number of bytes as Docker's option takes it: a power of two, at least 1 GiB."""
    return f'{1 << max(0, math.ceil(math.log2(number / (1 << 30))))}g'


def count_bytes(batch: Any) -> int:
    """Return the bytes of tensors and arrays in a sample or a batch, however nested.

    Shared memory counts once: a batch may hold views along with the tensor that they view.
    """
    viewed: dict[Any, list[int]] = {}
    for leaf in _leaves(batch):
        if isinstance(leaf, torch.Tensor):
            storage = leaf.untyped_storage()
            key, whole = storage.data_ptr(), storage.nbytes()
        else:
            key, whole = id(leaf), leaf.nbytes
        viewed.setdefault(key, [whole, 0])[1] += leaf.nbytes
    return sum(min(both) for both in viewed.values())


def count_segments(batch: Any) -> int:
    """Return the number of shared memory segments in which torch sends a batch.

    Each of them is an open file.
    """
    tensors = (leaf for leaf in _leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.nbytes)
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors})


def _leaves(part: Any) -> Iterator[Any]:
    """Yield the tensors and arrays in a nested structure."""
    if isinstance(part, (torch.Tensor, np.ndarray)):
        yield part
    elif isinstance(part, (list, tuple)):
        for one in part:
            yield from _leaves(one)
    elif callable(getattr(part, 'values', None)):  # dicts, and mmengine's data elements
        yield from _leaves(list(part.values()))
