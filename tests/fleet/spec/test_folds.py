"""Tests of the networks of folds."""

from fleet.errors import SpecError
from fleet.spec import parse
from tests.refusals import refused


def test_folds_make_one_seeded_network_per_fold():
    spec = parse(
        {
            "models": [
                {"family": "softmax", "name": "a"},
                {"family": "cnn", "name": "b", "grid": {"filters": [[4], [8]]}},
            ],
            "data": {"folds": 3},
        }
    )
    assert [(network.name, network.stem, network.fold) for network in spec.networks] == [
        (f"{stem}-fold{fold}", stem, fold) for stem in ("a", "b-0", "b-1") for fold in range(3)
    ]
    assert len({network.seed for network in spec.networks}) == 9
    assert spec.networks[3].parameters == spec.networks[5].parameters == {"filters": [4]}


def test_network_without_folds_keeps_its_name():
    (network,) = parse(
        {"models": [{"family": "softmax", "name": "a"}], "data": {"folds": None}}
    ).networks
    assert (network.name, network.stem, network.fold) == ("a", "a", None)


def test_folds_exclude_validation_data():
    with refused(SpecError, "data.validation", "folds"):
        parse({"models": [{"family": "softmax"}], "data": {"folds": 3, "validation": "20%"}})
    with refused(SpecError, "data.folds", "1"):
        parse({"models": [{"family": "softmax"}], "data": {"folds": 1}})
