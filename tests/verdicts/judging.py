"""What a verdict says of a summary, in the terms of the graded set."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmengine.config import DictAction

from mmtempo.report.verdict import judge
from tests.verdicts.trainings import HEALTHY

NO_FINDING = (HEALTHY, 'short', 'nothing')
LARGEST = 12_000  # bytes of a recorded file


@dataclass(frozen=True)
class Judgment:
    """What a verdict says.

    Attributes:
        key: Key of the first finding.
        seconds: Seconds of the first finding.
        headline: Headline of the verdict.
        overrides: Overrides that the first finding advises.
        keys: Keys of all findings.
        sentences: Sentences of all findings; each is false for a healthy training.
    """

    key: str
    seconds: float
    headline: str
    overrides: list[str]
    keys: list[str]
    sentences: list[str]


def judgment(summary: Mapping[str, Any]) -> Judgment:
    """Judge a summary with the present code."""
    verdict = judge(summary)
    findings = verdict.findings
    real = [one for one in findings if one.key not in NO_FINDING]
    sentences = [
        text
        for one in real
        for text in (one.headline, *one.why, *(advice.override for advice in one.change))
    ]
    first = findings[0]
    overrides = [advice.override for advice in first.change]
    keys = [one.key for one in findings]
    return Judgment(first.key, first.seconds, verdict.headline, overrides, keys, sentences)


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """Return the overrides that --cfg-options makes of these words."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={})
    return parser.parse_args(['--cfg-options', *words] if words else []).cfg_options


def slimmed(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what of a summary a verdict needs, with floats of four digits.

    The list of single stalls, the longest first, is cut where the file would become too large.
    """
    left = {key: value for key, value in summary.items() if key not in ('ring', 'verdict')}
    left.pop('histogram', None)
    left['machine'] = {key: one for key, one in left['machine'].items() if key != 'versions'}
    left = _rounded(left)
    while len(json.dumps(left)) > LARGEST - 500 and left.get('stalls'):
        left['stalls'].pop()
    return left


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f'{value:.4g}') if abs(value) < 1e8 else round(value)  # 1e8: times of day
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value
