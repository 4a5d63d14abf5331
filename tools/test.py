"""Test a checkpoint: print metrics, and write pictures with --show-dir.

python tools/test.py CONFIG work_dirs/NAME/iter_300.pth --show-dir pictures
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mmtempo.cli.arguments import add_common_arguments
from mmtempo.cli.config import enable_pictures, enable_tta, keep_predictions, load_config
from mmtempo.cli.run import run_tool
from mmtempo.cli.runner import build_runner, check_device
from mmtempo.doctor.preflight import preflight

if TYPE_CHECKING:  # importing mmtempo first reports what is missing from an installation
    from mmengine.config import Config


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_arguments(parser)
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--out', help='folder for predictions (mmseg metrics only)')
    parser.add_argument('--show', action='store_true', help='show predictions (mmseg models)')
    parser.add_argument('--show-dir', help='folder for pictures of the predictions')
    parser.add_argument(
        '--wait-time', type=float, default=2, help='seconds per picture with --show'
    )
    parser.add_argument('--tta', action='store_true', help='test time augmentation')
    return parser.parse_args()


def prepare(args: argparse.Namespace) -> Config:
    """Return a checked config; nothing is written."""
    cfg = load_config(args)
    cfg.load_from = args.checkpoint
    cfg.resume = False
    if args.show or args.show_dir:
        enable_pictures(cfg, args.show, args.show_dir, args.wait_time)
    if args.tta:
        enable_tta(cfg)
    if args.out is not None:
        keep_predictions(cfg, args.out)
    check_device(cfg, training=False)
    preflight(cfg, test=True)
    return cfg


def main() -> int:
    args = parse_args()
    return run_tool('test.py', lambda: prepare(args), lambda cfg: build_runner(cfg).test())


if __name__ == '__main__':
    sys.exit(main())
