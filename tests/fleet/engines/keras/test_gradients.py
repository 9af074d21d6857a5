"""Gradients of tf.custom_gradient are released with their graphs."""

import weakref

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.spec import Resources, parse
from preprocess.sample import ArraySpec, SampleSpec
from tests.fleet.engines.async_steps import take_step

pytestmark = pytest.mark.tensorflow

SAMPLE = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3)


@pytest.fixture(scope="module")
def engine():
    from fleet.engines.keras.engine import KerasEngine

    return KerasEngine(EngineContext(SAMPLE, Resources(exchange="mpi")))


def stepped(engine, filters):
    args = {"filters": [filters], "dense": [4]}
    network = parse({"models": [{"family": "cnn", "args": args}]}).networks[0]
    trainable = engine.build(network, SingleRankGroup())
    take_step(trainable, np.zeros((2, 8, 8, 1), np.uint8), np.zeros(2, np.int64), 2)
    trainable.close()
    return trainable


def test_closed_networks_leave_no_graph(engine):
    from tensorflow.python.framework.ops import gradient_registry

    from fleet.engines.keras.exchange import NoExchange

    graphs, registered = [], []
    for filters in (2, 3, 4, 5):
        trainable = stepped(engine, filters)
        graphs += [weakref.ref(trainable.graphs.strides[NoExchange].get_concrete_function().graph)]
        registered += [sum("CustomGradient" in name for name in gradient_registry.list())]
        del trainable
    assert [graph() is None for graph in graphs] == [True, True, True, False]
    assert registered[0] > 0
    assert len(set(registered)) == 1


@pytest.mark.long
def test_gradients_of_live_graphs_are_kept(engine):
    import tensorflow as tf

    @tf.custom_gradient
    def tripled(x):
        return x, lambda upstream: 3 * upstream

    function = tf.function(tripled)
    function(tf.constant(1.0))
    stepped(engine, 6)
    stepped(engine, 7)
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert float(tape.gradient(y, x)) == 3.0
