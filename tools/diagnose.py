"""Report where a training of a config waits for the device.

python tools/diagnose.py configs/lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py --waits
python tools/diagnose.py mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py --waits

Runs a few iterations with stock parts, and a few with those of mmtempo (as train.py --zero-wait),
in a temporary folder; nothing is written to the work dir of the config.
"""

from __future__ import annotations

import argparse
import copy
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from mmtempo.cli.arguments import add_config_arguments
from mmtempo.cli.config import load_config
from mmtempo.cli.run import run_tool
from mmtempo.doctor.preflight import preflight
from mmtempo.doctor.sync_report import compare_host_syncs, replace_amp_without_gpu
from mmtempo.policies.drop_in import describe, zero_wait

if TYPE_CHECKING:  # importing mmtempo first reports what is missing from an installation
    from mmengine.config import Config


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config_arguments(parser)
    parser.add_argument(
        '--waits',
        action='store_true',
        help='list the lines of code where the host waits for the device',
    )
    parser.add_argument(
        '--iters', type=int, default=4, help='number of iterations to count (default: 4)'
    )
    args = parser.parse_args()
    if not args.waits:
        parser.error('nothing to report: add --waits')
    if args.iters < 1:
        parser.error(f'--iters must be at least 1, found {args.iters}')
    return args


def main() -> int:
    args = parse_args()

    def prepare() -> Config:
        cfg = load_config(args)
        checked = copy.deepcopy(cfg)
        replace_amp_without_gpu(checked)  # as the run does
        preflight(checked)
        return cfg

    def report(cfg: Config) -> None:
        console = Console(width=None if sys.stdout.isatty() else 140)
        keep = args.cfg_options or ()
        changes = describe(zero_wait(copy.deepcopy(cfg), keep=keep))
        console.print(f'with parts of mmtempo, {changes}', highlight=False)
        compare_host_syncs(cfg, args.iters, keep=keep).show(console)

    return run_tool('diagnose.py', prepare, report)


if __name__ == '__main__':
    sys.exit(main())
