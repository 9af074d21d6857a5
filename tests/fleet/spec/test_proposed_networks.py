"""Tests of ``proposed_network`` and the settings of searches."""

from dataclasses import replace

import pytest

from fleet.errors import UserError
from fleet.spec import parse
from fleet.spec.entries import proposed_network
from fleet.spec.model import Architecture
from tests.refusals import refused

SPEC = {
    "models": [
        {"family": "softmax", "name": "other"},
        {
            "family": "cnn",
            "name": "net",
            "args": {"filters": [8, 8]},
            "gpus": [1, 2],
            "count": 2,
            "space": {
                "filters.1": [16, 32],
                "train.optimizer.learning_rate": {"low": 0.01, "high": 0.1},
            },
        },
    ],
    "seed": 3,
}


def test_proposed_network_equals_a_drawn_one_except_its_name():
    spec = parse(SPEC)
    drawn = spec.networks[2]
    proposed = proposed_network(spec, 1, 1, drawn.parameters)
    assert replace(proposed, number=None) == drawn
    assert proposed.number == 1
    assert proposed_network(spec, 1, 7, drawn.parameters).name == "net-7"
    assert proposed_network(spec, 1, 7, drawn.parameters).seed != drawn.seed


def test_proposed_network_may_set_items_of_default_lists():
    spec = parse(
        {
            "models": [
                {
                    "family": "resnet",
                    "space": {"blocks.0": {"low": 2, "high": 20, "integer": True}},
                    "search": {"max_trials": 3},
                }
            ]
        }
    )
    assert proposed_network(spec, 0, 1, {"blocks.0": 7}).architecture == Architecture(
        "resnet", {"blocks": [7, 4, 6, 3]}
    )
    with refused(UserError, "blocks.4", "'4' in a list of 4"):
        proposed_network(spec, 0, 1, {"blocks.4": 7})


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ({"filters.1": 0}, "args.filters"),
        ({"filters.7": 3}, "there is no '7'"),
        ({"train.optimizer.learning_rate": -1.0}, "train.optimizer.learning_rate"),
        ({"train.batch.width": 3}, "train.batch.width"),
    ],
)
def test_proposed_network_names_invalid_values(member, message):
    with refused(UserError, message):
        proposed_network(parse(SPEC), 1, 0, member)


@pytest.mark.parametrize(
    ("search", "limit"),
    [
        ({"max_trials": 10_000}, 10_000),
        ({"max_trials": 3}, 3),
        ({"budget": {"epochs": 5}}, 10_000),
        ({"sampler": "grid"}, 10_000),
    ],
)
def test_search_limit(search, limit):
    entry = {
        "family": "softmax",
        "space": {"train.optimizer.learning_rate": [0.1, 0.2]},
        "search": search,
    }
    assert parse({"models": [entry]}).searches[0].search.limit == limit


def test_search_needs_a_limit():
    entry = {
        "family": "softmax",
        "space": {"train.optimizer.learning_rate": {"low": 0.1, "high": 0.2}},
        "search": {},
    }
    with refused(UserError, "models[0].search", "max_trials", "budget"):
        parse({"models": [entry]})


def test_warm_start_lists_each_run_once():
    entry = {
        "family": "softmax",
        "space": {"train.optimizer.learning_rate": {"low": 0.1, "high": 0.2}},
        "search": {"max_trials": 3, "warm_start": ["runs/a", "runs/b", "./runs/a/"]},
    }
    with refused(UserError, "models[0].search", "warm_start", "runs/a"):
        parse({"models": [entry]})


# ---- objectives --------------------------------------------------------------------------------


def with_objectives(*objectives, **entry):
    return {
        "models": [
            {
                "family": "softmax",
                "name": "s",
                "space": {"train.optimizer.learning_rate": [0.1, 0.2]},
                "search": {"max_trials": 2, "objectives": list(objectives)},
                **entry,
            }
        ]
    }


def test_first_objective_is_monitored():
    spec = parse(with_objectives({"value": "val_loss"}, {"value": "parameters"}, {"value": "rate"}))
    values = {"train.optimizer.learning_rate": 0.1}
    stopping = proposed_network(spec, 0, 0, values).train.stopping
    assert (stopping.metric, stopping.sign) == ("val_loss", -1)
    assert [objective.sense for objective in spec.searches[0].search.objectives] == [
        "minimize",
        "minimize",
        "maximize",
    ]
    with_custom_metric = parse(
        with_objectives({"value": "val_f", "mode": "minimize"}, train={"metrics": ["my:f"]})
    )
    assert proposed_network(with_custom_metric, 0, 0, values).train.stopping.sign == -1


@pytest.mark.parametrize(
    ("objectives", "train", "key", "message"),
    [
        (
            [{"value": "val_acuracy"}],
            {},
            "objectives[0].value",
            "'val_acuracy' is not computed; it should be one of loss, val_loss",
        ),
        (
            [{"value": "parameters"}],
            {},
            "objectives[0].value",
            "does not change from epoch to epoch",
        ),
        (
            [{"value": "loss"}, {"value": "speed"}],
            {},
            "objectives[1].value",
            "'speed' is not computed",
        ),
        ([{"value": "loss"}, {"value": "loss"}], {}, "objectives[1].value", "loss is listed twice"),
        (
            [{"value": "loss"}, {"value": "val_f"}],
            {"metrics": ["my:f"]},
            "objectives[1].value",
            "high or low values of val_f",
        ),
        (
            [{"value": "loss"}],
            {"stopping": {"monitor": "val_loss"}},
            "train.stopping.monitor",
            "is not loss, the first",
        ),
        (
            [{"value": "loss", "mod": "minimize"}],
            {},
            "objectives[0].mod",
            "mode? valid keys: value, mode",
        ),
    ],
)
def test_invalid_objectives_are_located(objectives, train, key, message):
    with refused(UserError, message) as refusal:
        parse(with_objectives(*objectives, train=train))
    [mistake] = refusal.value.mistakes
    assert mistake.key.endswith(key)
