"""The arms of the checkpoint benchmark save the same, its sums are right, its bars the issue's."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config

from mmtempo.benchmarks import BENCHMARKS, process_memory
from mmtempo.benchmarks.checkpoint import arms as checkpoint_arms
from mmtempo.benchmarks.checkpoint import measure
from mmtempo.benchmarks.checkpoint.arms import (
    AFTER,
    ARMS,
    LEAD,
    SHAPES,
    WITHOUT_SAVE,
    Arm,
    OurArm,
    Round,
    Shape,
    StockArm,
)
from mmtempo.benchmarks.checkpoint.measure import (
    Plan,
    Probes,
    losses,
    measure_checkpoint,
    take_rounds,
)
from mmtempo.benchmarks.harness import Report
from mmtempo.benchmarks.side_effects import Effect
from mmtempo.checkpoint.io import writer
from mmtempo.checkpoint.loading import load_from_local

REAL, MINI = checkpoint_arms.CONFIG, 'mmtempo::lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py'
TINY = 8  # width of its backbone
SAVING = [name for name in ARMS if name != 'no save']


def nothing() -> None:
    pass


@pytest.fixture(scope='module', autouse=True)
def cheap() -> Iterator[None]:
    """One torch thread: more would spin. And the config's text takes half of a runner's start."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_arms, 'CONFIG', MINI)
        patch.setattr(Config, 'pretty_text', property(lambda cfg: 'the config'))
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope='module')
def arms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Arm]]:
    """All arms, each after its first save."""
    folder = str(tmp_path_factory.mktemp('arms'))
    built = {name: Arm(name, TINY, folder) for name in ARMS}
    for arm in built.values():
        arm.run(nothing)
    yield built
    for arm in built.values():
        arm.close()


def files(arm: Arm) -> list[str]:
    return sorted(path.name for path in Path(arm.work_dir).glob('*.pth'))


def content(arm: Arm, number: int) -> dict[str, Any]:
    return load_from_local(f'{arm.work_dir}/iter_{number}.pth', 'cpu')


def newest(arm: Arm) -> int:
    marker = Path(arm.work_dir, 'last_checkpoint').read_text()
    return int(Path(marker).stem.removeprefix('iter_'))


def test_arms_leave_the_same_files_and_the_same_content(arms: dict[str, Arm]) -> None:
    assert files(arms['no save']) == []
    first = {name: content(arms[name], 1000) for name in SAVING}
    stock = first['stock']
    assert stock['meta']['iter'] == 1000
    assert len(stock['optimizer']['state']) == len(list(arms['stock'].runner.model.parameters()))
    for found in first.values():
        assert set(found) == set(stock)
        torch.testing.assert_close(found['state_dict'], stock['state_dict'], rtol=0, atol=0)
        for key in ('state', 'param_groups'):
            left, right = found['optimizer'][key], stock['optimizer'][key]
            torch.testing.assert_close(left, right, rtol=0, atol=0)
        assert found['param_schedulers'] == stock['param_schedulers']
    for number in (2, 3):
        for name in SAVING:
            arms[name].run(nothing)
            assert newest(arms[name]) == 1000 * number
            assert files(arms[name]) == [f'iter_{1000 * n}.pth' for n in (number - 1, number)]


def test_arms_beside_each_other_save_the_same_training(tmp_path: Path) -> None:
    built: dict[str, Arm] = {}
    for name in ARMS:
        built[name] = Arm(name, TINY, str(tmp_path), beside=next(iter(built.values()), None))
    assert len({id(arm.runner) for arm in built.values()}) == 1
    for number, name in enumerate(('no save', *SAVING), 1):
        built[name].run(nothing)
        for other in SAVING:
            saved = [f'iter_{1000 * number}.pth'] if other == name else []
            assert files(built[other]) == saved
            if saved:
                assert newest(built[other]) == 1000 * number
                assert content(built[other], 1000 * number)['meta']['iter'] == 1000 * number
        for path in tmp_path.rglob('*.pth'):
            path.unlink()
    built['ours'].run(nothing)
    assert files(built['ours']) == ['iter_6000.pth']
    for arm in built.values():
        arm.close()


def test_what_is_saved_changes_between_saves(arms: dict[str, Arm]) -> None:
    arm = arms['ours']
    arm.run(nothing)
    before = content(arm, newest(arm))['state_dict']
    for group in arm.runner.optim_wrapper.optimizer.param_groups:
        group['lr'] = 0.01  # the warm-up begins with less than float32 can tell
    arm.run(nothing)
    after = content(arm, newest(arm))['state_dict']
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {'norm.running_mean', 'norm.num_batches_tracked'} < changed
    assert 5 < len(changed) < 20


def test_only_stock_that_syncs_waits_for_the_disk(
    arms: dict[str, Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr('os.fsync', lambda number: calls.append(number))
    counts = {}
    for name in ('no save', 'stock', 'stock + fsync', 'ours'):
        calls.clear()
        arms[name].run(nothing)
        counts[name] = len(calls)
    assert counts == {'no save': 0, 'stock': 0, 'stock + fsync': 2, 'ours': 0}


def test_the_thread_has_no_process(
    arms: dict[str, Arm], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arm = Arm('ours, by a thread', TINY, str(tmp_path))

    def no_process() -> None:
        raise AssertionError('a process was started')

    monkeypatch.setattr(writer, 'WriterClient', no_process)
    arm.run(nothing)
    assert arm.hook._saving._writer._worker._process is None
    assert files(arm) == ['iter_1000.pth']
    arm.close()


def test_a_round_ends_ten_iterations_after_the_save_is_durable(
    arms: dict[str, Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    works: list[int] = []

    def count() -> None:
        works.append(1)

    assert len(arms['no save'].run(count).seconds) == WITHOUT_SAVE
    assert len(works) == LEAD + WITHOUT_SAVE
    assert len(arms['stock'].run(nothing).seconds) == 1 + AFTER
    busy = iter([True, True, True, False])

    def is_busy(hook: OurArm) -> bool:
        if next(busy):
            return True
        hook._saving._writer.wait()  # whatever else the machine does
        return False

    monkeypatch.setattr(OurArm, 'is_busy', property(is_busy))
    works.clear()
    assert len(arms['ours'].run(count).seconds) == 1 + 3 + AFTER
    assert len(works) == LEAD + 1 + 3 + AFTER


def test_time_in_hook_and_fence_is_that_of_one_round(
    arms: dict[str, Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr('time.perf_counter', lambda: float(next(ticks)))
    first, second = (arms['stock'].run(nothing) for _ in range(2))
    # Two looks at the clock in every iteration's hook, and none between them.
    assert first.hook == second.hook == 1 + AFTER
    assert first.fence == 0
    # Others look at the same clock meanwhile: each look takes it on, so none takes nothing.
    for name in ('ours', 'ours, by a thread'):
        round_ = arms[name].run(nothing)
        assert 0 < round_.fence < sum(round_.seconds)
        assert 0 < round_.hook < sum(round_.seconds)


def test_a_save_that_did_not_happen_is_no_figure(
    arms: dict[str, Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StockArm, '_save_checkpoint', lambda *args: None)
    with pytest.raises(RuntimeError, match=r'iter_\d+000.pth was not saved'):
        arms['stock'].run(nothing)


def test_lost_by_hand() -> None:
    round_ = Round([0.5, 0.1, 0.1, 0.25], hook=0.3, fence=0.05)
    assert round_.usual == pytest.approx(0.175)
    lost = round_.lost(usual=0.1)
    assert lost == pytest.approx(dict(lost=0.55, hook=0.3, fence=0.05, interference=0.2))
    rounds = [
        {'no save': Round([1.0, 1.0, 4.0]), 'stock': Round([3.0, 1.0], hook=2.0)},
        # This time everything is slower, and no more is lost.
        {'no save': Round([2.0, 2.0, 2.0]), 'stock': Round([4.0, 2.0], hook=2.0)},
    ]
    found = losses(rounds)
    assert found['no save']['lost'].seconds == [3.0, 0.0]
    assert found['stock']['lost'].seconds == [2.0, 2.0]
    assert found['stock']['interference'].seconds == [0.0, 0.0]


def test_rounds_are_in_random_order_and_undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr('os.sync', lambda: ran.append('sync'))

    def work(name: str) -> tuple[str, bool]:
        ran.append(name)
        return name, gc.isenabled()

    works = {name: lambda name=name: work(name) for name in 'abc'}
    found = take_rounds(works, 6, random.Random(0))
    assert found == [{name: (name, False) for name in 'abc'}] * 6
    assert gc.isenabled()
    assert ran[::2] == ['sync'] * 18
    orders = {tuple(ran[n + 1 : n + 6 : 2]) for n in range(0, 36, 6)}
    assert len(orders) > 1
    assert all(sorted(order) == ['a', 'b', 'c'] for order in orders)


def test_probes_move_as_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr('os.fsync', lambda _: sizes.append((tmp_path / 'probe').stat().st_size))
    probes = Probes(str(tmp_path), 12345)
    for name in ('memcpy', 'raw write + fsync', 'raw write + fsync'):
        probes.run(name)
    assert sizes == [12345, 12345]
    assert bytes(probes._target) == b'\x01' * 12345
    assert {name: len(found) for name, found in probes.seconds.items()} == {
        'memcpy': 1,
        'raw write + fsync': 2,
    }
    assert list(tmp_path.iterdir()) == []


def test_the_bars_and_the_plan_are_those_of_the_issue() -> None:
    assert BENCHMARKS['checkpoint'] is measure_checkpoint
    others = ('python', 'matmul 1', 'matmul 2')
    assert {'sleep': 0.02} | dict.fromkeys(others, 0.45) == measure.MAX_LOST
    assert measure.MAX_MEMORY == 1.15
    assert measure.FULL.states == list(measure.STATES) == ['100 MB', 'LSS-Swin-T']
    assert measure.FULL.shapes == list(SHAPES) == list(measure.MAX_LOST)
    assert measure.FULL.arms == list(ARMS)
    assert measure.FULL.rounds >= 7
    assert [SHAPES[name].threads for name in SHAPES] == [None, None, 1, 2]
    assert AFTER == 10


def test_the_states_are_what_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_arms, 'CONFIG', REAL)
    arm = Arm('no save', measure.STATES['100 MB'], str(tmp_path))
    assert arm.state_bytes == pytest.approx(100e6, rel=0.01)
    assert 200 < len(list(arm.runner.model.parameters())) < 300
    assert measure.STATES['LSS-Swin-T'] == 96
    assert arm.runner.cfg.filename.endswith('lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py')


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('os.sync', nothing)
    threads: list[int] = []
    monkeypatch.setattr(torch, 'set_num_threads', threads.append)
    shape = Shape(nothing, threads=2)
    monkeypatch.setattr(measure, 'SHAPES', {'sleep': Shape(nothing), 'matmul 1': shape})
    monkeypatch.setattr(measure, 'STATES', {'small': TINY})
    plan = Plan(['small'], ['sleep', 'matmul 1'], ['no save', 'stock', 'ours'], 2, (1, 0))
    monkeypatch.setattr(measure, 'QUICK', plan)
    asked: list[list[str]] = []

    def peak_of(command: list[str]) -> tuple[int, int]:
        asked.append(command)
        return 100, 100 + 10 * len(asked)

    def measure_side_effects(report: Report, parts: list, judged: list, *options: Any) -> dict:
        assert (judged, *options) == (['save'], True, '--width', str(TINY))
        lost = {'no save': 0.1, 'save by stock': 2.0, 'save': 0.5}
        report.arms.update({f'own processes, {part}': {} for part in parts})
        return {part: [Effect([1.0], [1.0], lost=lost[part])] * 2 for part in parts}

    monkeypatch.setattr(process_memory, 'peak_of', peak_of)
    monkeypatch.setattr(measure, 'measure_side_effects', measure_side_effects)
    report = measure_checkpoint(quick=True)
    assert threads == [1, 1, 2, 1]  # and each time as before
    assert list(tmp_path.iterdir()) == []
    assert [command[-3] for command in asked] == ['stock', 'ours']
    assert all(command[-2] == str(TINY) for command in asked)

    assert [(check.name, check.limit, check.at_least) for check in report.checks] == [
        ('small, sleep: lost, x stock', 0.02, False),
        ('small, matmul 1: lost, x stock', 0.45, False),
        ('small: peak extra memory, x state', 1.15, False),
        ('small, own processes: lost, x stock', 0.45, False),
    ]
    assert report.checks[3].value == 0.25
    assert report.checks[2].value == pytest.approx(1.2)
    report.write(str(tmp_path / 'checkpoint.json'))
    found = json.loads((tmp_path / 'checkpoint.json').read_text())['arms']
    for name in plan.arms:
        for step in plan.shapes:
            figures = found[f'small, {step}, {name}']
            for part in ('lost', 'hook', 'fence', 'interference', 'step'):
                assert figures[part]['n'] == 2
            parts = [figures[part]['median_ms'] for part in ('hook', 'fence', 'interference')]
            assert figures['lost']['median_ms'] == pytest.approx(sum(parts))
            assert len(figures['iterations']) == 2
    assert found['small, sleep, stock']['to_stock']['median'] == 1
    assert found['own processes, save by stock']['lost']['median_ms'] == 2000
    ratios = [found[f'small, {step}, ours']['to_stock']['median'] for step in plan.shapes]
    assert ratios == [check.value for check in report.checks[:2]]
    assert found['small, sleep, ours, first save']['hook_ms'] > 0
    # Three rounds of the first shape, as one is for warming up, and two of the other.
    assert found['small, memcpy']['n'] == found['small, raw write + fsync']['n'] == 5
    assert found['small, peak memory, stock']['times_state'] == pytest.approx(1.1)
    text = '\n'.join(report.notes)
    assert 'the first save of a run, sleep: lost ours' in text


def test_memory_that_cannot_be_seen_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, 'peak_of', lambda command: None)
    report = measure.Report('checkpoint')
    measure._measure_memory(report, '100 MB', 'nowhere')
    assert report.arms == {}
    assert report.checks == []
    assert 'not measured here' in report.notes[0]
