"""Deferred augmentation in graphs gives the numbers of the host, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.runtime.training.rate_measurement import make_samples
from fleet.spec import Resources, parse
from preprocess.deferred_augmentation import finished
from tests.examples import long_but_first
from tests.fleet.engines.async_steps import begin, take_step
from tests.fleet.engines.deferred_samples import DTYPES, random_deferred_samples

pytestmark = pytest.mark.tensorflow


@pytest.mark.long_but_first
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "to"), [((9, 12, 3), (8, 8)), ((5, 4, 1), (7, 6)), ((6, 6, 2), (6, 6))]
)
def test_augment_deferred_matches_numpy(dtype, shape, to):
    import tensorflow as tf

    from fleet.engines.keras.deferred_augmentation import augment_deferred

    rows, sample = random_deferred_samples(dtype, shape, to, count=40)
    expected = finished(rows, sample)
    assert expected.any()
    assert (expected == 0).any()
    graph = tf.function(lambda rows: augment_deferred(rows, sample))
    augmented = graph(tf.constant(rows)).numpy()
    assert augmented.tobytes() == expected.astype(np.float32).tobytes()


def build(sample, **train):
    from fleet.engines.keras.engine import KerasEngine

    engine = KerasEngine(EngineContext(sample, Resources(exchange="mpi")))
    train = {"optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}, **train}
    spec = parse(
        {"models": [{"family": "cnn", "args": {"filters": [4], "dense": [8]}}], "train": train}
    )
    return engine.build(spec.networks[0], SingleRankGroup())


def trained(train):
    """Yield totals, outputs and state with augmentation on the host, then on the device."""
    rows, sample = random_deferred_samples()
    labels = np.arange(12) % 3
    labels[[2, 7]] = -1  # unreadable samples
    for images, input_sample in (
        (finished(rows, sample), replace(sample, deferred_input=None)),
        (rows, sample),
    ):
        network = build(input_sample, **train)
        totals = [take_step(network, images[:size], labels[:size], size) for size in (12, 5, 12)]
        if network.capabilities.max_steps_per_call > 1:
            waits = [begin(network, images, labels, sizes) for sizes in ([4, 4, 4], [5, 7])]
            totals += [step_totals for wait in waits for step_totals in wait().sums]
        evaluation, outputs = network.predict(images, labels)
        yield [*totals, evaluation, network.evaluate(images, labels)], outputs, network.state()
        network.close()


@pytest.mark.parametrize(
    "train", long_but_first({}, {"precision": "mixed_bfloat16"}), ids=["plain", "bfloat16"]
)
def test_augment_deferred_matches_host_bit_for_bit(train):
    (totals, outputs, state), (device_totals, device_outputs, device_state) = trained(train)
    assert totals == device_totals
    assert outputs.tobytes() == device_outputs.tobytes()
    assert {name: array.tobytes() for name, array in state.items()} == {
        name: array.tobytes() for name, array in device_state.items()
    }


@pytest.mark.long  # compiling takes seconds
def test_augment_deferred_with_xla_matches_up_to_rounding():
    host, device = ([entry.loss for entry in totals] for totals, *_ in trained({"xla": True}))
    assert device == pytest.approx(host, rel=1e-5)


def test_make_samples_makes_rows_with_crops():
    _, sample = random_deferred_samples()
    images, targets = make_samples(sample, 6)
    assert images.shape == (6, 9 * 12 * 3 + 16)
    assert finished(images, sample).any()
