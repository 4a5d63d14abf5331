"""Hooks: thin adapters between mmengine's Runner and the rest of the package."""

from .run_summary_hook import RunSummaryHook

__all__ = ['RunSummaryHook']
