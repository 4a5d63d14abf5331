"""Verdict on a run: what is slow, why, and which override improves it."""

from .figures import Advice, Finding, RunFigures
from .judge import CATALOGUE, Verdict, judge

__all__ = ['CATALOGUE', 'Advice', 'Finding', 'RunFigures', 'Verdict', 'judge']
