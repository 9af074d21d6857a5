"""The controller on GPUs that networks share."""

from dataclasses import replace

import pytest

from fleet.comm.messages import Failed, Joined, Measure, Pace, Ready, Start, Stop, Stopped
from fleet.comm.roles import assign
from fleet.control.rates import check_sharing_limit
from fleet.domain.network import StepRate
from tests.fleet.control.driver import ControllerDriver


def make_pace(network, rate, networks_per_gpu=1):
    return Pace(network, 10, rate, StepRate(rate, 0.0, 100, networks_per_gpu))


def test_out_of_memory_on_a_shared_gpu_is_retried_alone_once():
    driver = ControllerDriver({"a": [0], "b": [2]}, slots=2).begin()
    driver.handle(Failed("a", "out of memory", "", may_pass=False, out_of_memory=True), Ready(1))
    assert driver.progress[-1].exclusive == {"a"}
    (event,) = driver.events_of("NetworkRetried")
    assert (event.alone, event.retry) == (True, 0)
    driver.read_mail()
    driver.end_epoch("b", final="1 epoch")
    assert driver.read_mail() == {3: [Stop(final=True)]}  # b is still on the same GPU
    driver.handle(Stopped("b", 0.0, 0.0, ""), Ready(3))
    assert [type(message) for message in driver.read_mail()[1]] == [Start]
    driver.handle(Joined("a"), Failed("a", "out of memory", "", may_pass=False, out_of_memory=True))
    assert driver.statuses["a"].outcome.is_failure


def test_nothing_starts_beside_an_exclusive_network():
    driver = ControllerDriver({"a": [0]}, slots=2, alone=frozenset("a")).begin()
    driver.plan = {"a": [0], "b": [2]}
    driver.end_epoch("a")
    assert [event.network for event in driver.events_of("GroupStarted")] == ["a"]
    driver.plan = {"a": [0], "b": [3]}
    driver.end_epoch("a")
    assert [event.network for event in driver.events_of("GroupStarted")] == ["a", "b"]


def test_out_of_memory_without_sharing_fails_the_network():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1).begin()
    driver.handle(Failed("a", "out of memory", "", may_pass=False, out_of_memory=True))
    assert driver.statuses["a"].outcome.is_failure


def test_sharing_is_learned_logged_and_planned_with():
    driver = ControllerDriver({"a": [0], "b": [2]}, slots=2).begin()
    assert driver.tables[-1].sharing == (1.0,)
    driver.handle(make_pace("a", 8.0, networks_per_gpu=2))  # alone it has 10
    assert driver.events_of("SharingLearned")[-1].speedups == (1.0, 1.6)
    assert driver.tables[-1].sharing == (1.0, 1.6)


def test_learned_rates_begin_with_one_network_per_gpu():
    driver = ControllerDriver({"a": [0]}, slots=2, learns={}).begin()
    assert driver.tables[-1].sharing == ()
    driver.handle(make_pace("a", 10.0))
    assert driver.tables[-1].sharing == (1.0,)


def test_expected_sharing_of_cores_is_used_and_not_logged():
    driver = ControllerDriver(
        {"a": [0]},
        roles=replace(
            assign((0,) * 5, None, None, own_preprocessing=True, slots=None, cores=2), device="core"
        ),
        learns={},
    ).begin()
    driver.handle(make_pace("a", 10.0))
    assert driver.tables[-1].sharing == (1.0, 1.0)
    assert not driver.events_of("SharingLearned")
    driver.handle(make_pace("a", 8.0, networks_per_gpu=2))
    assert driver.events_of("SharingLearned")[-1].speedups == (1.0, 1.6)


def test_rates_are_measured_on_unshared_gpus():
    driver = ControllerDriver({}, slots=2, measures=True)
    driver.send_ready()
    assert [
        rank
        for rank, mail in driver.mail.items()
        if any(isinstance(subject, Measure) for subject in mail)
    ] == [1, 2]


@pytest.mark.parametrize(
    ("networks_per_gpu", "trainers", "networks", "shown_s", "bound"),
    [
        (2, 4, "abcdef", 8.0, "per_device"),  # two networks pay, more may pay
        ("auto", 4, "abcdef", 8.0, "ranks"),
        (4, 4, "abcdef", 8.0, "ranks"),
        (2, 4, "abcdef", 5.0, ""),  # two do not
        (2, 4, "abcd", 8.0, ""),  # more would have no network
    ],
)
def test_sharing_event_names_what_limits_networks_per_gpu(
    networks_per_gpu, trainers, networks, shown_s, bound
):
    driver = ControllerDriver(
        {"a": [0], "b": [2]},
        networks=networks,
        trainers=trainers,
        slots=2,
        parts={"resources": {"engine": "numpy", "networks_per_gpu": networks_per_gpu}},
    ).begin()
    driver.handle(make_pace("a", shown_s, networks_per_gpu=2))
    event = driver.events_of("SharingLearned")[-1]
    assert (event.slots, event.device, event.bound) == (2, "GPU", bound)


@pytest.mark.parametrize(("rates", "bound"), [({}, None), ({2: 1.01}, None), ({2: 1.6}, "ranks")])
def test_sharing_event_shows_that_earlier_sharing_paid(rates, bound):
    setup = ControllerDriver(
        {"a": [0]},
        networks="abcdef",
        trainers=2,
        sharing=rates,
        parts={"resources": {"engine": "numpy", "networks_per_gpu": "auto"}},
    ).setup
    driver = check_sharing_limit(setup)
    assert (driver and driver.bound) == bound
