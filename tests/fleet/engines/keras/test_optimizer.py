"""Optimizers: all of Keras by name, accumulated gradients, running means of weights."""

import inspect

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext, EpochProgress
from fleet.engines.schedules import Clock, rate_at
from fleet.errors import SettingError, SpecError
from fleet.spec import Resources, parse
from fleet.vocabulary.optimizers import COMMON, OPTIMIZERS
from preprocess.sample import ArraySpec, SampleSpec
from tests.examples import long_but_first
from tests.fleet.engines.async_steps import take_step
from tests.refusals import refused

pytestmark = pytest.mark.tensorflow

SAMPLE = SampleSpec(ArraySpec((4, 4, 1), "float32"), 3)
# Parameters that follow from other keys of a spec, or have no meaning in one.
NOT_IN_SPECS = {
    "self",
    "kwargs",
    "learning_rate",
    "name",
    "loss_scale_factor",
    "gradient_accumulation_steps",
}


def settings(optimizer, **batch):
    return parse(
        {
            "models": [{"family": "softmax"}],
            "train": {"optimizer": optimizer, "batch": batch},
            "schedule": {"policy": "elastic"},
        }
    ).networks[0]


def build(optimizer, **batch):
    from fleet.engines.keras.engine import KerasEngine

    return KerasEngine(EngineContext(SAMPLE, Resources(exchange="mpi"))).build(
        settings(optimizer, **batch), SingleRankGroup()
    )


def samples(count=12):
    random = np.random.default_rng(0)
    return random.normal(size=(count, 4, 4, 1)).astype(np.float32), np.arange(count) % 3


def weights_of(trainable):
    return [np.array(variable.numpy()) for variable in trainable.model.trainable_variables]


def test_learning_rates_are_the_defaults_of_keras():
    import keras

    classes = {name.lower(): kind for name, kind in vars(keras.optimizers).items()}
    for name, word in OPTIMIZERS.items():
        default = inspect.signature(classes[name]).parameters["learning_rate"].default
        assert word.learning_rate == default, name
        assert settings({"name": name}).train.optimizer.learning_rate == default


def test_optimizers_have_the_parameters_of_keras():
    import keras

    classes = {
        name: kind
        for name, kind in vars(keras.optimizers).items()
        if inspect.isclass(kind) and issubclass(kind, keras.optimizers.Optimizer)
    }
    for name in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer"):  # base class and wrappers
        classes.pop(name, None)
    assert set(OPTIMIZERS) == set(map(str.lower, classes))
    for name, kind in classes.items():
        assert (
            OPTIMIZERS[name.lower()].takes
            == set(inspect.signature(kind.__init__).parameters) - NOT_IN_SPECS
        ), name


@pytest.mark.long_but_first
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_takes_a_step(name):
    trainable = build({"name": name, "learning_rate": 0.01})
    before = weights_of(trainable)
    assert np.isfinite(take_step(trainable, *samples(), 12).loss)
    assert any(
        (actual != expected).any()
        for actual, expected in zip(before, weights_of(trainable), strict=True)
    )


def test_make_optimizer_passes_parameters_to_keras():
    optimizer = build(
        {"name": "RMSprop", "learning_rate": 0.01, "rho": 0.8, "centered": True, "clipvalue": 0.5}
    ).optimizer
    assert (optimizer.rho, optimizer.centered, optimizer.clipvalue) == (0.8, True, 0.5)


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        ({"name": "lion", "epsilon": 1e-3}, ["lion", "epsilon"]),
        ({"name": "sgd", "rho": 0.9}, ["sgd", "rho"]),
        ({"name": "rmspropp"}, ["'rmspropp'", "did you mean rmsprop"]),
        ({"name": "my_module:make", "momentum": 0.9}, ["my_module:make", "momentum"]),
        ({"name": "sgd", "clipnorm": 1.0, "clipvalue": 1.0}, ["clipnorm, clipvalue and"]),
    ],
)
def test_parse_refuses_arguments_that_an_optimizer_lacks(optimizer, names):
    with refused(SpecError, "train.optimizer", *names):
        settings(optimizer)


def test_all_optimizers_have_the_common_parameters():
    assert all(word.takes >= COMMON for word in OPTIMIZERS.values())


def test_accumulated_gradients_equal_one_large_batch():
    inputs, labels = samples()
    combined, parts = build({"learning_rate": 0.1}), build({"learning_rate": 0.1}, accumulate=3)
    take_step(combined, inputs, labels, 12)
    before = weights_of(parts)
    for first in range(0, 12, 4):
        for actual, expected in zip(before, weights_of(parts), strict=True):
            np.testing.assert_array_equal(actual, expected)
        take_step(parts, inputs[first : first + 4], labels[first : first + 4], 4)
    for actual, expected in zip(weights_of(combined), weights_of(parts), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "learning_rate",
    [
        0.1,
        {
            "name": "ExponentialDecay",
            "initial_learning_rate": 0.1,
            "decay_steps": 2,
            "decay_rate": 0.5,
        },
    ],
)
def test_scalable_rate_follows_batch_in_same_graph(learning_rate):
    from fleet.engines.keras.exchange import NoExchange

    trainable = build({"learning_rate": learning_rate}, size=[12, 48])
    inputs, labels = samples(48)
    first = trainable.learning_rate()
    take_step(trainable, inputs[:12], labels[:12], 12)
    second = trainable.learning_rate()
    trainable.scale_learning_rate(4.0)
    assert trainable.learning_rate() == pytest.approx(4 * second)
    before = weights_of(trainable)
    take_step(trainable, inputs, labels, 48)
    changes = np.concatenate(
        [
            np.ravel(after - initial)
            for after, initial in zip(weights_of(trainable), before, strict=True)
        ]
    )
    plain = build({"learning_rate": 4 * second})
    for variable, value in zip(plain.model.trainable_variables, before, strict=True):
        variable.assign(value)
    take_step(plain, inputs, labels, 48)
    expected = np.concatenate(
        [
            np.ravel(after - initial)
            for after, initial in zip(weights_of(plain), before, strict=True)
        ]
    )
    np.testing.assert_allclose(changes, expected, rtol=1e-4, atol=1e-7)
    trainable.scale_learning_rate(1.0)
    assert trainable.learning_rate() <= first
    assert trainable.graphs.strides[NoExchange].experimental_get_tracing_count() == 1


def test_evaluate_uses_running_means_of_weights():
    trainable = build({"learning_rate": 0.5, "use_ema": True, "ema_momentum": 0.5})
    take_step(trainable, *samples(), 12)
    means = weights_of(trainable)  # initially the weights after the first step
    for _ in range(3):
        take_step(trainable, *samples(), 12)
        means = [
            0.5 * mean + 0.5 * weight
            for mean, weight in zip(means, weights_of(trainable), strict=True)
        ]
    before = weights_of(trainable)
    totals = trainable.evaluate(*samples())
    for actual, expected in zip(weights_of(trainable), before, strict=True):
        np.testing.assert_array_equal(actual, expected)  # training continues from its weights
    plain = build({"learning_rate": 0.5})
    for variable, value in zip(plain.model.trainable_variables, means, strict=True):
        variable.assign(value)
    assert totals.loss == pytest.approx(plain.evaluate(*samples()).loss, rel=1e-4)


def make(learning_rate, momentum):
    import keras

    return keras.optimizers.SGD(learning_rate, momentum=momentum)


def no_optimizer(learning_rate):
    return learning_rate


def test_custom_optimizer():
    custom = build({"name": f"{__name__}:make", "learning_rate": 0.1, "args": {"momentum": 0.9}})
    expected = build({"name": "sgd", "learning_rate": 0.1, "momentum": 0.9})
    assert [take_step(custom, *samples(), 12) for _ in range(3)] == [
        take_step(expected, *samples(), 12) for _ in range(3)
    ]
    with refused(SettingError, "no_optimizer returned a float", "keras.optimizers.Optimizer"):
        build({"name": f"{__name__}:no_optimizer", "learning_rate": 0.1})


def spare_and_normed(input_shape, classes):
    """Return a model with batch normalization and a layer that its outputs do not depend on."""
    import keras

    class Spare(keras.Model):
        def __init__(self):
            super().__init__()
            self.flat, self.norm = keras.layers.Flatten(), keras.layers.BatchNormalization()
            self.last, self.spare = keras.layers.Dense(classes), keras.layers.Dense(2)

        def call(self, images, training=False):
            result = self.norm(self.flat(images), training=training)
            self.spare(result)
            return self.last(result)

    model = Spare()
    model(np.zeros((1, *input_shape), np.float32))
    return model


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # a warning of Keras
@pytest.mark.parametrize(
    "options",
    long_but_first(
        {"name": "adamw", "weight_decay": 0.3},
        {"name": "sgd", "weight_decay": 0.3, "momentum": 0.9},
        {"name": "sgd", "weight_decay": 0.3, "use_ema": True, "ema_momentum": 0.8},
    ),
)
def test_network_with_spare_weights_trains_like_keras(options):
    import keras

    trainable = build_spare({**options, "learning_rate": 0.1})
    plain = spare_and_normed((4, 4, 1), 3)
    plain.set_weights(trainable.model.get_weights())
    args = {key: value for key, value in options.items() if "ema" not in key and key != "name"}
    kind = keras.optimizers.AdamW if options["name"] == "adamw" else keras.optimizers.SGD
    plain.compile(kind(0.1, **args), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    inputs, labels = samples()
    means = None
    for step in range(4):
        take_step(trainable, inputs, labels, 12)
        plain.fit(inputs, labels, batch_size=12, verbose=0)
        share = 0.2 if step else 1.0
        weights = plain.get_weights()
        means = [
            (1 - share) * mean + share * weight
            for mean, weight in zip(means or weights, weights, strict=True)
        ]
    for actual, expected in zip(trainable.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    if "use_ema" in options:  # evaluation uses means of weights and statistics
        plain.set_weights(means)
    expected = plain.predict(inputs, verbose=0)
    np.testing.assert_allclose(trainable.predict(inputs, labels)[1], expected, rtol=1e-3, atol=1e-4)
    state = trainable.state()
    old = {name: array for name, array in state.items() if not name.startswith("statistics/")}
    assert len(state) - len(old) == 2 * ("use_ema" in options)
    trainable.load(old)  # a state that FLEET 0.2 has saved
    assert set(trainable.state()) == set(state)


def build_spare(optimizer):
    from fleet.engines.keras.engine import KerasEngine

    spec = parse(
        {
            "models": [{"build": f"{__name__}:spare_and_normed"}],
            "train": {"optimizer": optimizer},
        }
    )
    engine = KerasEngine(EngineContext(SAMPLE, Resources(exchange="mpi")))
    return engine.build(spec.networks[0], SingleRankGroup())


def test_default_learning_rate_is_that_of_the_function():
    assert build({"name": "keras.optimizers:Adam"}).learning_rate() == pytest.approx(0.001)
    assert build(
        {"name": f"{__name__}:make", "args": {"momentum": 0.9}}
    ).learning_rate() == pytest.approx(0.01)


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    "rate",
    [
        {
            "name": "CosineDecay",
            "initial_learning_rate": 0.1,
            "decay_epochs": 3,
            "warmup_steps": 2,
            "warmup_target": 0.2,
        },
        {"name": "StaircaseOfEpochs"},
        {"name": "ReduceLROnPlateau", "initial_learning_rate": 0.1, "patience": 0},
        {"name": "tests.torch_modules:falling", "start": 0.5},
    ],
    ids=lambda rate: rate["name"],
)
def test_schedule_that_keras_lacks_sets_each_step(rate):
    if rate["name"] == "StaircaseOfEpochs":
        rate = {
            "name": "ExponentialDecay",
            "initial_learning_rate": 0.1,
            "decay_steps": 1,
            "decay_rate": 0.5,
            "every": "epoch",
        }
    trainable = build({"name": "sgd", "learning_rate": rate})
    steps = 3
    for epoch in range(3):
        progress = EpochProgress(epoch, 0, steps, (1.0, 2.0)[:epoch])
        trainable.begin_epoch(progress)
        clock = Clock(epoch * steps, progress, "max")
        for step in range(epoch * steps, (epoch + 1) * steps):
            assert trainable.learning_rate() == pytest.approx(rate_at(rate, step, clock))
            take_step(trainable, *samples(), 12)
