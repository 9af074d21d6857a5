"""Tests of which keys of a spec the parameters of a sweep set."""

import pytest

from fleet.spec.space import space_of
from fleet.spec.train import Train
from fleet.sweeps.settings import EVIDENT, evident_key


def sweep(**parameters):
    return {"method": "random", "run_cap": 5, "parameters": parameters}


RATE = {"min": 0.001, "max": 0.1, "distribution": "log_uniform_values"}
PAIR = {"values": [1, 2]}


@pytest.mark.parametrize("key", EVIDENT)
def test_evident_key_is_a_key_of_a_spec(key):
    settings = Train()
    for name in key.split(".")[1:]:
        settings = getattr(settings, name)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Learning-Rate", "train.optimizer.learning_rate"),
        ("training.optimizer.lr", "train.optimizer.learning_rate"),
        ("optimizer.type", "train.optimizer.name"),
        ("hparams.batch_size", "train.batch.size"),
        ("train.optimizer.learning_rate", "train.optimizer.learning_rate"),
        ("decoder.learning_rate", None),
        ("dropout", None),
        ("model.name", None),
        ("train.speed", None),
    ],
)
def test_names_are_evident(name, key):
    assert evident_key(name) == key


def test_value_that_a_key_does_not_allow_stays_an_argument(import_content):
    result = import_content(
        sweep(lr={"min": 0.0, "max": 0.1}, batch_size={"values": [8, "all"]}, epochs={"value": 0})
    )
    assert result.space.keys() == {"lr", "batch_size"}
    assert result.entry["args"] == {"epochs": 0}
    assert {"lr", "batch_size", "epochs"} <= result.changed


def test_unknown_optimizer_stays_an_argument(import_content):
    result = import_content(sweep(optimizer={"values": ["adam", "mine"]}, lr=RATE))
    assert result.space.keys() == {"optimizer", "train.optimizer.learning_rate"}


def test_setting_of_some_optimizers_gets_a_condition(import_content):
    result = import_content(
        sweep(
            optimizer={"values": ["sgd", "adam", "adamw"]},
            momentum={"min": 0.0, "max": 0.9},
            beta_1={"values": [0.8, 0.9]},
            lr={"value": 0.01},
        )
    )
    space_of(result.space)
    name = "train.optimizer.name"
    assert result.space["train.optimizer.momentum"]["when"] == {name: "sgd"}
    assert result.space["train.optimizer.beta_1"] == {
        "choices": [0.8, 0.9],
        "when": {name: ["adam", "adamw"]},
    }
    # A fixed setting of `train` would count for its optimizer only.
    assert result.space["train.optimizer.learning_rate"] == [0.01]


def test_setting_of_no_optimizer_stays_an_argument(import_content):
    result = import_content(sweep(optimizer={"value": "sgd"}, beta_1={"values": [0.8, 0.9]}))
    assert result.space == {"beta_1": [0.8, 0.9]}
    assert result.train["optimizer"] == {"name": "sgd"}


def test_second_parameter_for_a_key_stays_an_argument(import_content):
    result = import_content(sweep(lr=RATE, learning_rate=RATE))
    assert result.space.keys() == {"train.optimizer.learning_rate", "learning_rate"}


def test_map_chooses_keys(import_content):
    result = import_content(
        sweep(eta=RATE, lr=PAIR, depth=PAIR),
        *("--map", "eta=train.optimizer.learning_rate"),
        *("--map", "depth=layers"),
    )
    assert result.space.keys() == {"train.optimizer.learning_rate", "lr", "layers"}


def test_map_keeps_an_argument(import_content):
    assert import_content(sweep(lr=RATE), "--map", "lr=lr").space.keys() == {"lr"}


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("rate=x", ("'rate'", "lr, depth")),
        ("lr=train.optimizer.rate", ("train.optimizer.rate", "docs/spec.md")),
        ("lr=depth", ("lr and depth", "depth")),
        ("lr", ("OLD=NEW",)),
        ("=x", ("OLD=NEW",)),
    ],
)
def test_map_that_is_wrong_is_refused(refusal, option, names):
    error = refusal(sweep(lr=RATE, depth=PAIR), "--map", option)
    assert [name for name in names if name not in error] == []


def test_names_that_would_set_parts_of_others_are_renamed(import_content):
    result = import_content(
        {
            "method": "random",
            "run_cap": 5,
            "parameters": {"block": PAIR, "block.width": PAIR, "train.speed": PAIR},
        }
    )
    assert result.space.keys() == {"block", "block_width", "train_speed"}
