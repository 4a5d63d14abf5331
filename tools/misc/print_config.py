"""Print a config as the Runner receives it, with bases and overrides resolved.

python tools/misc/print_config.py CONFIG --tempo balanced
python tools/misc/print_config.py CONFIG --cfg-options train_dataloader.batch_size=2
"""

from __future__ import annotations

import argparse
import sys

from mmtempo.cli.arguments import add_common_arguments, add_overlays
from mmtempo.cli.config import load_config
from mmtempo.cli.run import run_tool


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_arguments(parser)
    add_overlays(parser)
    args = parser.parse_args()
    return run_tool(
        'print_config.py', lambda: load_config(args), lambda cfg: print(cfg.pretty_text)
    )


if __name__ == '__main__':
    sys.exit(main())
