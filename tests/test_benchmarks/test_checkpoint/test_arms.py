"""Arms save the same content, and a round contains the iterations around one save."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mmtempo.benchmarks.checkpoint.arms import (
    AFTER,
    ARMS,
    LEAD,
    WITHOUT_SAVE,
    Arm,
    OurArm,
    Round,
    StockArm,
)
from mmtempo.checkpoint.loading import load_from_local

TINY = 8  # width of the backbone
pytestmark = pytest.mark.usefixtures('small_config')
SAVING = [name for name in ARMS if name != 'no save']


def nothing() -> None:
    pass


@pytest.fixture(scope='module')
def arms(small_config: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Arm]]:
    """Build all arms and run the first save of each."""
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


def test_arms_with_a_shared_training_save_their_own_files(tmp_path: Path) -> None:
    built: dict[str, Arm] = {}
    for name in ARMS:
        built[name] = Arm(name, TINY, str(tmp_path), shared=next(iter(built.values()), None))
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
    assert files(built['ours']) == ['iter_5000.pth']
    for arm in built.values():
        arm.close()


def test_saved_state_changes_between_saves(arms: dict[str, Arm]) -> None:
    arm = arms['ours']
    arm.run(nothing)
    before = content(arm, newest(arm))['state_dict']
    for group in arm.runner.optim_wrapper.optimizer.param_groups:
        group['lr'] = 0.01  # the warm-up starts with steps below the precision of float32
    arm.run(nothing)
    after = content(arm, newest(arm))['state_dict']
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {'norm.running_mean', 'norm.num_batches_tracked'} < changed
    assert 5 < len(changed) < 20


def test_only_the_synced_arm_waits_for_the_disk(
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


def test_round_ends_after_the_iterations_that_follow_a_durable_save(
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
        hook._saver._writer.wait()  # independent of the load of the machine
        return False

    monkeypatch.setattr(OurArm, 'is_busy', property(is_busy))
    works.clear()
    assert len(arms['ours'].run(count).seconds) == 1 + 3 + AFTER
    assert len(works) == LEAD + 1 + 3 + AFTER


def test_hook_and_fence_times_restart_in_each_round(
    arms: dict[str, Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr('time.perf_counter', lambda: float(next(ticks)))
    first, second = (arms['stock'].run(nothing) for _ in range(2))
    # The hook reads the clock twice in each iteration, with no other reading between them.
    assert first.hook == second.hook == 1 + AFTER
    assert first.fence == 0
    # Other threads advance the same clock, so that the exact times of ours are not known.
    round_ = arms['ours'].run(nothing)
    assert 0 < round_.fence < sum(round_.seconds)
    assert 0 < round_.hook < sum(round_.seconds)


def test_missing_save_is_an_error(arms: dict[str, Arm], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StockArm, '_save_checkpoint', lambda *args: None)
    with pytest.raises(RuntimeError, match=r'iter_\d+000.pth was not saved'):
        arms['stock'].run(nothing)


def test_lost_time_is_the_sum_over_the_usual_iteration() -> None:
    round_ = Round([0.5, 0.1, 0.1, 0.25], hook=0.3, fence=0.05)
    assert round_.usual == pytest.approx(0.175)
    lost = round_.lost(usual=0.1)
    assert lost == pytest.approx(dict(lost=0.55, hook=0.3, fence=0.05, interference=0.2))
