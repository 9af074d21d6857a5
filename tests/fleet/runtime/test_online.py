"""Rates that whole runs learn from training, under every policy and order."""

import json

import pytest

from fleet.domain import events as ev
from fleet.errors import ExitStatus
from fleet.runtime import coordinator
from fleet.runtime.training.clocks import StepClock
from fleet.storage.event_log import events_of, read_events
from fleet.storage.rate_cache import RateBook, cache_path, read_cache
from scheduler.base import GroupShape
from scheduler.ensemble.policies import POLICIES
from tests.examples import long_but_first
from tests.fleet.runtime.runs import Signal, write
from tests.fleet.runtime.runs import launch as launch_spec

STEP_S = 0.001  # of every step, by the clocks
BATCHES = {"small": 4, "large": 8}
RATES = {name: batch / STEP_S for name, batch in BATCHES.items()}


@pytest.fixture(autouse=True)
def _clocks(monkeypatch, tmp_path):
    """Let every step take equally long by the clocks, and isolate the rate caches of runs."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    add = StepClock.add
    monkeypatch.setattr(
        StepClock, "add", lambda clock, samples, seconds: add(clock, samples, STEP_S)
    )


@pytest.fixture
def launch(tmp_path):
    """Run a launch of two networks; return its status and its events."""

    def launch(policy, order, signal=None, when="online"):
        data = {"order": "ring", "shards": 4} if order == "ring" else {}
        models = [
            {"family": "softmax", "name": name, "gpus": 1, "train": {"batch": {"size": batch}}}
            for name, batch in BATCHES.items()
        ]
        status, prepared = launch_spec(
            write(
                tmp_path,
                models,
                schedule={"policy": policy},
                train={"stopping": {"max_epochs": 3}},
                data={
                    "source": "tests.sources:numbered",
                    "path": "160",
                    **data,
                    "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
                },
                profile={
                    "when": when,
                    "batches": 2,
                    "timed": 1,
                    "seconds": "1s",
                    "spread": 0.5,
                    "max_gpus": 1,
                },
                resources={"engine": "numpy"},
            ),
            3,
            interruption=signal,
        )
        events = [logged.event for logged in read_events(prepared.paths.events)]
        started = max(
            position for position, event in enumerate(events) if isinstance(event, ev.LaunchStarted)
        )
        return status, LaunchEvents(
            events[started:], events_of(prepared.paths.events, ev.EpochEnded)
        )

    return launch


class LaunchEvents:
    """The events of one launch, and the epochs of all."""

    def __init__(self, events, epochs):
        self.events = events
        self.epochs = sorted((event.network, event.record.epoch) for event in epochs)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


EVERY_EPOCH = [(name, epoch) for name in sorted(BATCHES) for epoch in (1, 2, 3)]
LEARNING = sorted(name for name, policy in POLICIES.items() if policy.needs_rates)
CASES = [(policy, order) for policy in LEARNING for order in ("ring", "strict")]


@pytest.mark.parametrize(("policy", "order"), long_but_first(*CASES))
def test_online_rates_survive_interruption_and_are_corrected(
    launch, monkeypatch, tmp_path, policy, order
):
    signal, add = Signal(), RateBook.add

    def note(book, key, gpus, rate):
        add(book, key, gpus, rate)
        signal.has_come = True

    with monkeypatch.context() as patch:
        patch.setattr(RateBook, "add", note)
        status, events = launch(policy, order, signal)
    assert status is ExitStatus.RESUMABLE
    assert not events.of(ev.CachedRatesUsed)
    learned = {event.network: event.rate for event in events.of(ev.RateLearned)}
    assert learned
    assert learned == {name: RATES[name] for name in learned}

    wrong = {
        key: sizes
        for key, sizes in json.loads(cache_path().read_text()).items()
        if not key.startswith("beside steps")
    }
    assert sorted(sizes["1"]["rate"] for sizes in wrong.values()) == pytest.approx(
        sorted(learned.values())
    )
    for sizes in wrong.values():
        sizes["1"]["rate"] /= 2
        sizes["2"] = {**sizes["1"]}  # equally wrong
    cache_path().write_text(json.dumps(wrong))

    status, events = launch(policy, order)
    assert (status, events.epochs) == (ExitStatus.OK, EVERY_EPOCH)
    (messages,) = events.of(ev.CachedRatesUsed)
    assert {name: rates[0].rate for name, rates in messages.rates.items()} == pytest.approx(
        {name: rate / 2 for name, rate in learned.items()}
    )
    off = {event.network: (event.expected, event.rate) for event in events.of(ev.RateMismatch)}
    assert off == {name: (rate / 2, rate) for name, rate in learned.items()}
    earlier = [
        sizes
        for key, sizes in read_cache(cache_path()).items()
        if not key.startswith("beside steps")
    ]
    assert [list(sizes) for sizes in earlier] == [[GroupShape(1)], [GroupShape(1)]]
    corrected = [sizes[GroupShape(1)] for sizes in earlier]
    assert sorted(rate.rate for rate in corrected) == pytest.approx(sorted(RATES.values()))
    profile = json.loads((tmp_path / "run" / "profile.json").read_text())
    assert {model["name"]: model["rates"] for model in profile["models"]} == {
        name: [pytest.approx(rate)] for name, rate in RATES.items()
    }
    assert {rate.how for rate in corrected} == {"trained"}


@pytest.mark.parametrize("policy", long_but_first(*sorted(POLICIES, key="global".__ne__)))
def test_online_policies_plan_without_measuring(launch, policy):
    status, events = launch(policy, "strict")
    assert (status, events.epochs) == (ExitStatus.OK, EVERY_EPOCH)
    kinds = [type(event) for event in events.events]
    assert not {ev.ProfilingFinished, ev.RateMeasured, ev.CachedRatesUsed}.intersection(kinds)
    assert kinds.index(ev.PlanChanged) < kinds.index(ev.FirstStep)
    assert kinds.count(ev.TrainersReady) == kinds.count(ev.FirstStep) == 1
    assert events.of(ev.PlanChanged)[0].members
    assert events.of(ev.LaunchEnded)[0].profiling_s == 0
    if policy in LEARNING:
        first = events.of(ev.RatesEstimated)[0]
        # guesses: nothing has trained
        assert (first.seen, sorted(first.rates)) == (0, sorted(BATCHES))
        assert (
            kinds.index(ev.RatesEstimated) < kinds.index(ev.FirstStep) < kinds.index(ev.RateLearned)
        )


def test_online_rates_differ_from_offline_measurement(launch):
    """Check that the test above would detect a measurement."""
    status, events = launch("global", "strict", when="offline")
    assert status is ExitStatus.OK
    assert len(events.of(ev.RateMeasured)) == 2
    assert events.of(ev.LaunchEnded)[0].profiling_s > 0
    assert events.of(ev.LaunchEnded)[0].profiling_s == pytest.approx(
        events.of(ev.ProfilingFinished)[0].seconds, abs=0.001
    )


def test_online_rates_are_probed_by_plans(launch, monkeypatch):
    calls = []

    def find_probes(policy, rates, rate_floor, *arguments):
        calls.append((policy.name, rate_floor("small"), rates.by_name["small"].rates))
        return frozenset()

    monkeypatch.setattr(coordinator, "find_probes_of_plan", find_probes)
    assert launch("adaptive", "strict")[0] is ExitStatus.OK
    assert {policy for policy, _, _ in calls} == {"adaptive"}
    floor, rates = calls[-1][1:]
    # the network was timed on all numbers of GPUs that it may have
    assert floor == rates == pytest.approx((RATES["small"],))
