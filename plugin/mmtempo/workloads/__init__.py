"""Tasks that are trained with mmtempo, each shaped like a small mmseg."""

from . import bev

__all__ = ['bev']
