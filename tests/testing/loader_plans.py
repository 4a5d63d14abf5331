"""Plans of loaders on machines with given limits."""

from __future__ import annotations

from typing import Any

from mmtempo.loaders.plan import LoaderPlan
from mmtempo.loaders.planner import plan_loader
from mmtempo.system.limits import Cpus, Limits, OpenFiles

MIB, GIB = 1 << 20, 1 << 30
UNKNOWN = Limits(Cpus(1, 'the machine'))


def machine_limits(cpus: float = 8, source: str = 'affinity', **others: Any) -> Limits:
    """Return the limits of a machine with ample resources, except for those given."""
    given = dict(
        memory=64 * GIB,
        shared_memory=32 * GIB,
        open_files=OpenFiles(65536, 65536, 50),
        oom_kills=0,
        platform='linux',
    )
    return Limits(Cpus(cpus, source), **{**given, **others})


def make_plan(cfg: dict | None = None, limits: Limits | None = None, **others: Any) -> LoaderPlan:
    """Plan a loader of batches of 6 MiB, on a machine with an accelerator."""
    given = dict(
        sample_bytes=3 * MIB,
        batch_size=2,
        start_method='fork',
        has_accelerator=True,
        local_world_size=1,
    )
    return plan_loader(cfg or {}, limits=limits or machine_limits(), **{**given, **others})


def numbers_of(plan: LoaderPlan) -> tuple[int, int | None]:
    return plan.num_workers, plan.prefetch_factor
