"""Label counts equal those of stock loading, and unchanged labels are not read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mmengine.dataset import ConcatDataset, RepeatDataset
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.datasets.samplers import label_histogram
from mmtempo.datasets.samplers.label_histogram import SegMapCounter, count_labels, read_seg_map
from tests.testing.street_labels import NAMES, Streets, streets, write_labels, write_ten_labels


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_ten_labels(tmp_path / 'streets')


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the labels that are counted from here on."""
    paths: list[str] = []
    count = label_histogram._count

    def counted(label: Any) -> np.ndarray:
        paths.append(Path(label[0]).name)
        return count(label)

    monkeypatch.setattr(label_histogram, '_count', counted)
    return paths


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the log lines from here on."""
    logged: list[str] = []
    monkeypatch.setattr(label_histogram, 'print_log', lambda line, **_: logged.append(line))
    return logged


def test_counts_pixels_of_each_class(root: Path, tmp_path: Path) -> None:
    counts = count_labels(streets(root), str(tmp_path / 'counts.npz'))
    assert counts.dtype == np.int64
    assert counts.tolist() == [
        *[[14, 2, 0]] * 5,
        *[[16, 0, 0]] * 2,
        [8, 0, 8],
        [16, 0, 0],
        [12, 0, 0],
    ]


@pytest.mark.parametrize('reduce_zero_label', [False, True])
@pytest.mark.parametrize('classes', [NAMES, ('bus', 'road')])
def test_counts_equal_those_of_stock_loading(
    tmp_path: Path, reduce_zero_label: bool, classes: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(0)
    values = rng.choice(np.array([0, 1, 2, 3, 4, 254, 255], np.uint8), size=(4, 9, 7))
    dataset = streets(
        write_labels(tmp_path / 'streets', list(values)),
        reduce_zero_label=reduce_zero_label,
        metainfo=dict(classes=classes),
    )
    counts = count_labels(dataset, str(tmp_path / 'counts.npz'))
    load = LoadAnnotations()
    for index in range(4):
        loaded = load(dataset.get_data_info(index))['gt_seg_map']
        assert counts[index].tolist() == [int((loaded == c).sum()) for c in range(len(classes))]


def test_ignored_label_is_not_counted(root: Path) -> None:
    path = str(root / 'ann/07.png')
    assert SegMapCounter(3, 255, False, ()).count(path).tolist() == [8, 0, 8]
    assert SegMapCounter(3, 0, False, ()).count(path).tolist() == [0, 0, 8]


@pytest.mark.parametrize('mode', ['P', 'L', '1'])
def test_palette_and_bit_labels_are_read_as_stock_reads_them(tmp_path: Path, mode: str) -> None:
    path = str(tmp_path / 'label.png')
    values = np.random.default_rng(0).integers(0, 2 if mode == '1' else 20, (6, 5), np.uint8)
    picture = Image.fromarray(values * 255 if mode == '1' else values)
    if mode == 'P':
        picture.putpalette(list(range(256)) * 3)
    if mode == '1':
        picture = picture.convert('1')
    picture.save(path)
    with Image.open(path) as written:
        assert written.mode == mode
    found = read_seg_map(path)
    assert found.dtype == np.uint8
    assert (found == values).all()


def test_counts_through_dataset_wrappers(root: Path, tmp_path: Path, read: list[str]) -> None:
    file = str(tmp_path / 'counts.npz')
    once = count_labels(streets(root), file)
    joined = ConcatDataset([streets(root, indices=3), streets(root)])
    assert (count_labels(joined, file) == np.concatenate([once[:3], once])).all()
    assert (count_labels(RepeatDataset(streets(root), 2), file) == np.tile(once, (2, 1))).all()
    assert len(read) == 10


def test_only_changed_labels_are_read_again(
    root: Path, tmp_path: Path, read: list[str], lines: list[str]
) -> None:
    file = str(tmp_path / 'folder/counts.npz')
    first = count_labels(streets(root), file)
    assert len(read) == 10
    assert lines[-1].startswith('label counts: 10 of 10 labels in ')
    assert (count_labels(streets(root), file) == first).all()
    assert len(read) == 10
    read.clear()
    (root / 'ann/03.png').touch()  # changes the modification time
    cv2.imwrite(str(root / 'ann/05.png'), np.full((9, 9), 2, np.uint8))
    again = count_labels(streets(root), file)
    assert sorted(read) == ['03.png', '05.png']
    assert again[5].tolist() == [0, 0, 81]
    assert (np.delete(again, 5, 0) == np.delete(first, 5, 0)).all()
    read.clear()
    count_labels(streets(root, reduce_zero_label=True), file)  # another counter
    assert len(read) == 10
    assert sorted(path.name for path in Path(file).parent.iterdir()) == ['counts.npz']


def damage_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def damage_all(path: Path) -> None:
    path.write_bytes(b'no archive')


def damage_empty(path: Path) -> None:
    path.write_bytes(b'')


def damage_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[200] ^= 1  # in the keys
    path.write_bytes(content)


def damage_form(path: Path) -> None:
    np.savez(path, keys=np.zeros((3, 32), np.uint8), counts=np.zeros((2, 3), np.int64))


def damage_names(path: Path) -> None:
    np.savez(path, others=np.zeros(3))


@pytest.mark.parametrize(
    'damage', [damage_end, damage_all, damage_empty, damage_byte, damage_form, damage_names]
)
def test_damaged_counts_file_is_replaced(
    root: Path, tmp_path: Path, read: list[str], lines: list[str], damage: Any
) -> None:
    file = tmp_path / 'counts.npz'
    expected = count_labels(streets(root), str(file))
    read.clear(), lines.clear()
    damage(file)
    assert (count_labels(streets(root), str(file)) == expected).all()
    assert len(read) == 10
    assert f'{file} cannot be read (' in lines[0]
    assert lines[0].endswith('; labels are counted again')
    lines.clear()
    count_labels(streets(root), str(file))
    assert len(read) == 10
    assert lines == []


def test_unwritable_counts_file_is_a_warning(root: Path, tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / 'taken').touch()
    counts = count_labels(streets(root), str(tmp_path / 'taken/counts.npz'))
    assert len(counts) == 10
    assert f'{tmp_path}/taken/counts.npz cannot be written (' in lines[-1]
    assert lines[-1].endswith('; the next training counts again')


def test_interrupted_write_leaves_the_old_file(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / 'counts.npz'
    count_labels(streets(root), str(file))
    before = file.read_bytes()
    (root / 'ann/03.png').touch()

    def killed(*args: Any) -> None:
        assert file.read_bytes() == before
        raise KeyboardInterrupt

    monkeypatch.setattr('os.replace', killed)
    with pytest.raises(KeyboardInterrupt):
        count_labels(streets(root), str(file))
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ['counts.npz', 'streets']


def test_default_file_is_in_the_users_cache_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    for _ in range(2):
        count_labels(streets(root))
    assert len(read) == 10
    count_labels(streets(root, indices=4))
    assert len(list((tmp_path / 'cache/mmtempo').glob('label_counts_*.npz'))) == 2


def test_uncountable_labels_are_errors_that_name_the_file(root: Path, tmp_path: Path) -> None:
    dataset = streets(root)
    file = str(tmp_path / 'counts.npz')
    (root / 'ann/04.png').write_bytes(b'GIF89a')
    with pytest.raises(BadSampleError, match='label .*04.png: not a readable image'):
        count_labels(dataset, file)
    cv2.imwrite(str(root / 'ann/04.png'), np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(BadSampleError, match=r'04.png: expected one value per pixel.*\(4, 4, 3\)'):
        count_labels(dataset, file)
    (root / 'ann/04.png').unlink()
    with pytest.raises(FileNotFoundError, match='04.png: .*local files only'):
        count_labels(dataset, file)
    assert not Path(file).exists()
    unlabelled = Streets(data_root=str(root), data_prefix=dict(img_path='img'))
    with pytest.raises(
        ValueError,
        match="Streets: sample 0 has no label .* expected 'seg_map_path' .* found img_path",
    ):
        count_labels(unlabelled, file)
    with pytest.raises(
        TypeError, match='Subset: labels cannot be counted without metainfo and get_data_info'
    ):
        count_labels(torch.utils.data.Subset(dataset, [1]), file)
