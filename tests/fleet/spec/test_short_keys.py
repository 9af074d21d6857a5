"""Tests of the short keys of `train`."""

import pytest

from fleet.errors import SpecError
from fleet.spec import Document, ModelEntry, Stopping, Train, dump, load, parse
from fleet.spec.resolve import with_entry
from tests.refusals import refused

ENTRY = {"family": "softmax"}
SHORT = {"optimizer": "adam", "epochs": 20, "batch_size": 64}
LONG = {"optimizer": {"name": "adam"}, "stopping": {"max_epochs": 20}, "batch": {"size": 64}}


def only_network(**keys):
    [network] = parse({"models": [ENTRY], **keys}).networks
    return network


def test_short_keys_mean_the_same_as_the_long_ones():
    assert parse({"models": [ENTRY], "train": SHORT}) == parse({"models": [ENTRY], "train": LONG})


def test_short_keys_of_an_entry_replace_settings_of_the_top():
    top = {"optimizer": {"name": "sgd", "momentum": 0.9}, "stopping": {"patience": 3}}
    [network] = parse({"models": [{**ENTRY, "train": SHORT}], "train": top}).networks
    assert network.train.optimizer.name == "adam"
    assert network.train.optimizer.momentum is None
    assert network.train.stopping == Stopping(max_epochs=20, patience=3)
    assert network.train.batch.size == 64


def test_name_of_the_same_optimizer_keeps_its_settings():
    top = {"optimizer": {"name": "adam", "beta_1": 0.8}}
    [network] = parse({"models": [{**ENTRY, "train": SHORT}], "train": top}).networks
    assert network.train.optimizer.beta_1 == 0.8


def test_short_keys_are_parameters_of_a_space_and_a_grid():
    space = {"train.epochs": [2], "train.batch_size": [8], "train.optimizer": ["adam"]}
    spec = parse(
        {
            "models": [
                {**ENTRY, "name": "a", "grid": space},
                {**ENTRY, "name": "b", "space": space, "count": 1},
            ]
        }
    )
    for network in spec.networks:
        assert network.parameters == {
            "train.stopping.max_epochs": 2,
            "train.batch.size": 8,
            "train.optimizer": "adam",
        }
        assert network.train.batch.size == 8
        assert network.train.stopping.max_epochs == 2
        assert network.train.optimizer.name == "adam"


def test_learning_rate_is_drawn_beside_the_optimizer():
    grid = {"train.optimizer": ["adam", "sgd"], "train.optimizer.learning_rate": [0.1]}
    networks = parse({"models": [{**ENTRY, "grid": grid}]}).networks
    optimizers = [network.train.optimizer for network in networks]
    assert [(item.name, item.learning_rate) for item in optimizers] == [("adam", 0.1), ("sgd", 0.1)]


def test_short_key_with_the_value_of_the_long_one_is_accepted():
    train = {"epochs": 20, "stopping": {"max_epochs": 20, "patience": 2}}
    assert only_network(train=train).train.stopping == Stopping(max_epochs=20, patience=2)


@pytest.mark.parametrize(
    ("short", "long"), [("epochs", "stopping: {max_epochs"), ("batch_size", "batch: {size")]
)
def test_short_key_that_contradicts_the_long_one_is_refused(short, long, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(f"models: [{{family: softmax}}]\ntrain:\n  {short}: 3\n  {long}: 4}}\n")
    meant = long.replace(": {", ".")
    with refused(SpecError, f"spec.yaml:3: train.{short}: 3 is given, but {meant} is 4 on line 4"):
        load(path)


def test_line_of_a_mistake_is_that_of_the_short_key(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("models: [{family: softmax}]\ntrain:\n  xla: true\n  epochs: many\n")
    with refused(SpecError, "spec.yaml:4: train.stopping.max_epochs: 'many'"):
        load(path)


def test_short_key_beside_a_section_that_is_no_mapping():
    with refused(SpecError, "train.stopping", "mapping"):
        only_network(train={"epochs": 3, "stopping": 4})


def test_budget_of_epochs_is_no_short_key():
    search = {"budget": {"epochs": 9}}
    entry = {**ENTRY, "space": {"train.epochs": [1]}, "search": search}
    [entry] = parse({"models": [entry], "prune": "none"}).document.models
    assert entry.search.budget.epochs == 9


def test_sections_made_in_code_have_short_keys():
    train = Train(epochs=3, batch_size=8, optimizer="adam", stopping=Stopping(patience=2))
    assert train == Train(
        **{**LONG, "stopping": Stopping(max_epochs=3, patience=2), "batch": {"size": 8}}
    )
    document = Document(models=(ModelEntry(family="softmax", train={"epochs": 3}),))
    [network] = parse(document).networks
    assert network.train.stopping.max_epochs == 3


def test_written_spec_has_the_long_keys():
    document = parse({"models": [ENTRY], "train": SHORT}).document
    assert "max_epochs: 20" in dump(document)
    assert "batch_size" not in dump(document)


def test_added_entry_may_have_short_keys():
    spec = parse({"models": [ENTRY]})
    [network] = with_entry(spec, {**ENTRY, "name": "b", "train": SHORT}, spec.by_name)[1]
    assert network.train.stopping.max_epochs == 20
    assert network.train.optimizer.name == "adam"
