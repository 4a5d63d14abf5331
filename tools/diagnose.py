"""Say what a training run of a config is held up by.

python tools/diagnose.py configs/lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py --waits
python tools/diagnose.py mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py --waits

Runs a few iterations with stock parts and a few with mmtempo's (as train.py --zero-wait takes
them) in a folder that is thrown away; nothing of the config's own is written.
"""

from __future__ import annotations

import argparse
import copy
import sys

from rich.console import Console

from mmtempo.cli import config
from mmtempo.cli.run import run_tool
from mmtempo.doctor.preflight import preflight
from mmtempo.doctor.sync_report import compare_waits, without_gpu
from mmtempo.policies.drop_in import describe, zero_wait


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    config.add_config_arguments(parser)
    parser.add_argument(
        '--waits', action='store_true', help='where the host waits for the device, line by line'
    )
    parser.add_argument('--iters', type=int, default=4, help='iterations to look at (default: 4)')
    args = parser.parse_args()
    if not args.waits:
        parser.error('say what to look for: --waits')
    if args.iters < 1:
        parser.error(f'--iters must be at least 1, found {args.iters}')
    return args


def main() -> int:
    args = parse_args()

    def prepare() -> config.Config:
        cfg = config.load_config(args)
        checked = copy.deepcopy(cfg)
        without_gpu(checked)  # the run does so as well
        preflight(checked)
        return cfg

    def look(cfg: config.Config) -> None:
        console = Console(width=None if sys.stdout.isatty() else 140)
        keep = args.cfg_options or ()
        changes = describe(zero_wait(copy.deepcopy(cfg), keep=keep))
        console.print(f'with mmtempo, {changes}', highlight=False)
        compare_waits(cfg, args.iters, keep=keep).show(console)

    return run_tool('diagnose.py', prepare, look)


if __name__ == '__main__':
    sys.exit(main())
