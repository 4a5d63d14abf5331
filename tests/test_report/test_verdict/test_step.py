"""Costs of the training step: stalls, slower iterations, copies and an idle device."""

from __future__ import annotations

from typing import Any

import pytest

from mmtempo.report.verdict import judge
from tests.testing.summaries import summary
from tests.testing.verdict_cases import drifting, losing, slower, taking
from tests.testing.verdicts import STOCK_HOOKS, overrides, stalled


@pytest.mark.parametrize(
    ('cause', 'category', 'start', 'override'),
    [
        ('garbage collection', 'gc', 'Garbage collection costs 5.7 %', ''),
        ('forward', 'unexplained', 'Delay of unknown cause costs 5.7 %', ''),
        ('torch compiled', 'device', 'Compilation by torch costs 5.7 %', ''),
        ('waiting for a CPU', 'host', 'Waiting for a CPU costs 5.7 %', ''),
        ('waiting for a disk', 'host', 'Waiting for a disk costs 5.7 %', ''),
        (
            'new input shape',
            'device',
            'New input shapes cost 5.7 %',
            'env_cfg.cudnn_benchmark=False',
        ),
        (
            'device memory was full',
            'device',
            'Full device memory costs 5.7 %',
            'optim_wrapper.type=SparseAmpOptimWrapper',
        ),
    ],
)
def test_stalls_are_judged_by_cause(cause: str, category: str, start: str, override: str) -> None:
    verdict = judge(summary(**stalled(cause, category, 40.0)))
    assert verdict.headline.startswith(start)
    main = f' Main cause: {cause}.'
    assert (
        verdict.why[0].removesuffix(main).endswith('40.0 s, 5.7 % of the time, in 40 iterations.')
    )
    assert overrides(verdict) == ([override] if override else [])


@pytest.mark.parametrize('dynamic', [False, True, None])
def test_static_compilation_becomes_dynamic(dynamic: bool | None) -> None:
    run = losing(0.05, 'torch compiled', 'device', setting=dict(compile_dynamic=dynamic))
    assert overrides(judge(summary(**run))) == ['compile.dynamic=True'] * (dynamic is False)


def test_kernels_are_searched_on_a_device_only() -> None:
    run = losing(0.05, 'new input shape', 'device', machine=dict(accelerator=None))
    assert not judge(summary(**run)).change


def test_workers_leave_a_core_to_the_main_process() -> None:
    lost = stalled('other processes had the CPU', 'host', 40.0)
    found = summary(machine=dict(cores=8), **lost)
    assert overrides(judge(found)) == ['train_dataloader.num_workers=7']
    assert not judge({**found, 'machine': dict(cores=16)}).change
    needed = judge(summary(phases=dict(data=90.0), machine=dict(cores=8), **lost))
    assert not needed.change


def test_reduced_clocks_name_the_reason_and_how_often() -> None:
    verdict = judge(summary(**slower(0.2, device_throttled={'a': 0.1, 'temperature': 0.6})))
    assert verdict.headline == 'The device runs at reduced clocks: temperature.'
    assert verdict.why == [
        'Slower iterations: 76.8 s, 11 % of the time.',
        'Reduced clocks in 60 % of 100 readings.',
        'Check its power limit, its cooling, and what else runs on it.',
    ]


def change(iteration: int, old: float = 0.14, new: float = 0.2, **more: Any) -> dict[str, Any]:
    return dict(iter=iteration, old=old, new=new, text='', **more)


FAR = dict(val_interval=50000, checkpoint_interval=None)
HOST = dict(phase='forward', cause='page faults', category='host')


@pytest.mark.parametrize(
    ('setting', 'changes', 'since', 'why'),
    [
        (FAR, [], 'about iteration 1281', []),
        (FAR, [change(1300)], 'iteration 1300', []),
        (
            FAR,
            [change(1300, **HOST)],
            'iteration 1300',
            ['The change is in forward: page faults.'],
        ),
        (FAR, [change(1000), change(1400)], 'about iteration 1281', []),  # far from it
        (FAR, [change(1270, 0.2, 0.14), change(1300)], 'iteration 1300', []),  # one is faster
        (
            dict(val_interval=1300, checkpoint_interval=640),
            [],
            'about iteration 1281',
            ['It begins near the evaluation at iteration 1300 and the save at iteration 1280.'],
        ),
        # There is always one within so short an interval.
        (dict(val_interval=50, checkpoint_interval=128), [], 'about iteration 1281', []),
    ],
)
def test_slower_pace_is_named_with_its_beginning(
    setting: dict, changes: list, since: str, why: list[str]
) -> None:
    verdict = judge(summary(setting=setting, changes=changes, **slower(0.2)))
    assert verdict.headline == f'Iterations take 200 ms instead of 140 ms from {since} on.'
    assert verdict.why == [
        'Slower pace, apart from waiting for data: 76.8 s, 11 % of the time.',
        *why,
    ]


def test_resumed_run_counts_from_its_first_iteration() -> None:
    verdict = judge(summary(setting=FAR, first_iter=5000, **slower(0.2)))
    assert 'from about iteration 6281 on' in verdict.headline


def test_drift_has_no_beginning() -> None:
    verdict = judge(summary(**drifting(0.21)))
    assert verdict.headline == 'Iterations become slower: 210 ms instead of 139 ms at the end.'
    assert verdict.why[0].startswith('Even growth, apart from waiting for data: 91.9 s, 13 %')


def test_slow_copies_need_pinned_memory() -> None:
    verdict = judge(summary(dict(to_device=50.0), dict(pin_memory=False)))
    assert overrides(verdict) == ['train_dataloader.pin_memory=True']
    assert verdict.headline == 'Preprocessing and copies to the device take 6.7 % of the time.'
    assert not judge(summary(dict(to_device=50.0))).change


def test_idle_device_is_attributed_to_the_host() -> None:
    found = summary(phases=dict(data=20.0), device_busy=dict(mean=0.55, looks=40))
    found['setting'].update(default_hooks=STOCK_HOOKS, parts=['RuntimeInfoHook'])
    verdict = judge(found)
    assert verdict.headline == (
        'Apart from waiting for data, evaluation and saving, the device is idle for 41 % of the '
        'time.'
    )
    assert verdict.why[:2] == [
        'The driver reports the device busy for 55 % of the time (40 readings).',
        'Waiting for data, evaluation and saving take 4.1 %.',
    ]
    assert overrides(verdict) == [
        'default_hooks.runtime_info.type=SparseRuntimeInfoHook',
        'compile=True',
    ]


def test_compiled_step_is_not_advised_to_compile() -> None:
    found = summary(device_busy=dict(mean=0.5, looks=40))
    found['phases']['train_step'] = found['phases'].pop('forward')
    verdict = judge(found)
    assert verdict.headline.startswith('Apart from waiting for data')
    assert not verdict.change


def test_device_idle_for_data_is_no_slow_host() -> None:
    verdict = judge(summary(**taking(0.3, 'data'), device_busy=dict(mean=0.65, looks=40)))
    assert verdict.headline.startswith('Waiting for data')
    assert not any('idle' in line or 'busy' in line for line in verdict.why)


def test_slow_span_that_has_ended_is_reported() -> None:
    run = losing(0.25, 'slower forward', 'pace')
    verdict = judge(summary(**run))
    assert any('slower forward' in line and 'in 40 iterations' in line for line in verdict.why)
