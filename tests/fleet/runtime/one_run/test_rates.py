"""Rates that whole runs measure, learn and store."""

import json
import time

import pytest
import yaml

from fleet.domain import events as ev
from fleet.errors import ExitStatus, UserError
from fleet.runtime.training.clocks import StepClock
from fleet.storage.event_log import read_events
from fleet.storage.rate_cache import RateBook, cache_path, read_cache
from scheduler.base import GroupShape
from tests.fleet.runtime.one_run.runner import _write_cache, shaky
from tests.refusals import refused


def test_measured_rates_are_kept_before_anything_is_trained(folders, monkeypatch):
    stored = []
    runner = shaky(folders(), failures=0, retries=0, policy="global")
    monkeypatch.setattr(
        RateBook,
        "write",
        lambda book: stored.append(
            (
                list(read_events(runner.prepared.paths.events))[-1].event,
                [list(map(str, rates)) for rates in book._new.values()],
            )
        ),
    )
    assert runner.launch() is ExitStatus.OK
    assert isinstance(stored[0][0], ev.ProfilingFinished)
    assert stored[0][1] == [["1"]]


@pytest.fixture
def cached(folders, monkeypatch):
    """A folder for a run with a rate cache."""
    folder = folders()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(RateBook, "write", _write_cache)
    return folder


def rates_in(cache):
    """Return the rates of a cache without overheads."""
    return [(key, sizes) for key, sizes in cache.items() if not key.startswith("beside steps")]


def test_rates_observed_and_overheads_are_kept(
    cached,
):
    runner = shaky(cached, failures=0, retries=0, policy="baseline", epochs=3)
    assert runner.launch() is ExitStatus.OK
    earlier = json.loads(cache_path().read_text())
    ((_, sizes),) = rates_in(earlier)
    assert (sizes["1"]["how"], sizes["1"]["network"]) == ("trained", "n0")
    (parallel,) = (sizes for key, sizes in earlier.items() if key.startswith("beside steps"))
    assert [parallel[number]["network"] for number in "123"] == ["ready_s", "start_s", "epoch_s"]


@pytest.mark.long
def test_cached_rate_has_age_and_is_corrected(cached, monkeypatch):
    add = StepClock.add
    monkeypatch.setattr(
        StepClock, "add", lambda clock, samples, seconds: add(clock, samples, 0.001)
    )
    runner = shaky(cached, failures=0, retries=0, policy="global", data={"path": "80"}, epochs=2)
    runner.launch()
    wrong = json.loads(cache_path().read_text())
    ((key, sizes),) = rates_in(wrong)
    assert (sizes["1"]["how"], sizes["1"]["steps"], sizes["1"]["network"]) == ("measured", 1, "n0")
    assert sizes["1"]["rate"] == pytest.approx(4000)
    sizes["1"].update(rate=1.0, at=time.time() - 3600, machine="node7: a slow one")
    cache_path().write_text(json.dumps(wrong))

    runner.launch(fresh=True)
    (messages,) = runner.events(ev.CachedRatesUsed)
    assert (messages.rates["n0"][0].rate, messages.rates["n0"][0].machine) == (
        1.0,
        "node7: a slow one",
    )
    assert messages.rates["n0"][0].age_s == pytest.approx(3600, abs=60)
    assert runner.events(ev.RateMismatch)[0].expected == 1.0
    corrected = read_cache(cache_path())[key][GroupShape(1)]
    assert (corrected.how, corrected.rate) == ("trained", pytest.approx(4000))

    runner.launch(fresh=True)  # a cached rate that is correct is used unchanged
    assert runner.events(ev.RateMeasured) == []
    runner.launch(fresh=True, remeasure=True)
    assert (runner.events(ev.CachedRatesUsed), len(runner.events(ev.RateMeasured))) == ([], 1)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ({"policy": "baseline"}, "the policy baseline does not use rates"),
        ({"rates": "x.json"}, "x.json"),
    ],
)
def test_remeasure_is_refused_where_nothing_is_measured(folders, schedule, reason):
    folder = folders()
    (folder / "x.json").write_text(
        json.dumps(
            {
                "samples_per_epoch": 12,
                "gpus_per_node": 1,
                "models": [{"name": "n0", "rates": [10.0]}],
            }
        )
    )
    if "rates" in schedule:
        schedule = {"rates": str(folder / "x.json")}
    runner = shaky(folder, failures=0, retries=0)
    runner.case.content["schedule"] = {}
    runner.path.write_text(
        yaml.safe_dump({**runner.case.content, "schedule": schedule, "output": str(folder / "run")})
    )
    with refused(UserError, "--remeasure", reason):
        runner.launch(remeasure=True)
