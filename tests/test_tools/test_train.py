"""`tools/train.py` and `tools/test.py` in real processes, with real files and signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import mmseg
import pytest
import torch
from mmengine.runner.checkpoint import get_external_models

from tests.testing.common import MINI, ROOT
from tests.testing.mmseg_configs import make_cityscapes
from tests.testing.tool_commands import command, run, scores, tiny
from tests.testing.two_ranks import free_port


def test_training_resumes_and_is_tested(bev_root: str, tmp_path: Path) -> None:
    work = tmp_path / 'work'
    text = run('train.py', MINI, '--work-dir', work, options=tiny(bev_root, work))
    assert 'drivable_area' in text
    assert 'Training has ended.' in text

    for flag in (['--resume'], ['--resume', work / 'iter_2.pth']):
        again = tmp_path / f'resumed{len(flag)}'
        again.mkdir()
        (again / 'last_checkpoint').write_text(str(work / 'iter_4.pth'))
        text = run('train.py', MINI, '--work-dir', again, *flag, options=tiny(bev_root, again, 6))
        start = 4 if len(flag) == 1 else 2
        assert f'resumed epoch: 0, iter: {start}' in text
        assert f'Iter(train) [{start}/6]' not in text
        assert (again / 'iter_6.pth').is_file()

    pictures = tmp_path / 'pictures'
    text = run(
        'test.py', MINI, work / 'iter_4.pth', '--work-dir', work, '--show-dir', pictures,
        options=tiny(bev_root, work),
    )  # fmt: skip
    assert re.search(r'Iter\(test\) .*mIoU: 0\.\d+', text)
    assert len(list(pictures.glob('*.png'))) == 4


@pytest.mark.parametrize(
    ('words', 'options', 'message'),
    [
        (['configs/lss_swin/nope.py'], {}, 'no such file'),
        ([MINI], {'model.backbone.type': 'SwinTransformr'}, 'SwinTransformr is not in the'),
        ([MINI], {'train_dataloader.dataset.data_root': '/no/data'}, 'make_synthetic_bev.py /no/d'),
        ([MINI, '--amp'], {'optim_wrapper.type': 'AmpOptimWrapper'}, 'train.py --zero-wait, or'),
        ([MINI, '--resume', '{other}'], {}, 'is of another model'),
    ],
)
def test_common_mistake_is_a_message_without_traceback(
    bev_root: str, tmp_path: Path, words: list, options: dict, message: str
) -> None:
    torch.save(dict(state_dict={'conv.weight': torch.zeros(1)}, meta={}), tmp_path / 'other.pth')
    words = [str(w).format(other=tmp_path / 'other.pth') for w in words]
    work = tmp_path / 'work'
    options = tiny(bev_root, work) | options
    text = run('train.py', *words, '--work-dir', work, options=options, code=2, cwd=ROOT)
    assert message in text
    assert 'train.py: error: ' in text
    assert 'Traceback' not in text
    assert not work.exists()


def test_interrupt_ends_without_a_traceback(bev_root: str, tmp_path: Path) -> None:
    options = tiny(bev_root, tmp_path, 500) | {'train_dataloader.num_workers': 1}
    process = subprocess.Popen(
        command('train.py', MINI, '--work-dir', tmp_path / 'work', options=options),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env=os.environ | {'PYTHONUNBUFFERED': '1'},
        # Tests that a shell runs in the background ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if 'Iter(train) [  3/500]' in line:
            os.killpg(process.pid, signal.SIGINT)  # to every process, as a terminal does
            break
    rest = process.stdout.read()
    assert process.wait() == 130
    assert 'train.py: interrupted' in rest
    assert 'Traceback' not in rest
    assert 'iter_2.pth' in rest
    assert '--resume' in rest


def test_error_names_an_unreadable_image(own_bev_root: Path, tmp_path: Path) -> None:
    path = own_bev_root / 'img_dir/train/train_000003.jpg'
    path.write_bytes(path.read_bytes()[:300])
    options = tiny(str(own_bev_root), tmp_path) | {'train_dataloader.num_workers': 1}
    text = run('train.py', MINI, '--work-dir', tmp_path / 'work', options=options, code=1)
    assert 'train.py: stopped: ' in text
    reason, advice, resume_hint = text.splitlines()[-3:]
    assert f'image {path}: truncated after 300 bytes' in reason
    assert 'on_bad_sample=skip; newest checkpoint: ' in advice
    assert '--resume' in resume_hint
    assert 'Traceback' not in text


def flags(text: str) -> set[str]:
    """Return the quoted flags in a source text."""
    return set(re.findall(r"'(--[\w-]+)'", text))


@pytest.mark.parametrize('name', ['train.py', 'test.py'])
def test_flags_are_a_superset_of_mmseg(name: str) -> None:
    theirs = Path(mmseg.__file__).parent / '.mim/tools' / name
    assert len(flags(theirs.read_text())) >= 6
    shown = run(name, '--help')
    assert flags(theirs.read_text()) <= set(re.findall(r'--[\w-]+', shown))


def test_flags_are_frozen() -> None:
    """A changed flag needs an entry in the changelog."""
    common = {'--help', '--work-dir', '--cfg-options', '--launcher', '--local_rank', '--local-rank'}
    assert set(re.findall(r'--[\w-]+', run('train.py', '--help').partition('options:')[2])) == (
        common | {'--resume', '--amp', '--auto-scale-lr', '--tempo', '--zero-wait'}
    )


@pytest.mark.parametrize(
    ('by_path', 'flags'),
    [
        pytest.param(False, [], marks=pytest.mark.slow),
        pytest.param(True, [], marks=pytest.mark.slow),
        (False, ['--zero-wait']),
    ],
)
def test_stock_mmseg_config_trains(tmp_path: Path, by_path: bool, flags: list) -> None:
    """Only data paths and sizes are overridden; pretrained weights are in the cache of torch."""
    from mmseg.models import ResNetV1c

    name = 'fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py'
    config = Path(mmseg.__file__).parent / '.mim/configs' / name if by_path else f'mmseg::{name}'
    cache = tmp_path / 'torch/hub/checkpoints'
    cache.mkdir(parents=True)
    weights = get_external_models()['resnet18_v1c'].rpartition('/')[2]
    torch.save(ResNetV1c(depth=18).state_dict(), cache / weights)
    root = make_cityscapes(tmp_path / 'cityscapes')
    options = {'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2}
    for split in ('train', 'val', 'test'):
        options[f'{split}_dataloader.dataset.data_root'] = root
        options[f'{split}_dataloader.num_workers'] = 0
        options[f'{split}_dataloader.persistent_workers'] = False
    options['default_hooks.logger.interval'] = 1
    options['train_dataloader.dataset.pipeline.2.scale'] = '(128,64)'
    options['train_dataloader.dataset.pipeline.3.crop_size'] = '(32,64)'
    options['model.data_preprocessor.size'] = '(32,64)'
    text = run(
        'train.py', config, '--work-dir', tmp_path / 'work', *flags, options=options,
        env=os.environ | {'TORCH_HOME': str(tmp_path / 'torch')},
    )  # fmt: skip
    assert ('model.decode_head: FCNHead -> SparseAccuracyHead' in text) is bool(flags)
    assert "type='SparseSegDataPreProcessor'" in text or not flags
    assert 'Iter(train) [2/2]' in text
    assert re.search(r'Iter\(val\) .*mIoU: \d', text)
    assert (tmp_path / 'work/iter_2.pth').is_file()


def test_two_processes_compute_the_metric_of_one(bev_root: str, tmp_path: Path) -> None:
    """Runs dist_train.sh and dist_test.sh over gloo."""
    work = tmp_path / 'work'
    options = [f'{k}={v}' for k, v in tiny(bev_root, work).items()]
    environment = os.environ | {
        'PATH': f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}',
        'PORT': str(free_port()),
        'OMP_NUM_THREADS': '1',
    }
    for script, words in (
        ('dist_train.sh', [MINI, 2]),
        ('dist_test.sh', [MINI, work / 'iter_4.pth', 2]),
    ):
        line = [ROOT / 'tools' / script, *words, '--work-dir', work, '--cfg-options', *options]
        done = subprocess.run(list(map(str, line)), capture_output=True, text=True, env=environment)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        found = scores(done.stdout + done.stderr)
    alone = run(
        'test.py', MINI, work / 'iter_4.pth', '--work-dir', work, options=tiny(bev_root, work)
    )
    assert found == scores(alone)


def test_print_config_applies_options() -> None:
    text = run('misc/print_config.py', MINI, options={'train_cfg.max_iters': 7})
    assert 'max_iters=7' in text
    assert "type='LiftSplatShoot'" in text
