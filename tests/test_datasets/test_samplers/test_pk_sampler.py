"""Batches of P identities with K samples each, drawn from metadata that is read once."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import torch
from mmengine.registry import DATA_SAMPLERS, FUNCTIONS
from torch.utils.data import DataLoader

from mmtempo.datasets.samplers import epoch_sampler, pk_sampler
from mmtempo.datasets.samplers.pk_sampler import PKSampler
from tests.testing.galleries import Columns, Gallery, gallery


def batches_of(sampler: PKSampler) -> list[np.ndarray]:
    drawn = np.array(list(sampler))
    assert len(drawn) == len(sampler)
    return list(drawn.reshape(-1, sampler.identities, sampler.instances))


def column(dataset: Gallery, key: str) -> np.ndarray:
    return np.array([info[key] for info in dataset.infos])


def process(monkeypatch: pytest.MonkeyPatch, rank: int, count: int) -> None:
    monkeypatch.setattr(epoch_sampler, 'get_dist_info', lambda: (rank, count))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the log lines of the sampler from here on."""
    logged: list[str] = []
    monkeypatch.setattr(pk_sampler, 'print_log', lambda line, **_: logged.append(line))
    return logged


def check_batches(batches: list[np.ndarray], identities: np.ndarray) -> None:
    for rows in batches:
        people = identities[rows]
        assert (people == people[:, :1]).all()
        assert len(set(people[:, 0])) == len(rows)
        assert len(set(rows.ravel())) == rows.size


def test_each_batch_has_p_identities_with_k_samples() -> None:
    dataset = gallery([5, 9, 4, 30, 12, 7, 8, 25])
    cfg = dict(type='PKSampler', identities=3, instances=4, dataset=dataset, seed=1)
    sampler = DATA_SAMPLERS.build(cfg)
    assert type(sampler) is PKSampler
    batches = batches_of(sampler)
    assert len(batches) == 100 // 12
    check_batches(batches, column(dataset, 'identity'))


def test_metadata_is_read_once_without_the_pipeline() -> None:
    dataset = gallery([6] * 6)
    sampler = PKSampler(dataset, identities=2, instances=3, seed=0)
    assert dataset.reads == 36
    for epoch in range(3):
        sampler.set_epoch(epoch)
        list(sampler)
    assert dataset.reads == 36


def test_cost_of_a_batch_does_not_grow_with_the_data_set() -> None:
    """Only samples of the drawn identities are read."""

    class Counting(list):
        drawn = 0

    def reads_per_batch(people: int) -> float:
        sampler = PKSampler(gallery([8] * people), identities=4, instances=4, seed=0)
        of, calls = sampler._pools.everything.of, Counting()

        def counted(identity: int) -> list[int]:
            found = of(identity)
            calls.drawn += len(found)
            return found

        sampler._pools.everything.of = counted  # type: ignore[method-assign]
        list(sampler)
        return calls.drawn / (len(sampler) / 16)

    assert reads_per_batch(200) <= 1.1 * reads_per_batch(20) <= 1.1 * 32


def test_order_is_a_function_of_seed_and_epoch() -> None:
    dataset = gallery([6] * 10)

    def order(seed: int, epoch: int) -> list[int]:
        sampler = PKSampler(dataset, identities=4, instances=2, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    sampler = PKSampler(dataset, identities=4, instances=2, seed=3)
    first = list(sampler)
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    assert list(sampler) == first == order(3, 0)
    sampler.set_epoch(7)
    assert list(sampler) == order(3, 7)
    assert len({tuple(order(*key)) for key in [(3, 0), (3, 1), (4, 0), (13, 0), (1, 30)]}) == 5


def test_processes_take_turns_and_share_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = gallery([5] * 26)
    people = column(dataset, 'identity')
    alone = batches_of(PKSampler(dataset, identities=3, instances=2, seed=2))
    shares = []
    for rank in range(4):
        process(monkeypatch, rank, 4)
        sampler = PKSampler(dataset, identities=3, instances=2, seed=2)
        shares.append(batches_of(sampler))
    assert len(alone) == 21
    assert [len(share) for share in shares] == [6] * 4
    for step, at_once in enumerate(zip(*shares)):
        seen = [name for rows in at_once for name in set(people[rows].ravel())]
        assert len(seen) == len(set(seen)) == 12
        for rank, rows in enumerate(at_once):
            if 4 * step + rank < len(alone):  # the order does not depend on their number
                assert (rows == alone[4 * step + rank]).all()


def test_all_processes_have_the_same_number_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = set()
    for rank in range(3):
        process(monkeypatch, rank, 3)
        sampler = PKSampler(gallery([4] * 5), identities=2, instances=2, seed=0)
        lengths |= {len(sampler), len(list(sampler))}
    assert lengths == {8}  # 5 batches, and a sixth for equal shares


def test_identities_are_drawn_equally_often_and_samples_too() -> None:
    dataset = gallery([3, 6, 9, 12, 30])
    sampler = PKSampler(dataset, identities=2, instances=3, seed=0)
    batches = batches_of(sampler)
    people = column(dataset, 'identity')
    visits = Counter(name for rows in batches for name in people[rows[:, 0]])
    assert max(visits.values()) - min(visits.values()) <= 1
    drawn = Counter(np.concatenate(batches).ravel().tolist())
    for name in set(people):
        often = [drawn[int(index)] for index in np.flatnonzero(people == name)]
        assert max(often) - min(often) <= 1 + (max(often) > 1)


def test_required_modalities_are_in_each_identity_of_each_batch(lines: list[str]) -> None:
    def modality(person: int, number: int) -> str:
        rare = person not in (3, 4) and number == 0  # one sample, in 8 of 10 identities
        return 'ir' if rare else 'rgb'

    dataset = gallery([9] * 10, modality)
    sampler = PKSampler(dataset, 4, 3, modality_key='modality', required=['rgb', 'ir'], seed=0)
    batches = batches_of(sampler)
    check_batches(batches, column(dataset, 'identity'))
    modalities, people = column(dataset, 'modality'), column(dataset, 'identity')
    for rows in batches:
        for row in rows:
            assert set(modalities[row]) == {'rgb', 'ir'}
    used = {name for rows in batches for name in people[rows].ravel()}
    assert used == {f'id{n}' for n in range(10)} - {'id3', 'id4'}
    assert len(sampler) == 72 // 12 * 12
    assert '8 of 10 identities (80 %) can be used, with 72 samples' in lines[0]
    assert "left out: 2 without 'ir'" in lines[0]
    assert len(lines) == 1


def test_preferred_modalities_are_used_where_available() -> None:
    def modality(person: int, number: int) -> list[str]:
        if person == 0:  # many complete samples
            return ['rgb', 'ir', 'text'] if number < 5 else ['rgb']
        if person == 1:  # one complete sample
            return ['rgb', 'ir', 'text'] if number == 0 else ['rgb', 'ir']
        if person == 2:  # complete in combination
            return [['rgb'], ['ir'], ['text'], ['rgb'], ['rgb'], ['rgb']][number % 6]
        return ['rgb']  # no preferred modality

    dataset = gallery([12] * 4, modality)
    sampler = PKSampler(
        dataset, 4, 3, modality_key='modality', required=['rgb'], preferred=['ir', 'text'], seed=0
    )
    batches = batches_of(sampler)
    check_batches(batches, column(dataset, 'identity'))
    for rows in batches:
        for row in rows:
            infos = [dataset.infos[index] for index in row]
            complete = sum(len(info['modality']) == 3 for info in infos)
            together = {name for info in infos for name in info['modality']}
            person = infos[0]['identity']
            assert complete == dict(id0=3, id1=1).get(person, 0)
            assert together == ({'rgb'} if person == 'id3' else {'rgb', 'ir', 'text'})


def test_present_modalities_are_not_drawn_again() -> None:
    dataset = gallery([12] * 4, lambda person, number: [['rgb', 'ir'], ['text']][number % 2])
    sampler = PKSampler(
        dataset, 2, 2, modality_key='modality', required=['rgb'], preferred=['ir', 'text'], seed=0
    )
    for rows in batches_of(sampler):
        for row in rows:
            together = [name for index in row for name in dataset.infos[index]['modality']]
            assert sorted(together) == ['ir', 'rgb', 'text']


def test_samples_of_an_identity_are_combined_freely() -> None:
    sampler = PKSampler(gallery([6] * 4), identities=2, instances=3, seed=0)
    meetings = set()
    for epoch in range(20):
        sampler.set_epoch(epoch)
        meetings |= {frozenset(row.tolist()) for rows in batches_of(sampler) for row in rows}
    assert len(meetings) > 60  # of 80 possible ones


def test_required_modalities_precede_preferred_ones() -> None:
    dataset = gallery([12] * 4, lambda person, number: ['rgb', 'ir', 'text'][number % 3])
    sampler = PKSampler(
        dataset, 2, 2, modality_key='modality', required=['text', 'ir'], preferred=['rgb'], seed=0
    )
    modalities = column(dataset, 'modality')
    for rows in batches_of(sampler):
        assert all(set(modalities[row]) == {'text', 'ir'} for row in rows)


def test_repeats_of_small_identities_are_counted_and_logged(lines: list[str]) -> None:
    dataset = gallery([1, 3, 8, 8])
    sampler = PKSampler(dataset, identities=4, instances=4, seed=0)
    assert 'usable identities with fewer than 4 samples: 2;' in lines[0]
    batches = batches_of(sampler)
    people = column(dataset, 'identity')
    for rows in batches:
        for row in rows:
            often = sorted(Counter(row.tolist()).values())
            assert often == {'id0': [4], 'id1': [1, 1, 2]}.get(people[row[0]], [1] * 4)
    assert sampler.repeats == pk_sampler.Repeats(visits=4, short_visits=2, repeated=4)
    assert lines[1:] == [
        'PKSampler: epoch 0 drew 2 of 4 identities (50 %) with fewer than 4 samples; '
        '4 samples were drawn repeatedly'
    ]
    list(sampler)
    assert sampler.repeats.visits == 4  # of the current epoch only


def test_samples_without_an_identity_are_left_out() -> None:
    dataset = gallery([4] * 4)
    for info in dataset.infos[:3]:
        info['identity'] = None
    dataset = Gallery(dataset.infos)
    sampler = PKSampler(dataset, identities=2, instances=2, seed=0)
    drawn = {index for epoch in range(5) for index in sampler.indices(epoch, 0)}
    assert drawn == set(range(3, 16))


@pytest.mark.parametrize('start', [0, 1, 6, 7, 18, 24])
def test_resumes_at_a_whole_batch(start: int) -> None:
    sampler = PKSampler(gallery([4] * 8), identities=3, instances=2, seed=0)
    whole = list(sampler)
    sampler.skip(start)
    assert list(sampler) == whole[-(-start // 6) * 6 :]
    assert list(sampler) == whole  # the next epoch is complete


def test_loader_batches_are_those_of_the_sampler() -> None:
    dataset = gallery([6] * 6)
    sampler = PKSampler(dataset, identities=3, instances=2, seed=0)
    sampler.check_batch_size(6)
    people = column(dataset, 'identity')
    indices = torch.arange(36)
    loader = DataLoader(indices, batch_size=6, sampler=sampler)  # type: ignore[arg-type]
    batches = [batch.numpy().reshape(3, 2) for batch in loader]
    assert len(batches) == len(loader) == 6
    check_batches(batches, people)
    with pytest.raises(ValueError, match=r'batch_size=8, but .* 3 x 2; set batch_size=6'):
        sampler.check_batch_size(8)


@FUNCTIONS.register_module(name='person_of_path')
def person_of(info: dict, prefix: str = '') -> str:
    return prefix + info['path'].split('/')[0]


def test_identity_sources_give_the_same_order() -> None:
    infos = [dict(path=f'{n % 3}/{n}.jpg', identity=n % 3) for n in range(12)]
    expected = list(PKSampler(Gallery(infos), 2, 2, seed=0))
    for source in (person_of, dict(type='person_of_path'), dict(type=person_of, prefix='x')):
        assert list(PKSampler(Gallery(infos, serialize=True), 2, 2, source, seed=0)) == expected
    for whole in (np.arange(12) % 3, torch.arange(12) % 3, [n % 3 for n in range(12)]):
        dataset = Columns(dict(pid=whole))
        assert list(PKSampler(dataset, 2, 2, 'pid', seed=0)) == expected


def test_modalities_from_a_dict_of_files() -> None:
    infos = [
        dict(identity=n % 3, files=dict(rgb='a.jpg', ir='b.jpg' if n < 6 else None, text=False))
        for n in range(12)
    ]
    options: dict = dict(identities=2, instances=2, modality_key='files', seed=0)
    sampler = PKSampler(Gallery(infos), preferred=['ir'], **options)
    assert set(sampler) == set(range(6))
    with pytest.raises(
        ValueError, match=r"modality 'text'; found .*by modality.: 'rgb' \(12\), 'ir' \(6\)"
    ):
        PKSampler(Gallery(infos), required=['text'], **options)


@pytest.mark.parametrize(
    ('options', 'error', 'message'),
    [
        (dict(identities=5), ValueError, 'identities=5, but only 4 of 4 identities'),
        (dict(identities=0), ValueError, 'identities must be an integer of 1 or more, found 0'),
        (dict(instances=2.0), ValueError, 'instances must be an integer of 1 or more, found 2.0'),
        (dict(seed=-1), ValueError, 'seed must be None or an integer of 0 or more, found -1'),
        (dict(identity_key='pid'), ValueError, r"sample 0 has no 'pid'.* identity, modality"),
        (dict(identity_key=3), TypeError, 'identity_key must be a key of the data info'),
        (dict(identity_key=dict(type='missing')), ValueError, "'missing' is not registered"),
        (
            dict(identity_key=np.array),
            TypeError,
            'must be an integer or a string, found ndarray in sample 0',
        ),
        (dict(required=['rgb']), ValueError, 'modality_key is missing'),
        (dict(required='rgb'), TypeError, "required must be a list of names, found 'rgb'"),
        (
            dict(required=['rgb', 'ir', 'text'], modality_key='modality'),
            ValueError,
            'must name at most instances=2 modalities, found 3',
        ),
        (
            dict(required=['rgb', 'ir'], modality_key='modality', identities=3),
            ValueError,
            "only 2 of 4 identities can be used; left out: 2 without 'ir'",
        ),
        (
            dict(required=['rgb'], modality_key=len),
            TypeError,
            'modalities must be .* found int in sample 0',
        ),
    ],
)
def test_wrong_arguments_are_refused(options: dict, error: type[Exception], message: str) -> None:
    dataset = gallery([4] * 4, lambda person, number: 'ir' if person < 2 and number else 'rgb')
    with pytest.raises(error, match=message):
        PKSampler(dataset, **{**dict(identities=2, instances=2, seed=0), **options})
