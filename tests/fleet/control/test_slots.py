"""The ensemble on GPUs that networks share."""

from dataclasses import replace

import pytest

from fleet.comm.messages import Failed, Joined, Measure, Pace, Ready, Start, Stop, Stopped
from fleet.comm.roles import assign
from fleet.control.rates import check_sharing_limit
from fleet.domain.network import StepRate
from tests.fleet.control.told import Told


def shown(network, rate, beside=1):
    return Pace(network, 10, rate, StepRate(rate, 0.0, 100, beside))


def test_out_of_memory_on_a_shared_gpu_is_retried_alone_once():
    told = Told({"a": [0], "b": [2]}, slots=2).begin()
    told.hear(Failed("a", "out of memory", "", may_pass=False, out_of_memory=True), Ready(1))
    assert told.asked[-1].alone == {"a"}
    (event,) = told.of("NetworkRetried")
    assert (event.alone, event.retry) == (True, 0)
    told.read()
    told.end_epoch("b", final="1 epoch")
    assert told.read() == {3: [Stop(final=True)]}  # b is on the same GPU still
    told.hear(Stopped("b", 0.0, 0.0, ""), Ready(3))
    assert [type(message) for message in told.read()[1]] == [Start]
    told.hear(Joined("a"), Failed("a", "out of memory", "", may_pass=False, out_of_memory=True))
    assert told.standings["a"].outcome.is_failure


def test_nothing_starts_beside_an_exclusive_network():
    told = Told({"a": [0]}, slots=2, alone=frozenset("a")).begin()
    told.wanted = {"a": [0], "b": [2]}
    told.end_epoch("a")
    assert [event.network for event in told.of("GroupStarted")] == ["a"]
    told.wanted = {"a": [0], "b": [3]}
    told.end_epoch("a")
    assert [event.network for event in told.of("GroupStarted")] == ["a", "b"]


def test_out_of_memory_without_sharing_fails_the_network():
    told = Told({"a": [0]}, networks="a", trainers=1).begin()
    told.hear(Failed("a", "out of memory", "", may_pass=False, out_of_memory=True))
    assert told.standings["a"].outcome.is_failure


def test_what_training_shows_of_sharing_is_told_and_planned_by():
    told = Told({"a": [0], "b": [2]}, slots=2).begin()
    assert told.tables[-1].sharing == (1.0,)
    told.hear(shown("a", 8.0, beside=2))  # it has 10 alone
    assert told.of("SharingLearned")[-1].speedups == (1.0, 1.6)
    assert told.tables[-1].sharing == (1.0, 1.6)


def test_learned_rates_begin_with_one_network_per_gpu():
    told = Told({"a": [0]}, slots=2, learns={}).begin()
    assert told.tables[-1].sharing == ()
    told.hear(shown("a", 10.0))
    assert told.tables[-1].sharing == (1.0,)


def test_expected_sharing_of_cores_is_used_and_not_logged():
    told = Told(
        {"a": [0]},
        roles=replace(
            assign((0,) * 5, None, None, own_preprocessing=True, slots=None, cores=2), device="core"
        ),
        learns={},
    ).begin()
    told.hear(shown("a", 10.0))
    assert told.tables[-1].sharing == (1.0, 1.0)
    assert not told.of("SharingLearned")
    told.hear(shown("a", 8.0, beside=2))
    assert told.of("SharingLearned")[-1].speedups == (1.0, 1.6)


def test_rates_are_measured_on_gpus_that_nobody_shares():
    told = Told({}, slots=2, measures=True)
    told.ready()
    assert [
        rank for rank, mail in told.mail.items() if any(isinstance(one, Measure) for one in mail)
    ] == [1, 2]


@pytest.mark.parametrize(
    ("asked", "trainers", "networks", "shown_s", "bound"),
    [
        (2, 4, "abcdef", 8.0, "per_device"),  # two pay, and more may
        ("auto", 4, "abcdef", 8.0, "ranks"),
        (4, 4, "abcdef", 8.0, "ranks"),
        (2, 4, "abcdef", 5.0, ""),  # two do not
        (2, 4, "abcd", 8.0, ""),  # more would have no network
    ],
)
def test_sharing_event_names_what_limits_networks_per_gpu(
    asked, trainers, networks, shown_s, bound
):
    told = Told(
        {"a": [0], "b": [2]},
        networks=networks,
        trainers=trainers,
        slots=2,
        parts={"resources": {"engine": "numpy", "networks_per_gpu": asked}},
    ).begin()
    told.hear(shown("a", shown_s, beside=2))
    event = told.of("SharingLearned")[-1]
    assert (event.slots, event.device, event.bound) == (2, "GPU", bound)


@pytest.mark.parametrize(("known", "bound"), [({}, None), ({2: 1.01}, None), ({2: 1.6}, "ranks")])
def test_sharing_event_shows_that_earlier_sharing_paid(known, bound):
    setup = Told(
        {"a": [0]},
        networks="abcdef",
        trainers=2,
        sharing=known,
        parts={"resources": {"engine": "numpy", "networks_per_gpu": "auto"}},
    ).setup
    told = check_sharing_limit(setup)
    assert (told and told.bound) == bound
