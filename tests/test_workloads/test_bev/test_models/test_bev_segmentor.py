"""The parts work together, and `legacy` is passed to all of them."""

from __future__ import annotations

import copy

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, DefaultScope

from mmtempo.doctor.sync_census import SyncCensus


def build(cfg: Config, **changes: object) -> torch.nn.Module:
    with DefaultScope.overwrite_default_scope('mmseg'):
        return MODELS.build(dict(copy.deepcopy(cfg.model), **changes))


def batch(cfg: Config) -> dict:
    with DefaultScope.overwrite_default_scope('mmseg'):
        dataset = DATASETS.build(cfg.train_dataloader.dataset)
    return pseudo_collate([dataset[0], dataset[1]])


def test_all_modes_run(tiny_cfg: Config) -> None:
    model, data = build(tiny_cfg), batch(tiny_cfg)
    # With the initial zero weights, all predictions are equal.
    torch.nn.init.normal_(model.decode_head.classify.weight)
    losses = model(**model.data_preprocessor(data, True), mode='loss')
    assert set(losses) == {'loss_occupancy', 'loss_prior'}
    model.eval()
    with torch.no_grad():
        logits = model(**model.data_preprocessor(data), mode='tensor')
        samples = model.test_step(data)
    assert logits.shape == (2, 14, 196, 200)
    assert torch.equal(samples[1].pred_logits, logits[1])
    assert not torch.equal(logits[0], logits[1])
    assert samples[1].gt_occupancy.shape == (14, 196, 200)
    with pytest.raises(ValueError, match="mode must be .* found 'eval'"):
        model({}, None, mode='eval')


def test_labels_are_needed_for_the_loss_only(tiny_cfg: Config) -> None:
    model, data = build(tiny_cfg), batch(tiny_cfg)
    for sample in data['data_samples']:
        del sample.gt_bev
    assert 'gt_occupancy' not in model.test_step(data)[0]
    with pytest.raises(ValueError, match='put LoadBEVAnnotation before'):
        model(**model.data_preprocessor(data, True), mode='loss')


def test_legacy_is_passed_to_all_parts(tiny_cfg: Config) -> None:
    model = build(tiny_cfg, legacy=True)
    view = model.view_transform
    assert [view.unit_bins, view.frustum.truncate_cells, view.frustum.linspace_pixels] == [True] * 3
    assert model.decode_head.loss_module.legacy
    assert model.data_preprocessor.legacy_size == (800, 600)
    losses = model(**model.data_preprocessor(batch(tiny_cfg), True), mode='loss')
    assert all(torch.isfinite(loss) for loss in losses.values())
    model = build(tiny_cfg)
    assert not model.view_transform.unit_bins
    assert not model.decode_head.loss_module.legacy
    assert model.data_preprocessor.legacy_size is None


def test_flag_of_a_part_takes_precedence_over_legacy(tiny_cfg: Config) -> None:
    view = dict(tiny_cfg.model.view_transform, legacy=False)
    model = build(tiny_cfg, legacy=True, view_transform=view)
    assert not model.view_transform.unit_bins
    assert model.decode_head.loss_module.legacy


def test_copy_uses_the_view_transform_of_the_copy(tiny_cfg: Config) -> None:
    """Averaged models are copies, and may be on another device."""
    model = build(tiny_cfg)
    other = copy.deepcopy(model)
    assert model.data_preprocessor.prepare_geometry.__self__ is model.view_transform
    assert other.data_preprocessor.prepare_geometry.__self__ is other.view_transform
    other.data_preprocessor(batch(tiny_cfg))
    assert len(other.view_transform.cache) > 0
    assert len(model.view_transform.cache) == 0


@pytest.mark.parametrize('splat', ['bag', 'cumsum'])
def test_losses_do_not_depend_on_the_splat(tiny_cfg: Config, splat: str) -> None:
    data = batch(tiny_cfg)
    losses = {}
    for name in ('auto', splat):
        torch.manual_seed(0)
        model = build(tiny_cfg, view_transform=dict(tiny_cfg.model.view_transform, splat=name))
        torch.nn.init.normal_(model.decode_head.classify.weight, std=0.1)
        losses[name] = model(**model.data_preprocessor(data, True), mode='loss')
    for key, value in losses['auto'].items():
        torch.testing.assert_close(losses[splat][key], value, atol=1e-5, rtol=1e-4)


def test_forward_and_backward_have_no_synchronization(tiny_cfg: Config) -> None:
    model, data = build(tiny_cfg), batch(tiny_cfg)
    with SyncCensus() as counter:
        losses = model(**model.data_preprocessor(data, True), mode='loss')
        sum(losses.values()).backward()
    assert counter.waits == []
