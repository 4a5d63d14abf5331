"""Both arms of the resume benchmark continue with the batches after the resumed iteration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mmengine.runner import Runner
from mmengine.runner.loops import _InfiniteDataloaderIterator

from mmtempo.benchmarks import resume
from mmtempo.benchmarks.loader.pictures import write_pictures
from mmtempo.benchmarks.loader.rounds import as_in_training
from mmtempo.benchmarks.resume import (
    LEAD,
    PLAIN,
    SEED,
    Plan,
    Resumed,
    dataloader_config,
    is_measured,
    measure_resume,
    resume_ours,
    resume_stock,
    stock_can_skip,
)
from mmtempo.loaders import build_prefetch_dataloader

PICTURES = 3


@pytest.fixture(scope='module')
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """Return a dataloader config without workers and with few samples."""
    root = str(tmp_path_factory.mktemp('pictures'))
    write_pictures(root, PICTURES, (64, 36))
    with pytest.MonkeyPatch.context() as patch, as_in_training():
        patch.setattr(resume, 'SAMPLES', 10)
        patch.setattr(resume, 'WORKERS', 0)
        yield dataloader_config(root, PICTURES, (64, 36))


def tokens(batch: dict) -> list[str]:
    return [sample.token for sample in batch['data_samples']]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the batches that a measurement takes."""
    batches: list[list[str]] = []
    measure = resume._time

    def listen(advance: Any, take: Any) -> Resumed:
        return measure(advance, lambda: batches.append(tokens(take())))

    monkeypatch.setattr(resume, '_time', listen)
    return batches


def test_samples_are_repeated_to_the_size_of_the_data_set(config: dict) -> None:
    assert config['dataset']['times'] == 4  # 12 of 10 samples
    assert config['num_workers'] == 0


def test_ours_continues_after_the_resumed_iteration(config: dict, taken: list) -> None:
    loader = build_prefetch_dataloader(config, seed=SEED, endless=True)
    whole = [tokens(loader.take()) for _ in range(7 + 1 + LEAD + PLAIN)]
    loader.close()
    found = resume_ours(config, 7)
    assert taken == whole[7:]
    assert found.first > 0
    assert found.plain > 0


def test_stock_continues_after_the_resumed_iteration(config: dict, taken: list) -> None:
    batches = iter(Runner.build_dataloader(config, seed=SEED))
    whole = [tokens(next(batches)) for _ in range(7 + 1 + LEAD + PLAIN)]
    resume_stock(config, 7)
    assert taken == whole[7:]


@pytest.mark.parametrize('skips', [True, False])
def test_late_iterations_are_measured_only_if_stock_can_skip(
    monkeypatch: pytest.MonkeyPatch, skips: bool
) -> None:
    assert stock_can_skip() == hasattr(_InfiniteDataloaderIterator, 'skip_iter')
    monkeypatch.setattr(resume, 'stock_can_skip', lambda: skips)
    assert is_measured('nuScenes', 'ours', 100_000)
    assert is_measured('mini', 'stock', 1_000)
    assert is_measured('mini', 'stock', 10_000) == skips
    assert is_measured('nuScenes', 'stock', 1_000) == skips


def test_time_to_the_first_batch_includes_the_resume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]

    def spend(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr('time.perf_counter', lambda: clock[0])
    found = resume._time(lambda: spend(100), lambda: spend(1))
    assert found == Resumed(101, PLAIN)


@pytest.mark.parametrize('skips', [True, False])
def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, skips: bool) -> None:
    seen: list[tuple[str, int]] = []

    def arm(name: str, first: float) -> Any:
        def run(config: dict, iteration: int) -> Resumed:
            seen.append((name, iteration))
            return Resumed(first, 0.4)

        return run

    monkeypatch.setattr(resume, 'QUICK', Plan(2, ['1k', '100k'], 3))
    monkeypatch.setattr(resume, 'WORKLOADS', {'mini': ((64, 36), (32, 18))})
    monkeypatch.setattr(resume, 'ARMS', dict(stock=arm('stock', 0.5), ours=arm('ours', 0.1)))
    monkeypatch.setattr(resume, 'stock_can_skip', lambda: skips)
    others: list[Any] = []
    monkeypatch.setattr(resume, 'measure_side_effects', lambda report, *args: others.append(args))
    report = measure_resume(quick=True)
    assert others == [(['nothing', 'resume'], ['resume'], True)]
    expected = {('stock', 1_000), ('ours', 1_000), ('ours', 100_000)}
    assert set(seen) == (expected | {('stock', 100_000)} if skips else expected)
    # Loading all batches takes long, so that it is measured in fewer rounds.
    assert seen.count(('stock', 1_000)) == (2 + 3 if skips else resume.MADE_ROUNDS)
    assert seen.count(('ours', 1_000)) == seen.count(('ours', 100_000)) == 2 + 3
    values = [(check.name, check.value, check.limit, check.at_least) for check in report.checks]
    assert values[0] == (
        'mini, 100k: first batch, x 20 plain ones',
        pytest.approx(0.25),
        resume.MAX_TO_PLAIN,
        False,
    )
    assert (
        values[1:]
        == [('mini, 100k: first batch, x stock', pytest.approx(0.2), resume.MAX_TO_STOCK, False)]
        * skips
    )
    report.write(str(tmp_path / 'resume.json'))
    arms = json.loads((tmp_path / 'resume.json').read_text())['arms']
    assert arms['mini, ours 100k']['first']['n'] == 3
    assert ('mini, stock 100k' in arms) == skips
