"""The settings of a loader, and the reasons for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mmtempo.system.limits import Limits, OpenFiles, raise_open_files


@dataclass(frozen=True)
class Needs:
    """Resources that a loader takes at most.

    Attributes:
        memory: Bytes of memory, over all processes of this node.
        shared_memory: Bytes in /dev/shm, over all processes of this node.
        files: Open files of one process.
    """

    memory: int = 0
    shared_memory: int = 0
    files: int = 0


@dataclass(frozen=True)
class LoaderPlan:
    """The settings of a loader, and the reasons for them.

    Attributes:
        num_workers: Number of worker processes; with 0 the training process makes batches.
        prefetch_factor: Batches that each worker makes ahead of their use; None without workers.
        pin_memory: Whether batches are copied to pinned memory.
        persistent_workers: Whether workers are kept between epochs.
        reasons: Lines for the log that explain the settings.
        warnings: Lines for the log about config values that were lowered or are questionable.
        timeout: Seconds to wait for a batch; None where the config does not set it.
        name: The config's key of the dataloader.
        needs: Resources that the loader takes at most.
        open_files: Soft limit of open files that the loader requires; None keeps the limit.
    """

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    timeout: float | None = None
    name: str = 'dataloader'
    needs: Needs = Needs()
    open_files: int | None = None

    def describe(self) -> str:
        """Return the settings, reasons and warnings as lines for the log."""
        parts = ['no workers (the training process makes the batches)']
        if self.num_workers:
            workers = 'worker' if self.num_workers == 1 else 'workers'
            batches = 'batch' if self.prefetch_factor == 1 else 'batches'
            parts = [f'{self.num_workers} {workers} x {self.prefetch_factor} {batches} ahead']
        parts += ['pinned'] * self.pin_memory + ['persistent'] * self.persistent_workers
        lines = [*self.reasons, *(f'WARNING: {line}' for line in self.warnings)]
        return '\n  '.join([f'{self.name}: {", ".join(parts)}', *lines])

    def apply(self) -> OpenFiles | None:
        """Raise the limit of open files if required; call it before the workers start."""
        return None if self.open_files is None else raise_open_files(self.open_files)

    def left(self, limits: Limits) -> Limits:
        """Return what this loader leaves of limits for loaders that run at the same time."""
        files, needs = limits.open_files, self.needs
        return replace(
            limits,
            memory=_minus(limits.memory, needs.memory),
            shared_memory=_minus(limits.shared_memory, needs.shared_memory),
            open_files=files and files._replace(used=files.used + needs.files),
        )


def _minus(available: int | None, taken: int) -> int | None:
    return None if available is None else max(0, available - taken)
