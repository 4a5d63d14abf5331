"""Synthetic BEV data: scenes, images, labels, and data sets on disk."""

from .camera import Camera, View
from .render import SURROUND_GRID, label_views, make_label, render_image, render_views
from .rig import make_rig
from .scene import Box, Ground, Scene, make_scene
from .writer import write_dataset

__all__ = [
    'SURROUND_GRID',
    'Box',
    'Camera',
    'Ground',
    'Scene',
    'View',
    'label_views',
    'make_label',
    'make_rig',
    'make_scene',
    'render_image',
    'render_views',
    'write_dataset',
]
