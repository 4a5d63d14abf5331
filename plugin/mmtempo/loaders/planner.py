"""Decides, and explains, how many workers a loader has and how far ahead they work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from mmtempo.system.limits import Limits

from .plan import LoaderPlan, Needs
from .worker_errors import MORE_FILES, MORE_SHARED_MEMORY, size_of

MOST_WORKERS = 16  # of 'auto': one GPU hardly needs more
MOST_SPAWNED, MOST_ON_WINDOWS = 4, 2  # each starts an interpreter and imports everything anew
AHEAD, AHEAD_ON_WINDOWS = 2, 1  # batches that a worker makes before they are asked for
# Batches out of the workers' hands: two wait for the training, one is on its way to the device,
# one is in use. If they are pinned they are copies, and one at a time still lies in /dev/shm.
HELD, HELD_SHARED = 4, 1
HELD_ALONE = 2  # without workers: one in use, one being made
# Forked, then spawned. Measured with mmseg and torch for CPUs: 14 and 275 MB. A fork copies the
# data set's Python objects bit by bit, and torch for CUDA is larger.
WORKER_BYTES = {False: 100 << 20, True: 600 << 20}
SPARE_MEMORY = 256 << 20
SPARE_SHARED_MEMORY = 4 << 20  # locks, and what others put there meanwhile
SPARE_FILES = 64  # checkpoints, logs, the samples' own files
PIPES = 4  # with each worker, and once for all of them
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
    limits: Limits | None = None,
    segments_per_batch: int = 4,
    worker_bytes: int | None = None,
) -> LoaderPlan:
    """Concrete values for `num_workers`, `prefetch_factor`, `pin_memory`, `persistent_workers`.

    Each may be missing, None or 'auto'. A number is kept unless it cannot work; then it is
    lowered, and `warnings` says so.

    Args:
        cfg: A dataloader's config.
        sample_bytes: Of one sample as it is in a batch. None: unknown.
        batch_size: Samples a batch.
        name: The config's key. Defaults to 'train_dataloader'.
        start_method: Of workers, as 'fork'.
        has_accelerator: Whether the training runs on a device with memory of its own.
        local_world_size: Processes on this node that have such a loader.
        limits: What the machine offers. Defaults to None: this machine, now.
        segments_per_batch: Tensors with memory of their own in a batch. Defaults to 4.
        worker_bytes: What a worker holds beside batches. Defaults to None: `WORKER_BYTES`.

    Raises:
        ValueError: If a value is none that it may be, or not one batch fits into memory.
    """
    asked = _asked(cfg, name)
    draft = _Draft(
        asked,
        name,
        limits or Limits.of_this_machine(),
        max(1, local_world_size),
        spawned=start_method != 'fork',
        batch_bytes=(sample_bytes or 0) * batch_size,
        pinned=has_accelerator and asked['pin_memory'] is not False,
        segments=segments_per_batch,
        worker_bytes=worker_bytes,
    )
    draft.choose()
    draft.fit_memory()
    draft.fit_shared_memory()
    draft.fit_files()
    workers, reasons = draft.workers, draft.reasons
    if asked['pin_memory'] and not has_accelerator:
        reasons.append('pin_memory=True -> False: there is no accelerator to copy to')
    if not workers and (asked['persistent_workers'] or asked['prefetch_factor']):
        reasons.append('persistent_workers, prefetch_factor: of no use without workers')
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
    """Each key's value, None where it is for us to choose."""
    rules: dict[str, tuple[str, Callable[[Any], bool]]] = {
        'num_workers': ("'auto', or a number from 0 on", lambda value: _is_number(value, 0)),
        'prefetch_factor': ("'auto', or a number from 1 on", lambda value: _is_number(value, 1)),
        'pin_memory': ("'auto', True or False", lambda value: isinstance(value, bool)),
        'persistent_workers': ("'auto', True or False", lambda value: isinstance(value, bool)),
        'timeout': (
            "'auto', or seconds from 0 on",
            lambda value: _is_number(value, 0, or_part=True),
        ),
    }
    asked = {}
    for key, (expected, accepts) in rules.items():
        value = cfg.get(key)
        if isinstance(value, str) and value == 'auto':
            value = None
        if value is not None and not accepts(value):
            raise ValueError(f'{name}.{key}={value!r}: it has to be {expected}')
        asked[key] = value
    return asked


def _is_number(value: Any, least: int, or_part: bool = False) -> bool:
    kinds = (int, float) if or_part else int
    return isinstance(value, kinds) and not isinstance(value, bool) and value >= least


class _Draft:
    """A plan in the making: chosen by CPUs, then lowered by one limit after the other."""

    def __init__(
        self,
        asked: dict[str, Any],
        name: str,
        limits: Limits,
        world: int,
        spawned: bool,
        batch_bytes: int,
        pinned: bool,
        segments: int,
        worker_bytes: int | None,
    ) -> None:
        self.asked, self.name, self.limits, self.world = asked, name, limits, world
        self.spawned, self.pinned = spawned, pinned
        self.batch_bytes, self.segments = batch_bytes, segments
        self.worker_bytes = WORKER_BYTES[spawned] if worker_bytes is None else worker_bytes
        self.workers, self.ahead = 0, AHEAD
        self.reasons: list[str] = []
        self.warnings: list[str] = []
        self.open_files: int | None = None

    def choose(self) -> None:
        """By CPUs, and by what is dear on this platform."""
        cpus, windows = self.limits.cpus, self.limits.platform == 'win32'
        auto, why = self._by_cpus(windows)
        asked = self.asked['num_workers']
        self.workers = auto if asked is None else asked
        if asked is None:
            self.reasons.append(why)
        elif asked * self.world > max(1, math.ceil(cpus.number)):
            self.warnings.append(
                f'num_workers={asked}: {asked * self.world} workers on this node have '
                f"{cpus.number:g} usable CPUs ({cpus.source}); 'auto' would be {auto}"
            )
        self.ahead = self.asked['prefetch_factor'] or (AHEAD_ON_WINDOWS if windows else AHEAD)

    def _by_cpus(self, windows: bool) -> tuple[int, str]:
        cpus = self.limits.cpus
        each = cpus.number / self.world
        text = f"num_workers='auto': {cpus.number:g} usable CPUs ({cpus.source})"
        if self.world > 1:
            text += f', {self.world} processes on this node -> {each:g} each'
        workers = math.floor(each) - 1
        text += f', 1 kept for the training -> {max(0, workers)}'
        if workers < 1:
            workers = 1
            text += ', at least 1'
        most, of = MOST_WORKERS, 'as a rule'
        if windows or self.spawned:
            most = MOST_ON_WINDOWS if windows else MOST_SPAWNED
            of = 'where each imports everything anew'
        if workers > most:
            workers = most
            text += f', at most {most} {of}'
        return workers, text

    def fit_memory(self) -> None:
        """Workers and batches have to fit in, with some to spare if it was left to us."""
        if self.limits.memory is None:
            return
        available = self.limits.memory // self.world
        if self.batch_bytes > available:
            raise ValueError(
                f'{self.name}.batch_size: one batch has {size_of(self.batch_bytes)}, and '
                f'{size_of(available)} of memory are available{self._each}; make it smaller'
            )
        chosen = self.asked['num_workers'] is None and self.asked['prefetch_factor'] is None
        spare = max(SPARE_MEMORY, available // 10) if chosen else 0
        text = 'memory: '
        if self.batch_bytes:
            count = self._in_flight(self.workers, self.ahead)
            total = size_of(count * self.batch_bytes)
            text += f'{count} batches of {size_of(self.batch_bytes)} in flight = {total}, '
        if self.workers:
            kind = 'spawned' if self.spawned else 'forked'
            text += f'{self.workers} {kind} x about {size_of(self.worker_bytes)}; '
        text += f'{size_of(available)} available{self._each}'
        change = self._lower(self._memory, available - spare)
        if change and (not chosen or not self.workers):
            self.warnings.append(f'{text}{change} (lower batch_size, or free some memory)')
        else:
            self.reasons.append(text + change)

    def fit_shared_memory(self) -> None:
        """Batches of workers have to fit into /dev/shm: who writes beyond it is killed."""
        if self.limits.shared_memory is None or not self.workers:
            return
        available = self.limits.shared_memory // self.world
        needed = self._shared_memory(self.workers, self.ahead)
        text = f'/dev/shm: {size_of(available)} free{self._each}, needs {size_of(needed)}'
        change = self._lower(self._shared_memory, available)
        if change:
            advice = MORE_SHARED_MEMORY.format(size=_container_size(2 * needed * self.world))
            self.warnings.append(f'{text}{change} ({advice})')
        elif self.batch_bytes:
            self.reasons.append(text)

    def fit_files(self) -> None:
        """Each shared tensor is an open file of the training's process, as long as it lives."""
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
                f'open files: at most {files.hard} (hard limit), needs {others + needed}{change} '
                f'({advice})'
            )
        # Estimates are rough, and others open files too.
        ample = 2 * (others + self._files(self.workers, self.ahead))
        if self.workers and files.soft < min(ample, files.hard):
            self.open_files = min(files.hard, max(ENOUGH_FILES, ample))
            hard = ' (hard limit)' * (self.open_files == files.hard)
            self.reasons.append(f'open files: {files.soft} -> {self.open_files}{hard}')

    def needs(self) -> Needs:
        """Of what has been decided."""
        numbers = self.workers, self.ahead
        memory = self._memory(*numbers) * self.world
        if not self.workers:
            return Needs(memory)
        return Needs(memory, self._shared_memory(*numbers) * self.world, self._files(*numbers))

    @property
    def _each(self) -> str:
        return ' for each process' if self.world > 1 else ''

    def _in_flight(self, workers: int, ahead: int) -> int:
        return workers * ahead + HELD if workers else HELD_ALONE

    def _shared(self, workers: int, ahead: int) -> int:
        return workers * ahead + (HELD_SHARED if self.pinned else HELD)

    def _memory(self, workers: int, ahead: int) -> int:
        return workers * self.worker_bytes + self._in_flight(workers, ahead) * self.batch_bytes

    def _shared_memory(self, workers: int, ahead: int) -> int:
        return self._shared(workers, ahead) * self.batch_bytes + SPARE_SHARED_MEMORY

    def _files(self, workers: int, ahead: int) -> int:
        # Of the training: a worker has only its own batches open, and what it has inherited.
        return PIPES * (workers + 1) + self._shared(workers, ahead) * self.segments

    def _lower(self, takes: Callable[[int, int], int], available: int) -> str:
        """Make fewer batches ahead, then have fewer workers, until it fits; what was changed.

        The other way round where the config has a number for the batches, none for the workers.
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
    """To 1."""
    return range(most, 0, -1)


def _container_size(size: int) -> str:
    """As Docker takes it: a power of two, a gigabyte at least."""
    return f'{1 << max(0, math.ceil(math.log2(size / (1 << 30))))}g'


def check_sample_bytes(batch: Any) -> int:
    """Bytes of tensors and arrays in a sample or a batch, however nested.

    What lies in the same memory counts once: a batch may hold views next to what they view.
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
    """Pieces of shared memory, each an open file, in which torch sends a batch."""
    tensors = (leaf for leaf in _leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.nbytes)
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors})


def _leaves(part: Any) -> Iterator[Any]:
    """Tensors and arrays."""
    if isinstance(part, (torch.Tensor, np.ndarray)):
        yield part
    elif isinstance(part, (list, tuple)):
        for one in part:
            yield from _leaves(one)
    elif callable(getattr(part, 'values', None)):  # dicts, and mmengine's data elements
        yield from _leaves(list(part.values()))
