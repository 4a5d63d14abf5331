"""Selection of the checkpoint to resume from when files are broken, in a real Runner."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mmtempo.checkpoint.resume import MARKER, newest_whole
from mmtempo.cli.runner import set_resume
from tests.testing import forks
from tests.testing.saving import assert_same, files, marked, resumed_at, saving, through_tool, train

INTERVAL, LAST = 3, 12


def make(folder: Path, **options: object) -> Path:
    """Train for twelve iterations, and return the work dir."""
    options = {
        'train_cfg.max_iters': LAST,
        'default_hooks.checkpoint.max_keep_ckpts': 3,
        'default_hooks.checkpoint.published_keys': ['meta', 'state_dict'],
    } | options
    forks.run(train, folder / 'log', work=str(folder / 'work'), **options)
    return folder / 'work'


@pytest.fixture(scope='module')
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp('made'))


@pytest.fixture(scope='module')
def made_by_stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(
        tmp_path_factory.mktemp('stock'), **{'default_hooks.checkpoint.type': 'CheckpointHook'}
    )


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('undisturbed')
    forks.run(train, folder / 'log', work=str(folder / 'work'))
    return folder / 'work/iter_24.pth'


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the work dir, whose marker names a file in the copy."""
    return copied(made, tmp_path)


def copied(made: Path, tmp_path: Path) -> Path:
    work = Path(shutil.copytree(made, tmp_path / 'work'))
    (work / MARKER).write_text(str(work / f'iter_{LAST}.pth'))
    (work / 'reached').unlink()
    return work


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    """Flip one bit in the middle of the largest tensor."""
    with zipfile.ZipFile(path) as archive:
        tensors = [info for info in archive.infolist() if '/data/' in info.filename]
    info = max(tensors, key=lambda info: info.file_size)
    data = bytearray(path.read_bytes())
    name, extra = struct.unpack_from('<HH', data, info.header_offset + 26)
    data[info.header_offset + 30 + name + extra + info.file_size // 2] ^= 1
    path.write_bytes(data)
    assert torch.load(path, weights_only=False) is not None  # torch does not notice


class Hostile:
    def __reduce__(self) -> tuple:
        return os.system, ('touch HOSTILE',)


def poison(path: Path) -> None:
    """Write a whole file with correct checksums that runs a command when it is unpickled."""
    buffer = io.BytesIO()
    torch.save(dict(torch.load(path, weights_only=False), hostile=Hostile()), buffer)
    path.write_bytes(buffer.getvalue())
    assert b'HOSTILE' in buffer.getvalue()


BREAKAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    'truncated': (truncate, 'it is not a complete zip file'),
    'empty': (empty, 'it is empty'),
    'flipped': (flip, 'the checksum of its record'),
    'hostile': (poison, 'cannot be read safely'),
    'gone': (Path.unlink, 'which does not exist'),
}


@pytest.mark.parametrize('how', BREAKAGES)
@pytest.mark.parametrize('by_stock', [False, True])
def test_newest_whole_checkpoint_is_taken(
    how: str, by_stock: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made: Path = request.getfixturevalue('made_by_stock' if by_stock else 'made')
    work = copied(made, tmp_path)
    spoil, says = BREAKAGES[how]
    spoil(work / f'iter_{LAST}.pth')
    path, problems = newest_whole(str(work))
    assert path == str(work / 'iter_9.pth')
    assert len(problems) == 1
    assert f'iter_{LAST}.pth' in problems[0]
    assert says in problems[0]
    assert not list(tmp_path.rglob('HOSTILE')) + list(Path().glob('HOSTILE'))


@pytest.mark.parametrize('how', ['flipped', 'hostile'])
def test_training_resumes_from_the_newest_whole_checkpoint(
    how: str, work: Path, undisturbed: Path, tmp_path: Path
) -> None:
    spoil, says = BREAKAGES[how]
    spoil(work / f'iter_{LAST}.pth')
    text = forks.run(train, tmp_path / 'log', work=str(work), resume=True)
    assert text.count('Checkpoint skipped on resume: ') == 1
    assert says in text
    assert f'{work}/{MARKER}: rewritten to name {work}/iter_9.pth.' in text
    assert resumed_at(text) == 9
    assert_same(marked(work), undisturbed)
    assert not list(tmp_path.rglob('HOSTILE')) + list(Path().glob('HOSTILE'))


@pytest.mark.parametrize('content', ['', ' \n', '/nowhere/iter_12.pth', 'iter_99.pth', '\0\0\0'])
def test_marker_without_a_file_is_skipped(content: str, work: Path) -> None:
    (work / MARKER).write_text(content)
    path, problems = newest_whole(str(work))
    assert path == str(work / f'iter_{LAST}.pth')
    assert len(problems) == 1
    assert MARKER in problems[0]


def test_training_with_an_empty_marker_resumes(work: Path, tmp_path: Path) -> None:
    (work / MARKER).write_text('')
    options = {'train_cfg.max_iters': LAST + 1}
    text = forks.run(train, tmp_path / 'log', work=str(work), resume=True, **options)
    assert f'Checkpoint skipped on resume: {work}/{MARKER} is empty' in text
    assert resumed_at(text) == LAST


def test_empty_marker_without_checkpoints_starts_from_the_beginning(tmp_path: Path) -> None:
    """Stock writes the marker in place, so that a kill may leave it empty."""
    work = tmp_path / 'work'
    work.mkdir()
    (work / MARKER).touch()
    assert newest_whole(str(work)) == (None, [f'{work}/{MARKER} is empty'])
    text = forks.run(
        train, tmp_path / 'log', work=str(work), resume=True, **{'train_cfg.max_iters': 3}
    )
    assert 'resumed epoch' not in text
    assert marked(work).name == 'iter_3.pth'


def test_missing_marker_does_not_hide_checkpoints(work: Path, tmp_path: Path) -> None:
    (work / MARKER).unlink()
    says = f'{work}/{MARKER}, which does not exist'
    assert newest_whole(str(work)) == (str(work / f'iter_{LAST}.pth'), [says])
    truncate(work / f'iter_{LAST}.pth')
    text = forks.run(
        train, tmp_path / 'log', work=str(work), resume=True, **{'train_cfg.max_iters': LAST}
    )
    assert f'Checkpoint skipped on resume: {says}' in text
    assert f'{work}/{MARKER}: rewritten to name {work}/iter_9.pth.' in text
    assert resumed_at(text) == 9


def test_training_without_marker_or_whole_checkpoint_starts_from_the_beginning(
    work: Path, tmp_path: Path
) -> None:
    """A kill during the first save of stock leaves such a work dir."""
    (work / MARKER).unlink()
    spoil_all(work)
    path, problems = newest_whole(str(work))
    assert path is None
    assert len(problems) == 3
    options = {'train_cfg.max_iters': 3}
    text = forks.run(train, tmp_path / 'log', work=str(work), resume=True, **options)
    assert text.count('Checkpoint skipped on resume: ') == 3
    assert resumed_at(text) == 0
    assert newest_whole(str(tmp_path / 'nothing')) == (None, [])


def test_resume_flag_works_without_a_marker(work: Path, tmp_path: Path) -> None:
    (work / MARKER).unlink()
    cfg = saving(work)
    set_resume(cfg, 'auto')
    assert cfg.load_from == str(work / f'iter_{LAST}.pth')


@pytest.mark.parametrize('named', ['/', '{work}', '{work}/iter_99'])
def test_a_marker_that_names_a_folder(named: str, work: Path) -> None:
    (work / 'iter_99').mkdir()
    named = named.format(work=work)
    (work / MARKER).write_text(named)
    assert newest_whole(str(work)) == (
        str(work / f'iter_{LAST}.pth'), [f'{work}/{MARKER} names {named}, which is a folder']
    )  # fmt: skip


def test_training_whose_marker_names_a_folder_resumes(work: Path, tmp_path: Path) -> None:
    (work / MARKER).write_text('/')
    options = {'train_cfg.max_iters': LAST + 1}
    text = forks.run(train, tmp_path / 'log', work=str(work), resume=True, **options)
    assert resumed_at(text) == LAST


def test_copied_work_dir_resumes_from_its_own_files(work: Path, tmp_path: Path) -> None:
    """The copied marker names the file of the original, whose training may have continued."""
    copy = Path(shutil.copytree(work, tmp_path / 'copy' / 'work'))
    original = work / f'iter_{LAST}.pth'
    assert (copy / MARKER).read_text() == str(original)
    path, problems = newest_whole(str(copy))
    assert path == str(copy / original.name)
    assert problems == [
        f'{copy}/{MARKER} names {original}; the file of this name in this folder is {path}'
    ]
    options = {'train_cfg.max_iters': LAST + 1}
    text = forks.run(train, tmp_path / 'log', work=str(copy), resume=True, **options)
    assert f'Checkpoint skipped on resume: {problems[0]}' in text
    assert resumed_at(text) == LAST


def test_copied_work_dir_with_a_broken_file_uses_its_own_files(work: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(work, tmp_path / 'copy' / 'work'))
    flip(copy / f'iter_{LAST}.pth')
    path, problems = newest_whole(str(copy))
    assert path == str(copy / 'iter_9.pth')
    assert len(problems) == 2


def test_copied_work_dir_keeps_the_best_file_of_the_original(work: Path, tmp_path: Path) -> None:
    """The checkpoint names the best file by its absolute path, and a new best file replaces it."""
    best = work / 'best_score_iter_6.pth'
    checkpoint = torch.load(work / f'iter_{LAST}.pth', weights_only=False)
    info = checkpoint['message_hub']['runtime_info']
    info['best_ckpt'], info['best_score'] = str(best), 0.0
    torch.save(checkpoint, work / f'iter_{LAST}.pth')
    copy = Path(shutil.copytree(work, tmp_path / 'copy' / 'work'))
    options = {'train_cfg.max_iters': 18}
    forks.run(train, tmp_path / 'log', work=str(copy), resume=True, **options)
    assert best.is_file()
    assert (copy / 'best_score_iter_18.pth').is_file()
    assert not (copy / best.name).exists()


def test_marker_that_names_another_folder_warns(work: Path, tmp_path: Path) -> None:
    """A run with another `out_dir` leaves such a marker."""
    other = tmp_path / 'other'
    other.mkdir()
    (other / MARKER).write_text(str(work / f'iter_{LAST}.pth'))
    assert newest_whole(str(other)) == (str(work / f'iter_{LAST}.pth'), [])
    options = {'train_cfg.max_iters': LAST + 1}
    text = forks.run(train, tmp_path / 'log', work=str(other), resume=True, **options)
    assert f'{work}/iter_{LAST}.pth is in another folder than the checkpoints of this' in text
    assert resumed_at(text) == LAST
    (work / MARKER).write_text(str(work / f'iter_{LAST}.pth'))
    text = forks.run(train, tmp_path / 'log', work=str(work), resume=True, **options)
    assert 'is in another folder' not in text


def spoil_all(work: Path) -> None:
    for name, spoil in zip((12, 9, 6), (truncate, flip, empty)):
        spoil(work / f'iter_{name}.pth')


def test_error_lists_all_broken_checkpoints(work: Path, tmp_path: Path) -> None:
    """Best and published files are whole, but no training can resume from them."""
    assert any('-' in name for name in files(work))
    assert any('best_' in name for name in files(work))
    spoil_all(work)
    with pytest.raises(ValueError, match='^no checkpoint to resume from') as error:
        newest_whole(str(work))
    listed = str(error.value).splitlines()[1:-1]
    assert len(listed) == 3
    for name, says in (12, 'not a complete zip'), (9, 'checksum of its record'), (6, 'it is empty'):
        assert any(f'iter_{name}.pth: ' in line and says in line for line in listed), listed
    before = files(work)
    text = forks.run(train, tmp_path / 'log', 1, work=str(work), resume=True)
    assert 'ValueError: no checkpoint to resume from' in text
    for line in listed:
        assert line in text
    assert files(work) == before


def test_broken_file_named_by_the_user_is_an_error(work: Path, tmp_path: Path) -> None:
    flip(work / 'iter_9.pth')
    options = {'load_from': str(work / 'iter_9.pth'), 'resume': True}
    text = forks.run(train, tmp_path / 'log', 1, work=str(work), **options)
    assert 'iter_9.pth is broken: the checksum of its record archive/data/' in text
    assert 'Checkpoint skipped on resume' not in text


def test_file_named_by_the_user_takes_precedence_over_newer_ones(
    work: Path, tmp_path: Path
) -> None:
    truncate(work / 'iter_12.pth')
    options = {'load_from': str(work / 'iter_6.pth'), 'resume': True, 'train_cfg.max_iters': 9}
    text = forks.run(train, tmp_path / 'log', work=str(work), **options)
    assert resumed_at(text) == 6


def test_out_dir_is_searched(tmp_path: Path) -> None:
    out = {'default_hooks.checkpoint.out_dir': str(tmp_path / 'out')}
    work = make(tmp_path, **out)
    assert files(work) == []
    truncate(tmp_path / 'out/work/iter_12.pth')
    text = forks.run(train, tmp_path / 'log', work=str(work), resume=True, **out)
    assert resumed_at(text) == 9
    # A marker of another machine, or from before the folders were moved.
    (work / MARKER).write_text('/elsewhere/out/work/iter_24.pth')
    text = forks.run(
        train, tmp_path / 'log', work=str(work), resume=True,
        **out, **{'train_cfg.max_iters': 25},
    )  # fmt: skip
    assert resumed_at(text) == 24


def test_checkpoint_with_the_most_iterations_is_taken(work: Path) -> None:
    """Neither the time of the file nor its name counts."""
    (work / 'iter_12.pth').unlink()
    os.rename(work / 'iter_6.pth', work / 'zzz.pth')
    assert newest_whole(str(work))[0] == str(work / 'iter_9.pth')


def test_files_without_training_state_are_no_candidates(work: Path) -> None:
    (work / 'iter_12.pth').unlink()
    torch.save(dict(state_dict={}), work / 'weights.pth')
    torch.save(torch.zeros(2), work / 'tensor.pth')
    with open(work / 'old.pth', 'wb') as file:
        pickle.dump(dict(meta=dict(iter=99)), file)
    path, problems = newest_whole(str(work))
    assert path == str(work / 'iter_9.pth')
    assert len(problems) == 2  # the named file, and the file that is not a zip


def test_tool_reports_that_all_checkpoints_are_broken(work: Path, tmp_path: Path) -> None:
    spoil_all(work)
    text = forks.run(through_tool, tmp_path / 'log', 1, work=str(work), resume=True)
    assert 'no checkpoint to resume from' in text


@pytest.mark.parametrize('named', ['s3://bucket/iter_8.pth', '{work}/iter_8'])
def test_remote_files_and_folders_are_not_checked(named: str, tmp_path: Path) -> None:
    """DeepSpeed saves folders, and stock may save to remote storage."""
    named = named.format(work=tmp_path)
    if '://' not in named:
        Path(named).mkdir()
    torch.save(dict(meta=dict(iter=3), message_hub={}), tmp_path / 'iter_3.pth')
    (tmp_path / MARKER).write_text(named)
    assert newest_whole(str(tmp_path), takes_folders=True) == (named, [])
