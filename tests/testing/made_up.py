"""Synthetic logs of a training, in the format of the monitor."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

PHASES = (
    'data', 'to_device', 'forward', 'backward', 'step', 'hook:EMAHook', 'hook:SlowHook',
    'hook:SparseLoggerHook', 'hook:AsyncCheckpointHook', 'evaluation', 'unexplained',
)  # fmt: skip
START = 1_790_000_000.0
MACHINE = dict(
    cpu='AMD Ryzen 9 7950X', cores=32, system='Linux-6.8', python='3.11.9', torch='2.13.0+cu130',
    accelerator='NVIDIA RTX 4090', versions=dict(mmengine='0.10.12', mmcv='2.3.6'),
)  # fmt: skip
SETTING = dict(
    loop='PrefetchIterBasedTrainLoop', by_epoch=False, epoch_length=440, num_workers=8,
    batch_size=4, world=2, local_world=2, accumulation=2, effective_batch=16, log_interval=50,
    val_interval=500, checkpoint_interval=250, checkpoint_by_epoch=False, train_cfg_has_type=True,
    default_hooks=dict(checkpoint='AsyncCheckpointHook', logger='SparseLoggerHook'),
    config='configs/lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py',
    prefetch_factor=2, pin_memory=True, cache=False,
)  # fmt: skip
USUAL = dict(data=0.004, to_device=0.002, forward=0.051, backward=0.082, step=0.011)
Line = dict[str, Any]


def iteration(number: int, chance: random.Random) -> tuple[Line, tuple | None]:
    """Return the seconds of each phase, and of a stall its cause, category, phase and evidence."""
    took = dict.fromkeys(PHASES, 0.0)
    for name, usual in USUAL.items():
        took[name] = usual * chance.lognormvariate(0, 0.02)
    took['hook:EMAHook'] = 0.0031 * chance.lognormvariate(0, 0.05)
    took['unexplained'] = 0.0004 * chance.lognormvariate(0, 0.3)
    why: tuple | None = None
    if number <= 3:
        took['forward'] += 1.4 / number
        why = 'first iterations', 'warm-up', 'forward', dict(shape=[4, 3, 256, 704])
    elif 600 < number <= 1000 and number % 8 == 3:
        took['data'] += 0.11 * chance.lognormvariate(0, 0.1)
        samples = [number % 440, (number + 7) % 440]
        evidence = dict(worker=3, samples=samples, slowest_sample=171, sample_seconds=0.93)
        why = 'worker 3 was late', 'data', 'data', evidence
    elif number in (333, 777, 1420):
        took['backward'] += 0.19
        why = 'garbage collection', 'gc', 'backward', dict(gc_seconds=0.188)
    elif number in (1600, 1601, 1602):
        took['forward'] += 0.45
        evidence = dict(major_faults=5120, psi_memory=0.31, swap_in=21_000_000)
        why = 'page faults', 'memory', 'forward', evidence
    elif number % 400 == 90:
        took['hook:SlowHook'] = 0.6
        why = 'SlowHook', 'hook', 'hook:SlowHook', {}
    if number % 50 == 0:
        took['hook:SparseLoggerHook'] = 0.002
    if number % 250 == 0:
        took['hook:AsyncCheckpointHook'] = 0.8
        phase = 'hook:AsyncCheckpointHook'
        why = 'AsyncCheckpointHook', 'checkpoint', phase, dict(system_seconds=0.3)
    if number % 500 == 0:
        took['evaluation'] = 11.5 + chance.random()
        why = 'evaluation', 'evaluation', 'evaluation', {}
    return took, why


def sample(number: int, time: float) -> Line:
    """Return a reading of the machine."""
    return dict(
        time=time, ram_used=0.41 + 0.2 * number / 2000, ram_total=64 << 30, ram_of='the container',
        tree_pss=(9 << 30) + number * (1 << 20), tree_processes=9, main_rss=4 << 30,
        swap_used=0 if number < 1600 else 64 << 20, shm_free=15 << 30, shm_total=16 << 30,
        device=dict(
            allocated=11 << 30, reserved=14 << 30, retries=0, utilisation=0.87, power=310.0,
            clock=2520.0, memory_used=15 << 30, throttle=['power limit'],
        ),
    )  # fmt: skip


def window(rows: list[tuple[int, Line]], lost: float, time: float) -> Line:
    last = rows[-1][0]
    walls = sorted(sum(took.values()) for _, took in rows)
    seconds, middle = sum(walls), statistics.median(walls)
    return dict(
        kind='window', iter=last, time=time, iterations=len(rows), seconds=seconds,
        steady=1 / middle, it_per_s=len(rows) / seconds, samples_per_s=4 * len(rows) / seconds,
        p50=middle, p95=quantile(walls, 0.95), p99=quantile(walls, 0.99), cv=0.03, lost=lost,
        phases={name: sum(took[name] for _, took in rows) for name in PHASES},
        memory=sample(last, time),
        ranks=dict(data=dict(max=0.02, rank=1), step=dict(max=0.15, rank=0)),
    )  # fmt: skip


def stall(number: int, took: Line, why: tuple, time: float) -> Line:
    cause, category, phase, evidence = why
    seconds, usual = sum(took.values()), 0.1535
    where = f'{seconds - usual:.2f} s more than usual in {phase}'
    return dict(
        kind='stall', iter=number, time=time, seconds=seconds, usual=usual, lost=seconds - usual,
        phase=phase, cause=cause, category=category, text=f'{cause}: {where}.', evidence=evidence,
    )  # fmt: skip


def quantile(values: list[float], level: float) -> float:
    return values[min(len(values) - 1, int(level * len(values)))]


def histogram(walls: list[float]) -> Line:
    """Return a histogram with ten bins per decade from 1 ms to 100 s."""
    edges = [10 ** (power / 10 - 3) for power in range(51)]
    counts = [0] * 50
    for wall in walls:
        counts[min(49, max(0, int(10 * (math.log10(wall) + 3))))] += 1
    return dict(edges=edges, counts=counts)


def made_up_run(
    iterations: int = 2000, first: int = 0, started: float = START, slowness: float = 1.0
) -> tuple[Line, list[Line]]:
    """Return the summary and the lines of a run; `slowness` multiplies the time of each phase."""
    chance = random.Random(7)
    run = dict(kind='run', version=1, time=started, iter=first, max_iters=first + iterations,
               machine=MACHINE, setting=SETTING)  # fmt: skip
    lines: list[Line] = [run]
    now, lost, pending = 0.0, 0.0, []
    rows, ring = [], []
    for number in range(first + 1, first + iterations + 1):
        took, why = iteration(number, chance)
        took = {name: slowness * seconds for name, seconds in took.items()}
        ring.append([number, round(now, 6), *(round(took[name], 6) for name in PHASES)])
        now += sum(took.values())
        rows.append((number, took))
        pending.append((number, took))
        if why:
            lines.append(stall(number, took, why, started + now))
            lost += lines[-1]['lost']
        if number % 50 == 0:
            lines.append(window(pending, lost, started + now))
            lost, pending = 0.0, []
    lines.append(
        dict(kind='warning', time=started + 200, iter=1600, text='The machine began to swap: '
             '64 MiB. Lower train_dataloader.num_workers or prefetch_factor.')
    )  # fmt: skip
    lines.append(stages(first + 100))
    lines.append(dict(kind='end', time=started + now, iter=first + iterations,
                      status='completed', error=None))  # fmt: skip
    return summary_of(run, rows, lines, ring[-1024:]), lines


def stages(number: int) -> Line:
    parts = (('backbone', 'SwinTransformer', 0.029), ('view_transform', 'LiftSplatShoot', 0.014),
             ('decode_head', 'BEVPyramidHead', 0.008))  # fmt: skip
    found = [
        dict(name=name, type=kind, calls=1, seconds=seconds, share=seconds / 0.051,
             device_seconds=0.9 * seconds)
        for name, kind, seconds in parts
    ]  # fmt: skip
    return dict(kind='stages', iter=number, iterations=50, stages=found)


def summary_of(run: Line, rows: list[tuple[int, Line]], lines: list[Line], ring: list) -> Line:
    walls = sorted(sum(took.values()) for _, took in rows)
    seconds, middle = sum(walls), statistics.median(walls)
    stalls = [line for line in lines if line['kind'] == 'stall']
    by_cause: dict[str, Line] = {}
    for line in stalls:
        entry = by_cause.setdefault(
            line['cause'], dict(seconds=0.0, count=0, category=line['category'])
        )
        entry['seconds'] += line['lost']
        entry['count'] += 1
    lost = sum(line['lost'] for line in stalls)
    phases = {}
    for name in PHASES:
        values = sorted(took[name] for _, took in rows)
        phases[name] = dict(
            seconds=sum(values), share=sum(values) / seconds, p50=quantile(values, 0.5),
            p95=quantile(values, 0.95), p99=quantile(values, 0.99),
            count=sum(value > 0 for value in values),
        )  # fmt: skip
    last = rows[-1][0]
    return dict(
        version=1, status='completed', error=None, started=run['time'],
        ended=run['time'] + seconds, first_iter=run['iter'], last_iter=last,
        max_iters=run['max_iters'], machine=MACHINE, setting=SETTING, iterations=len(rows),
        seconds=seconds, steady=1 / middle, it_per_s=len(rows) / seconds,
        samples_per_s=4 * len(rows) / seconds, samples_per_s_steady=4 / middle, cv=0.031,
        p50=middle, p95=quantile(walls, 0.95), p99=quantile(walls, 0.99), phases=phases,
        histogram=histogram(walls),
        lost=dict(seconds=lost, share=lost / seconds, count=len(stalls), by_cause=by_cause),
        stalls=sorted(stalls, key=lambda line: -line['lost'])[:50],
        periods=[
            dict(every=8, what='num_workers', cause='worker 3 was late', count=50, of=50, worker=3,
                 samples=[171, 178], text='Every 8th iteration waits for worker 3: the loader '
                 'delivers 0.9 of what is needed.')
        ],
        changes=[dict(iter=1601, old=0.1535, new=0.16, cause='slow fan')],
        device=dict(forward=dict(seconds=90.0, p50=0.045, count=2000)),
        memory=dict(now=sample(last, run['time'] + seconds), peak=sample(last, run['time'])),
        warnings=[line['text'] for line in lines if line['kind'] == 'warning'],
        stages=stages(last),
        ranks=dict(
            data=dict(max=0.21, rank=1, mean=0.02, usual=1, often=30, of=40),
            step=dict(max=0.15, rank=0, mean=0.15, usual=0, often=40, of=40),
        ),
        device_busy=dict(mean=0.87, looks=40),
        verdict=dict(
            headline='17 % of the time was lost to stalls, most of it to evaluation',
            why=['4 evaluations took 48 s in all.',
                 'Every 8th iteration waited for worker 3 between 600 and 1000.'],
            change=[
                dict(override='train_dataloader.num_workers=12', why='the loader is too slow'),
                dict(override='train_cfg.val_interval=1000', why='evaluations take 15 %'),
            ],
        ),
        ring=dict(phases=list(PHASES), rows=ring),
    )  # fmt: skip


def write_run(folder: Path, **options: Any) -> Path:
    """Write both files of a run into a folder, as in a work dir."""
    summary, lines = made_up_run(**options)
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder, lines)
    write_summary(folder, summary)
    return folder


def write_lines(folder: Path, lines: list[Line]) -> None:
    with open(folder / 'tempo.jsonl', 'a', encoding='utf-8') as file:
        file.writelines(json.dumps(line) + '\n' for line in lines)


def write_summary(folder: Path, summary: Line) -> None:
    (folder / 'tempo_summary.json').write_text(json.dumps(summary), encoding='utf-8')
