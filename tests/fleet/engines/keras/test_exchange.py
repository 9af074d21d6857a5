"""Gradients are summed on the host or in a graph."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.engines.base import PeerFailed, StepTotals
from tests.examples import examples
from tests.fleet.one_process import Launch

pytestmark = pytest.mark.tensorflow

SHAPES = ((2, 3), (), (4,))


def gradients_of(rank, dtype="float32"):
    import tensorflow as tf

    return [
        tf.fill(shape, tf.constant(rank + index + 1, dtype)) for index, shape in enumerate(SHAPES)
    ]


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(2, 4), st.integers(0, 99), st.sampled_from(["float32", "float16"]))
def test_mpi_exchange_sums_any_shapes_in_persistent_memory(size, seed, dtype):
    from fleet.engines.keras.exchange import MpiExchange

    result = {}

    def rank_main(world):
        exchange = MpiExchange(world.group(range(size), 1))
        actual = StepTotals(world.rank, 1, 2, stop=world.rank == 1).pack().astype(np.float32)
        before, _ = exchange.sum_on_host(gradients_of(7, dtype), actual, None)
        result[world.rank] = exchange.sum_on_host(gradients_of(world.rank, dtype), actual, None)
        old, new = (
            [np.atleast_1d(tensor).ctypes.data for tensor in entry]
            for entry in (before, result[world.rank][0])
        )
        assert old == new
        assert all(address % 64 == 0 for address in new)  # aligned, as TensorFlow requires

    assert Launch(size, seed).run(rank_main)
    sum_of_ranks = sum(range(size))
    for gradients, totals in result.values():
        assert totals == StepTotals(sum_of_ranks, size, 2 * size, stop=True)
        assert [(tensor.shape, tensor.dtype) for tensor in gradients] == [
            (shape, "float32") for shape in SHAPES
        ]
        for index, tensor in enumerate(gradients):
            assert (tensor.numpy() == sum_of_ranks + size * (index + 1)).all()


def test_mpi_exchange_raises_on_all_ranks():
    from fleet.engines.keras.exchange import MpiExchange

    raised = {}

    def rank_main(world):
        error = ValueError("of rank 1") if world.rank == 1 else None
        with pytest.raises((ValueError, PeerFailed)) as caught:
            MpiExchange(world.group(range(3), 1)).sum_on_host(
                gradients_of(0), StepTotals().pack(), error
            )
        raised[world.rank] = caught.type

    assert Launch(3, 0).run(rank_main)
    assert raised == {0: PeerFailed, 1: ValueError, 2: PeerFailed}


def test_make_exchange_sums_nothing_for_one_rank():
    from fleet.engines.keras.exchange import MpiExchange, NoExchange, make_exchange

    def rank_main(world):
        alone, pair = world.group([world.rank], world.rank), world.group([0, 1], 2)
        assert type(make_exchange(alone, horovod="any")) is NoExchange
        assert type(make_exchange(pair, horovod=None)) is MpiExchange

    assert Launch(2, 0).run(rank_main)
