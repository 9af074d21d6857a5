"""The ensemble on GPUs that networks share."""

from fleet.comm.messages import Failed, Joined, Measure, Pace, Ready
from fleet.storage.state import StepRate
from tests.fleet.ensemble.told import Told


def shown(network, rate, beside=1):
    return Pace(network, 10, rate, StepRate(rate, 0.0, 100, beside))


def test_what_runs_out_of_memory_beside_others_is_tried_again_alone_and_only_once():
    told = Told({"a": [0], "b": [2]}, slots=2).begin()
    told.hear(Failed("a", "out of memory", "", may_pass=False, out_of_memory=True), Ready(1))
    assert told.asked[-1].alone == {"a"}
    event, = told.of("NetworkRetried")
    assert (event.alone, event.retry) == (True, 0)
    told.hear(Joined("a"), Failed("a", "out of memory", "", may_pass=False, out_of_memory=True))
    assert told.standings["a"].outcome.is_failure


def test_where_no_gpu_is_shared_a_network_that_runs_out_of_memory_has_failed():
    told = Told({"a": [0]}, networks="a", trainers=1).begin()
    told.hear(Failed("a", "out of memory", "", may_pass=False, out_of_memory=True))
    assert told.standings["a"].outcome.is_failure


def test_what_training_shows_of_sharing_is_told_and_planned_by():
    told = Told({"a": [0], "b": [2]}, slots=2).begin()
    assert told.tables[-1].sharing == (1.0,)
    told.hear(shown("a", 8.0, beside=2))  # it has 10 alone
    assert told.of("SharingLearned")[-1].speedups == (1.0, 1.6)
    assert told.tables[-1].sharing == (1.0, 1.6)


def test_rates_that_are_learned_begin_with_a_network_on_each_gpu_and_go_on_when_they_are_seen():
    told = Told({"a": [0]}, slots=2, learns={}).begin()
    assert told.tables[-1].sharing == ()
    told.hear(shown("a", 10.0))
    assert told.tables[-1].sharing == (1.0,)


def test_rates_are_measured_on_gpus_that_nobody_shares():
    told = Told({}, slots=2, measures=True)
    told.ready()
    assert [rank for rank, mail in told.mail.items() if any(isinstance(one, Measure) for one in mail)] == [1, 2]
