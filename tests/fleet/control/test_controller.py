"""What an ensemble decides, word for word; tests/fleet/control/test_random_launches.py has all orders of words."""

from dataclasses import replace

import pytest

from fleet.comm import messages as msg
from fleet.control import effects as fx
from fleet.control.history import ProtocolViolation
from fleet.domain import events
from fleet.domain.network import NetworkStatus, Outcome, StepRate
from fleet.errors import ExitStatus, InfrastructureError, UserError
from fleet.search.calls import Report, Tell
from fleet.search.controller import Entry, SearchController, make_controller
from fleet.search.pruning import make_pruner
from fleet.search.searcher import Verdict
from fleet.spec.search import Prune
from fleet.spec.space import Range
from tests.fleet.control.told import Told, layout
from tests.fleet.histories import history, record
from tests.fleet.search.launches import LEARNING_RATE, search_of


def kinds(effects):
    return [type(effect).__name__ for effect in effects]


# ---- start, go on, stop ------------------------------------------------------------------------


def test_a_group_starts_when_all_its_trainers_wait_for_work():
    told = Told({"a": [0, 1]})
    assert told.ready(1) == []
    told.ready(2)
    (start,) = told.mail[1]
    assert start == told.mail[2][0] == msg.Start(told.setup.spec.by_name["a"], (1, 2), 1, 0)
    assert told.mail[3] == []


def test_group_continues_with_the_next_epoch():
    told = Told({"a": [0]}).begin()
    told.end_epoch("a")
    assert told.read() == {1: [msg.Continue(1)]}
    assert [event.record.epoch for event in told.of("EpochEnded")] == [1]
    assert told.standings["a"].history == (record(1),)


def test_group_outside_the_plan_stops_and_another_starts():
    told = Told(lambda progress: {"b": [0]} if progress.epochs_done else {"a": [0]}).begin()
    told.end_epoch("a")
    assert told.read() == {1: [msg.Stop(final=False)]}
    told.hear(msg.Stopped("a", 0.5), msg.Ready(1))
    assert told.read() == {1: [msg.Start(told.setup.spec.by_name["b"], (1,), 2, 0)]}


def test_group_keeps_its_devices_until_it_has_ended():
    told = Told(lambda progress: {"b": [1]} if progress.epochs_done else {"a": [0, 1]}).begin()
    told.end_epoch("a")
    told.hear(msg.Ready(2))  # of another sender than the group's last word
    assert told.read() == {1: [msg.Stop(final=False)]}
    told.hear(msg.Stopped("a", 0.0))
    assert list(told.read()) == [2]


def test_converged_network_stops_whatever_the_plan():
    told = Told({"a": [0]}).begin()
    told.end_epoch("a", final="1 epoch")
    assert told.read() == {1: [msg.Stop(final=True)]}
    assert told.standings["a"].outcome == Outcome("1 epoch")


def test_network_converged_before_is_only_exported():
    told = Told({"a": [0]}, standings={"a": NetworkStatus(history(0.5))}).begin()
    told.hear(msg.Converged("a", "1 epoch"))
    assert told.read() == {1: [msg.Stop(final=True)]}
    assert told.standings["a"] == NetworkStatus(history(0.5), Outcome("1 epoch"))


def test_network_continues_from_the_checkpoint_before():
    told = Told({"a": [0]}, standings={"a": NetworkStatus(history(0.5, 0.6))}).begin()
    told.hear(msg.FellBack("a", "torn", history(0.5), 30))
    assert told.standings["a"] == NetworkStatus(history(0.5))
    told.end_epoch("a")
    assert told.read() == {1: [msg.Continue(2)]}


def test_policy_is_called_after_news_and_not_on_clock_ticks():
    told = Told({"a": [0]}).begin()
    before = len(told.asked)
    told.hear(msg.Pace("a", 10, 1.0), None, after=100.0)
    assert len(told.asked) == before
    told.end_epoch("a")
    assert len(told.asked) == before + 1


class Judged(Told):
    """Networks are judged by the rule of the spec."""

    def mind(self):
        return make_controller(self.setup.spec, replace(self.setup.spec, networks=()), {}, 0)


@pytest.mark.parametrize(
    ("prune", "ahead", "survives"),
    [
        (
            {"rule": "asha", "min_epochs": 2, "factor": 3, "on_fail": "stop"},
            [{"a": 2, "b": 2}, {"a": 1, "b": 2}, {"a": 4, "b": 2}],
            [False, False, True],
        ),
        (
            {"rule": "asha", "min_epochs": 1, "factor": 5, "on_fail": "stop"},
            [{"a": 1, "b": 1}, {"a": 4, "b": 1}, {"a": 3, "b": 1}],
            [False, True, True],
        ),
        (
            {"rule": "asha", "min_epochs": 1, "factor": 5},
            [{"a": 1, "b": 1}, {"a": 4, "b": 1}],
            [False, False],
        ),
        (
            {"rule": "asha", "min_epochs": 50},
            [{"a": 9, "b": 9}, {"a": 8, "b": 9}, {"a": 7, "b": 9}],
            [False] * 3,
        ),
        ({"rule": "median"}, [{}, {}, {}], [False] * 3),
    ],
    ids=["to the first rung and the next", "past it", "paused", "to the end", "no rungs"],
)
def test_policy_receives_distances_to_rungs_and_survivors(prune, ahead, survives):
    told = Judged(
        {"a": [0], "b": [1]}, parts={"prune": prune, "train": {"stopping": {"max_epochs": 9}}}
    ).begin()
    for epochs, (expected, has_passed) in enumerate(zip(ahead, survives, strict=True)):
        if epochs:
            told.end_epoch("a")
        assert told.asked[-1].ahead == expected
        assert told.asked[-1].survivors == ({"a"} if has_passed else set())


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("9 epochs"),
        Outcome("it failed", is_failure=True),
        Outcome("pruned after 1 epoch", is_pruned=True),
    ],
)
def test_paused_network_does_not_wait_for_ended_ones_elsewhere(outcome):
    told = Judged(
        {"a": [0]},
        parts={"prune": {"rule": "asha", "min_epochs": 1, "factor": 2}},
        elsewhere=frozenset("b"),
    )
    told.begin().end_epoch("a")
    told.hear(msg.Stopped("a", 0.0), msg.Ready(1))
    assert [event.verdict for event in told.of("NetworkVerdict")] == ["pause"]
    told.hear(fx.LeaseGranted("b", NetworkStatus(history(0.5), outcome), generation=1))
    assert [event.verdict for event in told.of("NetworkVerdict")] == ["pause", "go_on"]
    assert told.read()[1][-1] == msg.Start(told.setup.spec.by_name["a"], (1,), 2, 1)


class SearcherCalled(Told):
    """A searcher has asked for the one network."""

    def mind(self):
        space = {LEARNING_RATE: Range(1e-5, 0.1)}
        mind = SearchController(
            [Entry("net", search_of(max_trials=1), space, "maximize", "val_accuracy")],
            [],
            make_pruner(Prune(), 9, 0),
            "searcher",
            "maximize",
            "val_accuracy",
            trainers=1,
        )
        mind.restore(
            [events.SearcherCalled("net", "ask", 0, answer={LEARNING_RATE: 0.01}, network="net-0")],
            {},
        )
        return mind

    def say(self):
        """Answer all that the searcher is called for; returns the calls."""
        calls, effects = [], self.effects
        while consults := [effect for effect in effects if isinstance(effect, fx.CallSearcher)]:
            calls += [consult.call for consult in consults]
            effects = self.hear(
                *(
                    fx.SearcherAnswered(consult.entry, consult.call, Verdict.GO_ON)
                    for consult in consults
                )
            )
        return calls


@pytest.mark.parametrize(
    ("last", "calls", "end"),
    [
        (
            lambda told: told.end_epoch("net-0", final="1 epoch"),
            [Report(0, 1, 0.5), Tell(0, "finished", 0.5)],
            "finished",
        ),
        (lambda told: told.end_epoch("net-0"), [], "pruned"),
        (
            lambda told: told.hear(msg.Converged("net-0", "no better")),
            [Tell(0, "finished", None)],
            "finished",
        ),
    ],
    ids=["the last", "not the last", "converged"],
)
def test_pruned_network_has_finished_after_its_last_epoch(last, calls, end):
    told = SearcherCalled({"net-0": [0]}, networks=["net-0"]).begin()
    told.hear(fx.NetworkCommand("net-0", Verdict.STOP))
    assert told.say() == []
    last(told)
    assert told.say() == calls
    assert (
        told.standings["net-0"].is_finished
        == bool(told.of("NetworkFinished"))
        == (end == "finished")
    )
    told.hear(msg.Stopped("net-0", 0.0))
    assert [call.outcome for call in told.say()] == ([] if calls else [end])
    assert told.ensemble.status is ExitStatus.OK


def test_pruned_and_failed_network_follows_its_checkpoint():
    told = SearcherCalled({"net-0": [0]}, networks=["net-0"], outlives=True).begin()
    told.hear(fx.NetworkCommand("net-0", Verdict.STOP))
    told.hear(fx.RanksDied((1,)))
    assert told.say() == []
    told.hear(fx.CheckpointRead("net-0", NetworkStatus((record(1),), Outcome("1 epoch")), 0))
    assert [type(call) for call in told.say()] == [Report, Tell]
    assert told.standings["net-0"].is_finished


@pytest.mark.parametrize(
    ("failure", "status"), [(None, ExitStatus.OK), ("NaN", ExitStatus.NETWORK_FAILED)]
)
def test_launch_ends_when_all_networks_have_ended(failure, status):
    told = Told({"a": [0]}, networks="a", stream=layout(9))
    told.hear(msg.Throughput(0, 100.0))
    told.begin()
    if failure:
        told.hear(msg.Failed("a", failure, "", may_pass=False))
    else:
        told.end_epoch("a", final="1 epoch")
        told.hear(msg.Stopped("a", 0.0))
    assert told.effects[-1] == fx.EndLaunch(status)
    assert {rank: messages[-1] for rank, messages in told.read().items()} == dict.fromkeys(
        [1, 2, 3, 4, "preprocessor"], msg.Exit()
    )
    assert told.ensemble.status is status
    assert told.hear(msg.Ready(1), None) == []


def test_launch_without_work_ends_before_any_message():
    told = Told({}, networks="a", standings={"a": NetworkStatus(history(0.5), Outcome("1 epoch"))})
    assert told.ensemble.status is ExitStatus.OK


def test_policy_that_starts_nothing_aborts_the_launch():
    (fail,) = Told({}).ready(1)
    assert isinstance(fail.error, UserError)
    assert "leaves a, b waiting" in str(fail.error)


# ---- groups that change ------------------------------------------------------------------------


def growing(**rest):
    """Network a on device 0, which gets device 1 when b has finished."""
    return Told(
        lambda progress: {"a": [0, 1]} if "b" in progress.finished else {"a": [0], "b": [1]},
        trainers=2,
        **rest,
    ).begin()


def finish_b(told):
    told.end_epoch("b", final="1 epoch")
    told.hear(msg.Stopped("b", 0.0), msg.Ready(2))
    mail = told.read()
    assert mail[2][0] == msg.Stop(final=True)
    return mail[2][1:]


def test_group_grows_inside_its_epoch_after_the_recruit_built():
    told = growing()
    assert finish_b(told) == [msg.Join(told.setup.spec.by_name["a"], 3)]
    told.hear(msg.Built("a", 2))
    assert told.read() == {1: [msg.Pause(ends=False)]}
    told.hear(msg.Paused("a", 0))
    order = msg.Regroup((1, 2), stay=1, group=4, stream_epoch=0, reads_stream_from=0)
    assert told.read() == {1: [order], 2: [order]}
    told.hear(msg.Regrouped("a", 30, 0.5))
    (changed,) = told.of("GroupChanged")
    assert (changed.before, changed.devices, changed.position) == ((0,), (0, 1), 30)


def test_group_grows_at_an_epoch_end_that_voids_the_pause():
    told = growing()
    finish_b(told)
    told.hear(msg.Built("a", 2))
    told.end_epoch("a")
    assert told.read()[1] == [
        msg.Pause(ends=False),
        msg.Regroup((1, 2), 1, 4, stream_epoch=1, reads_stream_from=0),
    ]


def test_in_a_ring_a_group_grows_between_two_epochs():
    told = growing(stream=layout(3, is_ring=True))
    told.hear(msg.Throughput(0, 100.0))
    told.hear(msg.Joined("a"), msg.Joined("b"))
    told.read()
    finish_b(told)
    told.hear(msg.Built("a", 2))
    assert told.read() == {}
    told.end_epoch("a")
    assert isinstance(told.read()[1][0], msg.Regroup)


def test_group_continues_when_its_recruit_is_dismissed():
    told = Told({"a": [0]}, trainers=2).begin(1)
    told.wanted = {"a": [0, 1]}
    told.end_epoch("a")
    told.hear(msg.Ready(2))
    assert told.read() == {1: [msg.Continue(1)], 2: [msg.Join(told.setup.spec.by_name["a"], 2)]}
    told.wanted = {"a": [0], "b": [1]}
    told.end_epoch("a")
    assert told.read() == {1: [msg.Continue(2)], 2: [msg.Stop(final=False)]}
    assert told.hear(msg.Built("a", 2)) == []  # it had not heard of that
    told.hear(msg.Ready(2))
    assert isinstance(told.read()[2][0], msg.Start)


def test_a_group_lets_go_of_devices_at_the_end_of_its_epoch():
    told = Told(
        lambda progress: {"a": [1], "b": [0]} if progress.epochs_done else {"a": [0, 1]}, trainers=2
    ).begin()
    told.end_epoch("a")
    assert told.read() == {1: [msg.Regroup((2,), 1, 2, stream_epoch=1, reads_stream_from=0)]}
    told.hear(msg.Ready(1), msg.Regrouped("a", 0, 0.1))
    assert told.read() == {1: [msg.Start(told.setup.spec.by_name["b"], (1,), 3, 0)]}


@pytest.mark.parametrize(
    "rest",
    [
        {"outlives": True},
        {"parts": {"train": {"batch": {"when_scaled": "per_gpu"}}}},
        {"gpus": {"a": [2, 4]}},
    ],
    ids=["ranks may die", "the batch follows the GPUs", "too little stays"],
)
def test_a_group_that_cannot_change_stops_and_starts_anew(rest):
    told = Told(
        lambda progress: {"a": [1, 2]} if progress.epochs_done else {"a": [0, 1]},
        trainers=3,
        networks="a",
        **rest,
    ).begin()
    told.end_epoch("a")
    assert told.read() == {1: [msg.Stop(final=False)]}
    told.hear(msg.Stopped("a", 0.0), msg.Ready(1), msg.Ready(2))
    assert isinstance(told.read()[2][0], msg.Start)


def test_a_group_that_fails_sends_its_recruits_away():
    told = growing()
    finish_b(told)
    told.hear(msg.Failed("a", "NaN", "", may_pass=False))
    assert told.read()[2][0] == msg.Stop(final=False)


def test_a_group_that_stops_sends_its_recruits_away_at_once():
    told = growing()
    finish_b(told)
    told.end_epoch("a", final="1 epoch")
    assert told.read() == {1: [msg.Stop(final=True)], 2: [msg.Stop(final=False)]}


# ---- in step -----------------------------------------------------------------------------------


def in_step(wanted, **rest):
    told = Told(wanted, stream=layout(3), **rest)
    told.hear(msg.Throughput(0, 100.0))
    return told


def test_preprocessors_hold_epochs_of_joining_groups():
    told = in_step({"a": [0], "b": [1]}, trainers=2)
    told.ready()
    assert told.read()["preprocessor"] == [msg.Produce(limit=12, hold=0, first=0, turns=(0,))]
    told.hear(msg.Joined("a"))
    assert "preprocessor" not in told.read()
    told.hear(msg.Joined("b"))
    assert told.read()["preprocessor"] == [msg.Produce(limit=12, hold=6, first=0, turns=(0,))]


def test_groups_that_could_start_together_wait_for_each_other():
    told = in_step({"a": [0], "b": [1]}, trainers=2)
    told.ready(1)
    assert told.read() == {}
    told.ready(2)
    assert {
        message.stream_epoch
        for messages in told.read().values()
        for message in messages
        if isinstance(message, msg.Start)
    } == {0}


def test_lockstep_groups_get_orders_together():
    told = in_step({"a": [0], "b": [1]}, trainers=2).begin()
    told.end_epoch("a")
    assert told.read() == {}
    told.end_epoch("b")
    mail = told.read()
    assert (mail[1], mail[2]) == ([msg.Continue(1)], [msg.Continue(1)])


def test_lockstep_group_ahead_does_not_wait_forever():
    """As one can be of which all ranks prepare their rows themselves for a while."""
    told = in_step(
        lambda progress: {"a": [0], "b": [1]} if progress.epochs_done else {"a": [0]}, trainers=2
    ).begin()
    told.end_epoch("a")
    told.hear(msg.Joined("b"))
    told.end_epoch("b", stream_epoch=2)  # while a is in epoch 1
    told.read()
    told.end_epoch("a", stream_epoch=1)
    mail = told.read()
    assert (mail[1], mail[2]) == ([msg.Continue(2)], [msg.Continue(3)])


def test_epoch_begun_in_an_earlier_launch_is_not_the_granted_one():
    told = in_step({"a": [0]}, networks="a", trainers=1, first_epoch=5).begin()
    told.end_epoch("a", stream_epoch=2)
    assert told.read()[1] == [msg.Continue(5)]


def test_a_replay_repeats_the_epochs_of_a_history():
    told = Told({"a": [0]}, networks="a", trainers=1, replayed=(0, 2, 5))
    told.ready()
    assert told.read()[1][0].stream_epoch == 0
    told.hear(msg.Joined("a"))
    told.end_epoch("a", stream_epoch=0)
    told.end_epoch("a", stream_epoch=2)
    assert told.read() == {1: [msg.Continue(2), msg.Continue(5)]}


def test_recruit_reads_the_stream_from_where_its_node_does():
    told = in_step(
        lambda progress: {"a": [0, 1]} if progress.epochs_done else {"a": [0]},
        networks="a",
        trainers=2,
    ).begin()
    told.end_epoch("a")
    told.hear(msg.Built("a", 2), msg.Paused("a", 1))
    first, second = told.read()[1][-1], told.read()
    assert second == {}
    assert first.reads_stream_from == 2  # of those that stay nobody reads that
    assert told.hear(msg.Regrouped("a", 30, 0.1))


# ---- failing -----------------------------------------------------------------------------------


def test_transient_failure_doubles_the_backoff_each_time():
    told = Told({"a": [0]}, networks="a", trainers=1, parts={"retries": 2}).begin()
    for seconds in (5.0, 10.0):
        told.hear(msg.Failed("a", "stale", "", may_pass=True), msg.Ready(1))
        told.hear(None, after=seconds - 0.1)
        assert told.read() == {}
        told.hear(None, after=0.2)
        assert isinstance(told.read()[1][0], msg.Start)
        told.hear(msg.Joined("a"))
    told.hear(msg.Failed("a", "stale", "", may_pass=True))
    assert told.standings["a"].outcome == Outcome("stale", is_failure=True, may_pass=True)
    assert [event.retry for event in told.of("NetworkRetried")] == [1, 2]


def test_while_a_network_rests_its_devices_serve_others():
    told = Told({"a": [0]}, parts={"retries": 1}).begin()
    told.wanted = lambda progress: {"b": [0]} if "a" in progress.finished else {"a": [0]}
    told.hear(msg.Failed("a", "stale", "", may_pass=True), msg.Ready(1))
    assert told.read()[1][0].network.name == "b"


def test_failed_export_is_retried():
    told = Told({"a": [0]}, networks="a", trainers=1, parts={"retries": 1}).begin()
    told.end_epoch("a", final="1 epoch")
    told.hear(msg.Failed("a", "stale", "", may_pass=True), msg.Ready(1))
    assert told.standings["a"].outcome is None
    told.hear(None, after=5.0)
    told.hear(msg.Joined("a"), msg.Converged("a", "1 epoch"), msg.Stopped("a", 0.0))
    assert told.ensemble.status is ExitStatus.OK


def test_unreadable_sample_is_logged_once_and_too_many_abort():
    told = Told(
        {"a": [0]},
        parts={"data": {"source": "builtin:digits", "max_unreadable": "5%"}},
        bad=frozenset({"known"}),
    )
    told.hear(
        msg.SampleUnreadable("x", "torn", True),
        msg.SampleUnreadable("x", "torn", True),
        msg.SampleUnreadable("known", "torn", True),
        msg.SampleUnreadable("y", "torn", False),
    )
    assert [event.name for event in told.of("SampleSkipped")] == ["x", "y"]
    told.hear(msg.SampleUnreadable("z", "empty", True))
    assert kinds(told.effects) == ["Note", "Fail"]
    assert isinstance(told.effects[1].error, UserError)
    assert "4 of 60 samples are unreadable" in str(told.effects[1].error)


# ---- measuring ---------------------------------------------------------------------------------


def test_rates_are_measured_side_by_side_before_training():
    told = Told({"a": [0]}, measures=True, trainers=2, parts={"profile": {"max_gpus": 1}})
    told.ready()
    assert [message for messages in told.read().values() for message in messages] == [
        msg.Measure(told.setup.spec.by_name["a"], (1,), 1),
        msg.Measure(told.setup.spec.by_name["b"], (2,), 2),
    ]
    told.hear(msg.Measured("a", 1, StepRate(10.0), 1.0, ""), msg.Ready(1), after=2.0)
    told.hear(msg.Measured("b", 1, StepRate(0.0), 1.0, "out of memory", may_pass=False), after=3.0)
    (profiled,) = told.of("ProfilingFinished")
    assert (profiled.measurements, profiled.seconds, profiled.rates) == (2, 5.0, {"a": (10.0,)})
    assert told.standings == {
        "a": NetworkStatus(),
        "b": NetworkStatus((), Outcome("out of memory", is_failure=True)),
    }
    assert "SaveRates" in kinds(told.effects)
    assert isinstance(told.read()[1][0], msg.Start)


def test_measurement_is_retried_after_a_transient_failure():
    told = Told({"a": [0]}, networks="a", measures=True, trainers=1, parts={"retries": 1})
    told.ready()
    told.hear(msg.Measured("a", 1, StepRate(0.0), 1.0, "stale", may_pass=True), msg.Ready(1))
    assert [type(message) for message in told.read()[1]] == [msg.Measure, msg.Measure]


def test_given_rates_keep_the_bounds_of_groups():
    told = Told({"a": [0]}, networks="a", measures=True, trainers=1)
    told.ready()
    kept = [
        effect
        for effect in told.hear(msg.Measured("a", 1, StepRate(10.0), 1.0, ""))
        if isinstance(effect, fx.SaveRates)
    ]
    assert [(network.rates, network.max_gpus) for network in kept[0].rates().models] == [
        ((10.0,), 4)
    ]


def test_rate_mismatch_is_logged():
    told = Told({"a": [0]}, networks="a", measures=True, trainers=1)
    told.ready()
    told.hear(msg.Measured("a", 1, StepRate(238.0, 0.4, 20), 1.0, ""), msg.Ready(1))
    told.hear(
        msg.Joined("a"), msg.EpochDone("a", record(1), 0.0, "", rate=StepRate(1348.0, 0.02, 300))
    )
    (off,) = told.of("RateMismatch")
    assert (off.expected, off.rate, off.spread, off.steps, off.corrected) == (
        238.0,
        1348.0,
        0.02,
        300,
        True,
    )


@pytest.mark.parametrize(
    ("rate", "parts"),
    [
        (StepRate(), {}),
        (StepRate(12.0), {}),
        (StepRate(1348.0), {"schedule": {"policy": "baseline"}}),
    ],
)
def test_rate_mismatch_is_not_logged_for_near_or_unknown_rates(rate, parts):
    told = Told({"a": [0]}, networks="a", trainers=1, measures=not parts, parts=parts)
    told.ready()
    if not parts:
        told.hear(msg.Measured("a", 1, StepRate(10.0), 1.0, ""), msg.Ready(1))
    told.hear(msg.Joined("a"), msg.EpochDone("a", record(1), 0.0, "", rate=rate))
    assert told.of("EpochEnded")
    assert told.of("RateMismatch") == []


# ---- ending early ------------------------------------------------------------------------------


def test_end_request_pauses_groups_and_ends_when_all_are_idle():
    told = Told({"a": [0], "b": [1]}, trainers=3).begin()
    told.hear(fx.EndRequested("SIGTERM came"))
    assert told.read() == {1: [msg.Pause(ends=True)], 2: [msg.Pause(ends=True)]}
    told.hear(msg.Paused("a", 0))
    assert told.read() == {1: [msg.Stop(final=False)]}
    told.end_epoch("b")
    assert told.read() == {2: [msg.Stop(final=False)]}
    told.hear(msg.Stopped("a", 0.0), msg.Stopped("b", 0.0), msg.Ready(1))
    assert told.ensemble.status is None
    told.hear(msg.Ready(2))
    assert told.ensemble.status is ExitStatus.RESUMABLE


def test_a_group_that_has_not_met_is_paused_when_it_has():
    told = Told({"a": [0]}, trainers=1)
    told.ready()
    told.read()
    told.hear(fx.EndRequested("SIGTERM came"))
    assert told.read() == {}
    told.hear(msg.Joined("a"))
    assert told.read() == {1: [msg.Pause(ends=True)]}


def test_paused_group_is_told_that_the_launch_ends():
    """It may be judging its network, and would not heed a pause that only lets it grow."""
    told = growing()
    finish_b(told)
    told.hear(msg.Built("a", 2), fx.EndRequested("SIGTERM came"))
    assert told.read() == {1: [msg.Pause(ends=False), msg.Pause(ends=True)]}
    told.hear(msg.Paused("a", 0))
    assert told.read() == {1: [msg.Stop(final=False)], 2: [msg.Stop(final=False)]}


def test_a_group_that_changes_is_paused_when_it_has_met():
    told = growing()
    finish_b(told)
    told.hear(msg.Built("a", 2), msg.Paused("a", 0), fx.EndRequested("SIGTERM came"))
    told.read()
    told.hear(msg.Regrouped("a", 30, 0.1))
    assert told.read() == {1: [msg.Pause(ends=True)]}


def test_end_request_stops_measurements():
    told = Told({"a": [0]}, networks="a", measures=True, trainers=1)
    told.ready()
    told.hear(fx.EndRequested("SIGTERM came"))
    told.hear(msg.Measured("a", 1, StepRate(10.0), 1.0, ""))
    assert told.ensemble.status is None
    told.hear(msg.Ready(1))
    assert told.ensemble.status is ExitStatus.RESUMABLE


def late(wanted, **rest):
    """A launch that has learned that to start takes 10 seconds, of which 5 are left."""
    told = Told(wanted, ends_s=25.0, **rest).begin()
    told.hear(msg.Pace("a", 10, 1.0), after=10.0)
    told.now = 20.0
    return told


def test_too_late_group_continues_that_should_stop():
    told = late(lambda progress: {"b": [0]} if progress.epochs_done else {"a": [0]})
    told.end_epoch("a")
    assert told.read() == {1: [msg.Continue(1)]}


def test_too_late_launch_starts_nothing_and_ends():
    told = late(lambda progress: {"b": [1]} if progress.epochs_done else {"a": [0]}, trainers=2)
    told.end_epoch("a", final="1 epoch")
    (late_,) = told.of("TooLateToStart")
    assert (late_.networks, late_.left_s, late_.needed_s) == (("b",), 5.0, 10.0)
    told.hear(msg.Stopped("a", 0.0), msg.Ready(1))
    assert told.read() == {1: [msg.Stop(final=True), msg.Exit()], 2: [msg.Exit()]}
    assert [event.reason for event in told.of("LaunchInterrupted")] == [
        "too little of the walltime is left to start another group"
    ]
    assert len(told.of("TooLateToStart")) == 1


# ---- deaths ------------------------------------------------------------------------------------


def struck(**rest):
    told = Told({"a": [0, 1], "b": [2]}, trainers=3, outlives=True, **rest).begin()
    told.end_epoch("a")
    told.read()
    told.hear(fx.RanksDied((2,)))
    return told


def test_failed_group_returns_its_network_to_the_checkpoint():
    told = struck()
    assert [(event.rank, event.device) for event in told.of("RankDied")] == [(2, 1)]
    assert told.read() == {}
    told.wanted = {"a": [0], "b": [2]}
    assert told.ready(1)[0] == fx.ReadCheckpoint("a")
    assert told.read() == {}
    told.hear(
        fx.CheckpointRead("a", NetworkStatus(history(0.5, 0.6)), 12)
    )  # the second was saved, and not told
    assert [(event.epochs, event.position) for event in told.of("GroupFailed")] == [(2, 12)]
    assert [event.record.epoch for event in told.of("EpochEnded")] == [1, 2]
    assert told.read() == {}  # it comes last: b is left


def test_failed_group_holds_its_other_ranks_until_all_are_idle():
    told = Told({"a": [0, 1, 2]}, trainers=3, outlives=True).begin()
    told.wanted = {"b": [0]}
    told.hear(fx.RanksDied((3,)), msg.Ready(1))
    assert told.read() == {}
    assert told.ready(2)[0] == fx.ReadCheckpoint("a")
    assert [start.network.name for start in told.read()[1]] == ["b"]


def test_nothing_that_a_struck_group_says_is_believed():
    told = struck()
    assert told.end_epoch("a", final="2 epochs") == []
    assert (
        told.hear(
            msg.Stopped("a", 0.0), msg.Failed("a", "NaN", "", may_pass=False), msg.Pace("a", 1, 1.0)
        )
        == []
    )


def test_what_a_rank_said_before_it_died_may_come_late():
    told = struck()
    told.ready(1)
    told.hear(fx.CheckpointRead("a", NetworkStatus(history(0.5)), 0))
    assert told.hear(msg.Ready(2)) == []


def test_failed_network_gets_no_devices_before_its_checkpoint():
    told = Told({"a": [0, 1]}, networks="a", gpus={"a": [2, 2]}, outlives=True).begin()
    told.wanted = {"a": [2, 3]}
    told.hear(fx.RanksDied((1,)))
    assert fx.ReadCheckpoint("a") in told.ready(2)
    assert told.read() == {}
    told.hear(fx.CheckpointRead("a", NetworkStatus(), 0))
    assert [event.devices for event in told.of("GroupStarted")] == [(0, 1), (2, 3)]


def test_measurement_of_a_dead_rank_is_repeated_by_others():
    told = Told(
        {"a": [0]}, networks="a", measures=True, trainers=2, outlives=True, gpus={"a": [1, 1]}
    )
    told.ready(2)
    told.ready(1)
    told.read()
    told.hear(fx.RanksDied((2,)))
    assert told.read() == {1: [msg.Measure(told.setup.spec.by_name["a"], (1,), 2)]}


def test_network_planned_on_a_dead_trainer_gets_another():
    told = Told({"a": [0]}, networks="a", trainers=2, outlives=True)
    told.ready(2)
    told.wanted = {"a": [1]}
    told.hear(fx.RanksDied((1,)))
    assert told.read()[2][0].ranks == (2,)


def test_a_preprocessor_that_dies_holds_nobody_up():
    told = Told({"a": [0]}, trainers=1, stream=layout(9), outlives=True)
    told.ready()
    assert told.read() == {}
    told.hear(fx.RanksDied((0,)))
    assert [(event.rank, event.device) for event in told.of("RankDied")] == [(0, None)]
    assert isinstance(told.read()[1][0], msg.Start)


def test_too_few_trainers_that_are_left_end_the_launch():
    told = Told({"a": [0, 1]}, networks="a", trainers=2, outlives=True, gpus={"a": [2, 2]}).begin()
    told.wanted = {}
    told.hear(fx.RanksDied((2,)), msg.Ready(1), fx.CheckpointRead("a", NetworkStatus(), 0))
    assert [event.reason for event in told.of("LaunchInterrupted")] == [
        "1 rank died, and 1 trainer is too few for a"
    ]
    assert told.ensemble.status is ExitStatus.RESUMABLE


def test_without_trainers_the_launch_ends():
    told = Told({"a": [0]}, networks="a", trainers=1, outlives=True).begin()
    told.hear(fx.RanksDied((1,)))
    assert told.effects[-1] == fx.ReadCheckpoint("a")
    told.hear(fx.CheckpointRead("a", NetworkStatus(), 0))
    assert told.effects[-1] == fx.EndLaunch(ExitStatus.RESUMABLE)


def test_a_replay_does_not_outlive_its_ranks():
    told = Told({"a": [0]}, networks="a", trainers=1, outlives=True, replayed=(0, 1)).begin()
    fail = told.hear(fx.RanksDied((1,)))[0]
    assert isinstance(fail, fx.AbortLaunch)
    assert isinstance(fail.error, InfrastructureError)


# ---- what cannot be ----------------------------------------------------------------------------

CANNOT_BE = {
    "a word of a group that is not": msg.EpochDone("b", record(1), 0.0, ""),
    "an end before a beginning": msg.Stopped("a", 0.0),
    "a pause that nobody asked for": msg.Paused("a", 0),
    "a change that nobody asked for": msg.Regrouped("a", 0, 0.0),
    "a group that meets twice": msg.Joined("a"),
    "a trainer that waits twice": msg.Ready(2),
    "a trainer that is none": msg.Ready(0),
    "a recruit that is none": msg.Built("a", 2),
    "a measurement that nobody makes": msg.Measured("a", 1, StepRate(10.0), 1.0, ""),
    "a preprocessor that is none": msg.Throughput(1, 100.0),
    "a checkpoint that nobody asked for": fx.CheckpointRead("a", NetworkStatus(), 0),
    "a message to somebody else": msg.Demand(0, 7),
}


@pytest.mark.parametrize("word", CANNOT_BE.values(), ids=CANNOT_BE)
def test_impossible_input_raises_an_error_with_the_history(word):
    told = Told({"a": [0]}, trainers=2).begin()
    with pytest.raises(
        ProtocolViolation,
        match="cannot take|idle already|has no group|builds nothing|no such measurement|"
        "not requested|unexpected input|does not produce|has reported",
    ) as caught:
        told.hear(word)
    error = caught.value
    assert [moment.message for moment in error.history] == [
        None,
        msg.Ready(1),
        msg.Ready(2),
        msg.Joined("a"),
        word,
    ]
    assert f"{word!r}" in str(error)
    assert "Start(network=NetworkSpec(name='a'" in error.report()
    again = told.make()
    *before, last = error.history
    assert [again.handle(moment.now_s, moment.message) for moment in before] == [
        list(moment.effects) for moment in before
    ]
    with pytest.raises(ProtocolViolation) as repeated:
        again.handle(last.now_s, last.message)
    assert repeated.value.history == error.history


def test_history_keeps_only_the_first_pace_report():
    told = Told({"a": [0]}, trainers=1).begin()
    told.hear(*[msg.Pace("a", samples, 1.0) for samples in range(50)])
    with pytest.raises(ProtocolViolation) as caught:
        told.hear(msg.Ready(0))
    assert [type(moment.message) for moment in caught.value.history].count(msg.Pace) == 1
