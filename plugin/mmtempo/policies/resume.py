"""Adapt a checkpoint to a training whose iterations have more or fewer samples."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from mmtempo.evaluation.owed_evaluation import OWED
from mmtempo.loops.training_batches import PLACE, samples_of_iteration

from .policy import KEY

# Keys of a parameter group that say how a step is computed: the new training decides them.
FORMS = ('fused', 'foreach')


def fit_to_policy(runner: Any, checkpoint: dict) -> None:
    """Change a loaded checkpoint so that a training by another policy can resume from it.

    ::

        iteration        scaled, so that the samples seen stay the same
        learning rate    the value of the new schedule at that iteration
        all else         weights, averages, moments of the optimizer: unchanged

    A training without a policy follows stock's rules: it resumes at the same iteration, with the
    learning rate and the schedules of the checkpoint.

    Args:
        runner: Runner of the new training, before it loads the checkpoint's state.
        checkpoint: The loaded checkpoint; it is changed.
    """
    policy = runner.cfg.get(KEY)
    infos = (checkpoint.get('message_hub') or {}).get('runtime_info') or {}
    position = infos.get(PLACE)
    if not policy or not isinstance(position, dict) or 'optimizer' not in checkpoint:
        return
    saved_groups = list(_saved_groups(checkpoint['optimizer']))
    groups = _groups_of(runner)
    for saved, current in zip(saved_groups, groups):
        saved.update({form: current.get(form) for form in FORMS if form in current})
    old, new = position.get('per_iteration'), samples_of_iteration(runner.train_loop)
    if not old or not new or old == new or len(saved_groups) != len(groups):
        return
    change = f'samples per iteration: {old} -> {new}'
    if isinstance(runner.param_schedulers, dict):
        runner.logger.warning(
            f'{change}, with several optimizers; resuming at the same iteration, with the learning '
            'rates and the schedules of the checkpoint'
        )
        return
    done = checkpoint['meta']['iter']
    iteration = done if policy.get('length') == 'iterations' else round(done * old / new)
    infos[PLACE] = dict(position, iter=iteration)
    if infos.get(OWED) == done:
        infos[OWED] = iteration
    checkpoint['meta']['iter'] = iteration
    values, states = _schedule_at(runner, iteration, checkpoint['meta']['epoch'])
    for saved, value in zip(saved_groups, values):
        saved.update(value)
    if 'param_schedulers' in checkpoint:
        checkpoint['param_schedulers'] = states
    where = f'after iteration {iteration} instead of {done}, with the same number of samples seen'
    if iteration == done:
        where = f'at the same iteration ({KEY}.length=iterations)'
    runner.logger.info(
        f'{change}; resuming {where}, with the learning rate of the schedule of the policy '
        f'{policy.get("policy")!r}'
    )


def _saved_groups(state: Mapping) -> Iterator[dict]:
    """Yield the parameter groups of a saved optimizer, in the order of those of a wrapper."""
    yield from state['param_groups']
    base = state.get('base_param_settings')
    if base is not None:
        yield base


def _schedule_at(runner: Any, iteration: int, epochs: int) -> tuple[list[dict], list[dict]]:
    """Return the scheduled values of each parameter group, and the states of the schedulers.

    A scheduler of mmengine computes each value from the previous one. So copies of the schedulers
    are stepped to the iteration, on one stand-in for all groups that are scheduled alike.

    Args:
        runner: Runner of the new training.
        iteration: Steps of the schedulers that count iterations.
        epochs: Steps of the schedulers that count epochs.
    """
    groups = [{key: group[key] for key in group if key != 'params'} for group in _groups_of(runner)]
    kinds = [(group.get('initial_lr'), group['lr']) for group in groups]
    stepped_groups = {kind: dict(group) for kind, group in zip(kinds, groups)}
    optimizer = _GroupsOnly(list(stepped_groups.values()))
    schedulers = runner.param_schedulers or []
    stepped = [_copy_for(optimizer, scheduler) for scheduler in schedulers]
    for step in range(max(iteration, epochs)):
        for scheduler in stepped:
            if step < (epochs if scheduler.by_epoch else iteration):
                scheduler.step()
    names = {scheduler.param_name for scheduler in stepped} | {'lr', 'initial_lr'}
    values = [
        {name: stepped_groups[kind][name] for name in names if name in stepped_groups[kind]}
        for kind in kinds
    ]
    states = [
        dict(
            scheduler.state_dict(),
            last_step=other.last_step,
            _global_step=other._global_step,
            _last_value=[value[scheduler.param_name] for value in values],
        )
        for scheduler, other in zip(schedulers, stepped)
    ]
    return values, states


class _GroupsOnly:
    """Stand-in for an optimizer with the attributes that a scheduler uses."""

    def __init__(self, groups: list[dict]) -> None:
        self.param_groups = groups
        self._global_step = 0

    def step(self) -> None:
        """Do nothing; a scheduler warns unless `step` counts its calls."""

    step._with_counter = True  # type: ignore[attr-defined]


def _copy_for(optimizer: _GroupsOnly, scheduler: Any) -> Any:
    """Return a copy of a scheduler that has not been stepped, for the groups of `optimizer`."""
    other = copy.copy(scheduler)
    other.optimizer = optimizer
    name = scheduler.param_name
    other.base_values = [
        group.get(f'initial_{name}', group[name]) for group in optimizer.param_groups
    ]
    return other


def _groups_of(runner: Any) -> list[dict]:
    return list(runner.optim_wrapper.param_groups)
