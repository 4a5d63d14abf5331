"""The summary names files, commands and skipped samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.runner import Runner

from tests.testing.common import MINI


def log_text(cfg: Config) -> str:
    (log,) = Path(cfg.work_dir).rglob('*.log')
    return log.read_text()


def test_names_checkpoint_and_logs(tiny_cfg: Config) -> None:
    Runner.from_cfg(tiny_cfg).train()
    text = log_text(tiny_cfg)
    assert '4 iterations in' in text
    summary = text[text.index('Training has ended.') :]
    work = tiny_cfg.work_dir
    checkpoint = f'{work}/iter_4.pth'
    assert f'checkpoint  {checkpoint}' in summary
    assert f'test it     python tools/test.py {work}/{MINI.name} {checkpoint}' in summary
    assert Path(checkpoint).is_file()
    assert 'skipped' not in text


def test_lists_skipped_samples(tiny_cfg: Config, own_bev_root: Path) -> None:
    for index in (1, 4):
        path = own_bev_root / f'img_dir/train/train_{index:06d}.jpg'
        path.write_bytes(path.read_bytes()[:500])
    for split in ('train', 'val'):
        dataset = tiny_cfg[f'{split}_dataloader'].dataset
        dataset.data_root, dataset.on_bad_sample = str(own_bev_root), 'skip'
    tiny_cfg.train_dataloader.update(num_workers=2, persistent_workers=True)
    tiny_cfg.custom_hooks = [dict(type='RunSummaryHook', show=1)]
    Runner.from_cfg(tiny_cfg).train()
    text = log_text(tiny_cfg)
    assert '2 bad samples of train skipped' in text
    assert 'train_000001.jpg' in text
    assert '... and 1 more' in text
    assert 'bad samples of val' not in text


@pytest.mark.parametrize('wrapper', ['RepeatDataset', 'ConcatDataset'])
def test_lists_skipped_samples_of_wrapped_datasets_after_a_test(
    tiny_cfg: Config, own_bev_root: Path, wrapper: str
) -> None:
    path = own_bev_root / 'img_dir/val/val_000002.jpg'
    path.write_bytes(b'')
    dataset = dict(tiny_cfg.test_dataloader.dataset)
    dataset.update(data_root=str(own_bev_root), on_bad_sample='skip')
    inner = (
        dict(dataset=dataset, times=1) if wrapper == 'RepeatDataset' else dict(datasets=[dataset])
    )
    tiny_cfg.test_dataloader.dataset = dict(type=wrapper, **inner)
    Runner.from_cfg(tiny_cfg).test()
    assert '1 bad sample of test skipped' in log_text(tiny_cfg)
    assert 'val_000002.jpg' in log_text(tiny_cfg)


def test_works_without_checkpoints(tiny_cfg: Config) -> None:
    tiny_cfg.default_hooks.checkpoint = None
    Runner.from_cfg(tiny_cfg).train()
    text = log_text(tiny_cfg)
    assert 'Training has ended.' in text
    assert 'checkpoint  ' not in text[text.index('Training has ended.') :]
