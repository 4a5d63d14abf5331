"""Takes a checkpoint over into a training whose iterations have more or fewer samples."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from mmtempo.evaluation.owed_evaluation import OWED
from mmtempo.loops.training_batches import PLACE, samples_of_iteration

POLICY = 'tempo'
# Of a parameter group: how a step is computed, which is the new training's business.
FORMS = ('fused', 'foreach')


def fit_to_policy(runner: Any, checkpoint: dict) -> None:
    """Change a checkpoint, as it is loaded, so that a training by another policy goes on from it.

    ::

        iteration        where as many samples were seen
        learning rate    what the new schedule has there
        all else         weights, averages, the optimizer's moments: as they are

    A training by no policy is left to stock's rules: it goes on at the same iteration, with the
    rate and the schedule of the checkpoint.

    Args:
        runner: Of the new training, about to take the checkpoint over.
        checkpoint: What was loaded; it is changed.
    """
    policy = runner.cfg.get(POLICY)
    infos = (checkpoint.get('message_hub') or {}).get('runtime_info') or {}
    place = infos.get(PLACE)
    if not policy or not isinstance(place, dict) or 'optimizer' not in checkpoint:
        return
    groups = list(_groups(checkpoint['optimizer']))
    own = _own_groups(runner)
    for group, current in zip(groups, own):
        group.update({form: current.get(form) for form in FORMS if form in current})
    old, new = place.get('per_iteration'), samples_of_iteration(runner.train_loop)
    if not old or not new or old == new or len(groups) != len(own):
        return
    if isinstance(runner.param_schedulers, dict):
        runner.logger.warning(
            f'{old} -> {new} samples an iteration, and several optimizers: goes on at the same '
            'iteration, with the learning rates and the schedules of the checkpoint'
        )
        return
    done = checkpoint['meta']['iter']
    iteration = done if policy.get('length') == 'iterations' else round(done * old / new)
    infos[PLACE] = dict(place, iter=iteration)
    if infos.get(OWED) == done:
        infos[OWED] = iteration
    checkpoint['meta']['iter'] = iteration
    values, states = _schedule_at(runner, iteration, checkpoint['meta']['epoch'])
    for group, value in zip(groups, values):
        group.update(value)
    if 'param_schedulers' in checkpoint:
        checkpoint['param_schedulers'] = states
    where = f'behind iteration {iteration} instead of {done}, where as many samples were seen'
    if iteration == done:
        where = f'at the same iteration ({POLICY}.length=iterations)'
    runner.logger.info(
        f'{old} -> {new} samples an iteration: goes on {where}, with the learning rate that the '
        f'schedule of the policy {policy.get("policy")!r} has there'
    )


def _groups(state: Mapping) -> Iterator[dict]:
    """Parameter groups of an optimizer's state, in the order of a wrapper's."""
    yield from state['param_groups']
    base = state.get('base_param_settings')
    if base is not None:
        yield base


def _schedule_at(runner: Any, iteration: int, epochs: int) -> tuple[list[dict], list[dict]]:
    """What schedules make of each parameter group at an iteration, and their states there.

    Schedules of mmengine go from one step to the next, so copies of them are led there, on groups
    of which each stands for all that are scheduled alike.
    """
    own = [{key: one[key] for key in one if key != 'params'} for one in _own_groups(runner)]
    kinds = [(group.get('initial_lr'), group['lr']) for group in own]
    led_groups = {kind: dict(group) for kind, group in zip(kinds, own)}
    optimizer = _Groups(list(led_groups.values()))
    schedulers = runner.param_schedulers or []
    led = [_led(one, optimizer) for one in schedulers]
    for step in range(max(iteration, epochs)):
        for scheduler in led:
            if step < (epochs if scheduler.by_epoch else iteration):
                scheduler.step()
    names = {scheduler.param_name for scheduler in led} | {'lr', 'initial_lr'}
    values = [
        {name: led_groups[kind][name] for name in names if name in led_groups[kind]}
        for kind in kinds
    ]
    states = [
        dict(
            one.state_dict(),
            last_step=other.last_step,
            _global_step=other._global_step,
            _last_value=[value[one.param_name] for value in values],
        )
        for one, other in zip(schedulers, led)
    ]
    return values, states


class _Groups:
    """What a schedule needs of an optimizer."""

    def __init__(self, groups: list[dict]) -> None:
        self.param_groups = groups
        self._global_step = 0

    def step(self) -> None:
        """It is asked whether this was called before a schedule was."""

    step._with_counter = True  # type: ignore[attr-defined]


def _led(scheduler: Any, optimizer: _Groups) -> Any:
    """A copy, as new as the scheduler is, of other groups."""
    other = copy.copy(scheduler)
    other.optimizer = optimizer
    name = scheduler.param_name
    other.base_values = [
        group.get(f'initial_{name}', group[name]) for group in optimizer.param_groups
    ]
    return other


def _own_groups(runner: Any) -> list[dict]:
    return list(runner.optim_wrapper.param_groups)
