"""Two trainings in one work dir: one trains, the other ends before it writes anything."""

from __future__ import annotations

import gc
import importlib.util
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmtempo.checkpoint.io.archive import check_archive
from mmtempo.checkpoint.io.disk_space import remove_leftovers
from mmtempo.checkpoint.io.writer import DurableWriter
from mmtempo.checkpoint.resume import MARKER
from mmtempo.system.folder_lock import NAME
from tests.testing import forks
from tests.testing.common import ROOT
from tests.testing.forks import Child
from tests.testing.saving import (
    assert_same,
    files,
    marked,
    reached,
    saving,
    steps,
    temporaries,
    train,
)

LAST = 24
REFUSED = 'is in use by another training: process'
BUILT = 'Hooks will be executed in the following order'  # once in the log of each Runner


@HOOKS.register_module()
class Linger(Hook):
    """Hook that waits for a file in one iteration, so that the test decides when to continue."""

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        while runner.iter == LAST - 4 and not Path(f'{runner.work_dir}.go').exists():
            time.sleep(0.01)


def lingering(work: Path, **options: Any) -> dict:
    hooks = [dict(type='EMAHook'), dict(type='Tell'), dict(type='Linger')]
    return dict(options, custom_hooks=hooks)


def through_train_py(config: str, work: str, words: tuple = ()) -> None:
    """Run the tool as on a command line, and exit with its code."""
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location('train_py', ROOT / 'tools' / 'train.py')
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    sys.argv = ['train.py', config, '--work-dir', work, *words]
    sys.exit(tool.main())


def train_lingering(work: str, **options: Any) -> None:
    """Train with a Runner and the hook, without the tool."""
    train(work, **lingering(Path(work), **options))


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('undisturbed')
    forks.run(train, folder / 'log', work=str(folder / 'work'))
    return folder / f'work/iter_{LAST}.pth'


def written(work: Path) -> dict[str, int]:
    """Count what a second training could have written: logs and folders of Runners, and configs."""
    return dict(
        runners=sum(path.read_text().count(BUILT) for path in work.rglob('*.log')),
        configs=len(list(work.glob('*.py'))),
        runs=len({path.name for path in work.glob('20*') if path.is_dir()}),
    )


def first_to_end(children: list[Child]) -> Child:
    """Return the training that ends first: the refused one, since the other one waits."""
    end = time.monotonic() + forks.LONG
    while time.monotonic() < end:
        for child in children:
            if has_ended(child):
                return child
        time.sleep(0.002)
    raise AssertionError('\n'.join(child.text for child in children))


def has_ended(child: Child) -> bool:
    try:
        state = Path(f'/proc/{child.pid}/stat').read_text().rpartition(')')[2].split()[0]
    except OSError:
        return True
    return state == 'Z'


def two_at_once(folder: Path, config: Path, undisturbed: Path, rng: random.Random) -> str:
    """Start two trainings, end both, and return the name of the one that trained."""
    work = folder / 'work'
    children = []
    for name in 'ab':
        arguments = dict(config=str(config), work=str(work))
        children.append(forks.start(through_train_py, folder / f'{name}.log', **arguments))
        time.sleep(rng.choice([0, 0, 0.02, 0.3]))
    refused = first_to_end(children)
    (trains,) = (child for child in children if child is not refused)
    assert refused.wait() == 2, refused.text
    assert f'{work} {REFUSED} {trains.pid} on ' in refused.text
    assert 'nothing was written' in refused.text
    assert 'Traceback' not in refused.text
    Path(f'{work}.go').touch()
    assert trains.wait() == 0, trains.text
    assert written(work) == dict(runners=1, configs=1, runs=1)
    assert steps(work) == [LAST - 3, LAST]
    assert [check_archive(str(work / name)) for name in files(work)] == [None] * 3
    assert_same(marked(work), undisturbed)
    assert temporaries(work) == []
    assert not (work / NAME).exists()
    return trains.log.stem


def sweep(folder: Path, undisturbed: Path, rounds: range) -> Counter:
    seen: Counter = Counter()
    config = folder / 'config.py'
    cfg = saving(folder / 'unused')
    cfg.custom_hooks = lingering(folder)['custom_hooks']
    cfg.dump(config)
    for number in rounds:
        place = folder / str(number)
        place.mkdir()
        seen[two_at_once(place, config, undisturbed, random.Random(number))] += 1
    return seen


def test_one_trains_and_the_other_writes_nothing(undisturbed: Path, tmp_path: Path) -> None:
    sweep(tmp_path, undisturbed, range(3))


# A hundred rounds in ten parts, since each test is limited to ten minutes.
@pytest.mark.slow
@pytest.mark.parametrize('part', range(10))
def test_one_trains_and_the_other_writes_nothing_often(
    part: int, undisturbed: Path, tmp_path: Path
) -> None:
    seen = sweep(tmp_path, undisturbed, range(10 * part, 10 * part + 10))
    for what, count in sorted(seen.items()):
        print(f'{count:4} rounds: {what} trained, nothing lost')


def begun(work: Path, log: Path, **options: Any) -> Child:
    child = forks.start(train_lingering, log, work=str(work), **options)
    return child.until(lambda: reached(work) > 6 and child, 'iteration 6')


def test_hook_refuses_a_second_runner(undisturbed: Path, tmp_path: Path) -> None:
    """A Runner has by then written its log and config, and nothing else."""
    work = tmp_path / 'work'
    first = begun(work, tmp_path / 'first')
    reads = (work / 'reached').read_text()
    text = forks.run(train, tmp_path / 'second', 1, work=str(work))
    assert f'FolderInUseError: {work} {REFUSED} {first.pid} on ' in text
    assert (work / 'reached').read_text().startswith(reads)
    assert written(work)['runners'] == 2
    Path(f'{work}.go').touch()
    assert first.wait() == 0
    assert_same(marked(work), undisturbed)
    assert steps(work) == [LAST - 3, LAST]


def test_out_dir_is_locked(tmp_path: Path) -> None:
    """Two work dirs have the same name and the same `out_dir`."""
    options = {'default_hooks.checkpoint.out_dir': str(tmp_path / 'out')}
    first = begun(tmp_path / 'a/work', tmp_path / 'first', **options)
    text = forks.run(train, tmp_path / 'second', 1, work=str(tmp_path / 'b/work'), **options)
    assert f'FolderInUseError: {tmp_path}/out/work {REFUSED} {first.pid} on ' in text
    assert not (tmp_path / 'b/work' / NAME).exists()
    first.kill()


def test_killed_training_can_be_resumed_at_once(undisturbed: Path, tmp_path: Path) -> None:
    """The killed training leaves its lock, workers and writer."""
    work = tmp_path / 'work'
    options = {'train_dataloader.num_workers': 2, 'train_dataloader.persistent_workers': True}
    child = begun(work, tmp_path / 'log', **options)
    child.kill()
    assert (work / NAME).exists()
    Path(f'{work}.go').touch()
    forks.run(train, tmp_path / 'log', work=str(work), resume=True)
    assert_same(marked(work), undisturbed)
    assert not (work / NAME).exists()


def evaluate(work: str) -> None:
    cfg = saving(Path(work), load_from=str(marked(Path(work))))
    cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
    cfg.test_cfg = dict(type='TestLoop')
    cfg.val_evaluator = cfg.test_evaluator = dict(type='Counted')
    runner = Runner.from_cfg(cfg)
    runner.test()


def test_evaluation_during_a_training_is_allowed(undisturbed: Path, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    child = begun(work, tmp_path / 'log')
    last = f'iter_{LAST - 6}.pth'  # before the iteration in which the training waits
    child.until(lambda: marked(work).name == last and child, last)
    forks.run(evaluate, tmp_path / 'test', work=str(work))
    assert (work / NAME).exists()
    Path(f'{work}.go').touch()
    assert child.wait() == 0
    assert_same(marked(work), undisturbed)


def one_after_another(work: str) -> None:
    """Train three times as in a notebook: the second fails, and the last one is tested."""
    folder = Path(work)
    Runner.from_cfg(saving(folder, **{'train_cfg.max_iters': 3})).train()
    assert not (folder / NAME).exists()
    failing = Runner.from_cfg(saving(folder))
    failing.register_hook(Fail())
    with pytest.raises(ZeroDivisionError):
        failing.train()
    assert (
        folder / NAME
    ).exists()  # until the Runner is collected; trainings of a process share the lock
    del failing
    gc.collect()
    cfg = saving(folder, **{'train_cfg.max_iters': 3})
    cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
    cfg.test_cfg = dict(type='TestLoop')
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert not (folder / NAME).exists()
    runner.test()
    assert not (folder / NAME).exists()


class Fail(Hook):
    def before_train_iter(self, *args: Any, **kwargs: Any) -> None:
        1 / 0  # noqa: B018


def test_one_process_may_train_repeatedly_in_a_work_dir(tmp_path: Path) -> None:
    forks.run(one_after_another, tmp_path / 'log', work=str(tmp_path / 'work'))
    assert not (tmp_path / 'work' / NAME).exists()


def test_missing_file_locks_are_logged(tmp_path: Path) -> None:
    text = forks.run(train_without_locks, tmp_path / 'log', work=str(tmp_path / 'work'))
    assert f'{tmp_path}/work: cannot be locked (No locks available), so a second' in text
    assert marked(tmp_path / 'work').name == 'iter_3.pth'


def train_without_locks(work: str) -> None:
    from mmtempo.system import folder_lock

    def flock(file: int, how: int) -> None:
        raise OSError(37, 'No locks available')

    folder_lock.fcntl.flock = flock
    train(work, **{'train_cfg.max_iters': 3})


def save_often(folder: str, who: int, count: int) -> None:
    """Save files with the names of another process, without a lock on the folder."""
    torch.set_num_threads(1)
    writer = DurableWriter()
    for number in range(count):
        path = f'{folder}/iter_{number}.pth'
        tree = dict(value=torch.full((200_000,), who), number=number)
        old = [f'{folder}/iter_{number - 3}.pth']
        save = writer.save([(path, tree)], (f'{folder}/{MARKER}', path), old)
        remove_leftovers(folder)  # as another training does at its start
        writer.wait()
        assert save.error is None, save.error
        assert save.restarts == 0
        assert save.kept == []
    writer.close()


def look(folder: Path, running: Callable[[], bool]) -> int:
    """Check all files as long as they are written, and return the number of reads."""
    count = 0
    while running():
        for path in sorted(folder.glob('*.pth')):
            broken = check_archive(str(path))
            if (
                broken is None or 'No such file' not in broken
            ):  # a file that was just removed does not count
                assert broken is None, path
                count += 1
    return count


def without_locks(folder: Path, count: int) -> int:
    folder.mkdir()
    children = [
        forks.start(
            save_often, folder.with_suffix(f'.{who}'), folder=str(folder), who=who, count=count
        )
        for who in (1, 2)
    ]
    read = look(folder, lambda: not all(map(has_ended, children)))
    for child in children:
        assert child.wait() == 0, child.text
    names = sorted(re.findall(r'\d+', ' '.join(files(folder))), key=int)
    assert [int(name) for name in names][-3:] == list(range(count - 3, count))
    for path in folder.glob('*.pth'):
        tree = torch.load(path)
        assert tree['value'].unique().tolist() in ([1], [2])
        assert path.name == f'iter_{tree["number"]}.pth'
    assert (folder / MARKER).read_text() == f'{folder}/iter_{count - 1}.pth'
    assert temporaries(folder) == []
    return read


def test_writers_without_a_lock_do_not_break_files(tmp_path: Path) -> None:
    assert without_locks(tmp_path / 'work', 30) > 0


@pytest.mark.slow
@pytest.mark.parametrize('part', range(10))
def test_writers_without_a_lock_do_not_break_files_often(part: int, tmp_path: Path) -> None:
    read = sum(without_locks(tmp_path / str(number), 8) for number in range(10))
    print(f'10 rounds of two writers with 8 saves each: {read} reads, each of a whole file')
