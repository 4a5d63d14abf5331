"""What P x K batches cost: metadata read once, against modalities inferred at every draw."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset
from rich.table import Table

from mmtempo.benchmarks.harness import Report, Timing, interleave, ratio
from mmtempo.datasets.samplers.pk_sampler import PKSampler

# The bar of the issue that asked for this benchmark.
MAX_SETUP_SECONDS = 5.0
SAMPLES, IDENTITIES = 14_910, 320
P, K = 8, 4
REQUIRED = ('rgb',)
# Which share of the samples has each; as in re-identification across modalities.
SHARES = dict(rgb=0.6, ir=0.5, sketch=0.15, text=0.8)


class ReIdentificationData(BaseDataset):
    """Annotations of so many samples, without their images; serialised, as is mmengine's default.

    Args:
        samples: How many.
        identities: Of whom.
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
            # The first sample of each can be used, so that all of them can.
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
    """The modalities whose file a sample's annotation names."""
    return [name for name, path in info['files'].items() if path.endswith(('.jpg', '.png'))]


@dataclass
class PerDraw:
    """The sampler without a cache: whose samples are whose is known, their modalities are not.

    Attributes:
        dataset: The data set.
        calls: Of the inference, so far.
    """

    dataset: BaseDataset
    calls: int = 0

    def batches(self) -> Iterator[list[int]]:
        """Without an end."""
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
        """K of the samples, drawn until there is one with each required modality among them."""
        taken: list[int] = []
        missing = set(REQUIRED)
        for index in draw.sample(candidates, len(candidates)):
            self.calls += 1
            found = missing & set(infer_modalities_of_sample(self.dataset.get_data_info(index)))
            missing -= found
            # The last places are for what is still missing.
            if found or K - len(taken) > len(missing):
                taken.append(index)
            if len(taken) == K:
                break
        return taken


def _cached_batches(sampler: PKSampler) -> Iterator[list[int]]:
    """Without an end, epoch after epoch."""
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        indices = iter(sampler)
        for _ in range(len(sampler) // (P * K)):
            yield list(islice(indices, P * K))
        epoch += 1


def _is_valid(batch: list[int], identities: np.ndarray, has: np.ndarray) -> bool:
    """P identities in a row of K different samples each, with what is required among them."""
    if len(batch) != P * K or len(set(batch)) != P * K:
        return False
    rows = np.array(batch).reshape(P, K)
    people = identities[rows]
    same = (people == people[:, :1]).all()
    return bool(same and len(set(people[:, 0])) == P and has[rows].any(1).all())


def measure_pk_sampler(report: Report, quick: bool) -> None:
    """Time set-up and batches of both, and check each batch of an epoch.

    Args:
        report: Takes figures, checks and table.
        quick: Whether a few rounds will do.
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
        warm_up=0,  # a training sets up once, cold
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
    _tell(report, times, setups, epoch, calls)
    report.at_most('PKSampler: slowest set-up, seconds', max(setups.seconds), MAX_SETUP_SECONDS)
    report.at_most(f'PKSampler: wrong ones of {epoch} batches', wrong['cached'], 0)
    report.at_most(f'per draw: wrong ones of {epoch} batches', wrong['per_draw'], 0)


def _tell(
    report: Report, times: dict[str, Timing], setups: Timing, epoch: int, calls: float
) -> None:
    """Arms and table."""
    report.arms['PKSampler set-up'] = setups.figures()
    report.arms['PKSampler'] = dict(times['cached'].figures(), batches_of_an_epoch=epoch)
    report.arms['P x K, inferred per draw'] = dict(
        times['per_draw'].figures(), inferences_a_batch=calls
    )
    table = Table(title=f'{P} x {K} batches of {SAMPLES:,} samples, {IDENTITIES:,} identities')
    for column in ('set-up ms', 'a batch, cached: ms', 'inferred per draw: ms', 'ratio'):
        table.add_column(column, justify='right')
    faster = ratio(times['per_draw'], times['cached'])
    low, high = faster.quartiles
    shown = f'{faster.median:.1f} [{low:.1f}, {high:.1f}]'
    table.add_row(str(setups), str(times['cached']), str(times['per_draw']), shown)
    report.tables.append(table)
    report.notes.append(
        f'per draw, {calls:.1f} samples a batch have their annotation read and their modalities '
        'inferred; no image is opened by either'
    )
