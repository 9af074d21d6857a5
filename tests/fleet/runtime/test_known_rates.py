"""Rates of a file, and those that earlier runs have measured."""

import json

import pytest

from fleet.errors import UserError
from fleet.runtime.known_rates import read_cache, read_rates_of, write_cache
from tests.fleet.histories import spec


def test_the_cache_keeps_what_other_runs_have_measured_meanwhile(tmp_path):
    path = tmp_path / "fleet" / "rates.json"
    write_cache(path, {"a": {1: 10.0}, "b": {1: 5.0}})
    write_cache(path, {"a": {2: 18.0}, "c": {1: 1.5}})
    assert read_cache(path) == {"a": {1: 10.0, 2: 18.0}, "b": {1: 5.0}, "c": {1: 1.5}}


@pytest.mark.parametrize("text", [
    "", "[1]", "null", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"1": "fast"}}', "{", "\ud800"])
def test_a_damaged_cache_is_an_empty_one(tmp_path, text):
    path = tmp_path / "rates.json"
    path.write_text(text, errors="surrogatepass")
    assert read_cache(path) == {}
    assert read_cache(tmp_path / "none.json") == {}


def test_rates_that_cannot_be_are_passed_over(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"a": {1: 0.0, 2: float("nan"), 3: -1, 4: float("inf"), 5: 2}}))
    assert read_cache(path) == {"a": {5: 2.0}}


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").touch()
    write_cache(tmp_path / "file" / "rates.json", {"a": {1: 10.0}})


def test_rates_of_a_file_get_the_bounds_of_the_spec(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"samples_per_epoch": 60, "gpus_per_node": 2, "models": [
        {"name": "b", "rates": [10.0]}, {"name": "a", "rates": [5.0, 9.0]}]}))
    made = spec({"family": "softmax", "name": "a", "gpus": [1, 2]})
    assert [(one.name, one.rates, one.max_gpus) for one in read_rates_of(made, path).models] == [("a", (5.0, 9.0), 2)]
    with pytest.raises(UserError, match="has no rates of c"):
        read_rates_of(spec({"family": "softmax", "name": "c"}), path)
