"""Flags of the command-line tools."""

from __future__ import annotations

import argparse
from typing import Any

from mmengine.config import DictAction

from mmtempo.policies import POLICIES


class _OptionAction(DictAction):
    """mmengine's parser of KEY=VALUE, with an error message where `=` is missing."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        wrong = [value for value in values if '=' not in value]
        if wrong:
            parser.error(f'{option_string} {wrong[0]}: expected KEY=VALUE')
        super().__call__(parser, namespace, values, option_string)


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that training and testing share; they are those of mmseg."""
    add_config_arguments(parser)
    parser.add_argument('--work-dir', help='folder for logs and checkpoints')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none')
    # torchrun sets LOCAL_RANK; the older torch.distributed.launch passes a flag.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the config and --cfg-options, and defaults for what else `load_config` reads."""
    parser.set_defaults(work_dir=None, launcher='none', local_rank=0)
    parser.add_argument('config', help='config file, or package::path such as mmseg::fcn/...')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=_OptionAction,
        metavar='KEY=VALUE',
        help='override config keys, for example train_dataloader.batch_size=2; '
        'lists as key="[a,b]" or key=a,b, nested lists as key="[(a,b),(c,d)]"',
    )


def add_overlays(parser: argparse.ArgumentParser) -> None:
    """Add --tempo and --zero-wait, for tools that build a training."""
    parser.add_argument(
        '--tempo',
        metavar='POLICY',
        help=f'change the config to follow a policy ({", ".join(POLICIES)}, or the path of a '
        'policy file), replace stock parts as --zero-wait does, and print each change; '
        '--cfg-options takes precedence',
    )
    parser.add_argument(
        '--zero-wait',
        action='store_true',
        help='replace stock parts that wait for the device or the disk by those of mmtempo, and '
        'print each change; --cfg-options takes precedence',
    )
