"""Rare classes are drawn more often, from labels that are read once."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.multiprocessing
from mmengine.dataset import ConcatDataset, RepeatDataset
from mmengine.registry import DATA_SAMPLERS
from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.datasets.samplers import class_balanced_sampler, epoch_sampler, label_counts
from mmtempo.datasets.samplers.class_balanced_sampler import ClassBalancedSampler
from mmtempo.datasets.samplers.label_counters import SegMapCounter, read_seg_map
from mmtempo.datasets.samplers.label_counts import count_labels
from mmtempo.workloads.bev.datasets.nuscenes_bev_dataset import NuScenesBEVDataset
from mmtempo.workloads.bev.structures.labels import CLASSES, pack_label, unpack_label

NAMES = ('road', 'car', 'bus')


class Streets(BaseSegDataset):
    METAINFO = dict(classes=NAMES, palette=[[0, 0, 0], [1, 1, 1], [2, 2, 2]])


def write_labels(root: Path, maps: list[np.ndarray]) -> Path:
    (root / 'img').mkdir(parents=True)
    (root / 'ann').mkdir()
    for number, values in enumerate(maps):
        (root / f'img/{number:02d}.jpg').touch()
        cv2.imwrite(str(root / f'ann/{number:02d}.png'), values)
    return root


def streets(root: Path, **kwargs: Any) -> Streets:
    prefix = dict(img_path='img', seg_map_path='ann')
    return Streets(data_root=str(root), data_prefix=prefix, serialize_data=False, **kwargs)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ten labels of 4 x 4: all have road, five have a car, one has a bus."""
    maps = [np.zeros((4, 4), np.uint8) for _ in range(10)]
    for values in maps[:5]:
        values[0, :2] = 1
    maps[7][1:3] = 2
    maps[9][3] = 255
    return write_labels(tmp_path / 'streets', maps)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the labels that are counted."""
    paths: list[str] = []
    count = label_counts._count

    def counted(label: Any) -> np.ndarray:
        paths.append(Path(label[0]).name)
        return count(label)

    monkeypatch.setattr(label_counts, '_count', counted)
    return paths


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    for module in ('class_balanced_sampler', 'label_counts', 'label_counts_file'):
        name = f'mmtempo.loaders.{module}.print_log'
        monkeypatch.setattr(name, lambda line, **_: said.append(line))
    return said


def test_counts_of_a_seg_map(root: Path, tmp_path: Path) -> None:
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
def test_counts_are_those_of_stock_loading(
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


def test_what_is_ignored_does_not_count(root: Path) -> None:
    path = str(root / 'ann/07.png')
    assert SegMapCounter(3, 255, False, ()).count(path).tolist() == [8, 0, 8]
    assert SegMapCounter(3, 0, False, ()).count(path).tolist() == [0, 0, 8]


@pytest.mark.parametrize('mode', ['P', 'L', '1'])
def test_indices_are_read_as_stock_reads_them(tmp_path: Path, mode: str) -> None:
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


@pytest.fixture
def small_bev(tmp_path: Path) -> dict:
    """Four labels of 6 x 5, ignored cells among them; arguments of their data set."""
    rng = np.random.default_rng(0)
    for folder in ('img', 'bev'):
        (tmp_path / folder).mkdir()
    for token in 'abcd':
        (tmp_path / f'img/{token}.jpg').touch()
        label = pack_label(rng.random((14, 6, 5)) < 0.2, rng.random((6, 5)) < 0.3)
        cv2.imwrite(str(tmp_path / f'bev/{token}.png'), label)
    camera = [[100.0, 0.0, 50.0], [0.0, 100.0, 50.0], [0.0, 0.0, 1.0]]
    (tmp_path / 'calib.json').write_text(json.dumps(dict.fromkeys('abcd', camera)))
    prefix = dict(img_path='img', bev_path='bev')
    return dict(data_root=str(tmp_path), data_prefix=prefix, label_size=(6, 5))


def test_counts_of_bev_labels(small_bev: dict, tmp_path: Path) -> None:
    file = str(tmp_path / 'counts.npz')
    dataset = NuScenesBEVDataset(**small_bev)
    groups = [['car', 'truck', 'bus'], ['pedestrian']]
    merged = NuScenesBEVDataset(
        metainfo=dict(classes=('vehicle', 'pedestrian')),
        pipeline=[dict(type='LoadBEVAnnotation', groups=groups)],
        **small_bev,
    )
    counts, merged_counts = count_labels(dataset, file), count_labels(merged, file)
    assert counts.shape == (4, 14)
    assert merged_counts.shape == (4, 2)
    vehicle = [CLASSES.index(name) for name in groups[0]]
    for index in range(4):
        path = dataset.get_data_info(index)['bev_path']
        packed = torch.from_numpy(cv2.imread(path, cv2.IMREAD_UNCHANGED).astype(np.int16))
        occupancy, valid = unpack_label(packed)
        seen = occupancy & valid
        assert counts[index].tolist() == seen.sum((1, 2)).tolist()
        assert merged_counts[index, 0] == seen[vehicle].any(0).sum()
        assert merged_counts[index, 1] == counts[index, CLASSES.index('pedestrian')]
    assert counts.min(0).sum() < counts.max(0).sum()


def test_sampler_over_bev_labels(small_bev: dict, tmp_path: Path) -> None:
    dataset = NuScenesBEVDataset(**small_bev)
    sampler = ClassBalancedSampler(dataset, cache_file=str(tmp_path / 'counts.npz'), seed=0)
    assert len(list(sampler)) == 4
    assert sampler.frequencies.shape == (14,)


def test_wrappers_are_looked_through(root: Path, tmp_path: Path, read: list[str]) -> None:
    file = str(tmp_path / 'counts.npz')
    once = count_labels(streets(root), file)
    joined = ConcatDataset([streets(root, indices=3), streets(root)])
    assert (count_labels(joined, file) == np.concatenate([once[:3], once])).all()
    assert (count_labels(RepeatDataset(streets(root), 2), file) == np.tile(once, (2, 1))).all()
    assert len(read) == 10


def test_only_what_was_changed_is_read_again(
    root: Path, tmp_path: Path, read: list[str], lines: list[str]
) -> None:
    file = str(tmp_path / 'folder/counts.npz')
    first = count_labels(streets(root), file)
    assert len(read) == 10
    assert lines[-1].startswith('label counts: 10 of 10 labels in ')
    assert (count_labels(streets(root), file) == first).all()
    assert len(read) == 10
    read.clear()
    (root / 'ann/03.png').touch()  # another time
    cv2.imwrite(str(root / 'ann/05.png'), np.full((9, 9), 2, np.uint8))
    again = count_labels(streets(root), file)
    assert sorted(read) == ['03.png', '05.png']
    assert again[5].tolist() == [0, 0, 81]
    assert (np.delete(again, 5, 0) == np.delete(first, 5, 0)).all()
    read.clear()
    count_labels(streets(root, reduce_zero_label=True), file)  # other arguments
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
def test_a_damaged_file_is_counted_anew(
    root: Path, tmp_path: Path, read: list[str], lines: list[str], damage: Any
) -> None:
    file = tmp_path / 'counts.npz'
    expected = count_labels(streets(root), str(file))
    read.clear(), lines.clear()
    damage(file)
    assert (count_labels(streets(root), str(file)) == expected).all()
    assert len(read) == 10
    assert f'{file} cannot be read, labels are counted again' in lines[0]
    lines.clear()
    count_labels(streets(root), str(file))
    assert len(read) == 10
    assert lines == []


def test_a_file_that_cannot_be_written_stops_nothing(
    root: Path, tmp_path: Path, lines: list[str]
) -> None:
    (tmp_path / 'taken').touch()
    counts = count_labels(streets(root), str(tmp_path / 'taken/counts.npz'))
    assert len(counts) == 10
    assert 'cannot be written, the next training counts again' in lines[-1]


def test_a_kill_between_leaves_the_old_file(
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


def test_the_usual_file_is_in_the_users_cache(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    for _ in range(2):
        count_labels(streets(root))
    assert len(read) == 10
    count_labels(streets(root, indices=4))
    assert len(list((tmp_path / 'cache/mmtempo').glob('label_counts_*.npz'))) == 2


def sampler_of(root: Path, **kwargs: Any) -> ClassBalancedSampler:
    options = dict(cache_file=str(root / 'counts.npz'), seed=0)
    return ClassBalancedSampler(streets(root), **{**options, **kwargs})


def test_weights_are_repeat_factors(root: Path, lines: list[str]) -> None:
    sampler = DATA_SAMPLERS.build(
        dict(
            type='ClassBalancedSampler',
            dataset=streets(root),
            cache_file=str(root / 'counts.npz'),
            seed=0,
        )
    )
    assert sampler.frequencies.tolist() == [1, 0.5, 0.1]
    assert sampler.class_factors == pytest.approx([1, 1, 5**0.5])
    assert sampler.weights == pytest.approx([*[1] * 7, 5**0.5, 1, 1])
    assert lines[-1] == (
        'ClassBalancedSampler: 10 samples, weights 1 to 2.24; rare classes (share of the samples, '
        'factor): bus 10.0% x2.24'
    )
    inverse = sampler_of(root, threshold=1, power=1)
    assert inverse.weights == pytest.approx([*[2] * 5, 1, 1, 10, 1, 1])
    assert sampler_of(root, min_pixels=3).frequencies.tolist() == [1, 0, 0.1]
    assert lines[-1].endswith('; in no sample: car')
    absent = sampler_of(root, min_pixels=3, threshold=1, power=1)
    assert absent.class_factors.tolist() == [1, 1, 10]
    assert absent.weights[0] == 1


def test_samples_are_drawn_as_often_as_their_weight_says(root: Path) -> None:
    sampler = sampler_of(root, threshold=1, power=1)
    drawn: Counter = Counter()
    epochs = 200
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        order = list(sampler)
        assert len(order) == len(sampler) == 10
        now = Counter(order)
        for index in range(10):
            expected = 10 * sampler.weights[index] / sampler.weights.sum()
            assert int(expected) <= now[index] <= int(expected) + 1
        drawn += now
    shares = np.array([drawn[index] for index in range(10)]) / (10 * epochs)
    assert shares == pytest.approx(sampler.weights / sampler.weights.sum(), abs=0.015)


def test_without_rare_classes_an_epoch_is_a_permutation(root: Path) -> None:
    sampler = sampler_of(root, power=0)
    assert sorted(sampler) == list(range(10))
    assert list(sampler) != sorted(sampler)
    assert len(list(sampler_of(root, num_samples=25))) == 25


def test_order_is_a_function_of_seed_and_epoch(root: Path) -> None:
    sampler = sampler_of(root, num_samples=40)
    first = list(sampler)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert list(sampler) == first
    sampler.set_epoch(1)
    second = list(sampler)
    sampler.skip(33)
    assert list(sampler) == second[33:]
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert (
        len({tuple(order) for order in (first, second, sampler_of(root, seed=1, num_samples=40))})
        == 3
    )


def test_any_samples_may_meet_in_an_epoch(root: Path) -> None:
    sampler = sampler_of(root, power=0, num_samples=5)
    epochs = {frozenset(sampler.indices(epoch, 0)) for epoch in range(40)}
    assert len(epochs) > 30  # of 252 that there can be


def test_draws_of_a_sample_are_spread_over_the_epoch(root: Path) -> None:
    order = list(sampler_of(root, threshold=1, power=1, num_samples=200))
    often = [place for place, index in enumerate(order) if index == 7]
    assert len(often) > 80
    assert max(often) - min(often) > 150


def test_processes_have_equal_shares(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = list(sampler_of(root))
    shares = []
    for rank in range(4):
        monkeypatch.setattr(epoch_sampler, 'get_dist_info', lambda rank=rank: (rank, 4))
        sampler = sampler_of(root)
        shares.append(list(sampler))
        assert len(sampler) == len(shares[-1]) == 3
    assert [index for step in zip(*shares) for index in step] == alone + alone[:2]


def _own_order(rank: int, root: Path, port: int) -> None:
    torch.distributed.init_process_group('gloo', f'tcp://127.0.0.1:{port}', rank=rank, world_size=2)
    own = root / f'own_{rank}'
    sampler = ClassBalancedSampler(
        streets(root), seed=0, cache_file=str(own / 'counts.npz'), threshold=1, power=1
    )
    (root / f'order_{rank}').write_text(' '.join(map(str, [own.exists(), *sampler])))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_the_first_process_counts_for_all(root: Path) -> None:
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_own_order, (root, port), nprocs=2)
    orders = [(root / f'order_{rank}').read_text().split() for rank in range(2)]
    assert [order[0] for order in orders] == ['True', 'False']
    alone = list(sampler_of(root, threshold=1, power=1))
    assert [int(i) for step in zip(orders[0][1:], orders[1][1:]) for i in step] == alone


def test_first_process_counts_and_the_others_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    sent: list[torch.Tensor] = []
    rank = 0

    def broadcast(data: torch.Tensor) -> None:
        if rank == 0:
            sent.append(data.clone())
        else:
            data.copy_(sent.pop(0))

    monkeypatch.setattr(class_balanced_sampler, 'is_distributed', lambda: True)
    monkeypatch.setattr(class_balanced_sampler, 'broadcast', broadcast)
    monkeypatch.setattr(epoch_sampler, 'get_dist_info', lambda: (rank, 2))
    first = sampler_of(root, threshold=1)
    rank = 1
    other = sampler_of(root, threshold=1, cache_file='/nowhere/counts.npz')
    assert len(read) == 10
    assert sent == []
    assert (other.weights == first.weights).all()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(threshold=0), 'threshold is a share of the samples, above 0 and at most 1, found 0'),
        (dict(threshold=1.5), 'threshold is a share'),
        (dict(power=-1), 'power must be 0 or more, found -1'),
        (dict(power=float('nan')), 'power must be 0 or more'),
        (dict(min_pixels=0), 'min_pixels must be 1 or more, found 0'),
        (dict(num_samples=0), 'num_samples must be 1 or more, found 0'),
    ],
)
def test_mistakes(root: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampler_of(root, **options)


def test_labels_that_cannot_be_counted(root: Path, tmp_path: Path) -> None:
    dataset = streets(root)
    file = str(tmp_path / 'counts.npz')
    (root / 'ann/04.png').write_bytes(b'GIF89a')
    with pytest.raises(BadSampleError, match='label .*04.png: not a readable image'):
        count_labels(dataset, file)
    cv2.imwrite(str(root / 'ann/04.png'), np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(BadSampleError, match=r'04.png: expected one value a pixel.*\(4, 4, 3\)'):
        count_labels(dataset, file)
    (root / 'ann/04.png').unlink()
    with pytest.raises(FileNotFoundError, match='04.png: .*local files only'):
        count_labels(dataset, file)
    assert not Path(file).exists()
    unlabelled = Streets(data_root=str(root), data_prefix=dict(img_path='img'))
    with pytest.raises(ValueError, match='sample 0 of Streets has no label .* it has: img_path'):
        count_labels(unlabelled, file)
    with pytest.raises(TypeError, match='Subset has no metainfo and get_data_info'):
        count_labels(torch.utils.data.Subset(dataset, [1]), file)
