"""Optimizers: all of Keras by name, gradients that are clipped or accumulated, running means of weights."""

import inspect

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.errors import SettingError, SpecError
from fleet.spec import Resources, parse
from fleet.vocabulary.optimizers import COMMON, OPTIMIZERS
from preprocess.sample import ImageSpec, SampleSpec

pytestmark = pytest.mark.tensorflow

SAMPLE = SampleSpec(ImageSpec((4, 4, 1), "float32"), 3)
# What follows from a spec elsewhere, or has no meaning in one.
GIVEN = {
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
    return [np.array(variable.numpy()) for variable in trainable._model.trainable_variables]


def test_the_rates_of_the_table_are_the_defaults_of_keras():
    import keras

    classes = {name.lower(): kind for name, kind in vars(keras.optimizers).items()}
    for name, word in OPTIMIZERS.items():
        accepted = inspect.signature(classes[name]).parameters["learning_rate"].default
        assert word.learning_rate == accepted, name
        assert settings({"name": name}).train.optimizer.learning_rate == accepted


def test_the_table_is_that_of_the_signatures_of_keras():
    import keras

    classes = {
        name: kind
        for name in dir(keras.optimizers)
        if inspect.isclass(kind := getattr(keras.optimizers, name))
        and issubclass(kind, keras.optimizers.Optimizer)
    }
    for name in (
        "Optimizer",
        "LossScaleOptimizer",
        "MultiOptimizer",
    ):  # around others, or no optimizer by themselves
        classes.pop(name, None)
    assert set(OPTIMIZERS) == set(map(str.lower, classes))
    for name, kind in classes.items():
        assert (
            OPTIMIZERS[name.lower()].takes
            == set(inspect.signature(kind.__init__).parameters) - GIVEN
        ), name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_takes_a_step(name):
    trainable = build({"name": name, "learning_rate": 0.01})
    before = weights_of(trainable)
    assert np.isfinite(trainable.step(*samples(), 12).loss)
    assert any(
        (actual != expected).any()
        for actual, expected in zip(before, weights_of(trainable), strict=True)
    )


def test_parameters_come_to_keras_as_they_are_given():
    optimizer = build(
        {"name": "RMSprop", "learning_rate": 0.01, "rho": 0.8, "centered": True, "clipvalue": 0.5}
    )._optimizer
    assert (optimizer.rho, optimizer.centered, optimizer.clipvalue) == (0.8, True, 0.5)


@pytest.mark.parametrize(
    ("optimizer", "complaint"),
    [
        ({"name": "lion", "epsilon": 1e-3}, "lion takes no epsilon"),
        ({"name": "sgd", "rho": 0.9}, "sgd takes no rho"),
        ({"name": "rmspropp"}, "did you mean rmsprop"),
        ({"name": "my_module:make", "momentum": 0.9}, "takes no momentum"),
        ({"name": "sgd", "clipnorm": 1.0, "clipvalue": 1.0}, "should be one of them"),
    ],
)
def test_make_optimizer_refuses_unknown_arguments(optimizer, complaint):
    with pytest.raises(SpecError, match=complaint):
        settings(optimizer)


def test_all_optimizers_have_the_common_parameters():
    assert all(word.takes >= COMMON for word in OPTIMIZERS.values())


def test_accumulated_gradients_make_the_step_of_one_large_batch():
    inputs, labels = samples()
    combined, parts = build({"learning_rate": 0.1}), build({"learning_rate": 0.1}, accumulate=3)
    combined.step(inputs, labels, 12)
    before = weights_of(parts)
    for first in range(0, 12, 4):
        for actual, expected in zip(before, weights_of(parts), strict=True):
            np.testing.assert_array_equal(actual, expected)
        parts.step(inputs[first : first + 4], labels[first : first + 4], 4)
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
    trainable.step(inputs[:12], labels[:12], 12)
    second = trainable.learning_rate()
    trainable.scale_learning_rate(4.0)
    assert trainable.learning_rate() == pytest.approx(4 * second)
    before = weights_of(trainable)
    trainable.step(inputs, labels, 48)
    moved = np.concatenate(
        [
            np.ravel(actual - other)
            for actual, other in zip(weights_of(trainable), before, strict=True)
        ]
    )
    plain = build({"learning_rate": 4 * second})
    for variable, value in zip(plain._model.trainable_variables, before, strict=True):
        variable.assign(value)
    plain.step(inputs, labels, 48)
    expected = np.concatenate(
        [np.ravel(actual - other) for actual, other in zip(weights_of(plain), before, strict=True)]
    )
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-7)
    trainable.scale_learning_rate(1.0)
    assert trainable.learning_rate() <= first
    assert trainable._strides[NoExchange].experimental_get_tracing_count() == 1


def test_a_network_is_judged_by_the_running_means_of_its_weights():
    trainable = build({"learning_rate": 0.5, "use_ema": True, "ema_momentum": 0.5})
    trainable.step(*samples(), 12)
    mean = weights_of(trainable)  # of the first step
    for _ in range(3):
        trainable.step(*samples(), 12)
        mean = [
            0.5 * actual + 0.5 * expected
            for actual, expected in zip(mean, weights_of(trainable), strict=True)
        ]
    now = weights_of(trainable)
    judged = trainable.evaluate(*samples())
    for actual, expected in zip(now, weights_of(trainable), strict=True):
        np.testing.assert_array_equal(actual, expected)  # training goes on from where it was
    plain = build({"learning_rate": 0.5})
    for variable, value in zip(plain._model.trainable_variables, mean, strict=True):
        variable.assign(value)
    assert judged.loss == pytest.approx(plain.evaluate(*samples()).loss, rel=1e-4)


def make(learning_rate, momentum):
    import keras

    return keras.optimizers.SGD(learning_rate, momentum=momentum)


def no_optimizer(learning_rate):
    return learning_rate


def test_an_optimizer_of_ones_own():
    custom = build({"name": f"{__name__}:make", "learning_rate": 0.1, "args": {"momentum": 0.9}})
    expected = build({"name": "sgd", "learning_rate": 0.1, "momentum": 0.9})
    assert [custom.step(*samples(), 12) for _ in range(3)] == [
        expected.step(*samples(), 12) for _ in range(3)
    ]
    with pytest.raises(
        SettingError, match="returned a float; it should return a keras.optimizers.Optimizer"
    ):
        build({"name": f"{__name__}:no_optimizer", "learning_rate": 0.1})


def spare_and_normed(input_shape, classes):
    """One of its layers takes no part in what it gives."""
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


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # as Keras says
@pytest.mark.parametrize(
    "options",
    [
        {"name": "adamw", "weight_decay": 0.3},
        {"name": "sgd", "weight_decay": 0.3, "momentum": 0.9},
        {"name": "sgd", "weight_decay": 0.3, "use_ema": True, "ema_momentum": 0.8},
    ],
)
def test_a_network_with_spare_weights_trains_as_keras_trains_it(options):
    import keras

    trainable = build_own({**options, "learning_rate": 0.1})
    plain = spare_and_normed((4, 4, 1), 3)
    plain.set_weights(trainable._model.get_weights())
    built = {key: value for key, value in options.items() if "ema" not in key and key != "name"}
    kind = keras.optimizers.AdamW if options["name"] == "adamw" else keras.optimizers.SGD
    plain.compile(kind(0.1, **built), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    inputs, labels = samples()
    mean = None
    for step in range(4):
        trainable.step(inputs, labels, 12)
        plain.fit(inputs, labels, batch_size=12, verbose=0)
        share = 0.2 if step else 1.0
        mean = [
            (1 - share) * (0.0 if mean is None else mean[index]) + share * value
            for index, value in enumerate(plain.get_weights())
        ]
    for actual, expected in zip(trainable._model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    if "use_ema" in options:  # the network is judged by means of weights and of statistics
        plain.set_weights(mean)
    expected = plain.predict(inputs, verbose=0)
    np.testing.assert_allclose(trainable.predict(inputs, labels)[1], expected, rtol=1e-3, atol=1e-4)
    now = trainable.state()
    old = {name: array for name, array in now.items() if not name.startswith("statistics/")}
    assert len(now) - len(old) == 2 * ("use_ema" in options)
    trainable.load(old)  # as FLEET 0.2 has saved it
    assert set(trainable.state()) == set(now)


def build_own(optimizer):
    from fleet.engines.keras.engine import KerasEngine

    spec = parse(
        {
            "models": [{"build": f"{__name__}:spare_and_normed"}],
            "train": {"optimizer": optimizer},
        }
    )
    engine = KerasEngine(EngineContext(SAMPLE, Resources(exchange="mpi")))
    return engine.build(spec.networks[0], SingleRankGroup())


def test_a_rate_that_is_not_given_is_that_of_the_function():
    assert build({"name": "keras.optimizers:Adam"}).learning_rate() == pytest.approx(0.001)
    assert build(
        {"name": f"{__name__}:make", "args": {"momentum": 0.9}}
    ).learning_rate() == pytest.approx(0.01)
