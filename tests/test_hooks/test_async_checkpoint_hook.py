"""Saves that fail or take long, wrong arguments, and runs that `CheckpointHook` must save."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import BaseStorageBackend, LocalBackend, register_backend
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS, MODEL_WRAPPERS, MODELS, RUNNERS
from mmengine.runner import Runner

from mmtempo.checkpoint.io import writer
from mmtempo.checkpoint.io.snapshot import Snapshot
from mmtempo.checkpoint.io.writer import DurableWriter
from mmtempo.checkpoint.saver import CheckpointError
from mmtempo.doctor import preflight
from mmtempo.hooks.async_checkpoint_hook import AsyncCheckpointHook
from tests.testing.checkpoints import (
    KINDS,
    At,
    build,
    differences,
    hook_of,
    late,
    left_by,
    load,
    logged_lines,
    quick_text,
    run,
    run_config,
)
from tests.testing.toy import SPARSE, ToyModel

__all__ = ['late', 'quick_text']
pytestmark = pytest.mark.usefixtures('quick_text')
OURS = KINDS[1]


def train(root: Path, todo: dict | None = None, **checkpoint: Any) -> Runner:
    """Train with functions that are called at iterations."""
    runner = build(OURS, root, **checkpoint)
    runner.register_hook(At(todo or {}))
    runner.train()
    return runner


def obstruct(name: str) -> Callable:
    """Return a function that creates a folder in place of a file."""
    return lambda runner: (Path(runner.work_dir) / name).mkdir()


def clear(name: str) -> Callable:
    return lambda runner: (Path(runner.work_dir) / name).rmdir()


def settled(check: Callable) -> Callable:
    def wait_and_check(runner: Runner) -> None:
        hook_of(runner)._saver.wait()
        check(runner, hook_of(runner))

    return wait_and_check


def marker(runner: Runner) -> str:
    return Path(Path(runner.work_dir, 'last_checkpoint').read_text()).name


@pytest.fixture
def slow_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each save last until it is waited for."""
    waited_for = threading.Event()
    records_of, wait = writer.records_of, DurableWriter.wait
    close = DurableWriter.close

    def late_records(*args: Any) -> Any:
        assert waited_for.wait(10)
        return records_of(*args)

    def wait_for(self: DurableWriter) -> float:
        waited_for.set()
        result = wait(self)
        waited_for.clear()
        return result

    monkeypatch.setattr(writer, 'records_of', late_records)

    def close_and_wait(self: DurableWriter) -> None:
        waited_for.set()
        close(self)

    monkeypatch.setattr(DurableWriter, 'wait', wait_for)
    monkeypatch.setattr(DurableWriter, 'close', close_and_wait)


def test_failed_save_restores_hook_state_and_files(tmp_path: Path) -> None:
    def check(runner: Runner, hook: Any) -> None:
        assert Path(hook.last_ckpt).name == 'iter_6.pth'
        assert list(hook.keep_ckpt_ids) == [4, 6]
        info = runner.message_hub.runtime_info
        assert info['last_ckpt'] == hook.last_ckpt
        assert info['keep_ckpt_ids'] == [4, 6]
        assert marker(runner) == 'iter_6.pth'
        assert [path.name for path in tmp_path.rglob('*.pth') if path.is_file()]
        assert {'work/iter_4.pth', 'work/iter_6.pth'} <= set(left_by(tmp_path))

    todo = {8: obstruct('iter_8.pth'), 9: settled(check), 11: clear('iter_8.pth')}
    runner = train(tmp_path, todo, interval=2, max_keep_ckpts=2)
    assert left_by(tmp_path) == ['work/iter_10.pth', 'work/iter_12.pth', 'work/last_checkpoint']
    assert list(hook_of(runner).keep_ckpt_ids) == [10, 12]
    assert marker(runner) == 'iter_12.pth'
    (line,) = logged_lines(runner, 'ERROR').splitlines()
    assert 'saving iter_8.pth failed' in line
    assert 'The files before it are untouched' in line


@pytest.mark.parametrize('keys', ['acc', ['acc', 'val_loss']], ids=str)
def test_failed_best_save_restores_the_score(keys: Any, tmp_path: Path) -> None:
    several = isinstance(keys, list)

    def check(runner: Runner, hook: Any) -> None:
        info = runner.message_hub.runtime_info
        assert info['best_score_acc' if several else 'best_score'] == 0.2
        path = info['best_ckpt_acc' if several else 'best_ckpt']
        assert Path(path).name == 'best_acc_iter_3.pth'
        assert path == (hook.best_ckpt_path_dict['acc'] if several else hook.best_ckpt_path)
        assert Path(path).is_file()
        assert Path(hook.last_ckpt).name == marker(runner) == 'iter_6.pth'

    todo = {6: obstruct('best_acc_iter_6.pth'), 7: settled(check), 8: clear('best_acc_iter_6.pth')}
    runner = train(tmp_path, todo, interval=2, save_best=keys)
    assert 'saving best_acc_iter_6.pth' in logged_lines(runner, 'ERROR')
    # The third score is better than the first, but not than that of the failed save.
    assert runner.message_hub.get_info('best_score_acc' if several else 'best_score') == 0.7
    assert 'with 0.3000 acc at 9 iter' in logged_lines(runner)
    assert [name for name in left_by(tmp_path) if 'best_acc' in name] == [
        'work/best_acc_iter_12.pth'
    ]


def no_memory(runner: Runner) -> None:
    def save(*args: Any, **kwargs: Any) -> None:
        raise MemoryError('no room for the copy')

    hook_of(runner)._saver._writer.save = save


def seen_before_the_end(runner: Runner) -> None:
    hook_of(runner)._saver._writer.wait()


@pytest.mark.usefixtures('slow_writer')
@pytest.mark.parametrize(
    ('todo', 'says'),
    [
        ({12: obstruct('iter_12.pth')}, 'Is a directory'),
        (
            {12: obstruct('iter_12.pth'), 'after_train_epoch': seen_before_the_end},
            'Is a directory',
        ),
        ({12: no_memory}, 'no room for the copy'),
    ],
    ids=['at the end', 'before the end', 'at once'],
)
def test_failed_last_save_fails_the_run(todo: dict, says: str, tmp_path: Path) -> None:
    runner = build(OURS, tmp_path, interval=5)
    runner.register_hook(At(todo))
    with pytest.raises(CheckpointError, match=f'saving iter_12.pth failed: .*{says}'):
        runner.train()
    assert 'iter_12.pth failed' not in logged_lines(runner, 'ERROR')  # the error reports it once
    assert (tmp_path / 'work/last_checkpoint').read_text().endswith('iter_10.pth')


def test_failure_before_a_successful_save_does_not_fail_the_run(tmp_path: Path) -> None:
    train(tmp_path, {8: obstruct('iter_8.pth')}, interval=4)
    assert {'work/iter_4.pth', 'work/iter_12.pth'} <= set(left_by(tmp_path))


def test_on_error_raise_ends_the_run(tmp_path: Path) -> None:
    runner = build(OURS, tmp_path, interval=2, on_error='raise')
    runner.register_hook(At({4: obstruct('iter_4.pth')}))
    with pytest.raises(CheckpointError, match='saving iter_4.pth failed') as info:
        runner.train()
    assert isinstance(info.value.__cause__, OSError)
    assert 3 <= runner.iter <= 6  # at the latest at the next save
    assert hook_of(runner).last_ckpt.endswith('iter_2.pth')


@pytest.mark.usefixtures('slow_writer')
def test_failed_save_is_logged_after_a_crash(tmp_path: Path) -> None:
    def crash(runner: Runner) -> None:
        raise RuntimeError('of the user')

    def train_and_crash() -> Path:
        runner = build(OURS, tmp_path, interval=2)
        runner.register_hook(At({4: obstruct('iter_4.pth'), 5: crash}))
        with pytest.raises(RuntimeError, match='of the user'):
            runner.train()
        (path,) = Path(runner.log_dir).glob('*.log')
        assert 'iter_4.pth failed' not in path.read_text()  # it is not complete yet
        # The finalizer, which runs at the end of the process at the latest.
        hook_of(runner)._saver._end()
        return path

    assert train_and_crash().read_text().count('iter_4.pth failed: [Errno 21]') == 1
    assert (tmp_path / 'work/iter_2.pth').is_file()


@pytest.mark.usefixtures('slow_writer')
def test_on_busy_wait_saves_all(tmp_path: Path) -> None:
    runner = train(tmp_path, interval=1, save_best='acc')
    assert [f'work/iter_{i}.pth' in left_by(tmp_path) for i in range(1, 13)] == [True] * 12
    assert 'skipped' not in logged_lines(runner)
    assert ', previous save ' in logged_lines(runner, 'INFO')


@pytest.mark.usefixtures('slow_writer')
def test_on_busy_skip_skips_neither_the_best_nor_the_last(tmp_path: Path) -> None:
    runner = train(tmp_path, interval=1, save_best='acc', on_busy='skip')
    # 3, 6 and 12 are new bests, which save the step as well; no save is running after 9.
    assert left_by(tmp_path) == [
        'work/best_acc_iter_12.pth',
        *sorted(f'work/iter_{i}.pth' for i in (1, 3, 6, 10, 12)),
        'work/last_checkpoint',
    ]
    assert logged_lines(runner, 'WARNING').count(': skipped, the previous save') == 9


@MODELS.register_module()
class Tearing(ToyModel):
    """A model that changes a parameter of the optimizer in its forward pass."""

    def forward(self, inputs: list, data_samples: Any = None, mode: str = 'tensor') -> Any:
        if mode == 'loss':
            with torch.no_grad():
                self.net[0].weight.mul_(0.9)
        return super().forward(inputs, data_samples, mode)


def test_parameter_changed_in_the_forward_pass_fails_one_save(tmp_path: Path, late: list) -> None:
    def tearing(cfg: Config) -> None:
        cfg.model.type = 'Tearing'

    roots = (tmp_path / 'stock', tmp_path / 'ours')
    for kind, root in zip(KINDS, roots):
        runner = run(kind, root, tearing, interval=4)
    assert 'work/iter_4.pth' not in left_by(roots[1])
    assert 'saving iter_4.pth failed: parameters were changed' in logged_lines(runner, 'ERROR')
    assert 'from now on checkpoints are copied before' in logged_lines(runner, 'ERROR')
    for name in ('iter_8.pth', 'iter_12.pth'):
        files = [load(root / 'work' / name) for root in roots]
        assert not differences(*files, roots)
    assert late[0] > 0
    assert set(late[1:]) == {0}


@pytest.mark.parametrize(
    ('options', 'error', 'says'),
    [
        (
            dict(on_busy='drop'),
            ValueError,
            "default_hooks.checkpoint.on_busy must be 'wait' or 'skip', found 'drop'",
        ),
        (dict(on_error=None), ValueError, "on_error must be 'warn' or 'raise', found None"),
        (dict(writer_timeout=0), ValueError, 'writer_timeout must be a number above 0, in seconds'),
        (dict(writer_timeout='9'), ValueError, "writer_timeout must be .*, found '9'"),
        (dict(save_begin=-1), ValueError, 'save_begin should not be less than 0'),
        (dict(save_best=dict(acc=1)), AssertionError, '"save_best" should be'),
        (dict(save_best=['auto', 'acc']), AssertionError, 'Only support one "auto"'),
        (dict(save_best=['acc', 'acc']), AssertionError, 'duplicate'),
        (dict(save_best=['acc'], rule=1), AssertionError, '"rule" should be a str'),
        (dict(save_best=['acc'], rule=['less', 'less']), AssertionError, 'Number of "rule"'),
        (dict(save_best='acc', rule='most'), KeyError, 'rule must be greater'),
        (dict(save_best='unheard'), ValueError, 'Cannot infer the rule for key unheard'),
        (dict(published_keys=3), TypeError, '"published_keys" should be'),
        (
            dict(file_client_args=dict(backend='disk'), backend_args=dict(backend='local')),
            ValueError,
            'cannot be set at the same time',
        ),
    ],
    ids=str,
)
def test_wrong_arguments_are_errors(options: dict, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        AsyncCheckpointHook(**options)


def test_preflight_names_an_unknown_key() -> None:
    cfg = dict(type=OURS, interval=2, by_epoch=False, on_bussy='skip')
    with pytest.raises(
        TypeError,
        match="default_hooks.checkpoint: AsyncCheckpointHook takes no 'on_bussy'.*on_busy",
    ):
        preflight._check_type(HOOKS, cfg, 'default_hooks.checkpoint')
    cfg.pop('on_bussy')
    preflight._check_type(HOOKS, dict(cfg, on_busy='skip'), 'default_hooks.checkpoint')


@RUNNERS.register_module()
class SavesItself(Runner):
    """A runner of a user that overrides `save_checkpoint`."""

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super().save_checkpoint(*args, **kwargs)


@MODEL_WRAPPERS.register_module()
class Sharded(BaseModel):
    """A model wrapper that may hold only a part of the model."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.train_step(*args, **kwargs)

    def val_step(self, *args: Any) -> Any:
        return self.module.val_step(*args)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


@register_backend('elsewhere')
class Elsewhere(BaseStorageBackend):
    """A file backend that is not known to write local files."""

    def __getattr__(self, name: str) -> Any:
        return getattr(LocalBackend(), name)

    def get(self, filepath: str) -> bytes:
        return LocalBackend().get(filepath)

    def get_text(self, filepath: str) -> str:
        return LocalBackend().get_text(filepath)


@pytest.mark.parametrize(
    ('kind', 'backend', 'is_sharded', 'says'),
    [
        (SavesItself, None, False, 'SavesItself does not save with Runner.save_checkpoint'),
        (Runner, None, True, 'Sharded may hold only a part of the model'),
        (
            Runner,
            dict(backend='elsewhere'),
            False,
            'the folder is not local (file backend Elsewhere)',
        ),
    ],
)
def test_falls_back_to_checkpoint_hook(
    kind: type, backend: Any, is_sharded: bool, says: str, tmp_path: Path
) -> None:
    runners = []
    for name in KINDS:
        options = dict(interval=2, max_keep_ckpts=2, save_best='acc', backend_args=backend)
        runner = kind.from_cfg(run_config(name, tmp_path / name, **options))
        if is_sharded:
            runner.model = Sharded(runner.model)
        runner.train()
        runners.append(runner)
    roots = [tmp_path / name for name in KINDS]
    assert left_by(roots[1]) == left_by(roots[0])
    for path in roots[1].rglob('*.pth'):
        expected = load(roots[0] / path.relative_to(roots[1]))
        assert not differences(expected, load(path), (roots[0], roots[1]))
    assert says in logged_lines(runners[1], 'WARNING')
    assert 'saved as CheckpointHook does' in logged_lines(runners[1], 'WARNING')


def test_falls_back_under_flexible_runner(tmp_path: Path) -> None:
    from mmengine.runner._flexible_runner import FlexibleRunner

    roots = [tmp_path / name for name in KINDS]
    for name, root in zip(KINDS, roots):
        cfg = run_config(name, root, interval=4, save_best='acc')
        cfg.strategy, cfg.env_cfg = dict(type='SingleDeviceStrategy'), dict()
        cfg.default_hooks.runtime_info = None  # it reads attributes that this runner sets later
        runner = FlexibleRunner.from_cfg(cfg)
        runner.train()
    assert left_by(roots[1]) == left_by(roots[0])
    assert 'work/iter_12.pth' in left_by(roots[1])
    assert 'FlexibleRunner does not save with Runner.save_checkpoint' in (
        logged_lines(runner, 'WARNING')
    )


def test_marker_of_another_runner_type_is_not_repaired(tmp_path: Path) -> None:
    """It may name a folder, as DeepSpeed saves one."""
    (tmp_path / 'sharded').mkdir()
    marker = tmp_path / 'last_checkpoint'
    marker.write_text(str(tmp_path / 'sharded'))
    hook = AsyncCheckpointHook()
    runner = SimpleNamespace(hooks=[hook], work_dir=str(tmp_path), _resume=True, _load_from=None)
    hook.before_run(runner)
    assert marker.read_text() == str(tmp_path / 'sharded')
    assert [type(one).__name__ for one in runner.hooks] == ['SnapshotFence', 'AsyncCheckpointHook']


def test_size_of_checkpoints_does_not_grow(tmp_path: Path) -> None:
    def sparse(cfg: Config) -> None:
        for hook, kind in SPARSE.items():
            cfg.default_hooks[hook].type = kind
        cfg.default_hooks.runtime_info.history_length = 20
        cfg.train_cfg.update(max_iters=300, val_interval=1000)

    run(OURS, tmp_path, sparse, interval=50)
    sizes = [(tmp_path / f'work/iter_{i}.pth').stat().st_size for i in (100, 150, 300)]
    # Stock adds 16 bytes for each of eight values in each iteration, 25,600 here. Records are
    # aligned to 64 bytes, so a number with one digit more may move a few of them.
    assert max(sizes) - min(sizes) <= 4 * 64


def test_step_and_best_are_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, sizes = [], []
    take, finish = Snapshot.take, Snapshot.finish

    def noted_take(self: Snapshot, trees: list, late: Any = ()) -> list:
        counts.append(len(trees))
        return take(self, trees, late)

    def noted_finish(self: Snapshot) -> None:
        finish(self)
        sizes.append(self._buffer.requested)

    monkeypatch.setattr(Snapshot, 'take', noted_take)
    monkeypatch.setattr(Snapshot, 'finish', noted_finish)
    run(OURS, tmp_path, interval=3, save_best='acc', save_last=False)
    # At 3, 6 and 12 the best and, once more, the step; at 9 there is no new best.
    assert counts == [1, 2, 1, 2, 1, 1, 2]
    assert len(sizes) == 7
    assert len(set(sizes)) == 1


@HOOKS.register_module()
class Diary(Hook):
    """Record the calls of some stages."""

    pages: list[tuple[int, str]] = []

    def __init__(self, number: int) -> None:
        self.number = number

    def before_run(self, runner: Any) -> None:
        self.pages.append((self.number, 'before_run'))

    def before_train(self, runner: Any) -> None:
        self.pages.append((self.number, 'before_train'))

    def after_train(self, runner: Any) -> None:
        self.pages.append((self.number, 'after_train'))


def test_other_hooks_are_called_once_and_in_order(tmp_path: Path) -> None:
    def diaries(cfg: Config) -> None:
        cfg.custom_hooks = [
            dict(type='Diary', number=i, priority=priority)
            for i, priority in enumerate(('HIGHEST', 'NORMAL', 'VERY_LOW', 'LOWEST'))
        ]

    for kind in KINDS:
        Diary.pages.clear()
        runner = run(kind, tmp_path / kind, diaries, interval=5)
        stages = ('before_run', 'before_train', 'after_train')
        assert Diary.pages == [(i, stage) for stage in stages for i in range(4)]
    assert [type(hook).__name__ for hook in runner.hooks].count('SnapshotFence') == 1


def test_out_dir_of_a_second_training_is_the_same(tmp_path: Path) -> None:
    """`CheckpointHook` appends the name of the work dir at each training."""
    runner = build(OURS, tmp_path, interval=5, out_dir='out')
    for iterations in (12, 15):
        runner.train()
        runner.train_loop._max_iters = 15
        assert hook_of(runner).out_dir == str(tmp_path / 'out/work'), iterations
    assert 'out/work/iter_15.pth' in left_by(tmp_path)
    assert [type(hook).__name__ for hook in runner.hooks].count('SnapshotFence') == 1
    assert isinstance(hook_of(runner).file_backend, LocalBackend)
    assert not runner.optim_wrapper.optimizer._optimizer_step_pre_hooks
