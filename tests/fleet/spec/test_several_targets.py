"""Settings of several targets: forms, what they give each target, and what is refused."""

import pytest

from fleet.errors import SpecError
from fleet.spec import parse
from fleet.spec.criteria import check_comparable, with_data_defaults
from fleet.spec.data import Target
from fleet.spec.entries import with_extreme_networks
from fleet.spec.fit_checks import find_misfits, find_unfit_measures, merge_misfits
from fleet.spec.target_settings import columns, kinds_of, settings_by_target
from preprocess.record_target import RecordTarget
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.target import TargetSpec

TARGET = RecordTarget.of(
    {"price": TargetSpec("value", 1), "kind": TargetSpec("class", 3, ("a", "b", "c"))}
)


def spec_of(data=None, engine="torch", model=None, **train):
    return parse(
        {
            "models": [model or {"build": "json:loads"}],
            "resources": {"engine": engine},
            "data": data or {},
            "train": train,
        }
    )


def settings(**train):
    spec = spec_of(**train)
    return settings_by_target(spec.networks[0].train, kinds_of(TARGET), spec.engine.words.metrics)


def misfits(target=TARGET, **train):
    """Return what does not fit the targets: pairs of a key and a text."""
    spec = spec_of(**train)
    result = find_unfit_measures(spec.networks[0], spec, kinds_of(target))
    return [
        (".".join(map(str, location[1:])), wrong, right) for _, location, wrong, right in result
    ]


@pytest.mark.parametrize(
    ("written", "parsed"),
    [
        ({"kind": "class", "outputs": 3}, Target("class", 3)),
        ({"price": "value", "kind": "class"}, {"price": "value", "kind": "class"}),
        ({"kind": {"kind": "class"}}, {"kind": Target("class")}),
        ({"names": "class", "kind": "value"}, {"names": "class", "kind": "value"}),
    ],
)
def test_values_tell_whether_targets_have_names(written, parsed):
    assert spec_of({"target": written}).data.target == parsed


def test_unknown_kind_of_a_target_names_its_line():
    with pytest.raises(SpecError, match=r"data\.target\.price"):
        spec_of({"target": {"price": "prize", "kind": "class"}})


def test_each_target_has_its_settings():
    result = settings(
        loss={"price": {"huber": {"delta": 2}}, "kind": "hinge"},
        metrics={"price": "mae"},
        label_smoothing=0.1,
        class_weights="balanced",
    )
    assert result["price"].loss == {"huber": {"delta": 2}}
    assert result["price"].metrics == ("mae",)
    assert not result["price"].label_smoothing
    assert result["price"].class_weights is None
    assert result["kind"].loss == "hinge"
    assert result["kind"].metrics == ()
    assert result["kind"].label_smoothing == 0.1
    assert result["kind"].class_weights == "balanced"


def test_metrics_in_a_list_apply_to_the_targets_they_fit():
    train = spec_of(metrics=["r2_score", "AUC"]).networks[0].train
    words = spec_of().engine.words.metrics
    assert columns(train, kinds_of(TARGET), words) == [
        "loss",
        "price_loss",
        "price_r2_score",
        "kind_loss",
        "kind_accuracy",
        "kind_AUC",
    ]


def test_distances_in_a_list_are_of_values_alone():
    assert settings(metrics=["mae", "MeanSquaredError"])["kind"].metrics == ()
    assert settings(metrics=["mae"])["price"].metrics == ("mae",)
    assert settings(metrics={"kind": ["mae"]})["kind"].metrics == ("mae",)


def test_metric_that_fits_no_target_is_refused():
    kinds = RecordTarget.of({"kind": TargetSpec("class", 3), "place": TargetSpec("class", 2)})
    [(key, wrong, right)] = misfits(kinds, metrics=["AUC", "mae"])
    assert key == "metrics.1"
    assert "none of the targets kind (class) and place (class)" in wrong
    assert right == "a mapping by target: {kind: [mae]}"
    [(key, wrong, right)] = misfits(kinds, metrics=["r2_score"])
    assert key == "metrics.0"
    assert "should be one of accuracy" in right


@pytest.mark.parametrize(
    ("train", "key", "text"),
    [
        ({"loss": {"cost": "mse", "price": "mse", "kind": "hinge"}}, "loss.cost", "'cost'"),
        ({"loss": {"price": "mse"}}, "loss", "no loss for kind"),
        ({"loss": {"price": "dice", "kind": "hinge"}}, "loss.price", "dice"),
        ({"loss_weights": {"cost": 1}}, "loss_weights.cost", "one of the targets, price, kind"),
        ({"loss_weights": {"price": 0, "kind": 0}}, "loss_weights", "weight 0"),
        ({"metrics": {"cost": ["mae"]}}, "metrics.cost", "'cost'"),
        ({"metrics": {"price": ["AUC"]}}, "metrics.price.0", "AUC"),
        ({"label_smoothing": {"price": 0.1}}, "label_smoothing.price", "values, not classes"),
        ({"class_weights": {"price": "balanced"}}, "class_weights.price", "values, not classes"),
        ({"stopping": {"monitor": "val_accuracy"}}, "stopping.monitor", "val_accuracy is not"),
        ({"stopping": {"monitor": "val_price_accuracy"}}, "stopping.monitor", "is not computed"),
        ({"batch_transforms": ["mixup"]}, "batch_transforms", "the only target"),
    ],
)
def test_settings_that_do_not_fit_are_refused(train, key, text):
    [(result, wrong, right)] = misfits(**train)
    assert result == key
    assert text in f"{wrong}; {right}"


def test_settings_by_target_of_one_target_are_refused():
    value = TargetSpec("value", 1)
    [(key, wrong, _)] = misfits(value, loss={"price": "mse"})
    assert (key, "one target" in wrong) == ("loss", True)
    [(key, wrong, _)] = misfits(value, stopping={"monitor": "val_price_loss"})
    assert key == "stopping.monitor"


def test_objective_of_a_search_must_be_computed():
    spec = spec_of(
        model={
            "build": "json:loads",
            "space": {"width": [4, 8]},
            "search": {"max_trials": 2, "objectives": [{"value": "val_cost_loss"}]},
        }
    )
    drawn = with_extreme_networks(spec)
    [misfit, *_] = find_unfit_measures(drawn.networks[0], spec, kinds_of(TARGET))
    assert misfit[1:3] == (
        ("models", 0, "search", "objectives", 0, "value"),
        "val_cost_loss is not computed",
    )


def test_monitored_column_has_the_direction_of_its_measure():
    stopping = spec_of(stopping={"monitor": "val_kind_accuracy"}).networks[0].train.stopping
    assert stopping.sign == 1
    stopping = spec_of(stopping={"monitor": "val_price_loss"}).networks[0].train.stopping
    assert stopping.sign == -1


def test_monitor_is_the_loss_by_default():
    spec = with_data_defaults(spec_of(), {"": (TARGET, {})})
    assert spec.networks[0].train.stopping.metric == "val_loss"


def test_class_weights_become_those_of_all_classes():
    spec = spec_of(class_weights={"kind": {"b": 2}})
    [network] = with_data_defaults(spec, {"": (TARGET, {})}).networks
    assert network.train.class_weights == {"kind": {"0": 1.0, "1": 2.0, "2": 1.0}}
    [network] = with_data_defaults(
        spec_of(class_weights="balanced"), {"": (TARGET, {"kind": (1, 1, 2)})}
    ).networks
    assert network.train.class_weights["kind"]["2"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("engine", "model", "text"),
    [
        ("numpy", {"family": "softmax"}, "takes one target"),
        ("torch", {"family": "softmax"}, "has one output"),
        ("torch", {"build": "json:loads", "output": "logits"}, "chooses one output"),
    ],
)
def test_networks_with_one_output_are_refused(engine, model, text):
    spec = spec_of(engine=engine, model=model)
    sample = SampleSpec(ArraySpec((4,), "float32"), 4, target=TARGET)
    misfits = find_misfits(spec, sample, 1000, True)
    assert text in str(SpecError(merge_misfits(spec, misfits)))


def test_other_weights_of_losses_cannot_be_compared():
    content = {
        "models": [
            {"build": "json:loads", "name": name, "train": {"loss_weights": {"kind": weight}}}
            for name, weight in (("first", 1.0), ("second", 2.0))
        ],
        "resources": {"engine": "torch"},
    }
    spec = with_data_defaults(parse(content), {"": (TARGET, {})})
    with pytest.raises(SpecError, match="val_loss is not the same"):
        check_comparable(spec, spec.networks, lambda network: (kinds_of(TARGET),))
