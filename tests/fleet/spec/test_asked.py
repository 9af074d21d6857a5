"""What a search has asked for becomes a network like those of a spec."""

from dataclasses import replace

import pytest

from fleet.errors import UserError
from fleet.spec import parse
from fleet.spec.model import Architecture
from fleet.spec.resolve import proposed_network

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
    with pytest.raises(UserError, match="there is no '4' in a list of 4"):
        proposed_network(spec, 0, 1, {"blocks.4": 7})


@pytest.mark.parametrize(
    ("member", "says"),
    [
        ({"filters.1": 0}, "args.filters"),
        ({"filters.7": 3}, "there is no '7'"),
        ({"train.optimizer.learning_rate": -1.0}, "train.optimizer.learning_rate"),
        ({"train.batch.width": 3}, "train.batch.width"),
    ],
)
def test_a_value_that_no_network_can_have_is_said(member, says):
    with pytest.raises(UserError, match=says):
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
def test_a_search_that_ends_asks_for_so_many_networks_at_most(search, limit):
    entry = {
        "family": "softmax",
        "space": {"train.optimizer.learning_rate": [0.1, 0.2]},
        "search": search,
    }
    assert parse({"models": [entry]}).searches[0].search.limit == limit


def test_a_search_without_an_end_is_refused():
    entry = {
        "family": "softmax",
        "space": {"train.optimizer.learning_rate": {"low": 0.1, "high": 0.2}},
        "search": {},
    }
    with pytest.raises(UserError, match="needs an end: `max_trials:` or a `budget:`"):
        parse({"models": [entry]})


def test_an_earlier_run_is_named_once():
    entry = {
        "family": "softmax",
        "space": {"train.optimizer.learning_rate": {"low": 0.1, "high": 0.2}},
        "search": {"max_trials": 3, "warm_start": ["runs/a", "runs/b", "./runs/a/"]},
    }
    with pytest.raises(UserError, match="runs/a is named twice; name each run once"):
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


def test_the_first_objective_is_what_networks_monitor():
    spec = parse(with_objectives({"value": "val_loss"}, {"value": "parameters"}, {"value": "rate"}))
    converge = proposed_network(spec, 0, 0, {"train.optimizer.learning_rate": 0.1}).train.stopping
    assert (converge.metric, converge.sign) == ("val_loss", -1)
    assert [one.sense for one in spec.searches[0].search.objectives] == [
        "minimize",
        "minimize",
        "maximize",
    ]
    own = parse(
        with_objectives({"value": "val_f", "mode": "minimize"}, train={"metrics": ["my:f"]})
    )
    assert (
        proposed_network(own, 0, 0, {"train.optimizer.learning_rate": 0.1}).train.stopping.sign
        == -1
    )


@pytest.mark.parametrize(
    ("objectives", "train", "place", "says"),
    [
        (
            [{"value": "val_acuracy"}],
            {},
            "objectives[0].value",
            "'val_acuracy' is not computed; one of loss, val_loss",
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
        ([{"value": "loss"}, {"value": "loss"}], {}, "objectives[1].value", "loss counts already"),
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
def test_what_cannot_count_is_a_mistake_at_its_place(objectives, train, place, says):
    with pytest.raises(UserError) as error:
        parse(with_objectives(*objectives, train=train))
    [mistake] = error.value.mistakes
    assert mistake.key.endswith(place)
    assert says in str(error.value)
