"""The gradient of announced batches is the mean over all of their samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.optim import OptimWrapper
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.optim import SparseAmpOptimWrapper, SparseOptimWrapper
from tests.testing.amp_training import BY_NORM, BY_VALUE, HUGE, scale_of
from tests.testing.processes import SPAWN
from tests.testing.sparse_training import Training, adamw, adamw_fused, sgd

USUAL = 12
# Batch sizes of updates: usual, smaller last batch, fewer batches, any sizes, one batch.
WINDOWS = [(3, 3, 3, 3), (3, 3, 3, 1), (3, 1), (5, 2, 4), (2,)]
COUNTS = dict(accumulative_counts=4)


def samples(number: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(number)
    return torch.randn(count, 6), torch.randn(count, 3)


def give(training: Training, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    with training.wrapper.optim_context(training.model):
        loss = (training.model(inputs).float() - targets).square().mean()
    training.wrapper.update_params(loss)


def update(training: Training, sizes: tuple[int, ...], poison: int | None = None) -> None:
    """Make one update of batches of these sizes; batch `poison` is not finite."""
    inputs, targets = samples(training.iteration, sum(sizes))
    training.wrapper.begin_update(training.iteration, USUAL)
    parts = zip(inputs.split(list(sizes)), targets.split(list(sizes)))
    for number, (own_inputs, own_targets) in enumerate(parts):
        training.wrapper.announce(len(own_inputs), number == len(sizes) - 1)
        if number == poison:
            own_inputs = own_inputs * math.nan
        give(training, own_inputs, own_targets)
    training.iteration += 1


def large(training: Training, count: int) -> None:
    """Make one update of one batch."""
    give(training, *samples(training.iteration, count))
    training.iteration += 1


def built(build: Callable = SparseOptimWrapper, clip_grad: Any = None, **options: Any) -> Training:
    return Training(build, clip_grad=dict(clip_grad) if clip_grad else None, **options)


def flat(training: Training) -> torch.Tensor:
    return torch.cat([param.detach().flatten() for param in training.model.parameters()])


@pytest.mark.parametrize(('optimizer', 'off'), [(sgd, 1e-6), (adamw, 1e-5), (adamw_fused, 1e-5)])
@pytest.mark.parametrize('clip_grad', [None, BY_NORM, BY_VALUE])
def test_weights_equal_those_of_one_large_batch(
    clip_grad: dict | None, optimizer: Callable, off: float
) -> None:
    """Adam divides by the size of the gradient, which amplifies its rounding errors."""
    options = dict(optimizer=optimizer, clip_grad=clip_grad, norm_interval=2)
    ours, whole = built(**COUNTS, **options), built(**options)
    for sizes in WINDOWS * 3:
        update(ours, sizes)
        large(whole, sum(sizes))
        torch.testing.assert_close(flat(ours), flat(whole), atol=off, rtol=0)
    norms = whole.store.values('train/grad_norm')
    assert len(norms) == 7
    assert ours.store.values('train/grad_norm') == pytest.approx(norms, rel=1e-4)


@pytest.mark.parametrize('sizes', WINDOWS)
def test_gradients_equal_those_of_one_large_batch(sizes: tuple[int, ...]) -> None:
    found = []
    for training, work in (
        (built(**COUNTS), lambda training: update(training, sizes)),
        (built(), lambda training: large(training, sum(sizes))),
    ):
        training.optimizer.register_step_pre_hook(
            lambda optimizer, *_: found.append(
                torch.cat(
                    [
                        param.grad.flatten()
                        for group in optimizer.param_groups
                        for param in group['params']
                        if param.grad is not None
                    ]
                )
            )
        )
        work(training)
    assert found[0].norm() > 0.1
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    'half',
    [
        dict(dtype='bfloat16'),
        dict(dtype='float16', loss_scale=dict(init_scale=2.0**8, growth_interval=5)),
        dict(dtype='float16', loss_scale=512.0),
    ],
    ids=['bfloat16', 'dynamic', 'static'],
)
@pytest.mark.parametrize('clip_grad', [None, BY_NORM])
def test_mixed_precision_is_close_to_one_large_batch(clip_grad: dict | None, half: dict) -> None:
    """Results differ by the rounding of 16 bits."""
    ours = built(SparseAmpOptimWrapper, clip_grad=clip_grad, norm_interval=1, **half, **COUNTS)
    whole = built(SparseAmpOptimWrapper, clip_grad=clip_grad, norm_interval=1, **half)
    start = flat(whole)
    for sizes in WINDOWS * 4:
        update(ours, sizes)
        large(whole, sum(sizes))
    moved = (flat(whole) - start).norm()
    assert moved > 0.1
    assert (flat(ours) - flat(whole)).norm() < 0.02 * moved
    norms = ours.store.values('train/grad_norm'), whole.store.values('train/grad_norm')
    assert len(norms[0]) == len(norms[1]) == len(WINDOWS) * 4
    assert norms[0] == pytest.approx(norms[1], rel=0.05, nan_ok=True)


@pytest.mark.parametrize('half', [dict(), dict(dtype='float16', loss_scale=512.0)])
def test_usual_updates_equal_those_of_stock(half: dict) -> None:
    """Announced and counted batches give equal bits."""
    build = SparseAmpOptimWrapper if half else SparseOptimWrapper
    ours, counting = (
        built(build, clip_grad=BY_NORM, **half, **COUNTS),
        built(build if half else OptimWrapper, clip_grad=BY_NORM, **half, **COUNTS),
    )
    for number in range(5):
        update(ours, (3, 3, 3, 3))
        for part in zip(*(tensor.split(3) for tensor in samples(number, 12))):
            give(counting, *part)
    assert ours.state() == counting.state()


def test_overflow_of_one_batch_lowers_the_scale_once() -> None:
    training = built(SparseAmpOptimWrapper, dtype='float16', loss_scale=HUGE, **COUNTS)
    scales, states = [scale_of(training)], [training.state()]
    for number in range(12):
        update(training, (3, 3, 3, 3), poison=2 if number in (9, 11) else None)
        scales.append(scale_of(training))
        states.append(training.state())
    assert training.store.values('watch/loss_scale') == scales[1:]
    for before, after in ((9, 10), (11, 12)):
        assert scales[after] == scales[before] / 2
        assert states[after] == states[before]
    assert states[11] != states[10]


@pytest.mark.parametrize('half', [dict(), dict(dtype='bfloat16')])
@pytest.mark.parametrize('sizes', [(3, 3, 3, 3), (3, 1)])
def test_nonfinite_batch_skips_its_update(half: dict, sizes: tuple[int, ...]) -> None:
    """The running statistics of all of its batches are restored."""
    build = SparseAmpOptimWrapper if half else SparseOptimWrapper
    training = built(build, **half, **COUNTS)
    norm = nn.BatchNorm1d(6)
    forward = training.model.forward
    training.model.norm = norm
    training.model.forward = lambda inputs: forward(norm(inputs))
    training.wrapper.skip_nonfinite = True
    update(training, (3, 3, 3, 3))
    before, statistics = training.state(), norm.running_mean.clone()
    update(training, (*sizes[:-1], max(sizes[-1], 2)), poison=1)
    assert training.state() == before
    assert torch.equal(norm.running_mean, statistics)
    update(training, (3, 3, 3, 3))
    assert training.state() != before
    assert training.store.values('watch/skipped') == [0.0, 1.0, 0.0]


@pytest.mark.parametrize('build', [SparseOptimWrapper, SparseAmpOptimWrapper])
def test_gradients_are_exchanged_once_an_update(build: type) -> None:
    entered = []

    class Parallel(nn.Module):
        @contextmanager
        def no_sync(self) -> Iterator[None]:
            entered.append(number)
            yield

    training, number = built(build, **COUNTS), 0
    for index, sizes in enumerate(WINDOWS):
        training.wrapper.begin_update(index, USUAL)
        for place, size in enumerate(sizes):
            training.wrapper.announce(size, place == len(sizes) - 1)
            with training.wrapper.optim_context(Parallel()):
                pass
            give(training, *samples(number, size))
            number += 1
    lasts = [sum(map(len, WINDOWS[: index + 1])) - 1 for index in range(len(WINDOWS))]
    assert entered == [index for index in range(number) if index not in lasts]


def in_group(pipe: Any, rank: int, folder: str) -> None:
    """Train with DDP on batches that differ between processes; runs in another process."""
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/group', rank=rank, world_size=2
    )
    training = built(**COUNTS)
    exchanges: list[int] = []

    def exchange(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations
        exchanges.append(training.iteration)
        return allreduce_hook(None, bucket)

    training.model.unused = None  # DDP fails for unused parameters
    training.model = DistributedDataParallel(training.model)
    training.model.register_comm_hook(None, exchange)
    for number, sizes in enumerate(WINDOWS):
        inputs, targets = (tensor.chunk(2)[rank] for tensor in samples(number, 2 * sum(sizes)))
        training.wrapper.begin_update(number, USUAL)
        parts = zip(inputs.split(list(sizes)), targets.split(list(sizes)))
        for place, part in enumerate(parts):
            training.wrapper.announce(len(part[0]), place == len(sizes) - 1)
            training.iteration = number
            give(training, *part)
    torch.distributed.destroy_process_group()
    pipe.send((exchanges, flat(training).tolist()))


def test_two_processes_equal_one_large_batch(tmp_path: Path) -> None:
    """The processes exchange gradients once an update."""
    whole = built()
    whole.model.unused = None
    for sizes in WINDOWS:
        large(whole, 2 * sum(sizes))
    pipes = [SPAWN.Pipe() for _ in range(2)]
    processes = [
        SPAWN.Process(target=in_group, args=(there, rank, str(tmp_path)))
        for rank, (_, there) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for here, there in pipes:
        there.close()  # so that a failed process ends the wait
        assert here.poll(100)
        exchanges, found = here.recv()
        assert exchanges == list(range(len(WINDOWS)))
        torch.testing.assert_close(torch.tensor(found), flat(whole), atol=1e-6, rtol=0)
    for process in processes:
        process.join()
        assert process.exitcode == 0


def test_incomplete_update_is_discarded() -> None:
    """Also if another training begins in the same process."""
    expected = built(**COUNTS)
    update(expected, (3, 3))
    for begins_anew in (False, True):
        training = built(**COUNTS)
        training.wrapper.begin_update(0, USUAL)
        for number in range(2):
            training.wrapper.announce(3, False)
            give(training, *samples(100 + number, 3))
        if begins_anew:
            training.wrapper.initialize_count_status(training.model, 0, 10)
        update(training, (3, 3))
        assert training.state() == expected.state()


def test_another_training_counts_batches_again() -> None:
    training, counting = built(**COUNTS), built(**COUNTS)
    update(training, (3, 3))
    torch.nn.utils.vector_to_parameters(flat(training), counting.model.parameters())
    counting.optimizer.load_state_dict(deepcopy(training.optimizer.state_dict()))
    for one in (training, counting):
        one.wrapper.initialize_count_status(one.model, 0, 10)
        one.iteration = 0
        one.run(10)
    assert training.state() == counting.state()


def test_norm_interval_counts_updates_across_a_resume() -> None:
    training = built(norm_interval=3, **COUNTS)
    at = []
    for number in range(12):
        before = len(training.store.notes)
        update(training, WINDOWS[number % len(WINDOWS)])
        if len(training.store.notes) > before:
            at.append(training.iteration)
    assert at == [3, 6, 9, 12]
    resumed = built(norm_interval=3, **COUNTS)
    resumed.wrapper.initialize_count_status(resumed.model, 7, 50)
    resumed.iteration = 7
    update(resumed, (3, 1))
    assert resumed.store.notes == []
    update(resumed, (3, 1))
    assert len(resumed.store.values('train/grad_norm')) == 1


def test_last_iteration_number_does_not_end_an_update() -> None:
    """That number counts updates, while the wrapper counts batches."""
    training, whole = built(**COUNTS), built()
    training.wrapper.initialize_count_status(training.model, 0, 6)
    for _ in range(3):
        update(training, (3, 3, 3, 3))
        large(whole, 12)
    torch.testing.assert_close(flat(training), flat(whole), atol=1e-6, rtol=0)


@pytest.mark.parametrize('build', [SparseOptimWrapper, SparseAmpOptimWrapper])
def test_updates_do_not_synchronize(build: type) -> None:
    training = built(build, clip_grad=BY_NORM, optimizer=adamw, norm_interval=1, **COUNTS)
    training.wrapper.skip_nonfinite = True
    update(training, (3, 3, 3, 3))  # creates the optimizer's state
    with SyncCensus() as census:
        for sizes in WINDOWS:
            update(training, sizes)
    assert census.table() == []


MISUSED = "train_cfg.count='updates' needs .* calls optim_wrapper.update_params once"


def test_model_that_updates_twice_a_batch_is_refused() -> None:
    training = built(**COUNTS)
    training.wrapper.begin_update(0, USUAL)
    training.wrapper.announce(3, False)
    give(training, *samples(0, 3))
    with pytest.raises(RuntimeError, match=MISUSED):
        give(training, *samples(0, 3))


@pytest.mark.parametrize('is_last', [False, True])
def test_model_that_steps_itself_is_refused(is_last: bool) -> None:
    training = built(**COUNTS)
    training.wrapper.begin_update(0, USUAL)
    training.wrapper.announce(3, is_last)
    with pytest.raises(RuntimeError, match=MISUSED):
        training.wrapper.step()


def test_model_that_omits_the_update_is_refused() -> None:
    training = built(**COUNTS)
    training.wrapper.begin_update(0, USUAL)
    training.wrapper.announce(3, False)
    give(training, *samples(0, 3))
    training.wrapper.announce(3, True)
    with pytest.raises(RuntimeError, match=MISUSED):
        training.wrapper.begin_update(1, USUAL)


def test_resume_within_an_update_is_logged_only_if_batches_are_counted(
    warnings_of: Callable,
) -> None:
    training = built(**COUNTS)

    def resume() -> None:
        training.wrapper.initialize_count_status(training.model, 6, 40)

    warned = warnings_of(lambda: (resume(), training.run(4)))
    assert len(warned) == 1
    assert 'accumulative_counts=4: iteration 7 resumes in the middle of an update' in warned[0]
    training.iteration = 6
    assert warnings_of(lambda: (resume(), update(training, (3, 1)))) == []
    training.wrapper.initialize_count_status(training.model, 8, 40)
    assert warnings_of(lambda: training.run(4)) == []
