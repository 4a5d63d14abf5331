"""Measure P x K batches: modalities that are read once, against inference at every draw."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset

from mmtempo.benchmarks.harness import Report, Timing, interleave, ratio
from mmtempo.datasets.samplers.pk_sampler import PKSampler

# Bar.
MAX_SETUP_SECONDS = 5.0
SAMPLES, IDENTITIES = 14_910, 320
P, K = 8, 4
REQUIRED = ('rgb',)
# Share of the samples that have each modality, as in cross-modal re-identification.
SHARES = dict(rgb=0.6, ir=0.5, sketch=0.15, text=0.8)


class ReIdentificationData(BaseDataset):
    """Annotations without images, serialized by mmengine's default.

    Args:
        samples: Number of samples.
        identities: Number of identities of the samples.
    """

    def __init__(self, samples: int, identities: int) -> None:
        self._samples, self._identities = samples, identities
        super().__init__()

    def load_data_list(self) -> list[dict]:
        draw = random.Random(0)
        return [self._sample(number, draw) for number in range(self._samples)]

    def _sample(self, number: int, draw: random.Random) -> dict:
        person = number % self._identities
        files = {
            name: f'data/orbench/{name}/{person:04d}/{number:06d}.jpg'
            if draw.random() < share
            # The first sample of each identity has all modalities, so that each can be drawn.
            or number < self._identities
            else ''
            for name, share in SHARES.items()
        }
        return dict(
            pid=person,
            camera=draw.randrange(6),
            files=files,
            box=[draw.random() for _ in range(4)],
            caption=f'a person of number {person}, seen by a camera from the side',
        )


def infer_modalities_of_sample(info: dict) -> list[str]:
    """Return the modalities whose files the annotation of a sample names."""
    return [name for name, path in info['files'].items() if path.endswith(('.jpg', '.png'))]


@dataclass
class PerDraw:
    """Sampler that caches the samples of identities, but not their modalities.

    Attributes:
        dataset: The data set.
        calls: Number of inferences so far. Defaults to 0.
    """

    dataset: BaseDataset
    calls: int = 0

    def batches(self) -> Iterator[list[int]]:
        """Yield batches without end."""
        samples: dict[int, list[int]] = {}
        for index in range(len(self.dataset)):
            samples.setdefault(self.dataset.get_data_info(index)['pid'], []).append(index)
        people, draw = list(samples), random.Random(0)
        while True:
            batch: list[int] = []
            for person in draw.sample(people, P):
                batch += self._instances(samples[person], draw)
            yield batch

    def _instances(self, candidates: list[int], draw: random.Random) -> list[int]:
        """Draw K samples of an identity, at least one of them with each required modality."""
        taken: list[int] = []
        missing = set(REQUIRED)
        for index in draw.sample(candidates, len(candidates)):
            self.calls += 1
            found = missing & set(infer_modalities_of_sample(self.dataset.get_data_info(index)))
            missing -= found
            # The last samples are reserved for the modalities that are still missing.
            if found or K - len(taken) > len(missing):
                taken.append(index)
            if len(taken) == K:
                break
        return taken


def _cached_batches(sampler: PKSampler) -> Iterator[list[int]]:
    """Yield batches of consecutive epochs without end."""
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        indices = iter(sampler)
        for _ in range(len(sampler) // (P * K)):
            yield list(islice(indices, P * K))
        epoch += 1


def _is_valid(batch: list[int], identities: np.ndarray, has: np.ndarray) -> bool:
    """Return whether a batch has P identities with K different samples and all modalities each."""
    if len(batch) != P * K or len(set(batch)) != P * K:
        return False
    rows = np.array(batch).reshape(P, K)
    people = identities[rows]
    same = (people == people[:, :1]).all()
    return bool(same and len(set(people[:, 0])) == P and has[rows].any(1).all())


def measure_pk_sampler(report: Report, quick: bool) -> None:
    """Time set-up and batches of both samplers, and check each batch of an epoch.

    Args:
        report: Report to which figures, checks and a table are added.
        quick: Whether to take fewer rounds.
    """
    dataset = ReIdentificationData(SAMPLES, IDENTITIES)
    samplers: list[PKSampler] = []
    options = dict(
        identities=P,
        instances=K,
        identity_key='pid',
        modality_key=infer_modalities_of_sample,
        required=REQUIRED,
        seed=0,
    )
    setups = interleave(
        {'set-up': lambda: samplers.append(PKSampler(dataset, **options))},  # type: ignore[arg-type]
        rounds=3 if quick else 10,
        warm_up=0,  # a training sets up once, without warm-up
    )['set-up']
    infos = [dataset.get_data_info(index) for index in range(len(dataset))]
    identities = np.array([info['pid'] for info in infos])
    modalities = [infer_modalities_of_sample(info) for info in infos]
    has = np.array([[name in found for name in REQUIRED] for found in modalities])
    sampler, per_draw = samplers[-1], PerDraw(dataset)
    streams = dict(cached=_cached_batches(sampler), per_draw=per_draw.batches())
    epoch = len(sampler) // (P * K)
    wrong = {
        name: sum(not _is_valid(batch, identities, has) for batch in islice(stream, epoch))
        for name, stream in streams.items()
    }
    calls = per_draw.calls / epoch
    works: dict[str, Callable[[], Any]] = {
        name: lambda stream=stream: list(islice(stream, epoch))  # type: ignore[misc]
        for name, stream in streams.items()
    }
    timings = interleave(works, rounds=8 if quick else 40)
    times = {name: Timing([s / epoch for s in timings[name].seconds]) for name in timings}
    _add(report, times, setups, epoch, calls)
    report.at_most('PKSampler: slowest set-up, seconds', max(setups.seconds), MAX_SETUP_SECONDS)
    report.at_most(f'PKSampler: wrong ones of {epoch} batches', wrong['cached'], 0)
    report.at_most(f'per draw: wrong ones of {epoch} batches', wrong['per_draw'], 0)


def _add(
    report: Report, times: dict[str, Timing], setups: Timing, epoch: int, calls: float
) -> None:
    """Add arms and table to the report."""
    report.arms['PKSampler set-up'] = setups.figures()
    report.arms['PKSampler'] = dict(times['cached'].figures(), batches_of_an_epoch=epoch)
    report.arms['P x K, inferred per draw'] = dict(
        times['per_draw'].figures(), inferences_a_batch=calls
    )
    table = report.add_table(
        f'{P} x {K} batches of {SAMPLES:,} samples, {IDENTITIES:,} identities',
        ('set-up ms', 'a batch, cached: ms', 'inferred per draw: ms', 'ratio'),
    )
    faster = ratio(times['per_draw'], times['cached'])
    table.add_row(str(setups), str(times['cached']), str(times['per_draw']), faster.text(1))
    report.notes.append(
        f'inferred per draw: reads the annotations of {calls:.1f} samples a batch to infer their '
        'modalities; no sampler opens an image'
    )
