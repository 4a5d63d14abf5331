"""Values, files and log equal those of mmseg's metric, in constant memory."""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.logging import MMLogger
from mmengine.registry import METRICS, DefaultScope
from mmengine.structures import PixelData
from mmseg.evaluation.metrics import IoUMetric
from mmseg.structures import SegDataSample
from PIL import Image

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.evaluation.streaming_iou_metric import StreamingIoUMetric
from tests.testing.processes import SPAWN

CLASSES = ('road', 'car', 'sky', 'ghost')
ALL = ['mIoU', 'mDice', 'mFscore']


def sample(
    number: int, shape: tuple[int, ...] = (20, 30), dtype: torch.dtype = torch.int64
) -> dict:
    """Make one image; no label is 'ghost', 9 is not a class, 255 is ignored."""
    generator = torch.Generator().manual_seed(number)
    true = torch.tensor([0, 0, 0, 1, 2, 9, 255]).to(dtype)
    label = true[torch.randint(0, len(true), shape, generator=generator)]
    random = torch.randint(0, len(CLASSES), shape, generator=generator).to(dtype)
    right = torch.rand(shape, generator=generator) < 0.6
    predicted = torch.where(right & (label < 3), label, random)
    return dict(
        pred_sem_seg=dict(data=predicted[None]),
        gt_sem_seg=dict(data=label[None]),
        img_path=f'/somewhere/image_{number}.jpg',
        reduce_zero_label=number % 2 == 0,
    )


def metric(cls: type, **kwargs: Any) -> Any:
    found = cls(**kwargs)
    found.dataset_meta = dict(classes=CLASSES)
    return found


def run(cls: type, samples: list, size: int | None = None, batch: int = 2, **kwargs: Any) -> dict:
    found = metric(cls, **kwargs)
    for i in range(0, len(samples), batch):
        found.process(None, samples[i : i + batch])
    return found.evaluate(len(samples) if size is None else size)


def assert_equal(ours: dict, stock: dict) -> None:
    assert list(ours) == list(stock)
    for key, value in stock.items():
        np.testing.assert_array_equal(ours[key], value, err_msg=key)
        assert type(ours[key]) is type(value), key


@pytest.mark.parametrize(
    'kwargs',
    [
        dict(iou_metrics=['mIoU']),
        dict(iou_metrics=ALL, nan_to_num=-1, beta=2),
        dict(iou_metrics=ALL, prefix='val', ignore_index=2),
        dict(iou_metrics=['mFscore'], ignore_index=9),
    ],
)
@pytest.mark.parametrize('dtype', [torch.int64, torch.uint8])
def test_values_equal_those_of_stock(kwargs: dict, dtype: torch.dtype) -> None:
    samples = [sample(i, dtype=dtype) for i in range(7)]
    ours = run(StreamingIoUMetric, samples, **kwargs)
    stock = run(IoUMetric, samples, **kwargs)
    assert len(ours) >= 3
    assert_equal(ours, stock)


def test_single_class_is_counted() -> None:
    """Stock's single bin then spans all values."""
    label = torch.tensor([[0, 0, 255, 0]])
    areas = [
        cls.intersect_and_union(torch.zeros_like(label), label, 1, 255)
        for cls in (StreamingIoUMetric, IoUMetric)
    ]
    assert [[int(area) for area in some] for some in areas] == [[3, 3, 3, 3]] * 2


def test_many_classes_are_counted_as_in_stock() -> None:
    generator = torch.Generator().manual_seed(0)
    pred, label = (torch.randint(0, 256, (200, 300), generator=generator) for _ in range(2))
    ours = StreamingIoUMetric.intersect_and_union(pred, label, 255, 255)
    stock = IoUMetric.intersect_and_union(pred, label, 255, 255)
    for one, other in zip(ours, stock):
        assert one.dtype == torch.int64
        assert torch.equal(one, other.long())


def test_evaluator_differs_by_type_alone(caplog: pytest.LogCaptureFixture) -> None:
    logger, tables = MMLogger.get_current_instance(), []
    logger.addHandler(caplog.handler)
    with DefaultScope.overwrite_default_scope('mmseg'):
        found = []
        for name in ('StreamingIoUMetric', 'IoUMetric'):
            evaluator = Evaluator(dict(type=name, iou_metrics=ALL))
            evaluator.dataset_meta = dict(classes=CLASSES)
            for i in range(3):
                raw = sample(i)
                data = SegDataSample(metainfo=dict(img_path=raw['img_path']))
                data.pred_sem_seg = PixelData(**raw['pred_sem_seg'])
                data.gt_sem_seg = PixelData(**raw['gt_sem_seg'])
                evaluator.process([data])
            caplog.clear()
            found.append(evaluator.evaluate(3))
            tables.append([record.message for record in caplog.records])
    logger.removeHandler(caplog.handler)
    assert_equal(*found)
    assert tables[0] == tables[1]
    assert 'ghost' in ''.join(tables[0])
    assert METRICS.get('StreamingIoUMetric') is StreamingIoUMetric


def test_memory_does_not_grow() -> None:
    found, stock = metric(StreamingIoUMetric), metric(IoUMetric)
    sizes = []
    for i in range(40):
        found.process(None, [sample(i)])
        stock.process(None, [sample(i)])
        sizes.append(len(pickle.dumps(vars(found))))
    assert sizes[1] == sizes[-1]
    assert len(pickle.dumps(vars(stock))) > 10 * sizes[-1]


def test_process_does_not_synchronize() -> None:
    samples = [sample(i) for i in range(4)]
    found = metric(StreamingIoUMetric)
    with SyncCensus() as census:
        found.process(None, samples)
    assert census.waits == []
    with SyncCensus() as census:
        metric(IoUMetric).process(None, samples)
    assert len(census.waits) >= 4 * 4


def test_sums_are_exact() -> None:
    samples = [sample(i, (1500, 1501)) for i in range(12)]
    totals: dict[type, Any] = {}
    for cls in (StreamingIoUMetric, IoUMetric):
        found = metric(cls)

        def keep(*args: Any, cls: type = cls) -> dict:
            totals[cls] = args[:4]
            return IoUMetric.total_area_to_metrics(*args)

        found.total_area_to_metrics = keep
        for one in samples:
            found.process(None, [one])
        found.evaluate(len(samples))
    exact = np.zeros((4, len(CLASSES)), dtype=np.int64)
    for one in samples:
        pred, label = (one[key]['data'].numpy() for key in ('pred_sem_seg', 'gt_sem_seg'))
        for c in range(len(CLASSES)):
            p, t = (pred == c) & (label != 255), label == c
            exact[:, c] += (p & t).sum(), (p | t).sum(), p.sum(), t.sum()
    assert exact.max() > 1 << 23
    assert (torch.stack(totals[StreamingIoUMetric]).numpy() == exact).all()
    stock = torch.stack(totals[IoUMetric]).double().numpy()
    print('largest error of stock in pixels:', np.abs(stock - exact).max())


def test_sums_beyond_float32_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixel counts are made up: real images of that size would take minutes."""
    area = 5_000_001

    def areas(*args: Any) -> tuple:
        return tuple(torch.full((4,), area) for _ in range(4))

    monkeypatch.setattr(StreamingIoUMetric, 'intersect_and_union', staticmethod(areas))
    found, totals = metric(StreamingIoUMetric), []

    def keep(*args: Any) -> dict:
        totals.append(args[0])
        return IoUMetric.total_area_to_metrics(*args)

    found.total_area_to_metrics = keep
    for _ in range(1000):
        found.process(None, [sample(0)])
    found.evaluate(1000)
    assert totals[0].tolist() == [1000 * area] * 4
    rounded = sum(torch.full((4,), area).float() for _ in range(1000))
    assert abs(rounded[0].item() - 1000 * area) > 1000  # as in stock


@pytest.mark.parametrize('format_only', [False, True])
def test_files_equal_those_of_stock(tmp_path: Path, format_only: bool) -> None:
    samples = [sample(i) for i in range(3)]
    found = []
    for cls in (StreamingIoUMetric, IoUMetric):
        folder = tmp_path / cls.__name__
        metrics = run(cls, samples, output_dir=str(folder), format_only=format_only)
        files = {path.name: np.asarray(Image.open(path)) for path in folder.iterdir()}
        found.append((metrics, files))
    (ours, our_files), (stock, stock_files) = found
    assert_equal(ours, stock)
    assert bool(ours) != format_only
    assert set(our_files) == set(stock_files) == {f'image_{i}.png' for i in range(3)}
    for name, pixels in stock_files.items():
        np.testing.assert_array_equal(our_files[name], pixels)


def test_second_evaluation_starts_from_zero() -> None:
    found = metric(StreamingIoUMetric)
    for numbers in (range(3), range(5, 7)):
        samples = [sample(i) for i in numbers]
        found.process(None, samples)
        assert_equal(found.evaluate(len(samples)), run(IoUMetric, samples))


def test_evaluation_without_images_fails_as_in_stock() -> None:
    with pytest.raises(AssertionError):
        metric(StreamingIoUMetric).evaluate(3)


def in_turn(count: int, ranks: int, padded: bool) -> list[list[int]]:
    """Return the images of each process, as `DefaultSampler` distributes them."""
    total = -(-count // ranks) * ranks if padded else count
    numbers = list(itertools.islice(itertools.cycle(range(count)), total))
    return [numbers[rank::ranks] for rank in range(ranks)]


@pytest.mark.parametrize('padded', [True, False])
@pytest.mark.parametrize(('count', 'ranks'), [(7, 3), (8, 3), (6, 3), (1, 4), (2, 4), (5, 1)])
def test_surplus_images_are_excluded(count: int, ranks: int, padded: bool) -> None:
    parts = []
    for numbers in in_turn(count, ranks, padded):
        found = metric(StreamingIoUMetric)
        found.process(None, [sample(i) for i in numbers])
        collected = SimpleNamespace(parts=[])
        found.compute_metrics = lambda results, keep=collected: keep.parts.extend(results) or {}
        if numbers:
            found.evaluate(count)
        parts += collected.parts or [(0, None, None)]
    whole = metric(StreamingIoUMetric)
    whole._size = count
    assert_equal(whole.compute_metrics(parts), run(IoUMetric, [sample(i) for i in range(count)]))


def test_surplus_that_cannot_be_excluded_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    logger = MMLogger.get_current_instance()
    logger.addHandler(caplog.handler)
    samples = [sample(i) for i in range(5)]
    ours = run(StreamingIoUMetric, samples, size=4)
    assert_equal(ours, run(IoUMetric, samples, size=4))
    assert 'surplus' not in caplog.text
    run(StreamingIoUMetric, samples, size=2)
    logger.removeHandler(caplog.handler)
    message = '5 images were evaluated, but the dataset has 2; 2 surplus images are counted'
    assert message in caplog.text


def in_group(pipe: Any, rank: int, folder: str) -> None:
    os.chdir(folder)  # the processes exchange results in files there
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/group', rank=rank, world_size=2
    )
    found = []
    for count, padded, device in ((5, True, 'cpu'), (5, False, 'gpu'), (1, True, 'gpu')):
        samples = [sample(i) for i in in_turn(count, 2, padded)[rank]]
        kwargs = dict(size=count, collect_device=device, iou_metrics=ALL)
        found.append((count, run(StreamingIoUMetric, samples, **kwargs)))
    # One of the processes has no images.
    kwargs = dict(size=1, iou_metrics=ALL)
    found.append((1, run(StreamingIoUMetric, [sample(0)] if rank == 0 else [], **kwargs)))
    pipe.send(found)
    torch.distributed.barrier()
    os._exit(0)  # threads of the group sometimes never end


@pytest.mark.timeout(180)
def test_two_processes_have_the_values_of_one(tmp_path: Path) -> None:
    pipes = [SPAWN.Pipe() for _ in range(2)]
    processes = [
        SPAWN.Process(target=in_group, args=(there, rank, str(tmp_path)))
        for rank, (_, there) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for here, _ in pipes:
        assert here.poll(150)
        found = here.recv()
        assert len(found) == 4
        for count, ours in found:
            samples = [sample(i) for i in range(count)]
            assert_equal(ours, run(IoUMetric, samples, iou_metrics=ALL))
    for process in processes:
        process.join()
        assert process.exitcode == 0
