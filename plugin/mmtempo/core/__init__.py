"""The hard machinery, testable without a Runner: torch, numpy and the standard library only."""

from .waits import WaitCensus

__all__ = ['WaitCensus']
