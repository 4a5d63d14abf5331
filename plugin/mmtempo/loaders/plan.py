"""How a loader is run, and why."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mmtempo.system.limits import Limits, OpenFiles, raise_open_files


@dataclass(frozen=True)
class Needs:
    """What a loader takes at most: bytes in all its processes on this node, files in one."""

    memory: int = 0
    shared_memory: int = 0
    files: int = 0


@dataclass(frozen=True)
class LoaderPlan:
    """How a loader is run, and why.

    Attributes:
        num_workers: How many processes make batches; 0: the training's own does.
        prefetch_factor: Batches that each makes before they are asked for; None without workers.
        pin_memory: Whether batches are put where a device can copy them from by itself.
        persistent_workers: Whether workers stay from epoch to epoch.
        reasons: Lines that say why.
        warnings: Lines that say what the config asks for and cannot have, or should not.
        timeout: Seconds to wait for a batch; None where the config does not say.
        name: The config's key.
        needs: What it takes.
        open_files: The soft limit of open files that it has to have; None: as it is.
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
        """All of it, for the log."""
        parts = ['no workers, the training makes its batches itself']
        if self.num_workers:
            workers = 'worker' if self.num_workers == 1 else 'workers'
            batches = 'batch' if self.prefetch_factor == 1 else 'batches'
            parts = [f'{self.num_workers} {workers} x {self.prefetch_factor} {batches} ahead']
        parts += ['pinned'] * self.pin_memory + ['persistent'] * self.persistent_workers
        lines = [*self.reasons, *(f'WARNING: {line}' for line in self.warnings)]
        return '\n  '.join([f'{self.name}: {", ".join(parts)}', *lines])

    def apply(self) -> OpenFiles | None:
        """Raise the limit of open files where it has to be; before the workers are started."""
        return None if self.open_files is None else raise_open_files(self.open_files)

    def left(self, limits: Limits) -> Limits:
        """What remains of limits for a loader that lives at the same time, as for validation."""
        files, needs = limits.open_files, self.needs
        return replace(
            limits,
            memory=_minus(limits.memory, needs.memory),
            shared_memory=_minus(limits.shared_memory, needs.shared_memory),
            open_files=files and files._replace(used=files.used + needs.files),
        )


def _minus(available: int | None, taken: int) -> int | None:
    return None if available is None else max(0, available - taken)
