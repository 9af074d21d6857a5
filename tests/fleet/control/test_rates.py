"""Rates that are learned from training."""

from dataclasses import replace

import pytest

from fleet.comm.messages import Measure, Pace, Ready, Start, Stopped, Throughput
from fleet.comm.roles import assign
from fleet.control import effects as do
from fleet.control.effects import RanksDied
from fleet.control.rates import traits_of
from fleet.domain.events import FirstStep, RateLearned, RateMismatch, TrainersReady
from fleet.domain.json_record import to_json
from fleet.domain.network import StepRate
from scheduler.base import GroupShape, Span
from scheduler.ensemble.rates import rate as rate_of
from tests.fleet.control.driver import ControllerDriver, layout
from tests.fleet.histories import spec

SURE = {"spread": 0.05, "steps": 100}
ONE_EACH = {"a": [0], "b": [1]}


def latest_rate(driver, name, gpus=1):
    """Return the rate of a network that the policy received last."""
    return rate_of(
        next(network for network in driver.tables[-1].models if network.name == name), gpus
    )


def test_learned_rates_start_training_without_measurements():
    driver = ControllerDriver(ONE_EACH, trainers=2, learns={})
    driver.send_ready()
    mail = driver.read_mail()
    assert {type(message) for messages in mail.values() for message in messages} == {Start}
    assert not driver.events_of("ProfilingFinished")
    assert not any(
        isinstance(message, Measure) for messages in mail.values() for message in messages
    )


def test_trainers_ready_and_first_step_are_logged():
    driver = ControllerDriver(ONE_EACH, trainers=2, learns={})
    driver.send_ready(1)
    assert not driver.events_of("TrainersReady")
    driver.begin(2)
    assert driver.events_of("TrainersReady") == [TrainersReady()]
    driver.handle(Pace("b", 10, 5.0))
    driver.handle(Pace("a", 10, 5.0))
    driver.handle(Pace("b", 20, 5.0))
    assert driver.events_of("FirstStep") == [FirstStep("b")]


@pytest.mark.parametrize("dies_first", [True, False])
def test_trainers_are_ready_once_the_living_ones_are(dies_first):
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=2, learns={}, outlives=True)
    driver.handle(*((RanksDied((2,)), Ready(1)) if dies_first else (Ready(1), RanksDied((2,)))))
    assert driver.events_of("TrainersReady") == [TrainersReady()]


def test_policy_receives_the_rate_of_the_last_epoch():
    driver = ControllerDriver(ONE_EACH, trainers=2, learns={}).begin()
    driver.end_epoch("a", rate=StepRate(200.0, **SURE))
    assert latest_rate(driver, "a") == 200.0
    assert latest_rate(driver, "b") == pytest.approx(200.0)  # similar networks
    assert driver.events_of("RateLearned") == [RateLearned("a", 1, 200.0, 0.05, 100)]


def test_policy_is_notified_once_of_changed_rates():
    driver = ControllerDriver(ONE_EACH, trainers=2, learns={"a": {1: 10.0}, "b": {1: 10.0}}).begin()
    assert [progress.rates_changed for progress in driver.progress] == [False]
    driver.end_epoch("a", rate=StepRate(11.0, **SURE))
    driver.end_epoch("a", rate=StepRate(20.0, **SURE))
    driver.end_epoch("b", rate=StepRate(10.0, **SURE))
    assert [progress.rates_changed for progress in driver.progress] == [False, False, True, False]


@pytest.mark.parametrize("probes", [frozenset(), frozenset([("a", 2)])], ids=["known", "probes"])
def test_probed_rate_causes_another_plan(probes):
    driver = ControllerDriver(
        {"a": [0, 1]}, networks="a", trainers=2, learns={"a": {1: 10.0}}, probes=probes
    ).begin()
    assert latest_rate(driver, "a", gpus=2) == pytest.approx(20.0)
    driver.end_epoch("a", rate=StepRate(19.0, **SURE), gpus=2)
    driver.end_epoch("a", rate=StepRate(19.0, **SURE), gpus=2)
    assert [progress.rates_changed for progress in driver.progress] == [
        False,
        bool(probes),
        False,
    ]


def test_pace_calls_the_policy_if_devices_are_unused():
    for trainers, answers in ((2, []), (4, [True])):
        driver = ControllerDriver({"a": [0, 1]}, networks="a", trainers=trainers, learns={}).begin()
        before = len(driver.progress)
        driver.handle(Pace("a", 10, 5.0))  # without a step rate
        driver.handle(Pace("a", 10, 5.0, StepRate(10.0, **SURE)))
        assert [progress.rates_changed for progress in driver.progress[before:]] == answers
    assert driver.tables[-1].models[0].max_gpus == 4


@pytest.mark.parametrize(
    ("slots", "guessed"), [(6, {"b"}), (3, set())], ids=["own pace", "lockstep"]
)
def test_policy_receives_which_rates_are_guesses(slots, guessed):
    driver = ControllerDriver(ONE_EACH, trainers=2, stream=layout(slots), learns={"a": {1: 10.0}})
    driver.handle(Throughput(0, 1e6))
    driver.begin()
    assert driver.progress[-1].guessed == guessed
    driver.end_epoch("b", rate=StepRate(20.0, **SURE))
    assert driver.progress[-1].guessed == set()


def test_cached_rate_that_is_off_is_logged_and_corrected():
    driver = ControllerDriver(ONE_EACH, trainers=2, learns={"a": {1: 100.0}}).begin()
    driver.end_epoch("b", rate=StepRate(300.0, **SURE))  # its rate was unknown
    driver.end_epoch("a", rate=StepRate(60.0, **SURE))
    assert driver.events_of("RateMismatch") == [
        RateMismatch("a", 1, 100.0, 60.0, 0.05, 100, corrected=True)
    ]


def test_estimated_rates_are_logged_when_they_change():
    driver = ControllerDriver(ONE_EACH, trainers=2, learns={"a": {1: 10.0}, "b": {1: 10.0}}).begin()
    assert [set(message.rates) for message in driver.events_of("RatesEstimated")] == [{"a", "b"}]
    driver.end_epoch("a", rate=StepRate(20.0, **SURE))  # twice as fast as expected
    assert [
        {name: rates[0] for name, rates in message.rates.items()}
        for message in driver.events_of("RatesEstimated")
    ][1:] == [{"a": 20.0}]
    driver.end_epoch("b", rate=StepRate(40.0, **SURE), final="1 epoch")
    assert "b" not in {
        name for message in driver.events_of("RatesEstimated")[1:] for name in message.rates
    }


def test_rates_are_saved_once_all_are_known():
    driver = ControllerDriver(ONE_EACH, trainers=2, learns={}).begin()
    stored = []
    for name, rate in (("a", 50.0), ("b", 80.0)):
        stored += [
            effect.rates()
            for effect in driver.end_epoch(name, rate=StepRate(rate, **SURE))
            if isinstance(effect, do.SaveRates)
        ]
    driver.end_epoch("a", final="2 epochs")
    driver.end_epoch("b", final="2 epochs")
    actual = driver.handle(Stopped("a", 0.0), Stopped("b", 0.0))
    stored += [effect.rates() for effect in actual if isinstance(effect, do.SaveRates)]
    assert stored
    assert {network.name: network.rates for network in stored[-1].models} == {
        "a": (50.0,),
        "b": (80.0,),
    }


def test_unknown_demand_uses_all_preprocessors():
    driver = ControllerDriver(ONE_EACH, trainers=2, stream=layout(6), learns={})
    driver.handle(*(Throughput(rank, 10.0) for rank in driver.setup.roles.preprocessors))
    driver.send_ready()
    (started,) = driver.events_of("StreamStarted")
    assert (started.preprocessors, started.bottleneck, started.demand_samples_per_s) == (
        started.of,
        "",
        0.0,
    )


@pytest.mark.parametrize(
    ("content", "family", "operations"),
    [
        ({"family": "softmax", "name": "a"}, "softmax", 4 * 4 * 1 * 2),
        (
            {"family": "cnn", "name": "a", "args": {"filters": [2], "dense": [], "norm": "none"}},
            "cnn",
            288 + 16,
        ),
        ({"build": "tests.keras_models:broken", "name": "a"}, "tests.keras_models:broken", None),
    ],
)
def test_traits_count_operations_without_building(content, family, operations):
    (network,) = spec(content, resources={"engine": "keras"}).networks
    traits = traits_of(network, "key", (4, 4, 1), 2)
    assert (traits.family, traits.operations, traits.key) == (family, operations, "key")


# ---- how GPUs lie ----

SPREAD = {"a": [0, 2], "b": [1]}


def on_two_nodes(**parts):
    """Return a driver of a on a trainer of each node, and b beside it."""
    roles = assign((0, 0, 0, 1, 1), None, None, own_preprocessing=True)
    assert [roles.cluster.node(device) for device in (0, 1, 2)] == [0, 0, 1]
    return ControllerDriver(SPREAD, roles=roles, **parts)


def test_learned_rate_belongs_to_how_gpus_lie():
    driver = on_two_nodes(learns={"a": {1: 100.0, GroupShape(2, Span.NODE): 190.0}}).begin()
    driver.end_epoch("a", rate=StepRate(90.0, **SURE), gpus=2)
    assert driver.events_of("RateLearned") == [RateLearned("a", 2, 90.0, 0.05, 100, "spread")]
    (network, _) = driver.tables[-1].models
    assert (network.rates[1], network.spread_rates[1]) == (190.0, 90.0)
    estimated = driver.events_of("RatesEstimated")
    assert "a" not in estimated[0].spread_rates
    assert estimated[-1].spread_rates["a"] == network.spread_rates
    # It is no other rate than was expected: none was known of spread groups.
    assert driver.events_of("RateMismatch") == []


def test_earlier_rate_of_spread_groups_that_is_off_is_corrected():
    earlier = {GroupShape(2, Span.NODE): 190.0, GroupShape(2, Span.SPREAD): 90.0}
    driver = on_two_nodes(learns={"a": earlier}).begin()
    driver.end_epoch("a", rate=StepRate(40.0, **SURE), gpus=2)
    assert driver.events_of("RateMismatch") == [
        RateMismatch("a", 2, 90.0, 40.0, 0.05, 100, corrected=True, span="spread")
    ]


def test_events_of_one_node_do_not_say_how_gpus_lie():
    driver = ControllerDriver({"a": [0, 1], "b": [2]}, learns={}).begin()
    driver.end_epoch("a", rate=StepRate(90.0, **SURE), gpus=2)
    (learned,) = driver.events_of("RateLearned")
    assert "span" not in to_json(learned)
    assert all("spread_rates" not in to_json(e) for e in driver.events_of("RatesEstimated"))


def test_rates_of_network_that_is_no_longer_over_are_logged(monkeypatch):
    driver = ControllerDriver(ONE_EACH, trainers=2, learns={"a": {1: 10.0}, "b": {1: 10.0}}).begin()
    rates = driver.controller._rates
    driver.end_epoch("b", rate=StepRate(40.0, **SURE), final="1 epoch")
    table = rates.table
    monkeypatch.setattr(rates._online, "table", lambda: replace(table))
    rates.mark_planned(True, (), lambda name: False)
    [estimated] = [
        effect.event for effect in rates._outbox.drain() if isinstance(effect, do.LogEvent)
    ]
    assert {name: rate[0] for name, rate in estimated.rates.items()} == {"b": 40.0}
