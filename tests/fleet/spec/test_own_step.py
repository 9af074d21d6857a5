"""The key ``train.step``: what it excludes, who supports it, what may be monitored."""

import pytest

from fleet.errors import SpecError
from fleet.spec import parse
from fleet.spec.criteria import with_data_defaults
from preprocess.target import class_target
from tests.refusals import refused

STEP = "tests.torch_steps:classify"


def document(engine="torch", **train):
    return {
        "models": [{"family": "cnn"}],
        "resources": {"engine": engine},
        "train": {"step": STEP, **train},
    }


@pytest.mark.parametrize(
    "setting",
    [
        {"loss": "mse"},
        {"metrics": ["auc"]},
        {"label_smoothing": 0.1},
        {"class_weights": "balanced"},
        {"compile": True},
    ],
)
def test_step_excludes_what_the_function_computes(setting):
    [key] = setting
    with refused(SpecError, key, "step"):
        parse(document(**setting))


def test_step_needs_an_engine_that_supports_it():
    content = document("numpy")
    content["models"] = [{"family": "softmax"}]
    with refused(SpecError, "step", "numpy", "keras, torch"):
        parse(content)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("tests.torch_steps:clasify", ["torch_steps.py", "classify"]),
        ("tests.no_steps:step", ["tests.no_steps"]),
        ("step", ["module:function"]),
    ],
)
def test_step_that_does_not_exist_is_refused(path, names):
    with refused(SpecError, "train.step", *names):
        parse(document(step=path))


def test_step_lets_networks_monitor_its_metrics():
    monitor = {"monitor": "val_kl", "direction": "min"}
    [network] = parse(document(stopping=monitor)).networks
    assert network.train.stopping.metric == "val_kl"


def test_step_needs_a_direction_of_unknown_metrics():
    with refused(SpecError, "train.stopping.monitor", "val_kl", "direction"):
        parse(document(stopping={"monitor": "val_kl"}))


def test_step_monitors_the_validation_loss_by_default():
    spec = with_data_defaults(parse(document()), {"": (class_target(3), {})})
    assert spec.networks[0].train.stopping.metric == "val_loss"
