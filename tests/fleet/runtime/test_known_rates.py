"""Rates from a file and the profile of a run."""

import json

from fleet.errors import UserError
from fleet.runtime.known_rates import ProfileFile, read_rates_of
from scheduler.base import Network, RateTable
from scheduler.ensemble.rates import median_rates
from scheduler.ensemble.rates_file import read_rates
from tests.fleet.histories import spec
from tests.refusals import refused


def test_rates_of_a_file_get_the_bounds_of_the_spec(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(
        json.dumps(
            {
                "samples_per_epoch": 60,
                "gpus_per_node": 2,
                "models": [{"name": "b", "rates": [10.0]}, {"name": "a", "rates": [5.0, 9.0]}],
            }
        )
    )
    [network] = read_rates_of(spec({"family": "softmax", "name": "a", "gpus": [1, 2]}), path).models
    assert (network.name, network.rates, network.max_gpus) == ("a", (5.0, 9.0), 2)
    unlisted = spec({"family": "softmax", "name": "c"})
    with refused(UserError, path, "no rates of c"):
        read_rates_of(unlisted, path)
    [network] = read_rates_of(unlisted, path, added={"c"}).models
    assert network.rates == median_rates(read_rates(path).models)


def test_folds_have_the_rates_of_their_network(tmp_path):
    path = tmp_path / "rates.json"
    models = [{"name": "a", "rates": [5.0]}, {"name": "a-fold1", "rates": [7.0]}]
    path.write_text(json.dumps({"samples_per_epoch": 60, "gpus_per_node": 2, "models": models}))
    data = {"source": "builtin:digits", "folds": 2}
    table = read_rates_of(spec({"family": "softmax", "name": "a"}, data=data), path)
    rates = [(network.name, network.rates) for network in table.models]
    assert rates == [("a-fold0", (5.0,)), ("a-fold1", (7.0,))]
    with refused(UserError, path, "no rates of b-fold0, b-fold1"):
        read_rates_of(spec({"family": "softmax", "name": "b"}, data=data), path)


def test_profile_file_is_paced_and_ends_with_newest_rates(
    tmp_path,
):
    path, computed = tmp_path / "profile.json", []
    profile = ProfileFile(path)

    def rates(rate):
        computed.append(rate)
        return RateTable(60, 1, (Network("a", (rate,)),))

    def written():
        return read_rates(path).models[0].rates

    for rate in (1.0, 2.0, 3.0):
        profile.keep(lambda rate=rate: rates(rate))
    assert (written(), computed) == ((1.0,), [1.0])  # later writes are throttled
    profile.write()
    assert (written(), computed) == ((3.0,), [1.0, 3.0])
    path.unlink()
    profile.write()
    assert not path.exists()  # there are no new rates
