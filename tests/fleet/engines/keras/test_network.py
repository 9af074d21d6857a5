"""A Keras network on one rank: settings, states, unreadable samples."""

import inspect
import logging
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.errors import CheckpointError, ModelError
from fleet.spec import Resources, parse
from fleet.vocabulary.schedules import KERAS_SCHEDULES, SCHEDULES, arguments_of, required
from preprocess.sample import Affine, ArraySpec, SampleSpec
from tests.examples import long_but_first
from tests.fakes import Group
from tests.fleet.engines.async_steps import begin, take_step
from tests.places import ROOT
from tests.refusals import refused

pytestmark = pytest.mark.tensorflow


def network(**train):
    optimizer = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}
    return parse(
        {
            "models": [{"family": "cnn", "args": {"filters": [4], "dense": [8]}}],
            "train": {"optimizer": optimizer, **train},
        }
    ).networks[0]


SAMPLE = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3, Affine(0.5, 0.5))


@pytest.fixture(scope="module")
def engine():
    from fleet.engines.keras.engine import KerasEngine

    return KerasEngine(EngineContext(SAMPLE, Resources(exchange="mpi")))


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    "train",
    [
        {"precision": "mixed_float16"},
        *long_but_first(
            {
                "optimizer": {
                    "name": "adam",
                    "learning_rate": {
                        "name": "CosineDecay",
                        "initial_learning_rate": 0.01,
                        "decay_steps": 100,
                    },
                }
            },
            {
                "optimizer": {
                    "name": "adamw",
                    "learning_rate": 0.01,
                    "weight_decay": 0.01,
                    "beta_2": 0.99,
                }
            },
            {},
            {"xla": True},
            {"precision": "mixed_bfloat16"},
        ),
    ],
)
def test_network_learns_with_every_setting(engine, batch, train):
    trainable = engine.build(network(**train), SingleRankGroup())
    losses = [take_step(trainable, *batch, 12).loss / 12 for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]
    assert trainable.evaluate(*batch).count == 12


BEFORE_AND_AFTER = {
    "sgd": (
        {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        {"learning_rate": 0.02, "momentum": 0.5, "weight_decay": 0.3},
    ),
    "adamw": (
        {"learning_rate": 0.01, "weight_decay": 0.01},
        {"learning_rate": 0.002, "weight_decay": 0.5},
    ),
    "rmsprop": (
        {"learning_rate": 0.01, "momentum": 0.5},
        {"learning_rate": 0.002, "momentum": 0.5},
    ),
}


def steps(trainable, batch):
    totals = [take_step(trainable, *batch, 12) for _ in range(3)]
    return totals, trainable.evaluate(*batch), trainable.state()


@pytest.mark.parametrize("name", long_but_first("adamw", "sgd", "rmsprop"))
@pytest.mark.parametrize(
    "train",
    long_but_first({"precision": "mixed_float16"}, {}),
    ids=["with a loss scale", "plain"],
)
def test_graphs_are_reused_for_other_hyperparameters(engine, batch, name, train):
    from fleet.engines.keras.exchange import NoExchange

    first, second = (
        replace(network(**train, optimizer={"name": name, **numbers}), seed=seed)
        for seed, numbers in enumerate(BEFORE_AND_AFTER[name])
    )
    built = engine.build(first, SingleRankGroup())
    steps(built, batch)
    built.close()
    graph = built.graphs.strides[NoExchange]
    traced = graph.experimental_get_tracing_count()
    reused = engine.build(second, SingleRankGroup())
    result = steps(reused, batch)
    assert reused is built
    assert graph.experimental_get_tracing_count() == traced
    # The reused network is still open, so this network gets its own graphs.
    alone = steps(engine.build(second, SingleRankGroup()), batch)
    assert result[:2] == alone[:2]
    assert result[2].keys() == alone[2].keys()
    assert all((result[2][key] == alone[2][key]).all() for key in alone[2])


@pytest.mark.long
def test_reused_graphs_scale_own_learning_rate(engine):
    built = engine.build(network(), SingleRankGroup())
    built.scale_learning_rate(4.0)
    built.close()
    reused = engine.build(
        network(optimizer={"name": "sgd", "learning_rate": 0.02, "momentum": 0.9}),
        SingleRankGroup(),
    )
    assert reused is built
    assert reused.learning_rate() == pytest.approx(0.02)
    reused.scale_learning_rate(2.0)
    assert reused.learning_rate() == pytest.approx(0.04)


@pytest.mark.parametrize(
    "changed",
    long_but_first(
        {"optimizer": {"name": "sgd", "learning_rate": 0.1}},
        {"batch": {"accumulate": 2}},
        {"precision": "mixed_bfloat16"},
        {
            "optimizer": {
                "name": "sgd",
                "learning_rate": {
                    "name": "CosineDecay",
                    "initial_learning_rate": 0.1,
                    "decay_steps": 9,
                },
                "momentum": 0.9,
            }
        },
    ),
    ids=["no momentum", "accumulation", "precision", "a schedule"],
)
def test_graphs_are_not_reused_for_other_settings(engine, changed):
    built = engine.build(network(), SingleRankGroup())
    built.close()
    assert engine.build(network(**changed), SingleRankGroup()) is not built


def test_schedule_scales_with_batch_that_follows_gpus(engine):
    from fleet.engines.keras.optimizer import make_optimizer

    settings = network(
        optimizer={
            "learning_rate": {
                "name": "PolynomialDecay",
                "initial_learning_rate": 0.1,
                "decay_steps": 10,
                "end_learning_rate": 0.0,
            }
        }
    ).train.optimizer
    assert float(make_optimizer(settings, 3).learning_rate) == pytest.approx(0.3)


def test_network_resumes_from_its_state(engine, batch):
    trainable, reference = (
        engine.build(network(), SingleRankGroup()),
        engine.build(network(), SingleRankGroup()),
    )
    for _ in range(3):
        take_step(trainable, *batch, 12)
    reference.load(trainable.state())
    assert take_step(trainable, *batch, 12) == take_step(reference, *batch, 12)
    assert trainable.learning_rate() == pytest.approx(0.1)


def test_load_refuses_state_of_another_network(engine):
    trainable = engine.build(network(), SingleRankGroup())
    state = trainable.state()
    name = next(iter(state))
    state.pop(name)
    with refused(CheckpointError, "belongs to another network", name):
        trainable.load(state)


def test_unreadable_batch_changes_nothing(engine, batch):
    trainable = engine.build(network(), SingleRankGroup())
    before = trainable.state()
    result = take_step(trainable, batch[0], np.full(12, -1), 12)
    assert (result.loss, result.count) == (0.0, 0.0)
    weights = [name for name in before if "kernel" in name or "bias" in name]
    assert all(np.array_equal(before[name], trainable.state()[name]) for name in weights)


def test_unreadable_samples_are_excluded(engine, batch):
    images, labels = batch
    plain = parse(
        {"models": [{"family": "cnn", "args": {"filters": [4], "dense": [8], "norm": "none"}}]}
    ).networks[0]
    trainable, reference = (engine.build(plain, SingleRankGroup()) for _ in range(2))
    readable = np.where(np.arange(12) < 8, labels, -1)
    assert take_step(trainable, images, readable, 12).loss == pytest.approx(
        take_step(reference, images[:8], labels[:8], 8).loss, rel=1e-5
    )
    for name, array in trainable.state().items():
        assert array == pytest.approx(reference.state()[name], abs=1e-6), name


@pytest.mark.parametrize("name", sorted(KERAS_SCHEDULES))
def test_schedule_arguments_match_keras(name):
    import keras

    accepted = inspect.signature(getattr(keras.optimizers.schedules, name)).parameters
    assert set(arguments_of(SCHEDULES[name])) == set(accepted) - {"name"}
    assert required(SCHEDULES[name]) == [
        name for name, entry in accepted.items() if entry.default is entry.empty
    ]


@pytest.fixture
def tensorflow_messages():
    """Yield a list of the messages that TensorFlow logs."""
    import tensorflow as tf

    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    tf.get_logger().addHandler(handler)
    yield messages
    tf.get_logger().removeHandler(handler)


@pytest.mark.long
def test_many_traced_networks_raise_no_retracing_warning(engine, batch, tensorflow_messages):
    for _ in range(8):
        trainable = engine.build(network(), SingleRankGroup())
        take_step(trainable, *batch, 12)
        trainable.evaluate(*batch)
        trainable.close()
    assert tensorflow_messages == []


def test_repeated_tracing_of_one_graph_still_warns(engine, tensorflow_messages):
    from fleet.engines.keras.graphs import _graph_of

    double = _graph_of(lambda number: 2 * number)
    for number in range(8):
        double(number)
    assert any("triggered tf.function retracing" in text for text in tensorflow_messages)


def capped(labels, outputs):
    """Return a custom loss whose Python `if` depends on its inputs."""
    import keras

    losses = keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
    if keras.ops.mean(losses) > 1.05:
        losses = losses * 2.0
    return losses


@pytest.mark.parametrize(
    "train",
    long_but_first(
        {"optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}},
        {
            "optimizer": {
                "name": "adam",
                "learning_rate": {
                    "name": "ExponentialDecay",
                    "initial_learning_rate": 0.01,
                    "decay_steps": 2,
                    "decay_rate": 0.9,
                },
            }
        },
        {"precision": "mixed_float16", "batch": {"size": 5, "accumulate": 2}},
        {"loss": "tests.fleet.engines.keras.test_network:capped"},
    ),
)
def test_several_steps_match_single_steps_bit_for_bit(engine, batch, train):
    settings = parse(
        {
            "models": [{"family": "cnn", "args": {"filters": [4], "dense": [8], "dropout": 0.3}}],
            "train": train,
        }
    ).networks[0]
    images, labels = batch
    labels = np.where(np.arange(12) == 7, -1, labels)  # one unreadable sample
    trainable, reference = (
        engine.build(settings, SingleRankGroup()),
        engine.build(settings, SingleRankGroup()),
    )
    totals = [
        take_step(trainable, images[rows], labels[rows], len(labels[rows]))
        for rows in (slice(5), slice(5, 10), slice(10, 12))
    ]
    assert begin(reference, images, labels, (5, 5, 2))().sums == totals
    assert take_step(trainable, *batch, 12) == take_step(reference, *batch, 12)
    state = reference.state()
    assert all(np.array_equal(value, state[name]) for name, value in trainable.state().items())


def async_totals(trainable, batches):
    """Return the totals of batches; each batch is overwritten as soon as its step has begun."""
    totals, wait_for_previous = [], None
    for images, labels in batches:
        arguments = images.copy(), labels.copy()
        wait = begin(trainable, *arguments, [12])
        for array in arguments:
            array[:] = 0
        if wait_for_previous is not None:
            totals += wait_for_previous().sums
        wait_for_previous = wait
    return [*totals, *wait_for_previous().sums]


@pytest.mark.long
@pytest.mark.parametrize(
    "group", long_but_first(Group(2), SingleRankGroup()), ids=["by MPI", "alone"]
)
@pytest.mark.parametrize("train", long_but_first({}, {"xla": True}), ids=["as traced", "xla"])
def test_async_totals_match_bit_for_bit(engine, batch, group, train):
    images, labels = batch
    batches = [
        (np.roll(images, turn, 1), np.full(12, -1) if turn == 2 else labels) for turn in range(5)
    ]
    batches.insert(3, (images[:0], labels[:0]))  # this rank has no rows of one batch
    trainable, reference = (
        engine.build(network(**train), group),
        engine.build(network(**train), group),
    )
    assert async_totals(trainable, batches) == [take_step(reference, *rows, 12) for rows in batches]
    state = reference.state()
    assert all(np.array_equal(value, state[name]) for name, value in trainable.state().items())


@pytest.mark.long
@pytest.mark.parametrize(
    "group", long_but_first(Group(2), SingleRankGroup()), ids=["by MPI", "alone"]
)
def test_failed_step_raises_when_read_or_at_next_begin(engine, batch, group):
    images, labels = batch
    trainable = engine.build(network(loss=f"{__name__}:failing"), group)
    wait = begin(trainable, images, labels + 1, [12])
    with pytest.raises(Exception, match="assertion failed"):
        wait()
    trainable.close()
    trainable = engine.build(network(loss=f"{__name__}:failing"), group)
    assert take_step(trainable, images, labels % 2, 12).count == 12
    begin(trainable, images, labels + 1, [12])
    with pytest.raises(Exception, match="assertion failed"):
        begin(trainable, images, labels, [12])()
    trainable.close()
    assert take_step(engine.build(network(), group), *batch, 12).count == 12


CLOSING = """
import linecache
import tensorflow as tf
from fleet.engines.keras.step_queue import InputBuffers, StepQueue

@tf.function
def failing(number):
    with tf.control_dependencies([tf.debugging.assert_less(number, 2)]):
        return tf.repeat(tf.cast(number, tf.float32), 6)

number, inputs = tf.constant(5), InputBuffers()
for _ in range(20):
    queue = StepQueue(inputs)
    linecache.clearcache()  # TensorFlow then reads lines of files, and releases the GIL
    wait = queue.read_async(queue.call(failing, number))
    queue.close()
    try:
        wait()
    except tf.errors.InvalidArgumentError as error:
        assert "assertion failed" in str(error)
    else:
        raise SystemExit("it did not fail")
"""


@pytest.mark.long
def test_close_during_failing_step_does_not_deadlock():
    # In a separate process, because a deadlock would also stop the timeout of this test.
    subprocess.run([sys.executable, "-c", CLOSING], check=True, timeout=60, cwd=ROOT)


def failing(labels, outputs):
    """Return a custom loss that fails for labels above 1."""
    import keras
    import tensorflow as tf

    with tf.control_dependencies([tf.debugging.assert_less(labels, tf.constant(2, labels.dtype))]):
        return keras.losses.sparse_categorical_crossentropy(
            tf.identity(labels), outputs, from_logits=True
        )


@pytest.mark.long
def test_close_discards_totals_that_were_not_read(engine, batch):
    trainable = engine.build(network(), SingleRankGroup())
    begin(trainable, *batch, [12])
    trainable.close()
    reused = engine.build(network(), SingleRankGroup())  # reuses the graphs
    assert reused is trainable
    assert take_step(reused, *batch, 12) == take_step(
        engine.build(network(), SingleRankGroup()), *batch, 12
    )


@pytest.mark.long
def test_networks_match_with_and_without_graph_rewriting(batch):
    import tensorflow as tf

    from fleet.engines.keras.engine import KerasEngine

    def trained(as_traced):
        # A new engine, because an engine caches the graphs of its last network.
        engine = KerasEngine(EngineContext(SAMPLE, Resources(exchange="mpi")))
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": as_traced})
        trainable = engine.build(network(), SingleRankGroup())
        return [begin(trainable, *batch, (5, 5, 2))().sums, trainable.evaluate(*batch)]

    try:
        rewritten = trained(as_traced=False)
    finally:
        as_traced = trained(as_traced=True)
    for totals, expected in zip(
        [*as_traced[0], as_traced[1]], [*rewritten[0], rewritten[1]], strict=True
    ):
        assert totals.loss == pytest.approx(expected.loss, rel=1e-5)
        assert totals.count == expected.count


@pytest.mark.long
def test_xla_takes_steps_one_by_one(engine, batch):
    trainable = engine.build(network(xla=True), SingleRankGroup())
    assert trainable.capabilities.max_steps_per_call == 1
    assert take_step(trainable, *batch, 12).count == 12


def test_graphs_are_not_shared_by_folds_with_other_inputs(
    batch,
):
    from fleet.engines.keras.engine import KerasEngine

    affines = Affine(0.5, 0.5), Affine(10.0, 20.0, 1.0)
    engine, result = (
        KerasEngine(EngineContext(replace(SAMPLE, folds=affines), Resources(exchange="mpi"))),
        [],
    )
    for fold in (0, 1):
        built = engine.build(replace(network(), fold=fold), SingleRankGroup())
        result.append(built.evaluate(*batch).loss)
        built.close()
        setup = EngineContext(replace(SAMPLE, affine=affines[fold]), Resources(exchange="mpi"))
        alone = KerasEngine(setup).build(network(), SingleRankGroup())
        assert result[fold] == pytest.approx(alone.evaluate(*batch).loss, rel=1e-6)
        alone.close()
    assert result[0] != result[1]


OWN = """
import functools, os, sys
import keras
from keras import layers

BODY = layers.Dense(6)

@functools.cache
def body():
    return layers.Dense(6)

def shared(input_shape, classes, cached=False):
    x = keras.Input(input_shape)
    return keras.Model(x, layers.Dense(classes)((body() if cached else BODY)(layers.Flatten()(x))))

class Holder:
    pass

class Held(keras.Model):
    def __init__(self, classes, location):
        super().__init__()
        layer = layers.Dense(6)
        self.holder = Holder() if location == "object" else [[layer]]
        if location == "object":
            self.holder.layer = layer
        self.flat, self.head = layers.Flatten(), layers.Dense(classes)
        self.location = location
    def call(self, x):
        layer = self.holder.layer if self.location == "object" else self.holder[0][0]
        return self.head(layer(self.flat(x)))

def held(input_shape, classes, location):
    return Held(classes, location)

def rude(input_shape, classes):
    keras.config.set_image_data_format("channels_first")
    keras.config.set_floatx("float64")
    keras.config.set_epsilon(0.1)
    keras.config.set_dtype_policy("mixed_bfloat16")
    sys.setrecursionlimit(4321)
    os.chdir("/")
    x = keras.Input(input_shape)
    return keras.Model(x, layers.Dense(classes, dtype="float32")(layers.Flatten()(x)))
"""


@pytest.fixture
def custom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_models.py").write_text(OWN)

    def network_of(function, seed=0, **args):
        model = {"build": f"own_models:{function}", "args": args}
        train = {"optimizer": {"name": "sgd", "learning_rate": 0.1}}
        [result] = parse({"models": [model], "train": train}).networks
        return replace(result, seed=seed)

    yield network_of
    sys.modules.pop("own_models", None)


@pytest.mark.parametrize("cached", long_but_first(True, False))
def test_networks_that_share_layers_are_isolated(engine, batch, custom, cached):
    first = engine.build(custom("shared", 1, cached=cached), SingleRankGroup())
    before = first.state()
    take_step(first, *batch, 12)
    trained = first.state()
    second = engine.build(custom("shared", 1, cached=cached), SingleRankGroup())
    state = second.state()
    assert list(state) == list(before)
    assert all(np.array_equal(array, before[name]) for name, array in state.items())
    take_step(second, *batch, 12)
    assert all(np.array_equal(array, trained[name]) for name, array in first.state().items())


def test_layers_that_keras_does_not_track_are_refused(engine, custom):
    with refused(ModelError, "own_models:held", "Keras does not track"):
        engine.build(custom("held", location="object"), SingleRankGroup())


def test_process_settings_of_user_code_are_restored(engine, batch, custom):
    import keras

    config = keras.config

    def settings():
        return (
            config.image_data_format(),
            config.floatx(),
            config.epsilon(),
            config.dtype_policy().name,
            sys.getrecursionlimit(),
            os.getcwd(),
        )

    before = settings()
    rude = engine.build(custom("rude"), SingleRankGroup())
    assert settings() == before
    take_step(rude, *batch, 12)
    assert settings() == before
