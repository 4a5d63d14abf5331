"""Hooks, evaluations, saves and epochs that cost much, and overrides that reduce it."""

from __future__ import annotations

from typing import Any

import pytest
from mmengine.hooks import LoggerHook

from mmtempo.hooks import SparseLoggerHook
from mmtempo.replacements import DEFAULT_HOOKS
from mmtempo.report.verdict import Verdict, judge
from tests.testing.summaries import summary
from tests.testing.verdicts import STOCK_HOOKS, overrides

SAVE, EVALUATION = {'hook:AsyncCheckpointHook': 50.0}, dict(evaluation=60.0)


def judged(phases: dict, setting: dict | None = None, **changes: Any) -> Verdict:
    return judge(summary(phases, setting, **changes))


@pytest.mark.parametrize(
    ('phases', 'setting', 'override', 'why'),
    [
        (EVALUATION, {}, 'train_cfg.val_interval=10000', 'every 10000 iterations instead of 2500'),
        (
            EVALUATION,
            dict(by_epoch=True, epoch_length=1250),
            'train_cfg.val_interval=8',
            'every 8 epochs instead of 2',
        ),
        (
            SAVE,
            {},
            'default_hooks.checkpoint.interval=10000',
            'every 10000 iterations instead of 2500',
        ),
        # The loop may count epochs while the hook counts iterations, as in `_base_`.
        (
            SAVE,
            dict(by_epoch=True, epoch_length=1250, checkpoint_by_epoch=False),
            'default_hooks.checkpoint.interval=10000',
            'every 10000 iterations instead of 2500',
        ),
        (
            SAVE,
            dict(by_epoch=True, epoch_length=1250, checkpoint_by_epoch=True),
            'default_hooks.checkpoint.interval=8',
            'every 8 epochs instead of 2',
        ),
        (SAVE, dict(by_epoch=True, epoch_length=1100, checkpoint_by_epoch=True), '', ''),
        (SAVE, dict(checkpoint_interval=-1), '', ''),
    ],
)
def test_interval_is_prolonged_in_its_unit(
    phases: dict, setting: dict, override: str, why: str
) -> None:
    verdict = judged(phases, setting)
    assert [(one.override, one.why) for one in verdict.change] == ([(override, why)] * bool(why))


@pytest.mark.parametrize(
    ('seconds', 'interval'),
    [(22.0, 5000), (32.0, 5000), (33.0, 7500), (49.0, 10000), (500.0, 10000)],
)
def test_interval_is_prolonged_until_the_cost_is_small(seconds: float, interval: int) -> None:
    verdict = judged(dict(evaluation=seconds))
    assert overrides(verdict) == [f'train_cfg.val_interval={interval}']


@pytest.mark.parametrize(
    ('last', 'advised'),
    [
        (10000, ['train_cfg.val_interval=10000']),
        (8000, ['train_cfg.val_interval=7500']),
        (6000, ['train_cfg.val_interval=5000']),
        (4900, []),
        (None, []),
    ],
)
def test_interval_never_exceeds_the_training(last: int | None, advised: list[str]) -> None:
    assert overrides(judged(EVALUATION, max_iters=last)) == advised


def test_saving_is_that_of_an_hour_and_of_the_rest() -> None:
    verdict = judged(EVALUATION, last_iter=5000, max_iters=15000)
    assert verdict.why == [
        'Evaluation: 60.0 s, 7.9 % of the time.',
        'Without it the run takes less time: up to 4 min 46 s per hour, 2 min 00 s in the 10000 '
        'iterations that remain.',
    ]
    at_end = judged(EVALUATION, last_iter=15000, max_iters=15000)
    assert at_end.why[1].endswith('up to 4 min 46 s per hour.')


def test_last_save_is_no_rate() -> None:
    """A run waits for it, whatever the interval."""
    part = dict(category='checkpoint', cause='checkpoint: wait for the writer', seconds=40.0)
    for number, is_found in ((4000, True), (5000, False)):
        stalls = [dict(iter=number, lost=40.0, category='checkpoint', parts=[part])]
        verdict = judged(SAVE, stalls=stalls)
        assert (verdict.findings[0].key == 'save') == is_found


@pytest.mark.parametrize('part', ['PrefetchValLoop', 'TheirValLoop'])
def test_foreign_val_loop_is_not_replaced(part: str) -> None:
    verdict = judged(EVALUATION, dict(loop='IterBasedTrainLoop', parts=[part]))
    assert overrides(verdict) == ['train_cfg.val_interval=10000']


@pytest.mark.parametrize(
    ('hook', 'override'),
    [
        ('CheckpointHook', 'default_hooks.checkpoint.type=AsyncCheckpointHook'),
        ('LoggerHook', 'default_hooks.logger.type=SparseLoggerHook'),
        ('RuntimeInfoHook', 'default_hooks.runtime_info.type=SparseRuntimeInfoHook'),
        ('AsyncCheckpointHook', 'default_hooks.checkpoint.interval=10000'),
        ('SparseLoggerHook', 'default_hooks.logger.interval=250'),
        ('EMAHook', ''),
    ],
)
def test_slow_hook_is_replaced_or_runs_less_often(hook: str, override: str) -> None:
    stock = dict(default_hooks=STOCK_HOOKS, parts=[hook])
    verdict = judged({f'hook:{hook}': 50.0}, {} if hook.startswith(('Async', 'Sparse')) else stock)
    assert overrides(verdict) == [override] * bool(override)
    subject = 'Logging' if 'Logger' in hook else hook
    assert verdict.headline.startswith(f'{subject} takes 6.')
    assert verdict.why[0].startswith(f'{subject}: 50.')


def test_period_of_a_hook_is_named_with_it() -> None:
    text = 'EMAHook: every 30th iteration: 40 of 40 stalls; 100 % of these iterations stall'
    periods = [dict(every=30, cause='EMAHook', text=text), dict(every=8, cause='x', text='x')]
    verdict = judged({'hook:EMAHook': 50.0}, periods=periods)
    assert verdict.why[1:] == [f'{text}.']


def test_hooks_that_are_not_told_apart_need_our_loop() -> None:
    setting = dict(loop='IterBasedTrainLoop', train_cfg_has_type=True, default_hooks=STOCK_HOOKS)
    setting['parts'] = ['IterBasedTrainLoop', 'LoggerHook']
    verdict = judged(dict(hooks=50.0), setting)
    assert verdict.headline.startswith('Hooks take 6.')
    assert verdict.why[0].startswith('All hooks together: 50.')
    assert 'with a loop of mmtempo' in verdict.why[1]
    assert overrides(verdict) == [
        'train_cfg.type=PrefetchIterBasedTrainLoop',
        'default_hooks.logger.type=SparseLoggerHook',
    ]


def test_replaced_default_hook_keeps_its_interval() -> None:
    """AsyncCheckpointHook, as stock, never saves by default."""
    slow = {'hook:CheckpointHook': 50.0, 'hook:LoggerHook': 40.0}
    assert overrides(judged(slow, dict(default_hooks={}))) == [
        'default_hooks.checkpoint.type=AsyncCheckpointHook',
        'default_hooks.checkpoint.interval=1',
        'default_hooks.logger.type=SparseLoggerHook',
    ]
    assert DEFAULT_HOOKS['logger'] == ('mmengine.hooks.LoggerHook', {})
    assert SparseLoggerHook().interval == LoggerHook().interval


@pytest.mark.parametrize(
    ('named', 'advised'),
    [
        (dict(saving='CheckpointHook'), ['default_hooks.saving.type=AsyncCheckpointHook']),
        (dict(checkpoint=None), []),  # a custom hook
        (None, []),  # its key is unknown
    ],
)
def test_hook_is_replaced_under_the_key_of_the_config(
    named: dict | None, advised: list[str]
) -> None:
    verdict = judged({'hook:CheckpointHook': 50.0}, dict(default_hooks=named))
    assert verdict.headline.startswith('CheckpointHook takes')
    assert overrides(verdict) == advised


@pytest.mark.parametrize(
    ('phases', 'headline'),
    [
        (
            {
                'checkpoint: wait for the writer': 15.0, 'checkpoint: fence': 6.0,
                'hook:AsyncCheckpointHook': 3.0, 'hook:SnapshotFence': 1.0,
            },
            'AsyncCheckpointHook takes 3.4 % of the time.',
        ),
        ({'hook:EMAHook': 20.0, 'hook:EMAHook 2': 20.0}, 'EMAHook takes 5.4 % of the time.'),
        (
            {
                'hook:SparseLoggerHook': 15.0, 'logging: visualizer': 15.0,
                'hook:ThroughputMonitorHook': 10.0,
            },
            'Logging takes 5.4 % of the time.',
        ),
    ],
)  # fmt: skip
def test_phases_of_a_hook_are_summed(phases: dict, headline: str) -> None:
    assert judged(phases).headline == headline


def test_slow_visualizer_is_named() -> None:
    why = judged({'logging: visualizer': 100.0}).why
    assert 'Of that, logging: visualizer: 1 min 40 s, 12 % of the time.' in why


@pytest.mark.parametrize('persistent', [True, False])
@pytest.mark.parametrize(
    ('phases', 'starting'), [({'loader: end': 100.0}, 0.0), ({'loader: end': 60.0}, 80.0)]
)
def test_restarts_of_the_loader_need_persistent_workers(
    phases: dict, starting: float, persistent: bool
) -> None:
    loader = dict(seconds=starting, starting=starting, starts=4)
    verdict = judged(phases, dict(persistent_workers=persistent), loader=loader)
    assert verdict.headline.startswith('Restarting the loader in each epoch takes 1')
    assert [line for line in verdict.why if 'first batches: 60.0 s' in line] == verdict.why[
        1 : 1 + bool(starting)
    ]
    expected = [] if persistent else ['train_dataloader.persistent_workers=True']
    assert overrides(verdict) == expected
