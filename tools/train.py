"""Train a model from a config of mmtempo, of mmseg, or your own.

python tools/train.py configs/lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py
python tools/train.py mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py --tempo balanced
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mmtempo.cli.arguments import add_common_arguments, add_overlays
from mmtempo.cli.config import enable_amp, enable_auto_scale_lr, load_config
from mmtempo.cli.run import run_tool
from mmtempo.cli.runner import (
    build_runner,
    check_device,
    lock_folders,
    prefer_float32_on_cpu,
    set_resume,
)
from mmtempo.doctor.preflight import preflight

if TYPE_CHECKING:  # importing mmtempo first reports what is missing from an installation
    from mmengine.config import Config


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_arguments(parser)
    add_overlays(parser)
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='auto|PATH',
        help='resume from the newest checkpoint of the work dir, or from PATH',
    )
    parser.add_argument('--amp', action='store_true', help='automatic mixed precision')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate with the samples of an update, relative to '
        'auto_scale_lr.base_batch_size',
    )
    return parser.parse_args()


def prepare(args: argparse.Namespace, locks: ExitStack) -> Config:
    """Return a checked config, and lock the folders of the training; nothing else is written."""
    cfg = load_config(args)
    if args.amp:
        enable_amp(cfg)
    if args.auto_scale_lr:
        enable_auto_scale_lr(cfg)
    set_resume(cfg, args.resume)
    prefer_float32_on_cpu(cfg)
    check_device(cfg, training=True)
    preflight(cfg)
    locks.enter_context(lock_folders(cfg))
    return cfg


def main() -> int:
    args = parse_args()
    with ExitStack() as locks:
        return run_tool(
            'train.py',
            lambda: prepare(args, locks),
            lambda cfg: build_runner(cfg).train(),
        )


if __name__ == '__main__':
    sys.exit(main())
