"""Penalties on weights and activities equal Keras' on any number of ranks, even without rows."""

import warnings

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.errors import NetworkWarning
from fleet.spec import Resources, parse
from fleet.stream.batch import split_rows
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.examples import long_but_first
from tests.fleet.engines.async_steps import begin, take_step
from tests.fleet.one_process import Launch

pytestmark = pytest.mark.tensorflow

ROWS, BATCH, EPOCHS = 49, 16, 3  # the last batch has one row
SAMPLE = SampleSpec(ArraySpec((6,), "float32"), 2, target=TargetSpec("value", 2))


# ---- model functions ---------------------------------------------------------------------------


def weights(input_shape, classes):
    """Return a model with every regularizer of Keras, and a user-defined one."""
    from keras import Input, Sequential, layers, regularizers

    l1_l2 = regularizers.L1L2(0.01, 0.02)
    return Sequential(
        [
            Input(input_shape),
            layers.Embedding(8, 4, embeddings_regularizer=regularizers.L2(0.05)),
            layers.Flatten(),
            layers.Dense(
                5,
                "tanh",
                kernel_regularizer=regularizers.OrthogonalRegularizer(0.3),
                bias_regularizer=l1_l2,
            ),
            layers.Dense(
                5, "tanh", kernel_regularizer=l1_l2, bias_regularizer=regularizers.L1(0.05)
            ),
            layers.Dense(classes, kernel_regularizer=cubic),
        ]
    )


def cubic(kernel):
    import keras

    return 0.1 * keras.ops.sum(keras.ops.abs(kernel) ** 3)


def activities(input_shape, classes):
    from keras import Input, Sequential, layers, regularizers

    return Sequential(
        [
            Input(input_shape),
            layers.Rescaling(1 / 8),
            layers.Dense(5, "tanh", activity_regularizer=regularizers.L2(0.3)),
            layers.ActivityRegularization(l1=0.1, l2=0.1),
            layers.Reshape((5, 1)),
            layers.Conv1D(2, 3, activity_regularizer="l1"),
            layers.Flatten(),
            layers.Dense(classes),
        ]
    )


def adding(loss):
    """Return a function that builds a model whose layer adds a loss of (inputs, its weight)."""

    def build(input_shape, classes):
        import keras

        class Adding(keras.layers.Layer):
            def build(self, shape):
                self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

            def call(self, inputs):
                self.add_loss(loss(keras.ops, inputs, self.scale))
                return inputs * self.scale

        return keras.Sequential(
            [
                keras.Input(input_shape),
                keras.layers.Dense(4, "tanh", kernel_regularizer="l2"),
                Adding(),
                keras.layers.Dense(classes),
            ]
        )

    return build


of_a_mean = adding(lambda ops, inputs, scale: 0.3 * ops.mean(ops.square(inputs * scale)))
of_a_sum = adding(lambda ops, inputs, scale: 0.02 * ops.sum(ops.square(inputs * scale)))
of_each_row = adding(lambda ops, inputs, scale: 0.02 * ops.sum(ops.square(inputs * scale), axis=-1))
of_weights = adding(lambda ops, inputs, scale: 0.3 * ops.sum(ops.square(scale)))
of_neither = adding(
    lambda ops, inputs, scale: ops.sum(ops.square(inputs)) + 4 * ops.sum(ops.square(scale))
)
of_several = adding(
    lambda ops, inputs, scale: [0.1 * ops.mean(inputs * scale), 0.01 * ops.sum(inputs * scale)]
)


def of_a_model(input_shape, classes):
    """Return a subclassed model that adds a loss in training."""
    import keras

    @keras.saving.register_keras_serializable("tests")
    class Own(keras.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.first, self.last = keras.layers.Dense(4, "tanh"), keras.layers.Dense(classes)
            self.normal = keras.layers.BatchNormalization()

        def call(self, inputs, training=False):
            hidden = self.first(inputs)
            if training:
                self.add_loss(0.02 * keras.ops.sum(keras.ops.abs(hidden)))
            # Batch normalization updates its statistics, but does not change the outputs.
            return self.last(hidden + 0 * self.normal(hidden))

        def get_config(self):
            return {}

    model = Own()
    model(keras.ops.zeros((1, *input_shape)))
    return model


# ---- training ----------------------------------------------------------------------------------


def data():
    random = np.random.default_rng(3)
    return random.uniform(0, 7.9, (ROWS, 6)).astype(np.float32), random.normal(
        size=(ROWS, 2)
    ).astype(np.float32)


def network(model, **train):
    train = {"optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}, **train}
    return parse({"models": [{"build": f"{__name__}:{model}"}], "train": train}).networks[0]


def build(model, group, **train):
    from fleet.engines.keras.engine import KerasEngine

    return KerasEngine(EngineContext(SAMPLE, Resources(exchange="mpi"))).build(
        network(model, **train), group
    )


def trained(model, ranks, counts=None, **train):
    """Return the weights of a model after some epochs.

    Args:
        model: name of a model function of this module.
        ranks: number of ranks.
        counts: (ROWS,) False for unreadable samples.
        train: training settings.
    """
    if counts is None:
        counts = np.ones(ROWS, np.float32)
    else:
        counts = np.where(counts, 1, -1).astype(np.float32)
    inputs, targets = data()
    inputs[counts < 0] = 0
    result = {}

    def rank_main(world):
        group = world.group(range(ranks), 1)
        trainable = build(model, group, **train)
        for _ in range(EPOCHS):
            for first in range(0, ROWS, BATCH):
                last = min(first + BATCH, ROWS)
                rows = slice(*split_rows(first, last, group.rank, group.size))
                take_step(
                    trainable, inputs[rows], targets[rows], last - first, weights=counts[rows]
                )
        result[world.rank] = [
            np.array(variable.numpy()) for variable in trainable.model.trainable_variables
        ]

    assert Launch(ranks, 0).run(rank_main)
    return result[0]


def fitted(model, counts=None):
    """Return the weights after training with Keras' own loop."""
    import keras

    plain = build(model, SingleRankGroup()).model
    plain.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    for _ in range(EPOCHS):
        for first in range(0, ROWS, BATCH):
            rows = np.arange(first, min(first + BATCH, ROWS))
            if counts is not None:
                rows = rows[counts[rows]]
            plain.train_on_batch(*(array[rows] for array in data()))
    return [np.array(variable.numpy()) for variable in plain.trainable_variables]


def check_equal(result, expected):
    for actual, reference in zip(result, expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    long_but_first(
        "activities",
        "weights",
        "of_a_sum",
        "of_a_mean",
        "of_each_row",
        "of_weights",
        "of_several",
        "of_a_model",
    ),
)
def test_penalties_match_keras_on_any_number_of_ranks(model):
    expected = fitted(model)
    for ranks in (1, 2, 3):
        check_equal(trained(model, ranks), expected)


@pytest.mark.long
@pytest.mark.parametrize("model", ["activities", "weights", "of_a_mean"])
def test_unreadable_samples_are_excluded_from_penalties(model):
    counts = np.random.default_rng(0).random(ROWS) < 0.7
    counts[16:21] = False  # all rows of one of three ranks in a batch
    counts[-1] = True
    expected = fitted(model, counts)
    for ranks in (1, 2, 3):
        check_equal(trained(model, ranks, counts), expected)


@pytest.mark.long
@pytest.mark.parametrize(
    "train",
    [
        {"batch": {"accumulate": 3}},
        {"precision": "mixed_float16"},
        {"optimizer": {"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.1}},
    ],
)
def test_penalties_do_not_depend_on_ranks_with_any_optimizer(train):
    alone = trained("activities", 1, **train)
    tolerance = 5e-3 if "precision" in train else 1e-5
    for ranks in (2, 3):
        for actual, expected in zip(alone, trained("activities", ranks, **train), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.long
def test_several_steps_have_penalties_of_each_batch():
    inputs, targets = data()
    counts = np.ones(ROWS, np.float32)
    counts[3:5] = counts[16:32] = -1
    sizes = (16, 16, 16, 1)
    trainable, reference = (
        build("of_a_sum", SingleRankGroup()),
        build("of_a_sum", SingleRankGroup()),
    )
    firsts = np.cumsum(sizes) - sizes
    totals = [
        take_step(
            trainable,
            inputs[first : first + size],
            targets[first : first + size],
            size,
            weights=counts[first : first + size],
        )
        for first, size in zip(firsts, sizes, strict=True)
    ]
    assert begin(reference, inputs, targets, sizes, counts)().sums == totals
    assert [step.count for step in totals] == [14, 0, 16, 1]
    state = reference.state()
    assert all(np.array_equal(value, state[name]) for name, value in trainable.state().items())


def test_sums_over_rows_leaves_model_unchanged():
    from fleet.engines.keras.penalties import sums_over_rows

    model = build("of_a_model", SingleRankGroup()).model
    before = [np.array(variable.numpy()) for variable in model.variables]
    assert sums_over_rows(model, (6,)) == (True,)
    assert all(
        np.array_equal(value, variable)
        for value, variable in zip(before, model.variables, strict=True)
    )
    assert not any(sums_over_rows(build("of_a_mean", SingleRankGroup()).model, (6,)))
    assert sums_over_rows(build("activities", SingleRankGroup()).model, (6,)) == ()


def test_loss_that_is_neither_sum_nor_mean_warns():
    with pytest.warns(NetworkWarning, match="neither a mean nor a sum over the rows of a batch"):
        build("of_neither", SingleRankGroup())
    with warnings.catch_warnings():
        warnings.simplefilter("error", NetworkWarning)
        build("of_several", SingleRankGroup())
