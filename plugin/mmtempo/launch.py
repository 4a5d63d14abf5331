"""Former home of `resolve_config_path`, which configs call in `_base_`; kept until 0.2."""

from mmtempo.cli.config import resolve_config_path

__all__ = ['resolve_config_path']
