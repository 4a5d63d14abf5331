"""Evidence and warnings from made-up samples."""

from __future__ import annotations

from typing import Any

import pytest

from mmtempo.system.evidence import Sample, evidence, findings, pressure

MB, GB = 1 << 20, 1 << 30


def samples(count: int = 20, **series: Any) -> list[Sample]:
    """Return one sample a second; a figure is a value or a function of the second."""
    return [
        Sample(
            float(second),
            second + 0.001,
            {name: made(second) if callable(made) else made for name, made in series.items()},
        )
        for second in range(count)
    ]


def step(at: int, height: float, slope: float = 0.0) -> Any:
    """Return a counter that grows evenly, and by `height` more after second `at`."""
    return lambda second: 1000 + slope * second + height * (second > at)


def texts(taken: list[Sample]) -> dict[str, str]:
    return dict(findings(taken[0], taken))


class TestEvidence:
    """An iteration from 10.2 to 10.7, between the samples 10 and 11."""

    def found(self, **series: Any) -> dict[str, Any]:
        return evidence(samples(**series), 10.2, 10.7)

    def test_nothing(self) -> None:
        assert evidence([], 1.0, 2.0) == {}
        assert self.found() == {}
        assert self.found(swap_in=7, psi_memory=8.0, psi_cpu=9.0, writeback=3, device={}) == {}

    @pytest.mark.parametrize('name', ['swap_in', 'swap_out'])
    def test_swapping(self, name: str) -> None:
        assert self.found(**{name: step(10, 3 * MB)}) == {name: 3 * MB}
        assert self.found(**{name: step(10, MB - 1)}) == {}
        assert self.found(**{name: step(9, 3 * MB)}) == {}  # before
        assert self.found(**{name: step(11, 3 * MB)}) == {}  # after

    @pytest.mark.parametrize(
        ('name', 'stalled', 'noted'),
        [
            ('psi_memory', 0.06, True),
            ('psi_memory', 0.04, False),
            ('throttled', 0.06, True),
            ('throttled', 0.04, False),
            ('psi_io', 0.13, True),
            ('psi_io', 0.12, False),
            ('psi_cpu', 0.26, True),
            ('psi_cpu', 0.24, False),
        ],
    )
    def test_stalls(self, name: str, stalled: float, noted: bool) -> None:
        expected = {name: pytest.approx(stalled)} if noted else {}
        assert self.found(**{name: step(10, stalled)}) == expected

    def test_pressure_is_at_most_the_interval(self) -> None:
        """A quota counts several CPUs, so only it may exceed the interval."""
        assert self.found(psi_memory=step(10, 0.9)) == {'psi_memory': 0.5}
        assert self.found(throttled=step(10, 0.9)) == {'throttled': pytest.approx(0.9)}

    def test_short_iterations_need_a_least_stall(self) -> None:
        taken = samples(psi_memory=step(10, 0.015), throttled=step(10, 0.025))
        assert evidence(taken, 10.2, 10.3) == {'throttled': pytest.approx(0.025)}

    @pytest.mark.parametrize('name', ['psi_io', 'psi_cpu'])
    def test_usual_pressure_is_not_evidence(self, name: str) -> None:
        assert self.found(**{name: step(10, 0.0, slope=0.9)}) == {}
        found = self.found(**{name: step(10, 0.3, slope=0.4)})
        assert found == {name: pytest.approx(0.3)}

    def test_memory_pressure_and_quotas_always_count(self) -> None:
        found = self.found(psi_memory=step(10, 0, slope=0.2), throttled=step(10, 0, slope=0.3))
        assert found == {'psi_memory': pytest.approx(0.2), 'throttled': pytest.approx(0.3)}

    def test_long_iterations_need_a_larger_stall(self) -> None:
        taken = samples(psi_memory=lambda second: max(0, min(second, 12) - 5))
        assert evidence(taken, 4.5, 14.5) == {'psi_memory': 7}

    def test_writeback(self) -> None:
        peak = {10: 64 * MB, 11: 200 * MB, 12: 900 * MB}
        assert self.found(writeback=lambda second: peak.get(second, 0)) == {'writeback': 200 * MB}
        assert self.found(writeback=63 * MB) == {}

    def test_retries(self) -> None:
        found = self.found(device=lambda second: {'retries': 2 + 3 * (second > 10)})
        assert found == {'retries': 3}

    def test_unusual_throttling_is_evidence(self) -> None:
        """Reasons that hold most of the time are not evidence."""

        def device(second: int) -> dict:
            return {'throttle': ['power limit', *['temperature'] * (second in (11, 15))]}

        assert self.found(device=device) == {'throttle': ['temperature']}

    def test_missing_figures_are_ignored(self) -> None:
        found = self.found(
            psi_memory=lambda second: None if second == 10 else 5.0 * second,
            device=lambda second: None if second % 2 else {'retries': second, 'throttle': ['x']},
        )
        assert found == {'throttle': ['x']}

    def test_samples_on_one_side_only(self) -> None:
        """An interval before the first or after the last sample."""
        taken = samples(3, swap_in=lambda second: second * 10 * MB)
        assert evidence(taken, 5.0, 6.0) == {}
        assert evidence(taken, -2.0, -1.0) == {}
        assert evidence(taken, 1.5, 9.0) == {'swap_in': 10 * MB}
        assert evidence(taken, -1.0, 0.5) == {'swap_in': 10 * MB}

    def test_an_overlapping_sample_counts(self) -> None:
        """A sample that was being read during the iteration counts."""
        taken = samples(swap_in=step(9, 2 * MB))
        taken[10] = taken[10]._replace(ended=10.3)
        assert evidence(taken, 10.2, 10.7) == {'swap_in': 2 * MB}


class TestFindings:
    def test_nothing(self) -> None:
        full: dict[str, Any] = dict(ram_used=0.9, shm_free=10, shm_total=100, swap_in=5, swap_out=6)
        assert texts(samples()) == {}
        assert texts(samples(100, **full, device={'retries': 0})) == {}
        assert texts(samples(shm_free=0, shm_total=0)) == {}  # a sandbox without any

    def test_full_ram(self) -> None:
        known: dict[str, Any] = dict(ram_used=0.934, ram_total=64 * GB, ram_of='the container')
        text = texts(samples(**known, tree_pss=48 * GB, tree_processes=9))['_full_ram']
        assert text.startswith(
            'RAM: 93% of 64.0 GiB of the container is in use, 48.0 GiB by the 9 processes of this '
            'training; '
        )
        for key in ('train_dataloader.num_workers', 'prefetch_factor', 'budget', 'CachedDataset'):
            assert key in text
        text = texts(samples(**known, tree_pss=3 * GB, tree_processes=1))['_full_ram']
        assert '3.00 GiB by this process' in text
        assert 'in use; processes' in texts(samples(**known))['_full_ram']

    def test_swapping(self) -> None:
        taken = samples(swap_in=step(10, 5 * MB), swap_out=step(12, 2 * GB))
        assert texts(taken[:11]) == {}
        text = texts(taken)['_swapping']
        assert 'swap: 5.00 MiB read and 2.00 GiB written since the run began' in text
        assert 'train_dataloader.num_workers' in text
        assert set(texts(samples(swap_out=step(12, MB)))) == {'_swapping'}
        assert texts(samples(swap_in=step(12, MB / 2))) == {}  # other programs

    def test_full_shm(self) -> None:
        text = texts(samples(shm_free=5 * MB, shm_total=64 * MB))['_full_shm']
        assert '5.00 MiB of 64.0 MiB is free' in text
        assert '--shm-size=1g' in text
        assert 'train_dataloader.num_workers' in text
        text = texts(samples(shm_free=0, shm_total=8 * GB))['_full_shm']
        assert '--shm-size=16g' in text

    @pytest.mark.parametrize(
        ('free', 'count', 'shrinks'),
        [
            (lambda second: 900 - second, 600, True),
            (lambda second: 900 - second - 50 * (second % 7), 600, True),  # batches come and go
            (lambda second: 900 - 5 * second, 61, True),
            (lambda second: 900 - 5 * second, 60, False),  # for less than a minute
            (lambda second: 900 - 0.3 * second, 600, True),
            (lambda second: 900 - 0.15 * second, 600, False),  # enough for hours
            (lambda second: 300 - 0.1 * second, 600, False),  # too little
            (lambda second: 900 - 100 * (second > 30), 600, False),  # once only
            (lambda second: 900 - min(second, 100), 600, False),  # the loader fills its queue
            (lambda second: 300 + second, 600, False),
            (lambda second: None, 600, False),
        ],
    )
    def test_shrinking_shm(self, free: Any, count: int, shrinks: bool) -> None:
        def size(second: int) -> float | None:
            now = free(second)
            return None if now is None else now * MB

        found = texts(samples(count, shm_free=size, shm_total=1000 * MB))
        assert set(found) == ({'_shrinking_shm'} if shrinks else set())

    def test_long_sampling_intervals_are_enough(self) -> None:
        taken = [
            Sample(100.0 * i, 100.0 * i + 1, dict(shm_free=(8 - i) * 100 * MB, shm_total=GB))
            for i in range(3)
        ]
        assert texts(taken[:2]) == {}
        assert set(texts(taken)) == {'_shrinking_shm'}

    def test_remaining_minutes_are_estimated(self) -> None:
        taken = samples(600, shm_free=lambda second: (900 - second) * MB, shm_total=GB)
        text = texts(taken)['_shrinking_shm']
        assert 'shrinks by 60.0 MiB a minute; 500 MiB of 1.00 GiB is left' in text
        assert 'enough for 8 minutes' in text
        assert '--shm-size=2g' in text

    def test_retries(self) -> None:
        text = texts(samples(device={'retries': 3, 'reserved': 11 * GB}))['_retries']
        assert 'full 3 times (11.0 GiB reserved now)' in text
        assert 'train_dataloader.batch_size' in text
        assert 'full 3 times; each' in texts(samples(device={'retries': 3}))['_retries']

    def test_known_conditions_are_skipped(self) -> None:
        taken = samples(ram_used=0.95, ram_total=GB, shm_free=1, shm_total=100)
        assert [what for what, _ in findings(taken[0], taken)] == ['_full_ram', '_full_shm']
        found = findings(taken[0], taken, known={'_full_ram'})
        assert [what for what, _ in found] == ['_full_shm']


class TestPressure:
    """From a sample at second 10 to one at second 30."""

    def found(self, seconds: float = 20.0, **series: tuple) -> dict[str, float]:
        first, last = ({name: one[i] for name, one in series.items()} for i in (0, 1))
        return pressure(Sample(10.0, 10.1, first), Sample(10.0 + seconds, 30.2, last))

    @pytest.mark.parametrize(
        ('series', 'shares'),
        [
            ({}, {}),
            (dict(psi_cpu=(100, 105), psi_memory=(7, 7)), dict(cpu=0.25, memory=0.0)),
            (dict(psi_io=(1, 3), queued=(5.0, 6.0)), dict(io=0.1, queued=0.05)),
            (dict(throttled=(3, 63)), dict(throttled=3.0)),
            (dict(swap_in=(5 * MB, 8 * MB)), dict(swapped=3 * MB)),  # bytes, no share
            (dict(psi_io=(None, 3)), {}),
            (
                dict(cpu_all=(50, 90), cpu_busy=(20, 50), cpu_own=(9, 29)),
                dict(busy=0.75, others=0.25),
            ),
            # A worker that has ended takes its time with it until its parent collects it.
            (
                dict(cpu_all=(50, 90), cpu_busy=(20, 30), cpu_own=(0, 11)),
                dict(busy=0.25, others=0.0),
            ),
            (dict(cpu_all=(50, 50), cpu_busy=(20, 20), cpu_own=(0, 0)), {}),
        ],
    )
    def test_shares_are_those_of_the_time_between(self, series: dict, shares: dict) -> None:
        assert self.found(**series) == pytest.approx(dict(seconds=20.0, **shares))

    def test_nothing_is_known_from_one_sample(self) -> None:
        assert self.found(seconds=0.0, psi_cpu=(1, 1)) == {}
