"""Makes BEV data: scenes, their pictures and labels, and the folders they go to."""

from .render import Camera, make_label, render_image
from .scene import Box, Ground, Scene, make_scene
from .writer import write_dataset

__all__ = [
    'Box',
    'Camera',
    'Ground',
    'Scene',
    'make_label',
    'make_scene',
    'render_image',
    'write_dataset',
]
