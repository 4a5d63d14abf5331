"""Load configs from the flags of the tools."""

from __future__ import annotations

import argparse

from mmengine.config import Config

from mmtempo.cli.arguments import add_common_arguments, add_overlays
from mmtempo.cli.config import load_config

FCN = 'mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024'


def parse(*words: str) -> argparse.Namespace:
    """Return the parsed flags of a tool that builds a training."""
    parser = argparse.ArgumentParser()
    add_common_arguments(parser)
    add_overlays(parser)
    return parser.parse_args(list(words))


def load(*words: str) -> Config:
    """Return the config that a tool loads by these flags."""
    return load_config(parse(*words))
