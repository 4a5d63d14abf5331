"""`mmtempo.launch` keeps the former home of `resolve_config_path` for configs."""

from __future__ import annotations

from pathlib import Path

from mmengine.config import Config

from tests.testing.common import MINI


def test_configs_resolve_their_bases_by_the_former_module(tmp_path: Path) -> None:
    path = tmp_path / 'config.py'
    path.write_text(
        "_base_ = __import__('mmtempo.launch').launch.resolve_config_path(\n"
        f"    'mmtempo::lss_swin/{MINI.name}'\n"
        ')\n'
    )
    assert Config.fromfile(str(path)).model.type == 'BEVSegmentor'
