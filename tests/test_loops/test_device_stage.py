"""What a model's step gets is what it would have got without staging; all others see the batch."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from mmengine.model import BaseDataPreprocessor, BaseModel, BaseTTAModel
from mmengine.registry import MODEL_WRAPPERS
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from mmseg.models.data_preprocessor import SegDataPreProcessor
from mmseg.structures import SegDataSample

from mmtempo.device.prepared_batch import PreparedBatch, take_prepared
from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.loops.device_stage import BatchStage, move, stage_for
from mmtempo.models.sparse_seg_data_preprocessor import SparseSegDataPreProcessor
from mmtempo.workloads.bev.models.bev_data_preprocessor import BEVDataPreprocessor
from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample
from mmtempo.workloads.bev.structures.calibration import Calibration
from mmtempo.workloads.bev.structures.labels import pack_label

COLOURS: dict[str, Any] = dict(
    mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True
)
META = torch.device('meta')


def images() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    size = (3, 12, 16)
    return [torch.randint(0, 256, size, dtype=torch.uint8, generator=generator) for _ in range(2)]


def seg_batch() -> dict:
    generator = torch.Generator().manual_seed(1)
    samples = []
    for _ in range(2):
        sample = SegDataSample(metainfo=dict(ori_shape=(12, 16)))
        labels = torch.randint(0, 19, (1, 12, 16), generator=generator)
        sample.gt_sem_seg = PixelData(data=labels)
        samples.append(sample)
    return dict(inputs=images(), data_samples=samples)


def bev_batch() -> dict:
    rng = np.random.default_rng(0)
    samples = []
    for i in range(2):
        calibration = Calibration.native(np.diag([100.0 + i, 90.0, 1.0]), (1600, 900))
        sample = BEVDataSample(metainfo=dict(calibration=calibration))
        label = pack_label(rng.random((14, 6, 7)) < 0.3, rng.random((6, 7)) < 0.3)
        sample.gt_bev = torch.from_numpy(label.view(np.int16))
        samples.append(sample)
    return dict(inputs=images(), data_samples=samples)


def plain(data: Any) -> Any:
    """Down to what compares."""
    if isinstance(data, BaseDataElement):
        fields = {key: plain(value) for key, value in data.items()}
        meta = {key: value for key, value in data.metainfo.items() if key != 'calibration'}
        return type(data), meta, fields
    if isinstance(data, torch.Tensor):
        return data.dtype, tuple(data.shape), str(data.device), data.tolist()
    if isinstance(data, dict):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data), list(map(plain, data))
    if isinstance(data, np.ndarray):
        return data.tolist()
    return data


def bev() -> BEVDataPreprocessor:
    preprocessor = BEVDataPreprocessor()
    preprocessor.prepare_geometry = lambda *seen: seen
    return preprocessor


def sparse_seg(**options: Any) -> SparseSegDataPreProcessor:
    return SparseSegDataPreProcessor(size=(16, 20), **COLOURS, **options)


def seg() -> SegDataPreProcessor:
    return SegDataPreProcessor(size=(16, 20), **COLOURS)


ALL = [
    (bev, bev_batch),
    (sparse_seg, seg_batch),
    (seg, seg_batch),
    (BaseDataPreprocessor, seg_batch),
]


@pytest.mark.parametrize('amp', [False, True])
@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize(('make', 'batch'), ALL)
def test_the_step_gets_what_it_would_have_got(
    make: Any, batch: Any, training: bool, amp: bool
) -> None:
    preprocessor = make()
    with torch.autocast('cpu', torch.bfloat16, enabled=amp):
        expected = plain(make()(batch(), training))
    data = batch()
    staged = BatchStage(preprocessor, training)(data)  # outside of autocast
    assert plain(dict(staged)) == plain(batch())
    assert all(staged[key] is data[key] for key in data)
    with torch.autocast('cpu', torch.bfloat16, enabled=amp):
        assert plain(preprocessor(staged, training=training)) == expected
    assert plain(dict(staged)) == plain(batch())


@pytest.mark.parametrize(('make', 'batch'), ALL[:2])
def test_our_preprocessors_are_done_ahead(
    make: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocessor = make()
    staged = BatchStage(preprocessor, True)(batch())
    monkeypatch.setattr(preprocessor, 'prepare_ahead', None)  # it cannot be called any more
    preprocessor(staged, True)
    assert not preprocessor._forward_pre_hooks


@pytest.mark.parametrize(('make', 'batch'), ALL)
def test_staging_does_not_wait(make: Any, batch: Any) -> None:
    stage, data = BatchStage(make(), True), batch()
    with SyncCensus() as census:
        census.mark_on_host(data['inputs'])
        for sample in data['data_samples']:
            census.mark_on_host(sample)
        stage(data)
    assert census.table() == []


class Seeing(BaseDataPreprocessor):
    """Notes where its input is."""

    def forward(self, data: Any, training: bool = False) -> Any:
        self.saw = type(data), data['inputs'][0].device, data['data_samples'][0].gt_sem_seg.data
        return self.cast_data(data)


def test_others_are_given_what_was_moved() -> None:
    preprocessor = Seeing().to('meta')
    staged = BatchStage(preprocessor, True)(seg_batch())
    assert staged['inputs'][0].device.type == 'cpu'
    preprocessor(staged, True)
    assert preprocessor.saw[:2] == (dict, META)
    assert preprocessor.saw[2].device == META
    assert staged['inputs'][0].device.type == 'cpu'
    preprocessor(staged, True)  # once more, from the batch itself
    assert preprocessor.saw[1].type == 'cpu'
    preprocessor(seg_batch(), True)
    assert preprocessor.saw[1].type == 'cpu'


def test_others_get_one_hook_however_many_stages_there_are() -> None:
    preprocessor = seg()
    for training in (True, False, True):
        BatchStage(preprocessor, training)
    assert len(preprocessor._forward_pre_hooks) == 1
    again = copy.deepcopy(preprocessor)  # as for an average of the model
    assert plain(again(BatchStage(again, True)(seg_batch()), True)) == plain(
        seg()(seg_batch(), True)
    )
    pickle.dumps(preprocessor)


@pytest.mark.parametrize(('make', 'batch'), ALL)
def test_what_was_prepared_is_for_one_use_of_this_batch(make: Any, batch: Any) -> None:
    preprocessor = make()
    stage = BatchStage(preprocessor, True)

    def equals(staged: Any, given: dict, training: bool = True) -> bool:
        return plain(preprocessor(staged, training)) == plain(make()(given, training))

    staged = stage(batch())
    assert equals(staged, batch())
    assert equals(staged, batch())  # a second time
    assert equals(stage(batch()), batch(), training=False)
    other = [image.flip(-1) for image in images()]
    staged = stage(batch())
    staged['inputs'] = other  # as a hook might
    assert equals(staged, batch() | dict(inputs=other))
    staged = stage(batch())
    staged['more'] = 1
    assert equals(staged, batch() | dict(more=1))
    staged = stage(batch() | dict(more=1))
    del staged['more']
    assert equals(staged, batch())


def test_copies_are_plain_batches() -> None:
    staged = BatchStage(sparse_seg(), True)(seg_batch())
    for twin in (copy.copy(staged), copy.deepcopy(staged), pickle.loads(pickle.dumps(staged))):
        assert type(twin) is dict
        assert plain(twin) == plain(seg_batch())
    assert take_prepared(staged, True) is not None
    assert take_prepared(seg_batch(), True) is None


class Brighter(SparseSegDataPreProcessor):
    """What a subclass does itself is done once, and at its turn."""

    def forward(self, data: dict, training: bool = False) -> dict:
        result = super().forward(data, training)
        result['inputs'] += 1
        return result


class Darker(SparseSegDataPreProcessor):
    def prepare_ahead(self, data: dict, training: bool) -> dict:
        result = super().prepare_ahead(data, training)
        result['inputs'] -= 1
        return result


@pytest.mark.parametrize(('kind', 'is_done_ahead'), [(Brighter, False), (Darker, True)])
def test_subclasses(kind: Any, is_done_ahead: bool) -> None:
    preprocessor = kind(size=(16, 20), **COLOURS)
    staged = BatchStage(preprocessor, True)(seg_batch())
    expected = kind(size=(16, 20), **COLOURS)(seg_batch(), True)
    assert plain(preprocessor(staged, True)) == plain(expected)
    assert bool(preprocessor._forward_pre_hooks) != is_done_ahead


def test_batch_augments_are_drawn_at_their_turn() -> None:
    drawn = []

    def augment(inputs: torch.Tensor, samples: list) -> tuple[torch.Tensor, list]:
        drawn.append(len(samples))
        return inputs * 2, samples

    preprocessor = sparse_seg(batch_augments=augment)
    stage = BatchStage(preprocessor, True)
    staged = stage(seg_batch())
    assert drawn == []
    result = preprocessor(staged, True)
    assert drawn == [2]
    assert torch.equal(result['inputs'], sparse_seg()(seg_batch(), True)['inputs'] * 2)


def test_forward_hooks_run_once_at_their_turn() -> None:
    preprocessor, ran = sparse_seg(), []
    preprocessor.register_forward_hook(lambda *_: ran.append('hook'))
    staged = BatchStage(preprocessor, True)(seg_batch())
    assert ran == []
    preprocessor(staged, True)
    assert ran == ['hook']


class Pair(NamedTuple):
    image: torch.Tensor
    name: str


@pytest.mark.parametrize('device', ['cpu', 'meta'])
def test_moves_as_mmengine_does(device: str) -> None:
    boxes = InstanceData(metainfo=dict(shape=(3, 4)), bboxes=torch.ones(2, 4), names=['a', 'b'])
    sample = BaseDataElement(metainfo=dict(id=1), boxes=boxes, number=3, x=torch.ones(1))
    data = dict(
        inputs=images(),
        data_samples=[sample, *seg_batch()['data_samples']],
        pair=Pair(torch.ones(2), 'a'),
        nested=dict(t=(torch.ones(1), None, b'b', 'c', 1.5, np.ones(2)), empty=[]),
    )
    moved = move(data, torch.device(device))
    stock = BaseDataPreprocessor().to(device).cast_data(data)

    def shapes(value: Any) -> Any:
        if isinstance(value, BaseDataElement):
            return type(value), value.metainfo, shapes(dict(value.items()))
        if isinstance(value, torch.Tensor):
            return value.dtype, value.shape, value.device
        if isinstance(value, dict):
            return {key: shapes(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value), [shapes(item) for item in value]
        return str(value)

    assert shapes(moved) == shapes(stock)
    if device == 'cpu':
        assert plain(moved) == plain(stock)


class OnGPU(BaseDataPreprocessor):
    @property
    def device(self) -> torch.device:
        return torch.device('cuda:1')


class Model(BaseModel):
    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'tensor') -> Any:
        return inputs


class Augmented(BaseTTAModel):
    def merge_preds(self, data_samples_list: Any) -> Any:
        return data_samples_list


class Wrapper(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


def test_where_there_is_something_to_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(data_preprocessor=OnGPU())
    stage = stage_for(model, training=True)
    assert stage is not None
    assert stage.device == torch.device('cuda:1')
    monkeypatch.setitem(MODEL_WRAPPERS.module_dict, 'Wrapper', Wrapper)
    assert stage_for(Wrapper(Wrapper(model)), training=False) is not None
    augmented = Augmented(model)
    augmented.data_preprocessor = OnGPU()
    assert stage_for(augmented, training=False) is None
    assert stage_for(torch.nn.Linear(1, 1), training=True) is None
    assert stage_for(Model(data_preprocessor=torch.nn.Identity()), training=True) is None
    for device in ('cpu', 'meta'):
        assert stage_for(Model().to(device), training=True) is None


def test_only_batches_that_are_dicts_are_staged() -> None:
    batch = [images()]
    for make in (seg, sparse_seg):
        assert BatchStage(make(), True)(batch) is batch


def test_test_time_augmentation_takes_staged_batches_apart() -> None:
    """They are dicts of lists, one item a variant."""
    variants = dict(inputs=[images(), images()], data_samples=[[1, 2], [3, 4]])
    model = Augmented(Model())
    staged = PreparedBatch(variants, None)
    assert plain(model.test_step(staged)) == plain(model.test_step(variants))
