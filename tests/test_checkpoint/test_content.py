"""Content of checkpoints, and the tensors that may be copied late."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmtempo.checkpoint import content
from mmtempo.checkpoint.content import changed_by_updates, checkpoint_of
from mmtempo.checkpoint.io.snapshot import Deferred
from tests.testing.checkpoints import KINDS, build, load, run


def trained(root: Path, model: str = 'ToyModel', ema: bool = False) -> Runner:
    def change(cfg: Config) -> None:
        cfg.model.type = model
        cfg.custom_hooks = [dict(type='EMAHook')] if ema else []
        cfg.optim_wrapper.optimizer = dict(type='AdamW', lr=0.01)
        cfg.param_scheduler = [dict(type='LinearLR', by_epoch=False, end=30)]

    return run(KINDS[0], root, change, interval=100, save_last=False)


def names_of(tensors: dict[str, torch.Tensor], addresses: set[int]) -> set[str]:
    return {name for name, tensor in tensors.items() if tensor.data_ptr() in addresses}


@pytest.mark.parametrize('ema', [False, True])
def test_tensors_that_only_an_update_changes(ema: bool, tmp_path: Path) -> None:
    runner = trained(tmp_path, 'MomentumEncoder', ema)
    late = changed_by_updates(runner)
    checkpoint = checkpoint_of(runner)
    key = 'ema_state_dict' if ema else 'state_dict'  # EMAHook exchanges them
    parameters = {name for name, p in runner.model.named_parameters() if p.requires_grad}
    assert len(parameters) == 6
    live = {name.removeprefix('module.'): value for name, value in checkpoint[key].items()}
    assert names_of(live, late) == parameters
    if ema:
        averages = names_of(checkpoint['state_dict'], late)
        assert averages == parameters | {'key'}  # only the hook changes these


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    run(KINDS[1], tmp_path, lambda cfg: cfg.model.update(type='Odd'), interval=12)
    state = load(tmp_path / 'work/iter_12.pth')['state_dict']
    one, other = state['net.0.weight'], state['tied.weight']
    assert one.data_ptr() == other.data_ptr()
    assert one.data_ptr() != state['net.0.bias'].data_ptr()
    assert state['conv.weight'].is_contiguous(memory_format=torch.channels_last)


def test_config_is_formatted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formatted = []

    def pretty_text(cfg: Config) -> str:
        formatted.append(1)
        return f'text {len(formatted)} of {cfg.train_cfg.max_iters}'

    runner = trained(tmp_path)
    monkeypatch.setattr(Config, 'pretty_text', property(pretty_text))
    monkeypatch.setattr(content, '_texts', {})
    texts = [checkpoint_of(runner)['meta']['cfg'] for _ in range(3)]
    runner.cfg.train_cfg.max_iters = 99
    texts.append(checkpoint_of(runner)['meta']['cfg'])
    assert texts == ['text 1 of 12'] * 3 + ['text 2 of 99']


@pytest.mark.parametrize(
    ('options', 'expected'),
    [
        (dict(), dict(epoch=1, iter=12)),
        (dict(by_epoch=False), dict(epoch=0, iter=13)),
        (dict(meta=dict(epoch=3, iter=4, mine=5)), dict(epoch=3, iter=4, mine=5)),
    ],
    ids=str,
)
def test_meta_contains_epoch_and_iteration(
    options: dict, expected: dict[str, Any], tmp_path: Path
) -> None:
    """`Runner.save_checkpoint` sets them also without the argument `meta`."""
    runner = trained(tmp_path)
    meta = checkpoint_of(runner, **options)['meta']
    assert {key: meta[key] for key in expected} == expected


def test_unknown_option_is_refused_as_in_stock(tmp_path: Path) -> None:
    """Stock passes unknown options to `Runner.save_checkpoint`, which refuses them."""
    for kind in KINDS:
        runner = build(kind, tmp_path / kind, interval=5, unheard_of=3)
        with pytest.raises(TypeError, match='unheard_of'):
            runner.train()


def parts_of(checkpoint: dict) -> dict[str, Any]:
    """Return parts of a checkpoint that are not tensors of the model."""
    return {
        'cfg': checkpoint['meta']['cfg'],
        'metadata': checkpoint['state_dict']._metadata,
        'history': checkpoint['message_hub']['log_scalars'],
        'schedulers': checkpoint['param_schedulers'],
        'optimizer': checkpoint['optimizer'],
    }


def plain(value: Any) -> str:
    """Return the text of a tree without addresses, since each history is a copy."""
    return re.sub(r' at 0x[0-9a-f]+', '', repr(value))


def test_hook_of_a_user_finds_all_parts_of_a_checkpoint(tmp_path: Path) -> None:
    found = []

    class Looks(Hook):
        def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
            found.append(parts_of(checkpoint))
            checkpoint.pop('optimizer')
            checkpoint.pop('message_hub')

    runner = trained(tmp_path)
    expected = parts_of(checkpoint_of(runner))
    for name in ('history', 'optimizer'):
        assert type(expected[name]) is Deferred
        expected[name] = expected[name].make()
    runner.register_hook(Looks())
    checkpoint = checkpoint_of(runner)
    assert plain(found) == plain([expected])
    assert not {'optimizer', 'message_hub'} & checkpoint.keys()


def test_state_of_the_optimizer_is_that_of_user_code(tmp_path: Path) -> None:
    runner = trained(tmp_path)

    class Scaled(type(runner.optim_wrapper)):  # type: ignore[misc]
        def state_dict(self) -> dict:
            return dict(super().state_dict(), loss_scaler=dict(scale=2.0))

    runner.optim_wrapper.__class__ = Scaled
    assert checkpoint_of(runner)['optimizer'].make()['loss_scaler'] == dict(scale=2.0)
