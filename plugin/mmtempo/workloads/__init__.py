"""Workloads: tasks that mmtempo trains, each with the layout of a small mmseg."""

from . import bev

__all__ = ['bev']
