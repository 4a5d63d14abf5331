"""Files that are saved together, removals, restored state and log lines."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.fileio import LocalBackend
from mmengine.logging import MessageHub

from mmtempo.checkpoint import loading
from mmtempo.checkpoint.io.save import Save
from mmtempo.checkpoint.io.writer import DurableWriter
from mmtempo.checkpoint.saver import (
    CheckpointSaver,
    Replacing,
    _HookState,
    describe,
)
from tests.testing.checkpoints import KINDS, build, hook_of, left_by, logged_lines, run
from tests.testing.common import next_name


class Hook(SimpleNamespace):
    """Fake hook with the attributes that a save reads; unlike its base, weakly referencable."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Record the jobs of the writer, and write nothing."""
    seen: list[tuple] = []

    def save(
        self: Any,
        files: list,
        marker: Any = None,
        remove: Any = (),
        late: Any = (),
        after: Any = None,
        check: Any = None,
    ) -> Save:
        done = Save([path for path, _ in files], written=1, seconds=1.0)
        done._done.set()
        seen.append(([Path(path).name for path in done.paths], marker, list(remove)))
        return done

    monkeypatch.setattr(DurableWriter, 'save', save)
    return seen


def test_files_marker_and_removals_are_one_save(tmp_path: Path, calls: list) -> None:
    runner = build(KINDS[1], tmp_path, interval=3, max_keep_ckpts=1, save_best='acc')
    runner.train()
    work = runner.work_dir
    jobs = [
        (names, Path(marker[1]).name, {Path(path).name for path in remove})
        for names, marker, remove in calls
    ]
    assert jobs == [
        (['iter_3.pth'], 'iter_3.pth', set()),
        (['best_acc_iter_3.pth', 'iter_3.pth'], 'iter_3.pth', set()),
        (['iter_6.pth'], 'iter_6.pth', {'iter_3.pth'}),
        (['best_acc_iter_6.pth', 'iter_6.pth'], 'iter_6.pth', set()),
        (['iter_9.pth'], 'iter_9.pth', {'iter_6.pth'}),
        (['iter_12.pth'], 'iter_12.pth', {'iter_9.pth'}),
        (['best_acc_iter_12.pth', 'iter_12.pth'], 'iter_12.pth', set()),
    ]
    assert {marker[0] for _, marker, _ in calls} == {f'{work}/last_checkpoint'}


def test_file_that_is_written_again_is_not_removed(tmp_path: Path) -> None:
    """After two evaluations in one iteration, the new best file has the name of the old one."""
    runner = build(KINDS[1], tmp_path, interval=12, save_best='acc')
    hook = hook_of(runner)

    def evaluate_again(runner: Any) -> None:
        hook._save_best_checkpoint(runner, dict(acc=0.9))

    after = hook.after_train
    hook.after_train = lambda runner: (evaluate_again(runner), after(runner))
    runner.train()
    assert 'work/best_acc_iter_12.pth' in left_by(tmp_path)
    assert runner.message_hub.get_info('best_score') == 0.9


def test_file_backend_is_replaced_only_while_stock_saves_the_best(tmp_path: Path) -> None:
    seen: list[type] = []

    def looks(cfg: Config) -> None:
        cfg.train_cfg.val_interval = 12

    runner = build(KINDS[1], tmp_path, looks, interval=3, save_best='acc')
    hook = hook_of(runner)
    is_better = hook.rule_map['greater']
    hook.is_better_than['acc'] = lambda *scores: (
        seen.append(type(hook.file_backend)) or is_better(*scores)
    )
    runner.train()
    assert seen == [Replacing]
    assert type(hook.file_backend) is LocalBackend


def test_proxy_replaces_only_the_given_methods() -> None:
    saved: list[str] = []
    runner = Replacing(SimpleNamespace(iter=3, save_checkpoint=None), save_checkpoint=saved.append)
    runner.save_checkpoint('x')
    assert (runner.iter, saved) == (3, ['x'])


def saving() -> tuple[CheckpointSaver, Any]:
    hub = MessageHub.get_instance(next_name())
    hub.update_info('best_score', 0.5)
    hook = Hook(keep_ckpt_ids=deque([1, 2], 2), file_backend=LocalBackend(), on_error='warn')
    logger = SimpleNamespace(info=print, warning=print, error=print)
    model = SimpleNamespace(parameters=lambda: iter([]))
    runner = SimpleNamespace(message_hub=hub, logger=logger, model=model)
    return CheckpointSaver(hook, runner, lambda: None), hub


def test_error_in_a_group_restores_hook_and_hub() -> None:
    one, hub = saving()

    def add_and_fail() -> None:
        with one.group():
            one._hook.keep_ckpt_ids.append(3)
            hub.update_info('best_score', 0.9)
            hub.update_info('best_ckpt', 'x')
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        add_and_fail()
    assert list(one._hook.keep_ckpt_ids) == [1, 2]
    assert one._hook.keep_ckpt_ids.maxlen == 2
    assert dict(hub.runtime_info) == dict(best_score=0.5)
    one.close()


@pytest.mark.parametrize('order', [(0,), (1,), (0, 1), (1, 0)])
def test_failed_saves_of_two_hooks_restore_their_own_entries(order: tuple[int, ...]) -> None:
    """A failed save restores the entries that it has set, and none of the other hook."""
    one, hub = saving()
    hub.update_info('last_ckpt', 'old')
    states = [_HookState(one._hook, hub), None]
    hub.update_info('last_ckpt', 'first')
    hub.update_info('best_ckpt', 'best of first')
    states[0].seal()
    states[1] = _HookState(one._hook, hub)
    hub.update_info('last_ckpt', 'second')
    hub.update_info('best_score', 0.9)
    states[1].seal()
    for failed in order:
        for _ in range(2):
            states[failed].restore()
    last, score = ('first', 0.5) if order == (1,) else ('second', 0.9)
    if len(order) == 2:
        last, score = 'old', 0.5
    expected = dict(last_ckpt=last, best_score=score)
    if 0 not in order:
        expected['best_ckpt'] = 'best of first'
    assert dict(hub.runtime_info) == expected
    one.close()


def test_group_without_files_is_not_saved(calls: list) -> None:
    one, _ = saving()
    with one.group(), one.group():
        pass
    one.wait(is_last=True)
    assert calls == []
    one.close()


def test_log_line_of_a_save() -> None:
    save = Save(
        ['a/iter_4.pth', 'a/best.pth'],
        taken=0.002,
        fenced=0.003,
        staged=0.05,
        written=600_000_000,
        seconds=2.0,
        restarts=1,
        fallback='ended with exit code -9',
        kept=[('old.pth', 'Permission denied')],
    )
    assert list(describe(save, waited=0.1)) == [
        'Checkpoint writer: the process had ended and was started again.',
        'Checkpoint writer: the process ended with exit code -9; the training wrote this save '
        'itself.',
        'Saved iter_4.pth, best.pth: 572 MiB, copied in 50.0 ms, written and synced in 2.00 s '
        '(286 MiB/s). Training blocked 105 ms (snapshot 2, fence 3, previous save 100).',
        'old.pth could not be removed: Permission denied.',
    ]


def test_refused_content_is_warned_of_once(tmp_path: Path) -> None:
    def adds(cfg: Config) -> None:
        cfg.custom_hooks = [dict(type='Adds')]  # a defaultdict

    runner = run(KINDS[1], tmp_path, adds, interval=3)
    warnings = [line for line in logged_lines(runner, 'WARNING').splitlines() if 'refuse' in line]
    assert len(warnings) == 1
    assert (
        'iter_3.pth cannot be read safely: it names builtins.list, collections.default'
        in (warnings[0])
    )
    assert 'add_safe_globals([builtins.list, collections.defaultdict])' in warnings[0]


def test_usual_checkpoints_are_not_read_after_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def schedule(cfg: Config) -> None:
        cfg.param_scheduler = dict(type='OneCycleLR', eta_max=0.1, total_steps=20, by_epoch=False)
        cfg.custom_hooks = [dict(type='EMAHook')]

    monkeypatch.setattr(loading, 'load_from_local', lambda *_, **__: pytest.fail('read'))
    runner = run(KINDS[1], tmp_path, schedule, interval=3)
    assert 'refuse' not in logged_lines(runner)
