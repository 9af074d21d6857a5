"""Tests of the names of an entry's networks."""

import csv
import json

import pytest

from fleet.errors import SpecError
from fleet.spec import parse
from tests.refusals import refused


def spec_of(output, **entry):
    return parse({"output": str(output), "models": [{"family": "cnn", "name": "net", **entry}]})


def names(output, **entry):
    return [network.name for network in spec_of(output, **entry).networks]


def of_space(count):
    return {"count": count, "space": {"dropout": {"low": 0.0, "high": 0.5}}}


def leave(folder, rows):
    """Write a table of results, as a launch does."""
    folder.mkdir()
    with open(folder / "results.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "drawn"])
        writer.writerows([name, json.dumps(drawn)] for name, drawn in rows.items())


@pytest.mark.parametrize("few", [1, 2, 9])
def test_larger_count_keeps_the_first_networks(tmp_path, few):
    before = spec_of(tmp_path / "run", **of_space(few)).networks
    after = spec_of(tmp_path / "run", **of_space(120)).networks
    assert after[:few] == before
    assert after[-1].name == "net-119"


def test_names_of_keeps_leading_zeros_of_old_runs(tmp_path):
    leave(tmp_path / "run", {f"net-{number:02d}": {} for number in range(11)})
    assert names(tmp_path / "run", **of_space(101))[8:12] == [
        "net-08",
        "net-09",
        "net-10",
        "net-11",
    ]
    assert names(tmp_path / "run", **of_space(101))[-1] == "net-100"


def test_names_of_reads_zeros_from_folders(tmp_path):
    (tmp_path / "run" / "models" / "net-000").mkdir(parents=True)
    assert names(tmp_path / "run", **of_space(2)) == ["net-000", "net-001"]


def test_names_of_keeps_the_name_of_a_single_network(tmp_path):
    (network,) = spec_of(tmp_path / "none", **of_space(1)).networks
    leave(tmp_path / "run", {"net": network.parameters})
    assert names(tmp_path / "run", **of_space(3)) == ["net", "net-1", "net-2"]


def test_names_of_ignores_networks_without_a_space(tmp_path):
    leave(tmp_path / "run", {"net": {}})
    assert names(tmp_path / "run", **of_space(2)) == ["net-0", "net-1"]


def test_names_of_keeps_old_names_of_folds(tmp_path):
    leave(tmp_path / "run", {"net-00": {}, "net-00-fold0": {}, "net-00-fold1": {}})
    spec = {"family": "cnn", "name": "net", **of_space(1)}
    names = parse({"output": str(tmp_path / "run"), "data": {"folds": 2}, "models": [spec]})
    assert [network.name for network in names.networks] == ["net-00-fold0", "net-00-fold1"]


def test_names_of_a_larger_grid_keep_networks(tmp_path):
    before = spec_of(tmp_path, grid={"dropout": [0.1, 0.2], "kernel": [3, 5]}).networks
    leave(tmp_path / "run", {network.name: network.parameters for network in before})
    after = spec_of(tmp_path / "run", grid={"dropout": [0.1, 0.2], "kernel": [3, 5, 7]}).networks
    assert {network.name for network in after} == {f"net-{number}" for number in range(6)}
    assert [network for network in after if network.parameters["kernel"] != 7] == list(before)


def test_names_that_are_too_long_are_refused():
    with refused(SpecError, "models[0]", "at most 100", "101"):
        parse({"models": [{"family": "cnn", "name": "n" * 101}]})
    with refused(SpecError, "name", "at most 100", "101"):
        parse({"name": "n" * 101, "models": [{"family": "cnn"}]})


def test_names_in_ignores_a_damaged_table(tmp_path):
    leave(tmp_path / "run", {})
    (tmp_path / "run" / "results.csv").write_bytes(b"name,drawn\nnet-0,{\xff\n")
    assert names(tmp_path / "run", **of_space(2)) == ["net-0", "net-1"]
