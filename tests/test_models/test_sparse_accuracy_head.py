"""Heads and their losses equal those of stock, without synchronization for the accuracy."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope, Registry
from mmengine.structures import PixelData
from mmseg.models.decode_heads import DAHead, FCNHead, PSPHead
from mmseg.models.losses import accuracy
from mmseg.registry import MODELS as MMSEG_MODELS
from mmseg.structures import SegDataSample

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.models.sparse_accuracy_head import sparse_accuracy, why_not_sparse

SMALL: dict[str, Any] = dict(in_channels=8, channels=4, num_classes=5, norm_cfg=dict(type='BN'))


@pytest.fixture(autouse=True)
def _scope() -> Any:
    with DefaultScope.overwrite_default_scope('mmseg'):
        yield


def both(kind: str, **arguments: Any) -> tuple[Any, Any]:
    """Build stock's head and ours with equal parameters."""
    cfg = {**SMALL, **arguments}
    stock = MMSEG_MODELS.build(dict(type=kind, **copy.deepcopy(cfg)))
    ours = MMSEG_MODELS.build(dict(type='SparseAccuracyHead', head=kind, **copy.deepcopy(cfg)))
    ours.load_state_dict(stock.state_dict(), strict=True)
    return stock, ours


def samples(ignored: float = 0.3, classes: int = 5, ignore_index: int = 255) -> list[SegDataSample]:
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(2):
        labels = torch.randint(0, classes, (1, 16, 12), generator=generator)
        labels[torch.rand(labels.shape, generator=generator) < ignored] = ignore_index
        found.append(SegDataSample(gt_sem_seg=PixelData(data=labels)))
    return found


def losses(head: Any, batch: list[SegDataSample]) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    inputs = [torch.randn(2, 8, 6, 5, generator=torch.Generator().manual_seed(2))] * 4
    return head.loss(inputs, batch, None)


TWO_LOSSES = [
    dict(type='CrossEntropyLoss', loss_name='loss_ce'),
    dict(type='CrossEntropyLoss', loss_name='loss_ce', loss_weight=0.5),
    dict(type='DiceLoss', loss_name='loss_dice'),
]


@pytest.mark.parametrize(
    ('kind', 'arguments'),
    [
        ('PSPHead', {}),
        ('FCNHead', dict(loss_decode=TWO_LOSSES, align_corners=True)),
        ('FCNHead', dict(sampler=dict(type='OHEMPixelSampler', thresh=0.2, min_kept=20))),
        ('FCNHead', dict(ignore_index=3)),
        ('FCNHead', dict(num_classes=2, out_channels=1, threshold=0.3, ignore_index=1)),
        ('DAHead', dict(pam_channels=4)),
        ('EncHead', dict(in_channels=[8, 8, 8, 8], in_index=(0, 1, 2, 3), num_codes=4)),
        ('SegformerHead', dict(in_channels=[8, 8], in_index=[0, 1])),
    ],
)
@pytest.mark.parametrize('ignored', [0.0, 0.3, 1.0])
def test_losses_and_gradients_equal_those_of_stock(
    kind: str, arguments: dict, ignored: float
) -> None:
    classes, ignore_index = arguments.get('num_classes', 5), arguments.get('ignore_index', 255)
    batch = samples(ignored, classes, ignore_index)
    stock, ours = both(kind, **arguments)
    expected, found = losses(stock, batch), losses(ours, batch)
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=0, equal_nan=True, msg=name)
    if ignored == 1:
        return  # no gradients, and NaN in some losses
    for part in (expected, found):
        sum(value for name, value in part.items() if 'loss' in name).backward()
    for (name, one), (_, other) in zip(stock.named_parameters(), ours.named_parameters()):
        assert torch.equal(one.grad, other.grad), name


@pytest.mark.parametrize('topk', [1, 3, (1,), (1, 2, 5)])
@pytest.mark.parametrize('ignore_index', [None, 255])
@pytest.mark.parametrize('shape', [(4, 5), (2, 5, 16, 12), (0, 5, 4, 4)])
def test_accuracy_equals_that_of_stock(topk: Any, ignore_index: int | None, shape: tuple) -> None:
    torch.manual_seed(0)
    pred = torch.randn(shape, requires_grad=True)
    target = torch.randint(0, 5, (shape[0], *shape[2:]))
    target[torch.rand(target.shape) < 0.3] = 255
    found = sparse_accuracy(pred, target, topk, ignore_index)
    torch.testing.assert_close(
        found, accuracy(pred, target, topk, ignore_index=ignore_index), rtol=1e-6, atol=0
    )


def test_losses_do_not_synchronize() -> None:
    for head, waits in zip(both('PSPHead'), (2, 0)):
        batch = samples()
        with SyncCensus() as census:
            losses(head, batch)
        assert len(census.waits) == waits


def test_head_is_an_instance_of_its_original_class() -> None:
    stock, ours = both('PSPHead')
    assert type(stock) is PSPHead
    assert isinstance(ours, PSPHead)
    assert list(ours.state_dict()) == list(stock.state_dict())
    assert type(ours).__name__ == type(ours).__qualname__ == 'SparseAccuracyPSPHead'
    assert type(ours) is type(both('PSPHead')[1])
    assert type(ours) is not type(both('FCNHead')[1])
    assert isinstance(both('DAHead', pam_channels=4)[1], DAHead)
    assert type(copy.deepcopy(ours)) is type(ours)


@pytest.mark.parametrize('scope', ['mmseg', 'mmengine'])
@pytest.mark.parametrize('head', ['FCNHead', 'mmseg.FCNHead', FCNHead])
@pytest.mark.parametrize('registry', [MODELS, MMSEG_MODELS])
def test_head_is_found_in_each_scope_and_registry(scope: str, head: Any, registry: Any) -> None:
    cfg = dict(type='SparseAccuracyHead', head=head, **SMALL)
    cfg['loss_decode'] = dict(type='mmseg.CrossEntropyLoss')
    with DefaultScope.overwrite_default_scope(scope):
        built = registry.build(cfg)
    assert isinstance(built, FCNHead)


def test_head_of_another_scope_is_found() -> None:
    theirs = Registry('model', parent=MODELS, scope='theirs')

    @theirs.register_module(name='PSPHead')
    class TheirHead(FCNHead):
        pass

    cfg = dict(type='SparseAccuracyHead', head='PSPHead', **SMALL)
    cfg['loss_decode'] = dict(type='mmseg.CrossEntropyLoss')
    with DefaultScope.overwrite_default_scope('theirs'):
        built = MODELS.build(cfg)
    del MODELS.children['theirs']
    assert isinstance(built, TheirHead)


@MMSEG_MODELS.register_module()
class LateAccuracyHead(FCNHead):
    """Overrides `loss_by_feat`, for a subclass to inherit."""

    def loss_by_feat(self, seg_logits: Any, batch_data_samples: Any) -> dict:
        return dict(loss=seg_logits.mean())


@MMSEG_MODELS.register_module()
class LatestAccuracyHead(LateAccuracyHead):
    pass


@pytest.mark.parametrize(
    ('head', 'message'),
    [
        (
            'DDRHead',
            r"head='DDRHead' overrides loss_by_feat \(in DDRHead\); use it as type=",
        ),
        ('PIDHead', 'overrides loss_by_feat'),
        ('PointHead', 'overrides loss_by_feat'),
        ('IterativeDecodeHead', 'overrides loss_by_feat'),
        ('LatestAccuracyHead', r'overrides loss_by_feat \(in LateAccuracyHead\)'),
        ('Mask2FormerHead', "not one of mmseg's decode heads"),
        ('CrossEntropyLoss', "not one of mmseg's decode heads"),
        ('SparseAccuracyHead', "not one of mmseg's decode heads"),
    ],
)
def test_unsupported_head_is_refused_with_a_reason(head: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MODELS.build(dict(type='SparseAccuracyHead', head=head, **SMALL))


def test_unknown_head_is_named() -> None:
    with pytest.raises(KeyError, match="head='NoHead' is in no registry"):
        MODELS.build(dict(type='SparseAccuracyHead', head='NoHead', **SMALL))


def test_adapted_head_is_not_adapted_again() -> None:
    ours = type(both('PSPHead')[1])
    assert why_not_sparse(ours) == 'counts its accuracy without synchronization already'
    assert why_not_sparse(PSPHead) is None


def test_pickled_and_copied_heads_are_equal() -> None:
    _, head = both('PSPHead')
    again = pickle.loads(pickle.dumps(head))
    assert type(again) is type(head)
    assert list(again.state_dict()) == list(head.state_dict())
    for name, values in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], values), name
    copied = copy.deepcopy(head)
    assert type(copied) is type(head)
    assert copied.conv_seg.weight is not head.conv_seg.weight
    for name, value in losses(head.eval(), samples()).items():
        assert torch.equal(losses(again.eval(), samples())[name], value), name
