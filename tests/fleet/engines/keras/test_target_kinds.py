"""Keras networks train on every kind of target like model.fit, however a batch is split."""

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext, StepTotals
from fleet.errors import ModelError, SettingError, SpecError
from fleet.spec import Resources, parse
from fleet.vocabulary.measures import LOSSES, METRICS, canonical_name, direction_of
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.target import TargetSpec, class_target
from tests.examples import long_but_first
from tests.fleet.engines.async_steps import take_step
from tests.refusals import refused

pytestmark = pytest.mark.tensorflow

TARGETS = {
    "class": class_target(3, weighted=True),
    "multilabel": TargetSpec("multilabel", 3),
    "value": TargetSpec("value", 2),
    "mask": TargetSpec("mask", 3, size=(4, 4)),
}
LOSS = {
    "class": "SparseCategoricalCrossentropy",
    "multilabel": "BinaryCrossentropy",
    "value": "MeanSquaredError",
    "mask": "SparseCategoricalCrossentropy",
}


def build(kind, model=None, **train):
    from fleet.engines.keras.engine import KerasEngine

    target = TARGETS[kind]
    sample = SampleSpec(ArraySpec((4, 4, 1), "float32"), target.outputs, target=target)
    content = parse(
        {
            "models": [model or {"family": "softmax"}],
            "train": {"optimizer": {"learning_rate": 0.1, "momentum": 0.9}, **train},
        }
    )
    return KerasEngine(EngineContext(sample, Resources(exchange="mpi"))).build(
        content.networks[0], SingleRankGroup()
    )


def batch(kind, rows=12):
    random, target = np.random.default_rng(2), TARGETS[kind]
    packed = target.random_targets(random, rows)
    packed["weight"] = random.uniform(0.5, 2, rows)
    return (random.normal(size=(rows, 4, 4, 1)).astype(np.float32), *target.split(packed))


@pytest.mark.long_but_first
@pytest.mark.parametrize("kind", TARGETS)
def test_network_trains_like_keras(kind):
    import keras

    trainable, (inputs, targets, weights) = build(kind), batch(kind)
    reference = keras.models.clone_model(trainable.model)
    reference.set_weights(trainable.model.get_weights())
    options = {} if kind == "value" else {"from_logits": True}
    reference.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), getattr(keras.losses, LOSS[kind])(**options)
    )
    if kind == "mask":
        sample_weight = weights[:, None, None] * np.ones((1, 4, 4))
    else:
        sample_weight = weights
    options = {"batch_size": 12, "epochs": 4, "verbose": 0, "shuffle": False}
    fit = reference.fit(inputs, targets, sample_weight=sample_weight, **options)
    losses = [take_step(trainable, inputs, targets, 12, False, weights).loss / 12 for _ in range(4)]
    np.testing.assert_allclose(losses, fit.history["loss"], rtol=1e-4)
    for actual, expected in zip(
        trainable.model.get_weights(), reference.get_weights(), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "class",
            [
                "AUC",
                "f1_score",
                "mean_io_u",
                "TopKCategoricalAccuracy",
                "sparse_categorical_crossentropy",
            ],
        ),
        ("multilabel", ["AUC", "precision", "F1Score"]),
        ("value", ["mae", "r2_score", "RootMeanSquaredError"]),
        ("mask", ["MeanIoU", "f1_score"]),
    ],
)
def test_metrics_of_split_batches_match_keras(kind, names):
    import keras

    trainable, arrays = build(kind, metrics=names), batch(kind)
    combined = trainable.evaluate(*arrays)
    parts = sum(
        (
            trainable.evaluate(*(array[rows] for array in arrays))
            for rows in (slice(0, 5), slice(5, 6), slice(6, 12))
        ),
        StepTotals(),
    )
    np.testing.assert_allclose(combined.pack(), parts.pack(), rtol=1e-5)
    result = trainable.scores(parts.metric_totals)
    assert result == pytest.approx(trainable.scores(combined.metric_totals), rel=1e-5)
    outputs, targets = np.asarray(trainable.model(arrays[0])), arrays[1]
    if kind == "value":
        assert result["mae"] == pytest.approx(np.abs(outputs - targets).mean(), rel=1e-4)
        residual, total = (
            np.square(outputs - targets).sum(0),
            np.square(targets - targets.mean(0)).sum(0),
        )
        assert result["r2_score"] == pytest.approx((1 - residual / total).mean(), rel=1e-3)
    if kind == "multilabel":
        auc = keras.metrics.AUC()
        auc.update_state(targets, 1 / (1 + np.exp(-outputs)))
        assert result["AUC"] == pytest.approx(float(auc.result()), rel=1e-4)
    if kind == "mask":
        table = np.zeros((3, 3))
        np.add.at(table, (targets.ravel(), outputs.argmax(-1).ravel()), 1)
        hits = np.diag(table)
        assert result["MeanIoU"] == pytest.approx(
            np.mean(hits / (table.sum(0) + table.sum(1) - hits)), rel=1e-4
        )


@pytest.mark.parametrize(
    ("kind", "train", "options"),
    [
        ("value", {"loss": "mae"}, ("MeanAbsoluteError", {})),
        ("value", {"loss": "huber"}, ("Huber", {})),
        (
            "multilabel",
            {"label_smoothing": 0.2},
            ("BinaryCrossentropy", {"from_logits": True, "label_smoothing": 0.2}),
        ),
        (
            "class",
            {"label_smoothing": 0.2},
            ("CategoricalCrossentropy", {"from_logits": True, "label_smoothing": 0.2}),
        ),
        (
            "class",
            {"loss": "categorical_focal_crossentropy"},
            ("CategoricalFocalCrossentropy", {"from_logits": True}),
        ),
    ],
)
def test_losses_match_keras(kind, train, options):
    import keras

    trainable, (inputs, targets, weights) = build(kind, **train), batch(kind)
    outputs = trainable.model(inputs)
    dense_targets = np.eye(3)[targets] if kind == "class" else targets
    name, arguments = options
    expected = float(
        getattr(keras.losses, name)(**arguments)(dense_targets, outputs, sample_weight=weights)
    )
    assert trainable.evaluate(inputs, targets, weights).loss / 12 == pytest.approx(
        expected, rel=1e-4
    )


def with_void(rows=12):
    """Return a batch of masks with excluded pixels."""
    inputs, targets, weights = batch("mask", rows)
    targets = targets.copy()
    targets[:, 0, :] = TARGETS["mask"].void
    return inputs, targets, weights


@pytest.mark.parametrize(
    ("loss", "expected"),
    long_but_first(
        (
            "categorical_crossentropy",
            lambda expected, predicted, logits: -np.log((expected * predicted).sum(-1))[:, 1:].mean(
                (1, 2)
            ),
        ),
        (
            "sparse_categorical_crossentropy",
            lambda expected, predicted, logits: -np.log((expected * predicted).sum(-1))[:, 1:].mean(
                (1, 2)
            ),
        ),
        (
            "mae",
            lambda expected, predicted, logits: np.abs(expected - predicted)
            .mean(-1)[:, 1:]
            .mean((1, 2)),
        ),
        (
            "dice",
            lambda expected, predicted, logits: 1
            - 2
            * (expected * predicted)[:, 1:].sum((1, 2, 3))
            / (expected + predicted)[:, 1:].sum((1, 2, 3)),
        ),
        (
            {"tversky": {"alpha": 0.3, "beta": 0.7}},
            lambda expected, predicted, logits: 1
            - (expected * predicted)[:, 1:].sum((1, 2, 3))
            / (0.3 * predicted + 0.7 * expected)[:, 1:].sum((1, 2, 3)),
        ),
        (
            f"{__name__}:of_pixels",
            lambda expected, predicted, logits: np.square(expected - logits)
            .sum(-1)[:, 1:]
            .mean((1, 2)),
        ),
        (
            {f"{__name__}:of_masks": {"scale": 3}},
            lambda expected, predicted, logits: 3 * (expected * logits)[:, 1:].sum((1, 2, 3)),
        ),
    ),
)
def test_losses_of_masks_exclude_void_pixels(loss, expected):
    trainable, (inputs, targets, weights) = build("mask", loss=loss), with_void()
    logits = np.asarray(trainable.model(inputs), np.float64)
    predicted = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = np.eye(3)[np.where(targets == TARGETS["mask"].void, 0, targets)]
    losses = expected(labels, predicted, logits)
    assert trainable.evaluate(inputs, targets, weights).loss == pytest.approx(
        float((losses * weights).sum()), rel=1e-4
    )
    first = take_step(trainable, inputs, targets, 12, False, weights).loss
    assert np.isfinite(
        [first, take_step(trainable, inputs, targets, 12, False, weights).loss]
    ).all()


@pytest.mark.long
def test_class_weights_apply_to_pixel_losses_only():
    weights = {"0": 2.0, "1": 0.0, "2": 1.0}
    default, named = (
        take_step(
            build("mask", class_weights=weights, **train),
            *with_void()[:2],
            12,
            False,
            with_void()[2],
        )
        for train in ({}, {"loss": "categorical_crossentropy"})
    )
    assert named.loss == pytest.approx(default.loss, rel=1e-5)
    with refused(SettingError, "class_weights apply to pixels", "dice"):
        build("mask", loss="dice", class_weights=weights)


def test_metrics_and_losses_take_parameters():
    metrics = [
        "AUC",
        {"AUC": {"curve": "PR", "name": "auc_pr"}},
        {"IoU": {"target_class_ids": [1]}},
    ]
    trainable, rows = build("class", metrics=metrics), batch("class")
    result = trainable.scores(trainable.evaluate(*rows).metric_totals)
    assert list(result) == ["AUC", "auc_pr", "IoU"]
    assert result["AUC"] != result["auc_pr"]
    classes = np.asarray(trainable.model(rows[0])).argmax(1)
    is_correct = classes == rows[1]
    union = (classes == 1) | (rows[1] == 1)
    assert result["IoU"] == pytest.approx((is_correct & (classes == 1)).sum() / union.sum())
    small, large = (
        build("value", loss={"huber": {"delta": delta}}).evaluate(*batch("value")).loss
        for delta in (0.1, 9)
    )
    assert small < large


@pytest.mark.parametrize(
    ("train", "names"),
    [
        ({"metrics": ["IoU"]}, ["train.metrics", "{IoU: {target_class_ids: ...}}"]),
        (
            {"metrics": ["AUC", {"AUC": {"curve": "PR"}}]},
            ["train.metrics", "'AUC'", "parameter `name`"],
        ),
        ({"metrics": [{"AUC": {}, "mae": {}}]}, ["train.metrics", "{'AUC': {}, 'mae': {}}"]),
        (
            {"loss": "categorical_generalized_cross_entropy"},
            ["train.loss", "{categorical_generalized_cross_entropy: {q: ...}}"],
        ),
    ],
)
def test_parse_refuses_missing_or_invalid_parameters(train, names):
    with refused(SpecError, *names):
        parse({"models": [{"family": "softmax"}], "train": train})


@pytest.mark.parametrize(
    ("train", "names"),
    [
        ({"metrics": [{"AUC": {"corve": "PR"}}]}, ["AUC has no parameter corve", "curve"]),
        ({"loss": {"huber": {"delte": 1}}}, ["huber has no parameter delte", "delta"]),
        ({"loss": {"huber": {"axis": 1}}}, ["huber has no parameter axis"]),
    ],
)
def test_build_refuses_unknown_parameters(train, names):
    with refused(SettingError, *names):
        build("value", **train)


def of_pixels(targets, outputs):
    import tensorflow as tf

    return tf.reduce_sum(tf.square(tf.one_hot(targets, 3) - outputs), axis=-1)


def of_masks(targets, outputs, scale=1):
    import tensorflow as tf

    # The one-hot vector of -1, which marks excluded pixels, is zero.
    return scale * tf.reduce_sum(tf.one_hot(targets, 3) * outputs, axis=(1, 2, 3))


def test_class_weights_apply_only_to_training():
    plain, weighted = build("class"), build("class", class_weights={"0": 3.0, "1": 1.0, "2": 0.0})
    inputs, targets, weights = batch("class")
    assert (
        weighted.evaluate(inputs, targets, weights).loss
        == plain.evaluate(inputs, targets, weights).loss
    )
    by_class = np.array([3.0, 1.0, 0.0], np.float32)[targets]
    assert take_step(weighted, inputs, targets, 12, False, weights).loss == pytest.approx(
        take_step(plain, inputs, targets, 12, False, weights * by_class).loss, rel=1e-5
    )


def test_network_resumes_from_its_state():
    for kind in ("value", "mask"):
        trainable, reference, rows = build(kind), build(kind), batch(kind)
        for _ in range(3):
            take_step(trainable, *rows[:2], 12, False, rows[2])
        reference.load(trainable.state())
        assert take_step(trainable, *rows[:2], 12, False, rows[2]) == take_step(
            reference, *rows[:2], 12, False, rows[2]
        )


@pytest.mark.parametrize("kind", TARGETS)
def test_try_export_of_every_kind(kind, tmp_path):
    assert build(kind).try_export(tmp_path) == ""


# ---- user-defined functions --------------------------------------------------------------------


def two_inputs(input_shape, classes):
    import keras

    first, second = keras.Input(input_shape), keras.Input(input_shape)
    return keras.Model(
        [first, second], keras.layers.Dense(classes)(keras.layers.Flatten()(first + second))
    )


def two_outputs(input_shape, classes):
    import keras

    inputs = keras.Input(input_shape)
    flat = keras.layers.Flatten()(inputs)
    return keras.Model(inputs, [keras.layers.Dense(classes)(flat), keras.layers.Dense(1)(flat)])


def of_outputs(input_shape, outputs):
    import keras

    return keras.Sequential(
        [keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(outputs)]
    )


def ending_in_sigmoid(input_shape, classes):
    import keras

    return keras.Sequential(
        [keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(classes, "sigmoid")]
    )


def quartic(targets, outputs):
    return (targets - outputs) ** 4


def of_a_batch(targets, outputs):
    import keras

    return keras.ops.mean(targets - outputs)


def last_metric():
    import keras

    class Last(keras.metrics.Metric):
        """The value of the last batch, so its state does not add up."""

        def __init__(self):
            super().__init__()
            self.value = self.add_weight(name="value", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.value.assign(keras.ops.mean(keras.ops.cast(y_pred, "float32")))

        def result(self):
            return self.value

    return Last


def __getattr__(name):  # defines a class of Keras without importing Keras with this module
    if name == "Last":
        return last_metric()
    raise AttributeError(name)


def test_user_function_may_take_outputs():
    trainable = build("value", {"build": f"{__name__}:of_outputs"})
    assert trainable.evaluate(*batch("value")).count == 12


def test_build_removes_the_sigmoid_of_labels():
    trainable = build("multilabel", {"build": f"{__name__}:ending_in_sigmoid"})
    assert (np.asarray(trainable.model(batch("multilabel")[0])) < 0).any()


def test_custom_loss_and_metric():
    name = f"{__name__}:quartic"
    trainable, (inputs, targets, weights) = (
        build("value", loss=name, metrics=[name]),
        batch("value"),
    )
    errors = (np.asarray(trainable.model(inputs)) - targets) ** 4
    totals = trainable.evaluate(inputs, targets, weights)
    assert totals.loss == pytest.approx(float((errors.mean(axis=1) * weights).sum()), rel=1e-4)
    assert trainable.scores(totals.metric_totals) == pytest.approx(
        {"quartic": errors.mean()}, rel=1e-4
    )


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("kind", "model", "train", "error", "message"),
    [
        ("value", "two_inputs", {}, ModelError, "a model with 2 inputs; it should have one"),
        ("value", "two_outputs", {}, ModelError, "a model with 2 outputs; name one of them"),
        (
            "mask",
            "of_outputs",
            {},
            ModelError,
            "outputs of shape (None, 3); they should have the shape (None, 4, 4, 3)",
        ),
        (
            "value",
            "of_outputs",
            {"metrics": [f"{__name__}:of_a_batch"]},
            SettingError,
            "one number for a whole batch",
        ),
        (
            "value",
            "of_outputs",
            {"metrics": [f"{__name__}:Last"]},
            SettingError,
            "its state is not a sum",
        ),
        (
            "value",
            "of_outputs",
            {"metrics": ["sparse_categorical_accuracy"]},
            SettingError,
            "be computed for 2 values",
        ),
        ("mask", "of_outputs", {"loss": "huber"}, (SettingError, ModelError), "."),
    ],
)
def test_build_refuses_unusable_models_and_settings(kind, model, train, error, message):
    with refused(error, message):
        build(kind, {"build": f"{__name__}:{model}"}, **train)


def test_losses_and_metrics_are_those_of_keras():
    import keras

    losses = {name for name in dir(keras.losses) if name.islower() and not name.startswith("_")}
    # The last two are losses of sequences and embeddings.
    losses -= {"get", "serialize", "deserialize", "ctc", "circle"}
    assert set(LOSSES) == losses
    classes = [getattr(keras.metrics, name) for name in dir(keras.metrics) if name[0].isupper()]
    names = {canonical_name(kind.__name__) for kind in classes}
    assert names - set(METRICS) == {"mean", "sum", "metric", "mean_metric_wrapper"}
    assert set(METRICS) <= names
    for kind in classes:
        name = canonical_name(kind.__name__)
        if name in METRICS:
            try:
                direction = kind()._direction
            except (TypeError, AttributeError):  # it needs arguments, or has no direction
                continue
            expected = {"up": "max", "down": "min", None: direction_of(name)}[direction]
            assert direction_of(name) == expected, name


def calling_sigmoid(input_shape, classes):
    import keras

    class Calling(keras.Model):
        def __init__(self):
            super().__init__()
            self.flat, self.last = keras.layers.Flatten(), keras.layers.Dense(classes)

        def call(self, images):
            return keras.ops.sigmoid(self.last(self.flat(images)))

    return Calling()


@pytest.mark.parametrize("kind", ["class", "multilabel"])
def test_build_refuses_a_sigmoid_in_call(kind):
    with refused(ModelError, "returns probabilities, from a sigmoid"):
        build(kind, {"build": f"{__name__}:calling_sigmoid"})


def reversed_error(outputs, targets):
    return abs(2 * outputs - targets)


def test_loss_is_called_in_the_order_of_its_names():
    trainable = build("value", loss=f"{__name__}:reversed_error")
    inputs, targets, weights = batch("value")
    totals, outputs = trainable.predict(inputs, targets, weights)
    expected = (np.abs(2 * outputs - targets).mean(1) * weights).sum()
    assert totals.loss == pytest.approx(expected, rel=1e-5)
