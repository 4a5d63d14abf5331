"""P identities with K samples each, drawn from metadata that is read once."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.registry import DATA_SAMPLERS, FUNCTIONS
from torch.utils.data import DataLoader

from mmtempo.datasets.samplers import epoch_sampler, pk_sampler
from mmtempo.datasets.samplers.identity_pools import endless_identities
from mmtempo.datasets.samplers.pk_sampler import PKSampler


class Gallery(BaseDataset):
    """Samples of so many identities; their pipeline must not be run."""

    def __init__(self, infos: list[dict], serialize: bool = False) -> None:
        self.infos, self.reads = infos, 0
        super().__init__(serialize_data=serialize, pipeline=[self._never])

    def _never(self, results: dict) -> dict:
        raise AssertionError('the pipeline was run')

    def load_data_list(self) -> list[dict]:
        return list(self.infos)

    def get_data_info(self, idx: int) -> dict:
        self.reads += 1
        return super().get_data_info(idx)


def gallery(sizes: list[int], modality: Any = None, seed: int = 0) -> Gallery:
    """Of the sizes given; in an order that does not tell who is who."""
    infos = [
        dict(identity=f'id{person}', modality=modality(person, number) if modality else 'rgb')
        for person, size in enumerate(sizes)
        for number in range(size)
    ]
    random.Random(seed).shuffle(infos)
    return Gallery(infos)


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
    said: list[str] = []
    monkeypatch.setattr(pk_sampler, 'print_log', lambda line, **_: said.append(line))
    return said


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


def test_metadata_is_read_once_and_the_pipeline_never() -> None:
    dataset = gallery([6] * 6)
    sampler = PKSampler(dataset, identities=2, instances=3, seed=0)
    assert dataset.reads == 36
    for epoch in range(3):
        sampler.set_epoch(epoch)
        list(sampler)
    assert dataset.reads == 36


def test_a_batch_costs_the_same_in_a_large_data_set() -> None:
    """Reads of the arrays, per batch: of the drawn identities only."""

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


def test_without_a_seed_the_processes_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_sampler, 'sync_random_seed', lambda: 11)
    dataset = gallery([6] * 10)
    assert list(PKSampler(dataset, 4, 2)) == list(PKSampler(dataset, 4, 2, seed=11))


def test_processes_share_the_batches_and_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
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
            if 4 * step + rank < len(alone):  # the order does not depend on how many they are
                assert (rows == alone[4 * step + rank]).all()


def test_all_processes_have_equally_many(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = set()
    for rank in range(3):
        process(monkeypatch, rank, 3)
        sampler = PKSampler(gallery([4] * 5), identities=2, instances=2, seed=0)
        lengths |= {len(sampler), len(list(sampler))}
    assert lengths == {8}  # 5 batches; a sixth makes it even


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


@pytest.mark.parametrize(('count', 'distinct'), [(1, 1), (2, 1), (5, 5), (7, 2), (7, 6), (40, 8)])
def test_no_identity_comes_again_too_soon(count: int, distinct: int) -> None:
    order = endless_identities(count, distinct, random.Random(0))
    drawn = [next(order) for _ in range(20 * count)]
    assert set(Counter(drawn).values()) == {20}
    window = min(max(distinct, count // 2 + 1), count)
    for start in range(len(drawn) - window):
        assert len(set(drawn[start : start + window])) == window
    if count == 40:
        assert drawn[:40] != drawn[40:80] != drawn[80:120]


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
    assert '8 of 10 identities (80.0%) can be used, with 72 samples' in lines[0]
    assert "left out: 2 without 'ir'" in lines[0]
    assert len(lines) == 1


def test_preferred_modalities_are_used_where_there_are_any() -> None:
    def modality(person: int, number: int) -> list[str]:
        if person == 0:  # many complete ones
            return ['rgb', 'ir', 'text'] if number < 5 else ['rgb']
        if person == 1:  # one complete one
            return ['rgb', 'ir', 'text'] if number == 0 else ['rgb', 'ir']
        if person == 2:  # complete between them
            return [['rgb'], ['ir'], ['text'], ['rgb'], ['rgb'], ['rgb']][number % 6]
        return ['rgb']  # nothing to prefer

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


def test_no_place_is_spent_on_what_is_there_already() -> None:
    dataset = gallery([12] * 4, lambda person, number: [['rgb', 'ir'], ['text']][number % 2])
    sampler = PKSampler(
        dataset, 2, 2, modality_key='modality', required=['rgb'], preferred=['ir', 'text'], seed=0
    )
    for rows in batches_of(sampler):
        for row in rows:
            together = [name for index in row for name in dataset.infos[index]['modality']]
            assert sorted(together) == ['ir', 'rgb', 'text']


def test_samples_that_meet_differ_from_epoch_to_epoch() -> None:
    sampler = PKSampler(gallery([6] * 4), identities=2, instances=3, seed=0)
    meetings = set()
    for epoch in range(20):
        sampler.set_epoch(epoch)
        meetings |= {frozenset(row.tolist()) for rows in batches_of(sampler) for row in rows}
    assert len(meetings) > 60  # of 80 that there can be


def test_what_is_required_goes_before_what_is_preferred() -> None:
    dataset = gallery([12] * 4, lambda person, number: ['rgb', 'ir', 'text'][number % 3])
    sampler = PKSampler(
        dataset, 2, 2, modality_key='modality', required=['text', 'ir'], preferred=['rgb'], seed=0
    )
    modalities = column(dataset, 'modality')
    for rows in batches_of(sampler):
        assert all(set(modalities[row]) == {'text', 'ir'} for row in rows)


def test_small_identities_repeat_samples_and_it_is_said(lines: list[str]) -> None:
    dataset = gallery([1, 3, 8, 8])
    sampler = PKSampler(dataset, identities=4, instances=4, seed=0)
    assert '2 of them have fewer than 4 samples' in lines[0]
    batches = batches_of(sampler)
    people = column(dataset, 'identity')
    for rows in batches:
        for row in rows:
            often = sorted(Counter(row.tolist()).values())
            assert often == {'id0': [4], 'id1': [1, 1, 2]}.get(people[row[0]], [1] * 4)
    assert sampler.repeats == pk_sampler.Repeats(visits=4, short_visits=2, repeated=4)
    assert lines[1:] == [
        'PKSampler, epoch 0: 2 of 4 times (50.0%) an identity had fewer than 4 samples; '
        '4 samples were drawn again'
    ]
    list(sampler)
    assert sampler.repeats.visits == 4  # of the epoch alone


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
    assert list(sampler) == whole  # the next one is a whole epoch again


def test_skips_whole_epochs_as_the_iteration_loop_of_onedl_asks() -> None:
    dataset = gallery([4] * 8)
    sampler = PKSampler(dataset, identities=3, instances=2, seed=0)
    assert len(sampler) == 30
    sampler.skip(2 * 30 + 12)
    expected = PKSampler(dataset, identities=3, instances=2, seed=0)
    expected.set_epoch(2)
    assert list(sampler) == list(expected)[12:]
    sampler.set_epoch(1)
    expected.set_epoch(3)
    assert list(sampler) == list(expected)


def test_in_a_loader() -> None:
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


class Columns:
    """A data set that has columns at hand."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return 12

    def get_data_column(self, key: str) -> Any:
        return self.columns.get(key)


def test_ways_to_say_who_a_sample_is() -> None:
    infos = [dict(path=f'{n % 3}/{n}.jpg', identity=n % 3) for n in range(12)]
    expected = list(PKSampler(Gallery(infos), 2, 2, seed=0))
    for source in (person_of, dict(type='person_of_path'), dict(type=person_of, prefix='x')):
        assert list(PKSampler(Gallery(infos, serialize=True), 2, 2, source, seed=0)) == expected
    for whole in (np.arange(12) % 3, torch.arange(12) % 3, [n % 3 for n in range(12)]):
        dataset = Columns(dict(pid=whole))
        assert list(PKSampler(dataset, 2, 2, 'pid', seed=0)) == expected


def test_modalities_may_be_a_dict_of_files() -> None:
    infos = [
        dict(identity=n % 3, files=dict(rgb='a.jpg', ir='b.jpg' if n < 6 else None, text=False))
        for n in range(12)
    ]
    options: dict = dict(identities=2, instances=2, modality_key='files', seed=0)
    sampler = PKSampler(Gallery(infos), preferred=['ir'], **options)
    assert set(sampler) == set(range(6))
    with pytest.raises(ValueError, match=r"'text' .*by modality: 'rgb' \(12\), 'ir' \(6\)"):
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
        (dict(identity_key=dict(type='nobody')), ValueError, "'nobody' is not registered"),
        (dict(identity_key=np.array), TypeError, 'identity of sample 0 is a ndarray'),
        (dict(required=['rgb']), ValueError, 'modality_key is missing'),
        (dict(required='rgb'), TypeError, "required must be a list of names, found 'rgb'"),
        (
            dict(required=['rgb', 'ir', 'text'], modality_key='modality'),
            ValueError,
            'names 3 modalities, for which instances=2',
        ),
        (
            dict(required=['rgb', 'ir'], modality_key='modality', identities=3),
            ValueError,
            "only 2 of 4 identities can be used; left out: 2 without 'ir'",
        ),
        (
            dict(required=['rgb'], modality_key=len),
            TypeError,
            'modalities of sample 0 are a int',
        ),
    ],
)
def test_mistakes(options: dict, error: type[Exception], message: str) -> None:
    dataset = gallery([4] * 4, lambda person, number: 'ir' if person < 2 and number else 'rgb')
    with pytest.raises(error, match=message):
        PKSampler(dataset, **{**dict(identities=2, instances=2, seed=0), **options})


def test_data_sets_that_tell_nothing() -> None:
    with pytest.raises(TypeError, match='neither get_data_info.*nor get_data_column'):
        PKSampler(torch.arange(12), 2, 2, seed=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match='neither get_data_info'):
        PKSampler(Columns({}), 2, 2, seed=0)
    with pytest.raises(ValueError, match='gave 3 values for 12 samples'):
        PKSampler(Columns(dict(identity=[1, 2, 3])), 2, 2, seed=0)
    with pytest.raises(ValueError, match='the data set is empty'):
        PKSampler([], 2, 2, seed=0)
    with pytest.raises(ValueError, match='must not be negative'):
        PKSampler(gallery([4] * 4), 2, 2, seed=0).skip(-1)
