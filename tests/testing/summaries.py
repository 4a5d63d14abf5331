"""Synthetic summaries in the format of ThroughputMonitorHook."""

from __future__ import annotations

from typing import Any

TWICE = ('evaluation', 'checkpoint')  # phases that occur in two iterations only
# Seconds by phase of 5000 iterations that take 140 ms each, on a GPU that is busy meanwhile.
CALM = {
    'data': 3.0,
    'to_device': 2.5,
    'forward': 285.0,
    'backward': 352.0,
    'step': 48.0,
    'evaluation': 9.0,
    'hook:SparseRuntimeInfoHook': 1.1,
    'hook:SparseLoggerHook': 0.9,
    'hook:ParamSchedulerHook': 0.4,
    'hook:AsyncCheckpointHook': 0.1,
    'hook:SnapshotFence': 0.05,
    'checkpoint: fence': 0.05,
    'checkpoint: wait for the writer': 0.1,
    'unexplained': 1.8,
}


def summary(
    phases: dict[str, Any] | None = None,
    setting: dict[str, Any] | None = None,
    machine: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return the summary of a run without a bottleneck, updated by the arguments.

    Args:
        phases: Seconds by phase, or seconds and the number of its iterations, which is else 5000,
            or 2 for evaluations and saves. Defaults to None.
        setting: Keys of `setting`. Defaults to None.
        machine: Keys of `machine`. Defaults to None.
        changes: Top-level keys.
    """
    counts = dict.fromkeys((name for name in CALM if name.startswith(TWICE)), 2)
    seconds = dict(CALM)
    for name, one in (phases or {}).items():
        seconds[name], counts[name] = one if isinstance(one, tuple) else (one, counts.get(name))
    total = sum(seconds.values())
    found = dict(
        version=1, status='completed', error=None, started=1.79e9, ended=1.79e9 + total,
        first_iter=0, last_iter=5000, max_iters=200000,
        machine={
            'cpu': 'AMD EPYC 9V74', 'cores': 16, 'system': 'Linux', 'python': '3.12',
            'torch': '2.13.0', 'accelerator': 'NVIDIA RTX 4090', 'versions': {}, **(machine or {}),
        },
        setting={
            'loop': 'PrefetchIterBasedTrainLoop', 'train_cfg_has_type': True, 'by_epoch': False,
            'epoch_length': 7000, 'num_workers': 8, 'batch_size': 4, 'world': 1, 'local_world': 1,
            'accumulation': 1, 'effective_batch': 4, 'log_interval': 50, 'val_interval': 2500,
            'checkpoint_interval': 2500, 'checkpoint_by_epoch': False, 'config': 'lss_swin-t.py',
            'prefetch_factor': 2, 'pin_memory': True, 'cache': False,
            'parts': [
                'PrefetchIterBasedTrainLoop', 'PrefetchValLoop', 'SparseOptimWrapper',
                'SparseLoggerHook', 'AsyncCheckpointHook',
            ],
            'default_hooks': {
                'runtime_info': 'SparseRuntimeInfoHook', 'timer': 'ThroughputMonitorHook',
                'logger': 'SparseLoggerHook', 'checkpoint': 'AsyncCheckpointHook',
            },
            **(setting or {}),
        },
        iterations=5000, seconds=total, steady=1 / 0.14, it_per_s=5000 / total,
        samples_per_s=20000 / total, samples_per_s_steady=4 / 0.14,
        cv=0.041, p50=0.140, p95=0.151, p99=0.162,
        phases={
            name: dict(
                seconds=one, share=one / total, p50=one / 5000, p95=1.1 * one / 5000,
                p99=1.2 * one / 5000, count=counts.get(name) or 5000,
            )
            for name, one in seconds.items()
        },
        histogram=dict(edges=[0.1, 0.14, 0.2], counts=[2500, 2500]),
        lost=dict(seconds=0.0, share=0.0, count=0, by_cause={}),
        stalls=[], periods=[], warnings=[],
        device={
            'forward': dict(seconds=280.0, p50=0.056, count=5000),
            'backward': dict(seconds=350.0, p50=0.070, count=5000),
            'step': dict(seconds=45.0, p50=0.009, count=5000),
        },
        device_busy=dict(mean=0.96, looks=100),
        memory=dict(now=dict(ram_used=0.41), peak=dict(ram_used=0.43, swap_used=0)),
    )  # fmt: skip
    found['phases']['evaluation'].update(dict.fromkeys(('p50', 'p95', 'p99'), 4.5))
    found.update(changes)
    return found


def comb(**changes: Any) -> dict[str, Any]:
    """Return the summary of a run whose 8 workers, one of them slow, are 10 % too slow."""
    cause = 'worker 2 was late'
    stalls = [
        dict(
            kind='stall', iter=number, time=1.79e9, seconds=0.31 - place / 100, usual=0.14,
            lost=0.17 - place / 100, phase='data', cause=cause, category='data',
            text=f'took {310 - 10 * place} ms instead of 140 ms: {cause} with samples 17, [x] 18',
            evidence=dict(worker=2, samples=[17, 18]),
        )
        for place, number in enumerate((4210, 402, 1818, 3402, 2610, 4802, 1202))
    ]  # fmt: skip
    period = dict(
        every=8, what='num_workers', cause=cause, count=602, of=610, worker=2, samples=[17, 18],
        text=f'{cause}: every 8th iteration = num_workers: 602 of 610 stalls, on 97 % of its '
        'places',
    )  # fmt: skip
    causes = {
        cause: dict(seconds=76.0, count=610, category='data'),
        'evaluation': dict(seconds=9.0, count=1, category='evaluation'),
    }
    lost = dict(seconds=85.0, share=85.0 / 781, count=611, by_cause=causes)
    found = summary(
        phases=dict(data=77.0), lost=lost, stalls=stalls, periods=[period], cv=0.31, p95=0.27,
        p99=0.3,
    )  # fmt: skip
    found['phases']['data']['p50'] = 0.0003
    found.update(changes)
    return found
