"""Train a model: ours, mmseg's, or your own mm-style config.

python tools/train.py configs/lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py
python tools/train.py mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024.py --tempo balanced
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mmtempo.cli import config as launch
from mmtempo.cli.run import run_tool
from mmtempo.doctor.preflight import preflight

if TYPE_CHECKING:  # mmtempo comes first: it says what is missing from an installation
    from mmengine.config import Config


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    launch.add_common_arguments(parser)
    launch.add_overlays(parser)
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='auto|PATH',
        help='continue from the newest checkpoint of the work dir, or from PATH',
    )
    parser.add_argument('--amp', action='store_true', help='automatic mixed precision')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate with the samples of an update, which '
        'auto_scale_lr.base_batch_size is for',
    )
    return parser.parse_args()


def prepare(args: argparse.Namespace, locks: ExitStack) -> Config:
    """Find mistakes before anything is written, and another training in the same folder."""
    cfg = launch.load_config(args)
    if args.amp:
        launch.enable_amp(cfg)
    if args.auto_scale_lr:
        launch.enable_auto_scale_lr(cfg)
    launch.set_resume(cfg, args.resume)
    launch.check_device(cfg, training=True)
    preflight(cfg)
    locks.enter_context(launch.lock_folders(cfg))
    return cfg


def main() -> int:
    args = parse_args()
    with ExitStack() as locks:
        return run_tool(
            'train.py',
            lambda: prepare(args, locks),
            lambda cfg: launch.build_runner(cfg).train(),
        )


if __name__ == '__main__':
    sys.exit(main())
