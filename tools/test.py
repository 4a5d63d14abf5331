"""Test a checkpoint: metrics, and pictures with --show-dir.

python tools/test.py CONFIG work_dirs/NAME/iter_300.pth --show-dir pictures
"""

from __future__ import annotations

import argparse
import sys
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
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--out', help='folder for predictions (mmseg metrics only)')
    parser.add_argument('--show', action='store_true', help='show predictions (mmseg models)')
    parser.add_argument('--show-dir', help='folder for pictures of the predictions')
    parser.add_argument('--wait-time', type=float, default=2, help='seconds a picture with --show')
    parser.add_argument('--tta', action='store_true', help='test time augmentation')
    return parser.parse_args()


def prepare(args: argparse.Namespace) -> Config:
    """Everything that may go wrong because of a mistake, before anything is written."""
    cfg = launch.load_config(args)
    cfg.load_from = args.checkpoint
    cfg.resume = False
    if args.show or args.show_dir:
        launch.enable_pictures(cfg, args.show, args.show_dir, args.wait_time)
    if args.tta:
        launch.enable_tta(cfg)
    if args.out is not None:
        launch.keep_predictions(cfg, args.out)
    launch.check_device(cfg, training=False)
    preflight(cfg, test=True)
    return cfg


def main() -> int:
    args = parse_args()
    return run_tool('test.py', lambda: prepare(args), lambda cfg: launch.build_runner(cfg).test())


if __name__ == '__main__':
    sys.exit(main())
