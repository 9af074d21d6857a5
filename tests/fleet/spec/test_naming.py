"""What the networks of an entry are named."""

import csv
import json

import pytest

from fleet.errors import SpecError
from fleet.spec import parse


def spec_of(output, **entry):
    return parse({"output": str(output), "models": [{"family": "cnn", "name": "net", **entry}]})


def names(output, **entry):
    return [network.name for network in spec_of(output, **entry).networks]


def of_space(count):
    return {"count": count, "space": {"dropout": {"low": 0.0, "high": 0.5}}}


def leave(folder, rows):
    """Leave a table of results, as a launch does."""
    folder.mkdir()
    with open(folder / "results.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "drawn"])
        writer.writerows([name, json.dumps(drawn)] for name, drawn in rows.items())


@pytest.mark.parametrize("few", [1, 2, 9])
def test_more_networks_leave_the_first_as_they_are(tmp_path, few):
    before = spec_of(tmp_path / "run", **of_space(few)).networks
    after = spec_of(tmp_path / "run", **of_space(120)).networks
    assert after[:few] == before
    assert after[-1].name == "net-119"


def test_an_old_run_of_more_than_ten_keeps_its_zeros(tmp_path):
    leave(tmp_path / "run", {f"net-{number:02d}": {} for number in range(11)})
    assert names(tmp_path / "run", **of_space(101))[8:12] == [
        "net-08",
        "net-09",
        "net-10",
        "net-11",
    ]
    assert names(tmp_path / "run", **of_space(101))[-1] == "net-100"


def test_zeros_are_known_by_folders_of_networks_too(tmp_path):
    (tmp_path / "run" / "models" / "net-000").mkdir(parents=True)
    assert names(tmp_path / "run", **of_space(2)) == ["net-000", "net-001"]


def test_an_old_run_of_one_network_keeps_its_name(tmp_path):
    (network,) = spec_of(tmp_path / "none", **of_space(1)).networks
    leave(tmp_path / "run", {"net": network.parameters})
    assert names(tmp_path / "run", **of_space(3)) == ["net", "net-1", "net-2"]


def test_a_network_of_no_space_is_none_of_those_that_are_drawn(tmp_path):
    leave(tmp_path / "run", {"net": {}})
    assert names(tmp_path / "run", **of_space(2)) == ["net-0", "net-1"]


def test_old_names_hold_for_folds(tmp_path):
    leave(tmp_path / "run", {"net-00": {}, "net-00-fold0": {}, "net-00-fold1": {}})
    spec = {"family": "cnn", "name": "net", **of_space(1)}
    names = parse({"output": str(tmp_path / "run"), "data": {"folds": 2}, "models": [spec]})
    assert [network.name for network in names.networks] == ["net-00-fold0", "net-00-fold1"]


def test_a_grid_with_a_further_choice_keeps_its_networks(tmp_path):
    before = spec_of(tmp_path, grid={"dropout": [0.1, 0.2], "kernel": [3, 5]}).networks
    leave(tmp_path / "run", {network.name: network.parameters for network in before})
    after = spec_of(tmp_path / "run", grid={"dropout": [0.1, 0.2], "kernel": [3, 5, 7]}).networks
    assert {network.name for network in after} == {f"net-{number}" for number in range(6)}
    assert [network for network in after if network.parameters["kernel"] != 7] == list(before)


def test_a_name_that_is_too_long_is_told_so():
    with pytest.raises(SpecError, match="at most 100 characters; it has 101"):
        parse({"models": [{"family": "cnn", "name": "n" * 101}]})
    with pytest.raises(SpecError, match="at most 100 characters; it has 101"):
        parse({"name": "n" * 101, "models": [{"family": "cnn"}]})


def test_a_damaged_table_is_no_reason_to_fail(tmp_path):
    leave(tmp_path / "run", {})
    (tmp_path / "run" / "results.csv").write_bytes(b"name,drawn\nnet-0,{\xff\n")
    assert names(tmp_path / "run", **of_space(2)) == ["net-0", "net-1"]
