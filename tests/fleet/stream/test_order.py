"""Epochs as sequences of samples: strict, and rings of shards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.stream.order import Epoch, RingOrder, StrictOrder, format_path, parse_path
from preprocess.base import RandomAccess
from preprocess.length_order import padding_share


class Source(RandomAccess):
    def __init__(self, count):
        self.labels = np.zeros(count, np.int64)


class PermutationSource:
    """A source of permutations, as a pipeline is one."""

    def __init__(self, count, lengths=None):
        self._source = Source(count)
        self.lengths = lengths

    def order(self, epoch):
        return self._source.order(3, epoch)


sizes = st.integers(1, 50).flatmap(
    lambda samples: st.tuples(st.just(samples), st.integers(1, samples))
)


@given(sizes, st.integers(0, 5))
def test_order_chunks_hold_every_sample_once(size, production):
    samples, chunk = size
    chunks = -(-samples // chunk)
    for order in (
        StrictOrder(PermutationSource(samples), chunk),
        RingOrder(PermutationSource(samples), chunk, seed=1),
    ):
        parts = [order.chunk(production * chunks + index) for index in range(chunks)]
        assert {part[0] for part in parts} == {production}
        assert [len(part[1]) for part in parts[:-1]] == [chunk] * (chunks - 1)
        indices = np.concatenate([part[1] for part in parts])
        assert sorted(indices) == list(range(samples))
        np.testing.assert_array_equal(order.plan_epoch(Epoch(production)).indices, indices)


@given(sizes, st.randoms(use_true_random=False), st.data())
def test_ring_order_completes_any_path_to_an_epoch(size, random, data):
    samples, chunk = size
    order = RingOrder(PermutationSource(samples), chunk, seed=1)
    window = list(range(3 * order.shards, 6 * order.shards))
    random.shuffle(window)
    path, lacks = [], set(range(order.shards))
    for sequence in window:
        if order.shard(sequence) in lacks:
            lacks.remove(order.shard(sequence))
            path.append(sequence)
    complete = order.plan_epoch(Epoch(0, tuple(path)))
    assert complete.path == tuple(path)
    assert sorted(complete.indices) == list(range(samples))
    started = tuple(path[: data.draw(st.integers(1, len(path)))])
    completed = order.plan_epoch(Epoch(0, started))
    assert completed.path[: len(started)] == started
    assert min(completed.path[len(started) :], default=max(started) + 1) > max(started)
    assert sorted(completed.indices) == list(range(samples))
    consumed = set(data.draw(st.lists(st.sampled_from(completed.path)))) - set(started)
    assert not consumed & set(order.plan_epoch(Epoch(0, started), consumed).path)
    assert order.plan_epoch(Epoch(0, completed.path)).indices.tolist() == completed.indices.tolist()


def test_ring_order_shard_has_same_samples_reordered():
    order = RingOrder(PermutationSource(40), 10, seed=1)
    samples_of = {}
    for sequence in range(40):
        production, samples = order.chunk(sequence)
        samples_of.setdefault(order.shard(sequence), []).append(samples.tolist())
    for orders in samples_of.values():
        assert len({tuple(sorted(samples)) for samples in orders}) == 1
        assert len({tuple(samples) for samples in orders}) > 1
    orders_of_shards = {
        tuple(order.shard(4 * production + position) for position in range(4))
        for production in range(10)
    }
    assert len(orders_of_shards) > 1


def test_ring_order_of_unequal_lengths_pads_little():
    lengths = np.clip(np.random.default_rng(0).lognormal(3, 1, 10000).astype(int), 1, 512)
    order = RingOrder(PermutationSource(10000, lengths), 200, seed=1)
    plans = [order.plan_epoch(Epoch(production)).indices for production in range(2)]
    assert sorted(plans[0]) == sorted(plans[1]) == list(range(10000))
    assert plans[0].tolist() != plans[1].tolist()
    for plan in plans:
        assert padding_share(lengths, plan, 32) < 0.1


def test_ring_order_of_replay_uses_recorded_paths_in_order():
    order = RingOrder(PermutationSource(9), 3, seed=1, recorded=[(0, 1, 2), (5, 3, 4)])
    assert [order.plan_epoch(Epoch(number)).path for number in range(3)] == [
        (0, 1, 2),
        (5, 3, 4),
        (6, 7, 8),
    ]


@given(st.lists(st.integers(0, 99)))
def test_parse_path_inverts_format_path(path):
    assert parse_path(format_path(path)) == tuple(path)


@pytest.mark.parametrize(("path", "text"), [((), ""), ((7,), "7"), ((1, 2, 3, 5, 4), "1-3 5 4")])
def test_format_path_abbreviates_runs(path, text):
    assert format_path(path) == text
