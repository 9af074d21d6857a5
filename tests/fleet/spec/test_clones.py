"""Clones of networks: their entries, values and names."""

import pytest

from fleet.errors import SpecError, UserError
from fleet.spec import parse
from fleet.spec.clones import CloneRequest, describe_clone
from fleet.spec.entries import proposed_network
from fleet.spec.resolve import with_entry

RATE = "train.optimizer.learning_rate"
SPEC = {
    "models": [
        {"family": "cnn", "grid": {"kernel": [3, 5], RATE: [0.1]}, "train": {"batch": {"size": 8}}},
        {
            "family": "cnn",
            "name": "net",
            "args": {"filters": [8, 16]},
            "space": {RATE: {"low": 0.001, "high": 0.1}, "filters.0": [8, 32]},
            "search": {"max_trials": 3, "repeats": 2, "objectives": [{"value": "val_loss"}]},
        },
    ],
}


@pytest.fixture(scope="module")
def spec():
    return parse(SPEC)


def networks_of(spec):
    trial = proposed_network(spec, 1, 0, {RATE: 0.01, "filters.0": 32}, 1)
    return {network.name: network for network in (*spec.networks, trial)}


def clone_of(spec, network, values=None, **settings):
    """Return the network that is a clone."""
    networks = networks_of(spec)
    clone = describe_clone(spec, networks, CloneRequest(network, values or {}, **settings))
    _, [cloned] = with_entry(spec, clone.entry, networks, drawn=clone.values)
    clone.parent_of(cloned)
    return cloned


def test_clone_has_the_settings_of_its_source_but_some(spec):
    source = networks_of(spec)["cnn-1"]
    clone = clone_of(spec, "cnn-1", {RATE: 0.5, "args.filters.0": 64})
    assert clone.name == "cnn-1-clone"
    assert clone.parameters == {"kernel": 5, RATE: 0.5, "filters.0": 64}
    assert clone.train.optimizer.learning_rate == 0.5
    assert clone.train.batch == source.train.batch
    assert clone.architecture.settings.filters == (64, *source.architecture.settings.filters[1:])
    assert clone.architecture.settings.kernel == 5
    assert clone.seed != source.seed


def test_clone_of_a_trial_keeps_its_monitor_and_is_no_trial(spec):
    clone = clone_of(spec, "net-0-repeat1", {RATE: 0.5})
    assert clone.train.stopping.monitor == "val_loss"
    assert (clone.number, clone.repeat) == (None, None)
    assert clone.architecture.settings.filters == (32, 16)


def test_clone_translates_old_keys_and_may_leave_the_space(spec):
    clone = clone_of(spec, "net-0-repeat1", {"train.converge.max_epochs": 3, RATE: 7.0})
    assert clone.train.stopping.max_epochs == 3
    assert clone.parameters == {RATE: 7.0, "filters.0": 32, "train.stopping.max_epochs": 3}


@pytest.mark.parametrize(
    ("network", "settings", "message"),
    [
        ("cnn-7", {}, r"no network named 'cnn-7' \(did you mean cnn-"),
        ("net-0", {}, "net-0 stands for net-0-repeat1; name the one to clone"),
        ("cnn-1", {"name": "cnn-0"}, "has a network named 'cnn-0'"),
        ("cnn-1", {"name": "a b"}, "cannot name a network"),
        (
            "cnn-1",
            {"values": {"train.optimizer.learning_rat": 1}},
            r"did you mean train\.optimizer\.learning_rate\?",
        ),
        (
            "cnn-1",
            {"values": {"learning_rate": 1}},
            r"did you mean train\.optimizer\.learning_rate",
        ),
        ("cnn-1", {"values": {"epochs": 1}}, r"did you mean train\.epochs"),
        (
            "cnn-1",
            {"values": {"train.epochs": 1, "train.stopping.max_epochs": 2}},
            r"train\.epochs: is another name of train\.stopping\.max_epochs",
        ),
        ("cnn-1", {"values": {"kernal": 1}}, "did you mean kernel"),
        ("cnn-1", {"values": {"kernel": "wide"}}, "args.kernel"),
        ("cnn-1", {"values": {"kernel": 3}, "is_warm": True}, "another architecture"),
        ("cnn-1", {"values": {"train.optimizer.name": "adam"}, "is_warm": True}, "has the optimiz"),
    ],
)
def test_clone_refuses_what_cannot_be_trained(spec, network, settings, message):
    with pytest.raises((SpecError, UserError), match=message):
        clone_of(spec, network, **settings)


def test_clones_get_the_next_free_name(spec):
    networks = networks_of(spec)
    for name in ("cnn-1-clone", "cnn-1-clone2", "cnn-1-clone3"):
        source = list(networks)[-1] if "cnn-1-clone" in networks else "cnn-1"
        clone = describe_clone(spec, networks, CloneRequest(source, {}))
        assert clone.entry["name"] == name
        spec, [cloned] = with_entry(spec, clone.entry, networks, drawn=clone.values)
        networks[name] = cloned
