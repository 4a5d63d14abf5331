"""Two checkpoint hooks in one training leave the files that two stock hooks leave."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from mmtempo.checkpoint.io.archive import check_archive
from mmtempo.checkpoint.resume import MARKER
from mmtempo.system.folder_lock import NAME
from tests.testing import forks
from tests.testing.saving import reached, temporaries, train, with_writer

KINDS = ('CheckpointHook', 'AsyncCheckpointHook')


def hooks(kind: str, root: Path, **second: Any) -> dict:
    """Return options of a training with two hooks of a type; `second` has those of the second."""
    second = dict(type=kind, by_epoch=False, interval=2) | second
    if 'out_dir' in second:
        second['out_dir'] = str(root / second['out_dir'])
    return {
        'default_hooks.checkpoint.type': kind,
        'custom_hooks': [dict(type='EMAHook'), dict(type='Tell'), second],
    }


def left(root: Path) -> tuple[list[str], str]:
    """Return all checkpoints, which must be whole, and the file that the marker names."""
    found = [path.relative_to(root).as_posix() for path in root.rglob('*.pth')]
    assert [name for name in found if check_archive(str(root / name))] == []
    return sorted(found), Path((root / 'work' / MARKER).read_text()).relative_to(root).as_posix()


SECOND = {
    'another interval': dict(filename_tmpl='other_{}.pth'),
    'the same names': {},
    'another folder': dict(out_dir='out'),
    'each iteration, retained': dict(interval=1, max_keep_ckpts=3, filename_tmpl='other_{}.pth'),
}


@pytest.mark.parametrize('how', SECOND)
def test_files_and_marker_are_those_of_stock(how: str, tmp_path: Path) -> None:
    found = []
    for kind in KINDS:
        root = tmp_path / kind
        root.mkdir()
        options = hooks(kind, root, **SECOND[how])
        text = forks.run(train, root / 'log', work=str(root / 'work'), **options)
        assert ' failed: ' not in text
        assert temporaries(root) == []
        assert not list(root.rglob(NAME))
        found.append(left(root))
        more = dict(options, **{'resume': True, 'train_cfg.max_iters': 20})
        text = forks.run(train, root / 'log', work=str(root / 'work'), **more)
        assert 'in another folder' not in text  # both folders are of the training
        assert 'Load checkpoint from' in text
    assert found[1] == found[0]


def train_slowly(work: str, **options: Any) -> None:
    with_writer(f'{work}.steps', delay=0.01)
    train(work, **options)


def test_saves_of_both_are_written_in_order(tmp_path: Path) -> None:
    """Each marker is written after that of an earlier save, so that it names the newest file."""
    options = hooks(KINDS[1], tmp_path, filename_tmpl='other_{}.pth', interval=1)
    options |= {'train_cfg.max_iters': 9, 'default_hooks.checkpoint.save_best': None}
    forks.run(train_slowly, tmp_path / 'log', work=str(tmp_path / 'work'), **options)
    steps = (tmp_path / 'work.steps').read_text()
    done = re.findall(r'replace \.(\w+)(?:\.pth)?\.mmtempo-tmp', steps)
    expected = [f'{name}_{at}' for at in range(1, 10) for name in ('other', 'iter')]
    expected = [name for name in expected if name[:4] != 'iter' or int(name[5:]) % 3 == 0]
    # Of two hooks with equal priority, that of `default_hooks` is called first.
    first = sorted(done[0::2], key=lambda name: int(name.split('_')[1]))
    assert done[1::2] == [MARKER] * (len(done) // 2)
    assert done[0::2] == first
    assert sorted(first) == sorted(expected)
    assert left(tmp_path)[1] == f'work/{done[-2]}.pth'


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_run_with_a_checkpoint(number: int, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    options = hooks(KINDS[1], tmp_path, out_dir='out') | {'train_cfg.max_iters': 100000}
    child = forks.start(train, tmp_path / 'log', work=str(work), **options)
    child.until(lambda: reached(work) > 20, 'iteration 20')
    child.send(signal.Signals(number))
    assert child.wait() in (130, 128 + number), child.text
    found, named = left(tmp_path)
    at = max(int(re.findall(r'(\d+)\.pth', name)[0]) for name in found)
    assert named == f'work/iter_{at}.pth'  # saved by the first hook
    assert temporaries(tmp_path) == []
    assert not list(tmp_path.rglob(NAME))


def handlers() -> list:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def train_and_look(work: str, **options: Any) -> None:
    before = handlers()
    train(work, **options)
    assert handlers() == before


def test_signal_handlers_are_restored_after_the_training(tmp_path: Path) -> None:
    options = hooks(KINDS[1], tmp_path, out_dir='out') | {'train_cfg.max_iters': 4}
    forks.run(train_and_look, tmp_path / 'log', work=str(tmp_path / 'work'), **options)


def test_retention_list_of_one_hook_does_not_remove_files_of_the_other(tmp_path: Path) -> None:
    """The message hub has one list of kept files, that of the hook that saved last."""
    work = tmp_path / 'work'
    for length in (12, 14):
        options = hooks(KINDS[1], tmp_path, interval=5, max_keep_ckpts=3, filename_tmpl='b_{}.pth')
        options['train_cfg.max_iters'] = length
        text = forks.run(train, tmp_path / 'log', work=str(work), resume=length > 12, **options)
        assert 'an interrupted save left more than' not in text
        assert (work / 'b_5.pth').is_file()
