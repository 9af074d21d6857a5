"""The ensemble on GPUs that networks share."""

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
    driver.hear(Failed("a", "out of memory", "", may_pass=False, out_of_memory=True), Ready(1))
    assert driver.progress[-1].exclusive == {"a"}
    (event,) = driver.of("NetworkRetried")
    assert (event.alone, event.retry) == (True, 0)
    driver.read()
    driver.end_epoch("b", final="1 epoch")
    assert driver.read() == {3: [Stop(final=True)]}  # b is on the same GPU still
    driver.hear(Stopped("b", 0.0, 0.0, ""), Ready(3))
    assert [type(message) for message in driver.read()[1]] == [Start]
    driver.hear(Joined("a"), Failed("a", "out of memory", "", may_pass=False, out_of_memory=True))
    assert driver.standings["a"].outcome.is_failure


def test_nothing_starts_beside_an_exclusive_network():
    driver = ControllerDriver({"a": [0]}, slots=2, alone=frozenset("a")).begin()
    driver.plan = {"a": [0], "b": [2]}
    driver.end_epoch("a")
    assert [event.network for event in driver.of("GroupStarted")] == ["a"]
    driver.plan = {"a": [0], "b": [3]}
    driver.end_epoch("a")
    assert [event.network for event in driver.of("GroupStarted")] == ["a", "b"]


def test_out_of_memory_without_sharing_fails_the_network():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1).begin()
    driver.hear(Failed("a", "out of memory", "", may_pass=False, out_of_memory=True))
    assert driver.standings["a"].outcome.is_failure


def test_what_training_shows_of_sharing_is_told_and_planned_by():
    driver = ControllerDriver({"a": [0], "b": [2]}, slots=2).begin()
    assert driver.tables[-1].sharing == (1.0,)
    driver.hear(make_pace("a", 8.0, networks_per_gpu=2))  # it has 10 alone
    assert driver.of("SharingLearned")[-1].speedups == (1.0, 1.6)
    assert driver.tables[-1].sharing == (1.0, 1.6)


def test_learned_rates_begin_with_one_network_per_gpu():
    driver = ControllerDriver({"a": [0]}, slots=2, learns={}).begin()
    assert driver.tables[-1].sharing == ()
    driver.hear(make_pace("a", 10.0))
    assert driver.tables[-1].sharing == (1.0,)


def test_expected_sharing_of_cores_is_used_and_not_logged():
    driver = ControllerDriver(
        {"a": [0]},
        roles=replace(
            assign((0,) * 5, None, None, own_preprocessing=True, slots=None, cores=2), device="core"
        ),
        learns={},
    ).begin()
    driver.hear(make_pace("a", 10.0))
    assert driver.tables[-1].sharing == (1.0, 1.0)
    assert not driver.of("SharingLearned")
    driver.hear(make_pace("a", 8.0, networks_per_gpu=2))
    assert driver.of("SharingLearned")[-1].speedups == (1.0, 1.6)


def test_rates_are_measured_on_gpus_that_nobody_shares():
    driver = ControllerDriver({}, slots=2, measures=True)
    driver.ready()
    assert [
        rank
        for rank, mail in driver.mail.items()
        if any(isinstance(subject, Measure) for subject in mail)
    ] == [1, 2]


@pytest.mark.parametrize(
    ("proposals", "trainers", "networks", "shown_s", "bound"),
    [
        (2, 4, "abcdef", 8.0, "per_device"),  # two pay, and more may
        ("auto", 4, "abcdef", 8.0, "ranks"),
        (4, 4, "abcdef", 8.0, "ranks"),
        (2, 4, "abcdef", 5.0, ""),  # two do not
        (2, 4, "abcd", 8.0, ""),  # more would have no network
    ],
)
def test_sharing_event_names_what_limits_networks_per_gpu(
    proposals, trainers, networks, shown_s, bound
):
    driver = ControllerDriver(
        {"a": [0], "b": [2]},
        networks=networks,
        trainers=trainers,
        slots=2,
        parts={"resources": {"engine": "numpy", "networks_per_gpu": proposals}},
    ).begin()
    driver.hear(make_pace("a", shown_s, networks_per_gpu=2))
    event = driver.of("SharingLearned")[-1]
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
