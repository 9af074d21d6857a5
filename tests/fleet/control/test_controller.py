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
from tests.fleet.control.driver import ControllerDriver, layout
from tests.fleet.histories import history, record
from tests.fleet.search.launches import LEARNING_RATE, search_of


def kinds(effects):
    return [type(effect).__name__ for effect in effects]


# ---- start, go on, stop ------------------------------------------------------------------------


def test_a_group_starts_when_all_its_trainers_wait_for_work():
    driver = ControllerDriver({"a": [0, 1]})
    assert driver.ready(1) == []
    driver.ready(2)
    (start,) = driver.mail[1]
    assert start == driver.mail[2][0] == msg.Start(driver.setup.spec.by_name["a"], (1, 2), 1, 0)
    assert driver.mail[3] == []


def test_group_continues_with_the_next_epoch():
    driver = ControllerDriver({"a": [0]}).begin()
    driver.end_epoch("a")
    assert driver.read() == {1: [msg.Continue(1)]}
    assert [event.record.epoch for event in driver.of("EpochEnded")] == [1]
    assert driver.standings["a"].history == (record(1),)


def test_group_outside_the_plan_stops_and_another_starts():
    driver = ControllerDriver(
        lambda progress: {"b": [0]} if progress.epochs_done else {"a": [0]}
    ).begin()
    driver.end_epoch("a")
    assert driver.read() == {1: [msg.Stop(final=False)]}
    driver.hear(msg.Stopped("a", 0.5), msg.Ready(1))
    assert driver.read() == {1: [msg.Start(driver.setup.spec.by_name["b"], (1,), 2, 0)]}


def test_group_keeps_its_devices_until_it_has_ended():
    driver = ControllerDriver(
        lambda progress: {"b": [1]} if progress.epochs_done else {"a": [0, 1]}
    ).begin()
    driver.end_epoch("a")
    driver.hear(msg.Ready(2))  # of another sender than the group's last word
    assert driver.read() == {1: [msg.Stop(final=False)]}
    driver.hear(msg.Stopped("a", 0.0))
    assert list(driver.read()) == [2]


def test_converged_network_stops_whatever_the_plan():
    driver = ControllerDriver({"a": [0]}).begin()
    driver.end_epoch("a", final="1 epoch")
    assert driver.read() == {1: [msg.Stop(final=True)]}
    assert driver.standings["a"].outcome == Outcome("1 epoch")


def test_network_converged_before_is_only_exported():
    driver = ControllerDriver({"a": [0]}, standings={"a": NetworkStatus(history(0.5))}).begin()
    driver.hear(msg.Converged("a", "1 epoch"))
    assert driver.read() == {1: [msg.Stop(final=True)]}
    assert driver.standings["a"] == NetworkStatus(history(0.5), Outcome("1 epoch"))


def test_network_continues_from_the_checkpoint_before():
    driver = ControllerDriver({"a": [0]}, standings={"a": NetworkStatus(history(0.5, 0.6))}).begin()
    driver.hear(msg.FellBack("a", "torn", history(0.5), 30))
    assert driver.standings["a"] == NetworkStatus(history(0.5))
    driver.end_epoch("a")
    assert driver.read() == {1: [msg.Continue(2)]}


def test_policy_is_called_after_news_and_not_on_clock_ticks():
    driver = ControllerDriver({"a": [0]}).begin()
    before = len(driver.progress)
    driver.hear(msg.Pace("a", 10, 1.0), None, after=100.0)
    assert len(driver.progress) == before
    driver.end_epoch("a")
    assert len(driver.progress) == before + 1


class Judged(ControllerDriver):
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
    driver = Judged(
        {"a": [0], "b": [1]}, parts={"prune": prune, "train": {"stopping": {"max_epochs": 9}}}
    ).begin()
    for epochs, (expected, has_passed) in enumerate(zip(ahead, survives, strict=True)):
        if epochs:
            driver.end_epoch("a")
        assert driver.progress[-1].ahead == expected
        assert driver.progress[-1].survivors == ({"a"} if has_passed else set())


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("9 epochs"),
        Outcome("it failed", is_failure=True),
        Outcome("pruned after 1 epoch", is_pruned=True),
    ],
)
def test_paused_network_does_not_wait_for_ended_ones_elsewhere(outcome):
    driver = Judged(
        {"a": [0]},
        parts={"prune": {"rule": "asha", "min_epochs": 1, "factor": 2}},
        elsewhere=frozenset("b"),
    )
    driver.begin().end_epoch("a")
    driver.hear(msg.Stopped("a", 0.0), msg.Ready(1))
    assert [event.verdict for event in driver.of("NetworkVerdict")] == ["pause"]
    driver.hear(fx.LeaseGranted("b", NetworkStatus(history(0.5), outcome), generation=1))
    assert [event.verdict for event in driver.of("NetworkVerdict")] == ["pause", "go_on"]
    assert driver.read()[1][-1] == msg.Start(driver.setup.spec.by_name["a"], (1,), 2, 1)


class SearcherCalled(ControllerDriver):
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
    driver = SearcherCalled({"net-0": [0]}, networks=["net-0"]).begin()
    driver.hear(fx.NetworkCommand("net-0", Verdict.STOP))
    assert driver.say() == []
    last(driver)
    assert driver.say() == calls
    assert (
        driver.standings["net-0"].is_finished
        == bool(driver.of("NetworkFinished"))
        == (end == "finished")
    )
    driver.hear(msg.Stopped("net-0", 0.0))
    assert [call.outcome for call in driver.say()] == ([] if calls else [end])
    assert driver.ensemble.status is ExitStatus.OK


def test_pruned_and_failed_network_follows_its_checkpoint():
    driver = SearcherCalled({"net-0": [0]}, networks=["net-0"], outlives=True).begin()
    driver.hear(fx.NetworkCommand("net-0", Verdict.STOP))
    driver.hear(fx.RanksDied((1,)))
    assert driver.say() == []
    driver.hear(fx.CheckpointRead("net-0", NetworkStatus((record(1),), Outcome("1 epoch")), 0))
    assert [type(call) for call in driver.say()] == [Report, Tell]
    assert driver.standings["net-0"].is_finished


@pytest.mark.parametrize(
    ("failure", "status"), [(None, ExitStatus.OK), ("NaN", ExitStatus.NETWORK_FAILED)]
)
def test_launch_ends_when_all_networks_have_ended(failure, status):
    driver = ControllerDriver({"a": [0]}, networks="a", stream=layout(9))
    driver.hear(msg.Throughput(0, 100.0))
    driver.begin()
    if failure:
        driver.hear(msg.Failed("a", failure, "", may_pass=False))
    else:
        driver.end_epoch("a", final="1 epoch")
        driver.hear(msg.Stopped("a", 0.0))
    assert driver.effects[-1] == fx.EndLaunch(status)
    assert {rank: messages[-1] for rank, messages in driver.read().items()} == dict.fromkeys(
        [1, 2, 3, 4, "preprocessor"], msg.Exit()
    )
    assert driver.ensemble.status is status
    assert driver.hear(msg.Ready(1), None) == []


def test_launch_without_work_ends_before_any_message():
    driver = ControllerDriver(
        {}, networks="a", standings={"a": NetworkStatus(history(0.5), Outcome("1 epoch"))}
    )
    assert driver.ensemble.status is ExitStatus.OK


def test_policy_that_starts_nothing_aborts_the_launch():
    (fail,) = ControllerDriver({}).ready(1)
    assert isinstance(fail.error, UserError)
    assert "leaves a, b waiting" in str(fail.error)


# ---- groups that change ------------------------------------------------------------------------


def growing(**rest):
    """Network a on device 0, which gets device 1 when b has finished."""
    return ControllerDriver(
        lambda progress: {"a": [0, 1]} if "b" in progress.finished else {"a": [0], "b": [1]},
        trainers=2,
        **rest,
    ).begin()


def finish_b(driver):
    driver.end_epoch("b", final="1 epoch")
    driver.hear(msg.Stopped("b", 0.0), msg.Ready(2))
    mail = driver.read()
    assert mail[2][0] == msg.Stop(final=True)
    return mail[2][1:]


def test_group_grows_inside_its_epoch_after_the_recruit_built():
    driver = growing()
    assert finish_b(driver) == [msg.Join(driver.setup.spec.by_name["a"], 3)]
    driver.hear(msg.Built("a", 2))
    assert driver.read() == {1: [msg.Pause(run_ends=False)]}
    driver.hear(msg.Paused("a", 0))
    order = msg.Regroup((1, 2), stay_count=1, group=4, stream_epoch=0, reads_stream_from=0)
    assert driver.read() == {1: [order], 2: [order]}
    driver.hear(msg.Regrouped("a", 30, 0.5))
    (changed,) = driver.of("GroupChanged")
    assert (changed.before, changed.devices, changed.position) == ((0,), (0, 1), 30)


def test_group_grows_at_an_epoch_end_that_voids_the_pause():
    driver = growing()
    finish_b(driver)
    driver.hear(msg.Built("a", 2))
    driver.end_epoch("a")
    assert driver.read()[1] == [
        msg.Pause(run_ends=False),
        msg.Regroup((1, 2), 1, 4, stream_epoch=1, reads_stream_from=0),
    ]


def test_in_a_ring_a_group_grows_between_two_epochs():
    driver = growing(stream=layout(3, is_ring=True))
    driver.hear(msg.Throughput(0, 100.0))
    driver.hear(msg.Joined("a"), msg.Joined("b"))
    driver.read()
    finish_b(driver)
    driver.hear(msg.Built("a", 2))
    assert driver.read() == {}
    driver.end_epoch("a")
    assert isinstance(driver.read()[1][0], msg.Regroup)


def test_group_continues_when_its_recruit_is_dismissed():
    driver = ControllerDriver({"a": [0]}, trainers=2).begin(1)
    driver.plan = {"a": [0, 1]}
    driver.end_epoch("a")
    driver.hear(msg.Ready(2))
    assert driver.read() == {1: [msg.Continue(1)], 2: [msg.Join(driver.setup.spec.by_name["a"], 2)]}
    driver.plan = {"a": [0], "b": [1]}
    driver.end_epoch("a")
    assert driver.read() == {1: [msg.Continue(2)], 2: [msg.Stop(final=False)]}
    assert driver.hear(msg.Built("a", 2)) == []  # it had not heard of that
    driver.hear(msg.Ready(2))
    assert isinstance(driver.read()[2][0], msg.Start)


def test_a_group_lets_go_of_devices_at_the_end_of_its_epoch():
    driver = ControllerDriver(
        lambda progress: {"a": [1], "b": [0]} if progress.epochs_done else {"a": [0, 1]}, trainers=2
    ).begin()
    driver.end_epoch("a")
    assert driver.read() == {1: [msg.Regroup((2,), 1, 2, stream_epoch=1, reads_stream_from=0)]}
    driver.hear(msg.Ready(1), msg.Regrouped("a", 0, 0.1))
    assert driver.read() == {1: [msg.Start(driver.setup.spec.by_name["b"], (1,), 3, 0)]}


@pytest.mark.parametrize(
    "remaining",
    [
        {"outlives": True},
        {"parts": {"train": {"batch": {"when_scaled": "per_gpu"}}}},
        {"gpus": {"a": [2, 4]}},
    ],
    ids=["ranks may die", "the batch follows the GPUs", "too little stays"],
)
def test_a_group_that_cannot_change_stops_and_starts_anew(remaining):
    driver = ControllerDriver(
        lambda progress: {"a": [1, 2]} if progress.epochs_done else {"a": [0, 1]},
        trainers=3,
        networks="a",
        **remaining,
    ).begin()
    driver.end_epoch("a")
    assert driver.read() == {1: [msg.Stop(final=False)]}
    driver.hear(msg.Stopped("a", 0.0), msg.Ready(1), msg.Ready(2))
    assert isinstance(driver.read()[2][0], msg.Start)


def test_a_group_that_fails_sends_its_recruits_away():
    driver = growing()
    finish_b(driver)
    driver.hear(msg.Failed("a", "NaN", "", may_pass=False))
    assert driver.read()[2][0] == msg.Stop(final=False)


def test_a_group_that_stops_sends_its_recruits_away_at_once():
    driver = growing()
    finish_b(driver)
    driver.end_epoch("a", final="1 epoch")
    assert driver.read() == {1: [msg.Stop(final=True)], 2: [msg.Stop(final=False)]}


# ---- in step -----------------------------------------------------------------------------------


def in_step(plan, **rest):
    driver = ControllerDriver(plan, stream=layout(3), **rest)
    driver.hear(msg.Throughput(0, 100.0))
    return driver


def test_preprocessors_hold_epochs_of_joining_groups():
    driver = in_step({"a": [0], "b": [1]}, trainers=2)
    driver.ready()
    assert driver.read()["preprocessor"] == [msg.Produce(limit=12, hold=0, first=0, turns=(0,))]
    driver.hear(msg.Joined("a"))
    assert "preprocessor" not in driver.read()
    driver.hear(msg.Joined("b"))
    assert driver.read()["preprocessor"] == [msg.Produce(limit=12, hold=6, first=0, turns=(0,))]


def test_groups_that_could_start_together_wait_for_each_other():
    driver = in_step({"a": [0], "b": [1]}, trainers=2)
    driver.ready(1)
    assert driver.read() == {}
    driver.ready(2)
    assert {
        message.stream_epoch
        for messages in driver.read().values()
        for message in messages
        if isinstance(message, msg.Start)
    } == {0}


def test_lockstep_groups_get_orders_together():
    driver = in_step({"a": [0], "b": [1]}, trainers=2).begin()
    driver.end_epoch("a")
    assert driver.read() == {}
    driver.end_epoch("b")
    mail = driver.read()
    assert (mail[1], mail[2]) == ([msg.Continue(1)], [msg.Continue(1)])


def test_lockstep_group_ahead_does_not_wait_forever():
    """As one can be of which all ranks prepare their rows themselves for a while."""
    driver = in_step(
        lambda progress: {"a": [0], "b": [1]} if progress.epochs_done else {"a": [0]}, trainers=2
    ).begin()
    driver.end_epoch("a")
    driver.hear(msg.Joined("b"))
    driver.end_epoch("b", stream_epoch=2)  # while a is in epoch 1
    driver.read()
    driver.end_epoch("a", stream_epoch=1)
    mail = driver.read()
    assert (mail[1], mail[2]) == ([msg.Continue(2)], [msg.Continue(3)])


def test_epoch_begun_in_an_earlier_launch_is_not_the_granted_one():
    driver = in_step({"a": [0]}, networks="a", trainers=1, first_epoch=5).begin()
    driver.end_epoch("a", stream_epoch=2)
    assert driver.read()[1] == [msg.Continue(5)]


def test_a_replay_repeats_the_epochs_of_a_history():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1, replayed=(0, 2, 5))
    driver.ready()
    assert driver.read()[1][0].stream_epoch == 0
    driver.hear(msg.Joined("a"))
    driver.end_epoch("a", stream_epoch=0)
    driver.end_epoch("a", stream_epoch=2)
    assert driver.read() == {1: [msg.Continue(2), msg.Continue(5)]}


def test_recruit_reads_the_stream_from_where_its_node_does():
    driver = in_step(
        lambda progress: {"a": [0, 1]} if progress.epochs_done else {"a": [0]},
        networks="a",
        trainers=2,
    ).begin()
    driver.end_epoch("a")
    driver.hear(msg.Built("a", 2), msg.Paused("a", 1))
    first, second = driver.read()[1][-1], driver.read()
    assert second == {}
    assert first.reads_stream_from == 2  # of those that stay nobody reads that
    assert driver.hear(msg.Regrouped("a", 30, 0.1))


# ---- failing -----------------------------------------------------------------------------------


def test_transient_failure_doubles_the_backoff_each_time():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1, parts={"retries": 2}).begin()
    for seconds in (5.0, 10.0):
        driver.hear(msg.Failed("a", "stale", "", may_pass=True), msg.Ready(1))
        driver.hear(None, after=seconds - 0.1)
        assert driver.read() == {}
        driver.hear(None, after=0.2)
        assert isinstance(driver.read()[1][0], msg.Start)
        driver.hear(msg.Joined("a"))
    driver.hear(msg.Failed("a", "stale", "", may_pass=True))
    assert driver.standings["a"].outcome == Outcome("stale", is_failure=True, may_pass=True)
    assert [event.retry for event in driver.of("NetworkRetried")] == [1, 2]


def test_while_a_network_rests_its_devices_serve_others():
    driver = ControllerDriver({"a": [0]}, parts={"retries": 1}).begin()
    driver.plan = lambda progress: {"b": [0]} if "a" in progress.finished else {"a": [0]}
    driver.hear(msg.Failed("a", "stale", "", may_pass=True), msg.Ready(1))
    assert driver.read()[1][0].network.name == "b"


def test_failed_export_is_retried():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1, parts={"retries": 1}).begin()
    driver.end_epoch("a", final="1 epoch")
    driver.hear(msg.Failed("a", "stale", "", may_pass=True), msg.Ready(1))
    assert driver.standings["a"].outcome is None
    driver.hear(None, after=5.0)
    driver.hear(msg.Joined("a"), msg.Converged("a", "1 epoch"), msg.Stopped("a", 0.0))
    assert driver.ensemble.status is ExitStatus.OK


def test_unreadable_sample_is_logged_once_and_too_many_abort():
    driver = ControllerDriver(
        {"a": [0]},
        parts={"data": {"source": "builtin:digits", "max_unreadable": "5%"}},
        unreadable=frozenset({"known"}),
    )
    driver.hear(
        msg.SampleUnreadable("x", "torn", True),
        msg.SampleUnreadable("x", "torn", True),
        msg.SampleUnreadable("known", "torn", True),
        msg.SampleUnreadable("y", "torn", False),
    )
    assert [event.name for event in driver.of("SampleSkipped")] == ["x", "y"]
    driver.hear(msg.SampleUnreadable("z", "empty", True))
    assert kinds(driver.effects) == ["LogEvent", "AbortLaunch"]
    assert isinstance(driver.effects[1].error, UserError)
    assert "4 of 60 samples are unreadable" in str(driver.effects[1].error)


# ---- measuring ---------------------------------------------------------------------------------


def test_rates_are_measured_side_by_side_before_training():
    driver = ControllerDriver(
        {"a": [0]}, measures=True, trainers=2, parts={"profile": {"max_gpus": 1}}
    )
    driver.ready()
    assert [message for messages in driver.read().values() for message in messages] == [
        msg.Measure(driver.setup.spec.by_name["a"], (1,), 1),
        msg.Measure(driver.setup.spec.by_name["b"], (2,), 2),
    ]
    driver.hear(msg.Measured("a", 1, StepRate(10.0), 1.0, ""), msg.Ready(1), after=2.0)
    driver.hear(
        msg.Measured("b", 1, StepRate(0.0), 1.0, "out of memory", may_pass=False), after=3.0
    )
    (profiled,) = driver.of("ProfilingFinished")
    assert (profiled.measurements, profiled.seconds, profiled.rates) == (2, 5.0, {"a": (10.0,)})
    assert driver.standings == {
        "a": NetworkStatus(),
        "b": NetworkStatus((), Outcome("out of memory", is_failure=True)),
    }
    assert "SaveRates" in kinds(driver.effects)
    assert isinstance(driver.read()[1][0], msg.Start)


def test_measurement_is_retried_after_a_transient_failure():
    driver = ControllerDriver(
        {"a": [0]}, networks="a", measures=True, trainers=1, parts={"retries": 1}
    )
    driver.ready()
    driver.hear(msg.Measured("a", 1, StepRate(0.0), 1.0, "stale", may_pass=True), msg.Ready(1))
    assert [type(message) for message in driver.read()[1]] == [msg.Measure, msg.Measure]


def test_given_rates_keep_the_bounds_of_groups():
    driver = ControllerDriver({"a": [0]}, networks="a", measures=True, trainers=1)
    driver.ready()
    stored = [
        effect
        for effect in driver.hear(msg.Measured("a", 1, StepRate(10.0), 1.0, ""))
        if isinstance(effect, fx.SaveRates)
    ]
    assert [(network.rates, network.max_gpus) for network in stored[0].rates().models] == [
        ((10.0,), 4)
    ]


def test_rate_mismatch_is_logged():
    driver = ControllerDriver({"a": [0]}, networks="a", measures=True, trainers=1)
    driver.ready()
    driver.hear(msg.Measured("a", 1, StepRate(238.0, 0.4, 20), 1.0, ""), msg.Ready(1))
    driver.hear(
        msg.Joined("a"), msg.EpochDone("a", record(1), 0.0, "", rate=StepRate(1348.0, 0.02, 300))
    )
    (off,) = driver.of("RateMismatch")
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
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1, measures=not parts, parts=parts)
    driver.ready()
    if not parts:
        driver.hear(msg.Measured("a", 1, StepRate(10.0), 1.0, ""), msg.Ready(1))
    driver.hear(msg.Joined("a"), msg.EpochDone("a", record(1), 0.0, "", rate=rate))
    assert driver.of("EpochEnded")
    assert driver.of("RateMismatch") == []


# ---- ending early ------------------------------------------------------------------------------


def test_end_request_pauses_groups_and_ends_when_all_are_idle():
    driver = ControllerDriver({"a": [0], "b": [1]}, trainers=3).begin()
    driver.hear(fx.EndRequested("SIGTERM came"))
    assert driver.read() == {1: [msg.Pause(run_ends=True)], 2: [msg.Pause(run_ends=True)]}
    driver.hear(msg.Paused("a", 0))
    assert driver.read() == {1: [msg.Stop(final=False)]}
    driver.end_epoch("b")
    assert driver.read() == {2: [msg.Stop(final=False)]}
    driver.hear(msg.Stopped("a", 0.0), msg.Stopped("b", 0.0), msg.Ready(1))
    assert driver.ensemble.status is None
    driver.hear(msg.Ready(2))
    assert driver.ensemble.status is ExitStatus.RESUMABLE


def test_a_group_that_has_not_met_is_paused_when_it_has():
    driver = ControllerDriver({"a": [0]}, trainers=1)
    driver.ready()
    driver.read()
    driver.hear(fx.EndRequested("SIGTERM came"))
    assert driver.read() == {}
    driver.hear(msg.Joined("a"))
    assert driver.read() == {1: [msg.Pause(run_ends=True)]}


def test_paused_group_is_told_that_the_launch_ends():
    """It may be judging its network, and would not heed a pause that only lets it grow."""
    driver = growing()
    finish_b(driver)
    driver.hear(msg.Built("a", 2), fx.EndRequested("SIGTERM came"))
    assert driver.read() == {1: [msg.Pause(run_ends=False), msg.Pause(run_ends=True)]}
    driver.hear(msg.Paused("a", 0))
    assert driver.read() == {1: [msg.Stop(final=False)], 2: [msg.Stop(final=False)]}


def test_a_group_that_changes_is_paused_when_it_has_met():
    driver = growing()
    finish_b(driver)
    driver.hear(msg.Built("a", 2), msg.Paused("a", 0), fx.EndRequested("SIGTERM came"))
    driver.read()
    driver.hear(msg.Regrouped("a", 30, 0.1))
    assert driver.read() == {1: [msg.Pause(run_ends=True)]}


def test_end_request_stops_measurements():
    driver = ControllerDriver({"a": [0]}, networks="a", measures=True, trainers=1)
    driver.ready()
    driver.hear(fx.EndRequested("SIGTERM came"))
    driver.hear(msg.Measured("a", 1, StepRate(10.0), 1.0, ""))
    assert driver.ensemble.status is None
    driver.hear(msg.Ready(1))
    assert driver.ensemble.status is ExitStatus.RESUMABLE


def late(plan, **rest):
    """A launch that has learned that to start takes 10 seconds, of which 5 are left."""
    driver = ControllerDriver(plan, ends_s=25.0, **rest).begin()
    driver.hear(msg.Pace("a", 10, 1.0), after=10.0)
    driver.now = 20.0
    return driver


def test_too_late_group_continues_that_should_stop():
    driver = late(lambda progress: {"b": [0]} if progress.epochs_done else {"a": [0]})
    driver.end_epoch("a")
    assert driver.read() == {1: [msg.Continue(1)]}


def test_too_late_launch_starts_nothing_and_ends():
    driver = late(lambda progress: {"b": [1]} if progress.epochs_done else {"a": [0]}, trainers=2)
    driver.end_epoch("a", final="1 epoch")
    (late_,) = driver.of("TooLateToStart")
    assert (late_.networks, late_.left_s, late_.needed_s) == (("b",), 5.0, 10.0)
    driver.hear(msg.Stopped("a", 0.0), msg.Ready(1))
    assert driver.read() == {1: [msg.Stop(final=True), msg.Exit()], 2: [msg.Exit()]}
    assert [event.reason for event in driver.of("LaunchInterrupted")] == [
        "too little of the walltime is left to start another group"
    ]
    assert len(driver.of("TooLateToStart")) == 1


# ---- deaths ------------------------------------------------------------------------------------


def fail_group(**rest):
    driver = ControllerDriver({"a": [0, 1], "b": [2]}, trainers=3, outlives=True, **rest).begin()
    driver.end_epoch("a")
    driver.read()
    driver.hear(fx.RanksDied((2,)))
    return driver


def test_failed_group_returns_its_network_to_the_checkpoint():
    driver = fail_group()
    assert [(event.rank, event.device) for event in driver.of("RankDied")] == [(2, 1)]
    assert driver.read() == {}
    driver.plan = {"a": [0], "b": [2]}
    assert driver.ready(1)[0] == fx.ReadCheckpoint("a")
    assert driver.read() == {}
    driver.hear(
        fx.CheckpointRead("a", NetworkStatus(history(0.5, 0.6)), 12)
    )  # the second was saved, and not told
    assert [(event.epochs, event.position) for event in driver.of("GroupFailed")] == [(2, 12)]
    assert [event.record.epoch for event in driver.of("EpochEnded")] == [1, 2]
    assert driver.read() == {}  # it comes last: b is left


def test_failed_group_holds_its_other_ranks_until_all_are_idle():
    driver = ControllerDriver({"a": [0, 1, 2]}, trainers=3, outlives=True).begin()
    driver.plan = {"b": [0]}
    driver.hear(fx.RanksDied((3,)), msg.Ready(1))
    assert driver.read() == {}
    assert driver.ready(2)[0] == fx.ReadCheckpoint("a")
    assert [start.network.name for start in driver.read()[1]] == ["b"]


def test_nothing_that_a_struck_group_says_is_believed():
    driver = fail_group()
    assert driver.end_epoch("a", final="2 epochs") == []
    assert (
        driver.hear(
            msg.Stopped("a", 0.0), msg.Failed("a", "NaN", "", may_pass=False), msg.Pace("a", 1, 1.0)
        )
        == []
    )


def test_what_a_rank_said_before_it_died_may_come_late():
    driver = fail_group()
    driver.ready(1)
    driver.hear(fx.CheckpointRead("a", NetworkStatus(history(0.5)), 0))
    assert driver.hear(msg.Ready(2)) == []


def test_failed_network_gets_no_devices_before_its_checkpoint():
    driver = ControllerDriver(
        {"a": [0, 1]}, networks="a", gpus={"a": [2, 2]}, outlives=True
    ).begin()
    driver.plan = {"a": [2, 3]}
    driver.hear(fx.RanksDied((1,)))
    assert fx.ReadCheckpoint("a") in driver.ready(2)
    assert driver.read() == {}
    driver.hear(fx.CheckpointRead("a", NetworkStatus(), 0))
    assert [event.devices for event in driver.of("GroupStarted")] == [(0, 1), (2, 3)]


def test_measurement_of_a_dead_rank_is_repeated_by_others():
    driver = ControllerDriver(
        {"a": [0]}, networks="a", measures=True, trainers=2, outlives=True, gpus={"a": [1, 1]}
    )
    driver.ready(2)
    driver.ready(1)
    driver.read()
    driver.hear(fx.RanksDied((2,)))
    assert driver.read() == {1: [msg.Measure(driver.setup.spec.by_name["a"], (1,), 2)]}


def test_network_planned_on_a_dead_trainer_gets_another():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=2, outlives=True)
    driver.ready(2)
    driver.plan = {"a": [1]}
    driver.hear(fx.RanksDied((1,)))
    assert driver.read()[2][0].ranks == (2,)


def test_a_preprocessor_that_dies_holds_nobody_up():
    driver = ControllerDriver({"a": [0]}, trainers=1, stream=layout(9), outlives=True)
    driver.ready()
    assert driver.read() == {}
    driver.hear(fx.RanksDied((0,)))
    assert [(event.rank, event.device) for event in driver.of("RankDied")] == [(0, None)]
    assert isinstance(driver.read()[1][0], msg.Start)


def test_too_few_trainers_that_are_left_end_the_launch():
    driver = ControllerDriver(
        {"a": [0, 1]}, networks="a", trainers=2, outlives=True, gpus={"a": [2, 2]}
    ).begin()
    driver.plan = {}
    driver.hear(fx.RanksDied((2,)), msg.Ready(1), fx.CheckpointRead("a", NetworkStatus(), 0))
    assert [event.reason for event in driver.of("LaunchInterrupted")] == [
        "1 rank died, and 1 trainer is too few for a"
    ]
    assert driver.ensemble.status is ExitStatus.RESUMABLE


def test_without_trainers_the_launch_ends():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1, outlives=True).begin()
    driver.hear(fx.RanksDied((1,)))
    assert driver.effects[-1] == fx.ReadCheckpoint("a")
    driver.hear(fx.CheckpointRead("a", NetworkStatus(), 0))
    assert driver.effects[-1] == fx.EndLaunch(ExitStatus.RESUMABLE)


def test_a_replay_does_not_outlive_its_ranks():
    driver = ControllerDriver(
        {"a": [0]}, networks="a", trainers=1, outlives=True, replayed=(0, 1)
    ).begin()
    fail = driver.hear(fx.RanksDied((1,)))[0]
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
    driver = ControllerDriver({"a": [0]}, trainers=2).begin()
    with pytest.raises(
        ProtocolViolation,
        match="cannot take|idle already|has no group|builds nothing|measurement is not running|"
        "not requested|unexpected input|does not produce|has reported",
    ) as caught:
        driver.hear(word)
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
    again = driver.make()
    *before, last = error.history
    assert [again.handle(moment.now_s, moment.message) for moment in before] == [
        list(moment.effects) for moment in before
    ]
    with pytest.raises(ProtocolViolation) as repeated:
        again.handle(last.now_s, last.message)
    assert repeated.value.history == error.history


def test_history_keeps_only_the_first_pace_report():
    driver = ControllerDriver({"a": [0]}, trainers=1).begin()
    driver.hear(*[msg.Pace("a", samples, 1.0) for samples in range(50)])
    with pytest.raises(ProtocolViolation) as caught:
        driver.hear(msg.Ready(0))
    assert [type(moment.message) for moment in caught.value.history].count(msg.Pace) == 1
