"""Rates of a file."""

import json

import pytest

from fleet.errors import UserError
from fleet.runtime.known_rates import read_rates_of
from tests.fleet.histories import spec


def test_rates_of_a_file_get_the_bounds_of_the_spec(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"samples_per_epoch": 60, "gpus_per_node": 2, "models": [
        {"name": "b", "rates": [10.0]}, {"name": "a", "rates": [5.0, 9.0]}]}))
    made = spec({"family": "softmax", "name": "a", "gpus": [1, 2]})
    assert [(one.name, one.rates, one.max_gpus) for one in read_rates_of(made, path).models] == [("a", (5.0, 9.0), 2)]
    with pytest.raises(UserError, match="has no rates of c"):
        read_rates_of(spec({"family": "softmax", "name": "c"}), path)
