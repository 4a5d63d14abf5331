"""Both samplers of the benchmark draw P x K batches, and wrong batches are counted."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from mmtempo.benchmarks.harness import Report
from mmtempo.benchmarks.loader import pk_sampler
from mmtempo.benchmarks.loader.pk_sampler import (
    K,
    P,
    PerDraw,
    ReIdentificationData,
    infer_modalities_of_sample,
    measure_pk_sampler,
)


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pk_sampler, 'SAMPLES', 240)
    monkeypatch.setattr(pk_sampler, 'IDENTITIES', 20)
    report = Report('loader')
    measure_pk_sampler(report, quick=True)
    assert [(check.limit, check.at_least) for check in report.checks] == [
        (pk_sampler.MAX_SETUP_SECONDS, False),
        (0, False),
        (0, False),
    ]
    assert [check.value for check in report.checks[1:]] == [0, 0]
    assert report.arms['PKSampler']['batches_of_an_epoch'] == 240 // (P * K)
    assert report.arms['P x K, inferred per draw']['inferences_a_batch'] >= P * K
    assert report.arms['PKSampler set-up']['n'] == 3
    assert len(report.tables) == len(report.notes) == 1
    report.write(str(tmp_path / 'loader.json'))


def test_sampler_without_cache_infers_at_every_draw() -> None:
    dataset = ReIdentificationData(240, 20)
    arm = PerDraw(dataset)
    batches = list(islice(arm.batches(), 5))
    assert [len(batch) for batch in batches] == [P * K] * 5
    assert arm.calls >= 5 * P * K


def test_wrong_batches_are_not_valid() -> None:
    dataset = ReIdentificationData(240, 20)
    infos = [dataset.get_data_info(index) for index in range(240)]
    identities = np.array([info['pid'] for info in infos])
    has = np.array([['rgb' in infer_modalities_of_sample(info)] for info in infos])
    good = next(PerDraw(dataset).batches())
    assert pk_sampler._is_valid(good, identities, has)
    assert not pk_sampler._is_valid(good[:-1], identities, has)
    assert not pk_sampler._is_valid([*good[:-1], good[0]], identities, has)
    assert not pk_sampler._is_valid(good[1:] + good[:1], identities, has)
    assert not pk_sampler._is_valid(good, identities, np.zeros_like(has))
    twice = list(good)
    same = np.flatnonzero(identities == identities[good[0]])
    twice[-K:] = [index for index in same.tolist() if index not in good][:K]
    assert not pk_sampler._is_valid(twice, identities, has)
