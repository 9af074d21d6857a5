"""What is left to the device, in the graphs of Keras networks: the numbers of the host, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.runtime.training.rate_measurement import make_samples
from fleet.spec import Resources, parse
from preprocess.deferred_augmentation import finished
from tests.fleet.engines.deferred_samples import DTYPES, random_deferred_samples
from tests.fleet.engines.keras.async_steps import begin

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "to"), [((9, 12, 3), (8, 8)), ((5, 4, 1), (7, 6)), ((6, 6, 2), (6, 6))]
)
def test_a_graph_moves_pixels_as_numpy_does(dtype, shape, to):
    import tensorflow as tf

    from fleet.engines.keras.deferred_augmentation import augment_deferred as in_graph

    rows, sample = random_deferred_samples(dtype, shape, to, count=40)
    expected = finished(rows, sample)
    assert expected.any()
    assert (expected == 0).any()
    moved = tf.function(lambda rows: in_graph(rows, sample))(tf.constant(rows)).numpy()
    assert moved.tobytes() == expected.astype(np.float32).tobytes()


def of(sample, **train):
    from fleet.engines.keras.engine import KerasEngine

    engine = KerasEngine(EngineContext(sample, Resources(exchange="mpi")))
    train = {"optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}, **train}
    spec = parse(
        {"models": [{"family": "cnn", "args": {"filters": [4], "dense": [8]}}], "train": train}
    )
    return engine.build(spec.networks[0], SingleRankGroup())


def trained(train):
    """What a network comes to that is fed by the host, and one whose device does the rest."""
    rows, sample = random_deferred_samples()
    labels = np.arange(12) % 3
    labels[[2, 7]] = -1  # could not be read
    for images, fed in (
        (finished(rows, sample), replace(sample, deferred_input=None)),
        (rows, sample),
    ):
        network = of(fed, **train)
        sums = [network.step(images[:size], labels[:size], size) for size in (12, 5, 12)]
        if network.can_stride():
            waits = [begin(network, images, labels, sizes) for sizes in ([4, 4, 4], [5, 7])]
            sums += [step_totals for wait in waits for step_totals in wait().sums]
        judged, outputs = network.predict(images, labels)
        yield [*sums, judged, network.evaluate(images, labels)], outputs, network.state()
        network.close()


@pytest.mark.parametrize("train", [{}, {"precision": "mixed_bfloat16"}], ids=["plain", "bfloat16"])
def test_augment_deferred_matches_host_bit_for_bit(train):
    (sums, outputs, state), (other_sums, other_outputs, other_state) = trained(train)
    assert sums == other_sums
    assert outputs.tobytes() == other_outputs.tobytes()
    assert {name: array.tobytes() for name, array in state.items()} == {
        name: array.tobytes() for name, array in other_state.items()
    }


@pytest.mark.long  # to compile takes seconds
def test_xla_joins_it_with_what_follows_and_rounds_otherwise():
    host, device = ([entry.loss for entry in sums] for sums, *_ in trained({"xla": True}))
    assert device == pytest.approx(host, rel=1e-5)


def test_rates_are_measured_with_what_travels():
    _, sample = random_deferred_samples()
    images, targets = make_samples(sample, 6)
    assert images.shape == (6, 9 * 12 * 3 + 16)
    assert finished(images, sample).any()
