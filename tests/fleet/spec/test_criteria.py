"""Tests of selection criteria: a spec is refused if they are not the same for all networks."""

import pytest

from fleet.errors import SpecError
from fleet.spec import parse
from fleet.spec.criteria import SelectionCriterion, check_comparable, ranking_of
from fleet.spec.entries import variants
from fleet.spec.measures import canonical_loss, describe_unfit
from fleet.spec.resolve import with_entry
from fleet.vocabulary.measures import LOSSES
from preprocess.target_kinds import KINDS
from tests.refusals import refused


def spec(*trains, target="value", **parts):
    models = [
        train if "family" in train else {"family": "softmax", "name": f"n{number}", "train": train}
        for number, train in enumerate(trains)
    ]
    data = {"source": "tests.sources:numbered", **({} if target is None else {"target": target})}
    return parse({"data": data, "models": models, **parts})


def refusal_of(*trains, **parts):
    with pytest.raises(SpecError) as refusal:
        spec(*trains, **parts)
    return str(refusal.value)


def searched(space, **more):
    return {"family": "softmax", "name": "s", "space": space, "search": {"max_trials": 3}, **more}


def test_check_comparable_refuses_different_losses():
    message = refusal_of(
        {"loss": "huber"}, {"loss": "mse"}, {"loss": "msle"}, train={"metrics": ["mae"]}
    )
    assert (
        "huber for n0, mean_squared_error for n1, mean_squared_logarithmic_error for n2" in message
    )
    assert "monitor: val_mae" in message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"loss": "huber"}, {}),
        ({"loss": {"huber": {"delta": 2}}}, {"loss": "huber"}),
        ({"loss": {"tests.losses:own": {"a": 1}}}, {"loss": {"tests.losses:own": {"a": 2}}}),
        ({"stopping": {"monitor": "loss"}, "loss": "mae"}, {"stopping": {"monitor": "loss"}}),
        (
            {"metrics": [{"mae": {"name": "m"}}], "stopping": {"monitor": "val_m"}},
            {"metrics": [{"mse": {"name": "m"}}], "stopping": {"monitor": "val_m"}},
        ),
        (
            {"metrics": ["my:f"], "stopping": {"monitor": "val_f", "direction": "max"}},
            {"metrics": ["my:f"], "stopping": {"monitor": "val_f", "direction": "min"}},
        ),
        (
            {"loss": "huber", "metrics": ["mae"], "stopping": {"monitor": "val_mae"}},
            {"loss": "mse", "metrics": ["mae"]},
        ),
    ],
)
def test_check_comparable_refuses_different_measures(first, second):
    refusal_of(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"loss": "mse"}, {}),
        ({"loss": "MeanSquaredError"}, {"loss": "mean_squared_error"}),
        ({"loss": {"huber": {"delta": 1}}}, {"loss": "Huber"}),
        (
            {"loss": "huber", "stopping": {"monitor": "val_mae"}},
            {"loss": "mse", "stopping": {"monitor": "val_mae"}},
        ),
        ({"optimizer": {"learning_rate": 0.1}}, {"optimizer": {"learning_rate": 0.2}}),
        ({"stopping": {"monitor": "val_mae"}}, {"stopping": {"monitor": "val_loss"}}),
    ],
)
def test_check_comparable_accepts_equal_measures(first, second):
    assert len(spec(first, second, train={"metrics": ["mae"]}).networks) == 2


def test_check_comparable_sees_smoothing_and_class_weights():
    smoothed, weighted = {"label_smoothing": 0.1}, {"class_weights": {"0": 2.0}}
    assert "val_accuracy" in refusal_of(
        smoothed, {}, target="class", train={"stopping": {"monitor": "val_loss"}}
    )
    assert "class_weights" in refusal_of(
        weighted, {}, target="class", train={"stopping": {"monitor": "loss"}}
    )
    for train, monitor in ((smoothed, "val_accuracy"), (weighted, "val_loss")):
        spec(train, {}, target="class", train={"stopping": {"monitor": monitor}})


def test_check_comparable_ignores_class_weights_of_one():
    by_loss = {"stopping": {"monitor": "loss"}}
    spec(
        {},
        {"class_weights": {"a": 1, "b": 1}},
        {"class_weights": {"b": 1.0}},
        target="class",
        train=by_loss,
    )
    for train in ({"label_smoothing": 0.1}, {"class_weights": {"a": 2}}):
        message = refusal_of(train, {}, target=None, train=by_loss)
        assert "categorical_crossentropy" in message
        assert "monitor: accuracy" in message


def test_check_comparable_with_unknown_target_kind():
    resolved = spec({"loss": "huber"}, {}, target=None)
    with refused(SpecError, "val_loss"):
        check_comparable(resolved, resolved.networks, lambda network: ((("", "value"),),))
    check_comparable(resolved, resolved.networks, lambda network: ((("", "class"),),))
    # mse is the default loss of values.
    spec({"loss": "mse"}, {}, target=None, train={"stopping": {"monitor": "val_loss"}})
    refusal_of(
        {"loss": "huber"}, {"loss": "mae"}, target=None, train={"stopping": {"monitor": "val_loss"}}
    )


def test_check_comparable_separates_different_targets():
    spec({"loss": "mse"}, {"family": "softmax", "name": "other", "data": {"target": "class"}})


@pytest.mark.parametrize(
    "space",
    [
        {"train.loss": ["mse", "huber", "mse"]},
        {"train.loss.huber.delta": {"low": 1.0, "high": 3.0}},
        {
            "train.optimizer.learning_rate": [0.1, 0.2],
            "train.loss": [{"huber": {"delta": 1}}, {"huber": {"delta": 2}}],
        },
    ],
)
def test_check_comparable_covers_spaces_of_searches(space):
    overrides = {"train": {"loss": {"huber": {"delta": 1}}}} if "train.loss" not in space else {}
    message = refusal_of(searched(space, **overrides))
    assert "val_loss is not the same" in message
    refusal_of(searched({"train.optimizer.learning_rate": [0.1, 0.2]}), {"loss": "mae"})
    metric = {"metrics": ["mae"], "stopping": {"monitor": "val_mae"}}
    resolved = spec(searched(space, train={**overrides.get("train", {}), **metric}))
    assert {network.name for network in variants(resolved)} == {"s"}


def test_check_comparable_names_the_lines(tmp_path):
    from fleet.spec import load

    (tmp_path / "spec.yaml").write_text(
        "data: {target: value}\nmodels:\n- family: softmax\n  name: a\n  train:\n    loss: huber\n"
        "- family: softmax\n  name: b\n  grid:\n    train.loss: [mse, mae]\n"
        "train:\n  stopping:\n    monitor: val_loss\n"
    )
    with pytest.raises(SpecError) as refusal:
        load(tmp_path / "spec.yaml")
    [mistake] = refusal.value.mistakes
    assert (mistake.line, mistake.key) == (13, "train.stopping.monitor")
    assert (
        "huber for a (line 6), mean_squared_error for b-0 (line 10), "
        "mean_absolute_error for b-1 (line 10)" in str(mistake)
    )


def test_check_comparable_names_no_line_of_an_added_entry(tmp_path):
    from fleet.spec import load

    (tmp_path / "spec.yaml").write_text(
        "data: {target: value}\nmodels:\n- {family: softmax, name: a}\n"
    )
    before = load(tmp_path / "spec.yaml")
    extended, networks = with_entry(
        before, {"family": "softmax", "name": "b", "train": {"loss": "huber"}}, ["a"]
    )
    with pytest.raises(SpecError) as refusal:
        check_comparable(
            extended, (*before.networks, *networks), lambda network: ((("", "value"),),)
        )
    message = str(refusal.value)
    assert "\n  entry: train.stopping.monitor: val_loss is not the same" in message
    assert "mean_squared_error for a (line 3), huber for b;" in message


def test_ranking_of_uses_common_monitors_and_equal_losses():
    def columns(*trains):
        return [
            name
            for name, _ in ranking_of(
                {SelectionCriterion.of(network.train) for network in spec(*trains).networks}
            )
        ]

    metric = {"metrics": ["mae"], "stopping": {"monitor": "val_mae"}}
    assert columns({"loss": "huber", **metric}, metric) == ["val_mae", "val_accuracy", "accuracy"]
    assert columns(metric, metric) == ["val_mae", "val_accuracy", "val_loss", "accuracy", "loss"]
    assert (
        columns(metric, {"metrics": ["mae"], "stopping": {"monitor": "val_loss"}})[0]
        == "val_accuracy"
    )


def test_pruning_rule_needs_one_monitor():
    message = refusal_of(
        {"stopping": {"monitor": "val_mae"}},
        {"stopping": {"monitor": "val_loss"}},
        train={"metrics": ["mae"]},
        prune={"rule": "asha"},
    )
    assert "asha compares all networks, but they monitor different metrics" in message


@pytest.mark.parametrize(
    ("target", "train", "wrong"),
    [
        (
            "value",
            {"loss": "BinaryCrossentropy"},
            "train.loss: BinaryCrossentropy is not defined for targets that are val",
        ),
        (
            "value",
            {"loss": {"CategoricalCrossentropy": {"label_smoothing": 0.1}}},
            "CategoricalCrossentropy is not defined",
        ),
        (
            "value",
            {"metrics": ["mae", {"AUC": {"curve": "PR"}}]},
            "train.metrics: AUC is not defined",
        ),
        (
            {"kind": "multilabel"},
            {"loss": "sparse_categorical_crossentropy"},
            "yes-or-no labels",
        ),
        (
            "class",
            {"metrics": ["r2_score"]},
            "train.metrics: r2_score is not defined for targets that are classes",
        ),
        ("mask", {"metrics": ["PearsonCorrelation"]}, "targets that are masks"),
    ],
)
def test_unfit_measures_are_refused_with_alternatives(target, train, wrong):
    message = refusal_of(train, target=target)
    assert wrong in message
    assert "should be one of" in message
    spec(train, target=None)  # without the data, the kind of the target is unknown
    [key], [value] = (f"train.{name}" for name in train), train.values()
    valid, value = ("mae", value) if key == "train.loss" else (["mse"], ["mse", *value])
    assert wrong.rpartition(":")[2] in refusal_of(
        searched(
            {key: [valid, value, valid]},
            train={"metrics": ["mse"], "stopping": {"monitor": "val_mse"}},
        ),
        target=target,
    )


@pytest.mark.parametrize("target", ["class", "multilabel", "value", "mask"])
def test_default_loss_fits_its_target_kind(target):
    spec({"loss": KINDS[target].default_loss}, target=target)
    assert not describe_unfit("mae", target, LOSSES)


@pytest.mark.tensorflow
def test_defaults_of_losses_match_keras():
    import inspect

    import keras

    for name in LOSSES:
        options = inspect.signature(getattr(keras.losses, name)).parameters
        parameters = {
            key: option.default
            for key, option in options.items()
            if option.default is not inspect.Parameter.empty
            and key not in ("from_logits", "axis", "ignore_class")
        }
        assert LOSSES[name].defaults == parameters
        assert canonical_loss({name: parameters}, 0.0, "value", LOSSES) == canonical_loss(
            name, 0.0, "value", LOSSES
        )
