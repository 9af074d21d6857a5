"""Decisions of the controller; test_random_launches.py has messages in any order."""

from dataclasses import replace

import pytest

from fleet.comm import messages as msg
from fleet.control import effects as fx
from fleet.control.history import ProtocolViolation
from fleet.domain import events
from fleet.domain.network import NetworkStatus, Outcome, StepRate
from fleet.errors import ExitStatus, InfrastructureError, UserError
from fleet.search.calls import Report, Tell
from fleet.search.controller import SearchController, make_controller
from fleet.search.entries import Entry
from fleet.search.pruning import make_pruner
from fleet.search.searcher import Verdict
from fleet.spec.dimensions import Range
from fleet.spec.search import Prune
from scheduler.base import Member, Round
from tests.fleet.control.driver import ControllerDriver, layout
from tests.fleet.histories import history, record
from tests.fleet.search.launches import LEARNING_RATE, search_of
from tests.refusals import refused


def kinds(effects):
    return [type(effect).__name__ for effect in effects]


# ---- start, continue, stop ---------------------------------------------------------------------


def test_group_starts_when_all_its_trainers_are_ready():
    driver = ControllerDriver({"a": [0, 1]})
    assert driver.send_ready(1) == []
    driver.send_ready(2)
    (start,) = driver.mail[1]
    assert start == driver.mail[2][0] == msg.Start(driver.setup.spec.by_name["a"], (1, 2), 1, 0)
    assert driver.mail[3] == []


def test_group_continues_with_the_next_epoch():
    driver = ControllerDriver({"a": [0]}).begin()
    driver.end_epoch("a")
    assert driver.read_mail() == {1: [msg.Continue(1)]}
    assert [event.record.epoch for event in driver.events_of("EpochEnded")] == [1]
    assert driver.statuses["a"].history == (record(1),)


def test_group_outside_the_plan_stops_and_another_starts():
    driver = ControllerDriver(
        lambda progress: {"b": [0]} if progress.epochs_done else {"a": [0]}
    ).begin()
    driver.end_epoch("a")
    assert driver.read_mail() == {1: [msg.Stop(final=False)]}
    driver.handle(msg.Stopped("a", 0.5), msg.Ready(1))
    assert driver.read_mail() == {1: [msg.Start(driver.setup.spec.by_name["b"], (1,), 2, 0)]}


def test_group_keeps_its_devices_until_it_has_ended():
    driver = ControllerDriver(
        lambda progress: {"b": [1]} if progress.epochs_done else {"a": [0, 1]}
    ).begin()
    driver.end_epoch("a")
    driver.handle(msg.Ready(2))  # may overtake the group's last message
    assert driver.read_mail() == {1: [msg.Stop(final=False)]}
    driver.handle(msg.Stopped("a", 0.0))
    assert list(driver.read_mail()) == [2]


def test_converged_network_stops_whatever_the_plan():
    driver = ControllerDriver({"a": [0]}).begin()
    driver.end_epoch("a", final="1 epoch")
    assert driver.read_mail() == {1: [msg.Stop(final=True)]}
    assert driver.statuses["a"].outcome == Outcome("1 epoch")


def test_network_converged_before_is_only_exported():
    driver = ControllerDriver({"a": [0]}, statuses={"a": NetworkStatus(history(0.5))}).begin()
    driver.handle(msg.Converged("a", "1 epoch"))
    assert driver.read_mail() == {1: [msg.Stop(final=True)]}
    assert driver.statuses["a"] == NetworkStatus(history(0.5), Outcome("1 epoch"))


def test_network_continues_from_the_checkpoint_before():
    driver = ControllerDriver({"a": [0]}, statuses={"a": NetworkStatus(history(0.5, 0.6))}).begin()
    driver.handle(msg.FellBack("a", "torn", history(0.5), 30))
    assert driver.statuses["a"] == NetworkStatus(history(0.5))
    driver.end_epoch("a")
    assert driver.read_mail() == {1: [msg.Continue(2)]}


def test_policy_is_called_after_news_and_not_on_clock_ticks():
    driver = ControllerDriver({"a": [0]}).begin()
    before = len(driver.progress)
    driver.handle(msg.Pace("a", 10, 1.0), None, after=100.0)
    assert len(driver.progress) == before
    driver.end_epoch("a")
    assert len(driver.progress) == before + 1


class PrunedDriver(ControllerDriver):
    """A controller with the pruner of the spec."""

    def make_search(self, run):
        return make_controller(self.setup.spec, replace(self.setup.spec, networks=()), run, {}, 0)


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
    driver = PrunedDriver(
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
    driver = PrunedDriver(
        {"a": [0]},
        parts={"prune": {"rule": "asha", "min_epochs": 1, "factor": 2}},
        elsewhere=frozenset("b"),
    )
    driver.begin().end_epoch("a")
    driver.handle(msg.Stopped("a", 0.0), msg.Ready(1))
    assert [event.verdict for event in driver.events_of("NetworkVerdict")] == ["pause"]
    driver.handle(fx.LeaseGranted("b", NetworkStatus(history(0.5), outcome), generation=1))
    assert [event.verdict for event in driver.events_of("NetworkVerdict")] == ["pause", "go_on"]
    assert driver.read_mail()[1][-1] == msg.Start(driver.setup.spec.by_name["a"], (1,), 2, 1)


class SearchDriver(ControllerDriver):
    """A controller whose only network was proposed by a searcher."""

    def make_search(self, run):
        space = {LEARNING_RATE: Range(1e-5, 0.1)}
        search = SearchController(
            run,
            [Entry("net", search_of(max_trials=1), space)],
            [],
            make_pruner(Prune(), 9, 0),
            "searcher",
            trainers=1,
        )
        search.restore(
            [events.SearcherCalled("net", "ask", 0, answer={LEARNING_RATE: 0.01}, network="net-0")]
        )
        return search

    def answer_searcher(self):
        """Answer all calls of the searcher, and return them."""
        calls, effects = [], self.effects
        while consults := [effect for effect in effects if isinstance(effect, fx.CallSearcher)]:
            calls += [consult.call for consult in consults]
            effects = self.handle(
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
            lambda driver: driver.end_epoch("net-0", final="1 epoch"),
            [Report(0, 1, 0.5), Tell(0, "finished", 0.5)],
            "finished",
        ),
        (lambda driver: driver.end_epoch("net-0"), [], "pruned"),
        (
            lambda driver: driver.handle(msg.Converged("net-0", "no better")),
            [Tell(0, "finished", None)],
            "finished",
        ),
    ],
    ids=["the last", "not the last", "converged"],
)
def test_pruned_network_has_finished_after_its_last_epoch(last, calls, end):
    driver = SearchDriver({"net-0": [0]}, networks=["net-0"]).begin()
    driver.handle(fx.NetworkCommand("net-0", Verdict.STOP))
    assert driver.answer_searcher() == []
    last(driver)
    assert driver.answer_searcher() == calls
    assert (
        driver.statuses["net-0"].is_finished
        == bool(driver.events_of("NetworkFinished"))
        == (end == "finished")
    )
    driver.handle(msg.Stopped("net-0", 0.0))
    assert [call.outcome for call in driver.answer_searcher()] == ([] if calls else [end])
    assert driver.controller.status is ExitStatus.OK


def test_pruned_and_failed_network_follows_its_checkpoint():
    driver = SearchDriver({"net-0": [0]}, networks=["net-0"], outlives=True).begin()
    driver.handle(fx.NetworkCommand("net-0", Verdict.STOP))
    driver.handle(fx.RanksDied((1,)))
    assert driver.answer_searcher() == []
    driver.handle(fx.CheckpointRead("net-0", NetworkStatus((record(1),), Outcome("1 epoch")), 0))
    assert [type(call) for call in driver.answer_searcher()] == [Report, Tell]
    assert driver.statuses["net-0"].is_finished


@pytest.mark.parametrize(
    ("failure", "status"), [(None, ExitStatus.OK), ("NaN", ExitStatus.NETWORK_FAILED)]
)
def test_launch_ends_when_all_networks_have_ended(failure, status):
    driver = ControllerDriver({"a": [0]}, networks="a", stream=layout(9))
    driver.handle(msg.Throughput(0, 100.0))
    driver.begin()
    if failure:
        driver.handle(msg.Failed("a", failure, "", may_pass=False))
    else:
        driver.end_epoch("a", final="1 epoch")
        driver.handle(msg.Stopped("a", 0.0))
    assert driver.effects[-1] == fx.EndLaunch(status)
    assert {rank: messages[-1] for rank, messages in driver.read_mail().items()} == dict.fromkeys(
        [1, 2, 3, 4, "preprocessor"], msg.Exit()
    )
    assert driver.controller.status is status
    assert driver.handle(msg.Ready(1), None) == []


def test_launch_without_work_ends_before_any_message():
    driver = ControllerDriver(
        {}, networks="a", statuses={"a": NetworkStatus(history(0.5), Outcome("1 epoch"))}
    )
    assert driver.controller.status is ExitStatus.OK


def test_policy_that_starts_nothing_aborts_the_launch():
    (fail,) = ControllerDriver({}).send_ready(1)
    assert isinstance(fail.error, UserError)
    assert "leaves a, b waiting" in str(fail.error)


# ---- groups that change ------------------------------------------------------------------------


def growing(**options):
    """Return a driver in which network a on device 0 gets device 1 when b has finished."""
    return ControllerDriver(
        lambda progress: {"a": [0, 1]} if "b" in progress.finished else {"a": [0], "b": [1]},
        trainers=2,
        **options,
    ).begin()


def finish_b(driver):
    driver.end_epoch("b", final="1 epoch")
    driver.handle(msg.Stopped("b", 0.0), msg.Ready(2))
    mail = driver.read_mail()
    assert mail[2][0] == msg.Stop(final=True)
    return mail[2][1:]


def test_group_grows_inside_its_epoch_after_the_recruit_built():
    driver = growing()
    assert finish_b(driver) == [msg.Join(driver.setup.spec.by_name["a"], 3)]
    driver.handle(msg.Built("a", 2))
    assert driver.read_mail() == {1: [msg.Pause(run_ends=False)]}
    driver.handle(msg.Paused("a", 0))
    order = msg.Regroup((1, 2), stay_count=1, group=4, stream_epoch=0, reads_stream_from=0)
    assert driver.read_mail() == {1: [order], 2: [order]}
    driver.handle(msg.Regrouped("a", 30, 0.5))
    (changed,) = driver.events_of("GroupChanged")
    assert (changed.before, changed.devices, changed.position) == ((0,), (0, 1), 30)


def test_group_grows_at_an_epoch_end_that_voids_the_pause():
    driver = growing()
    finish_b(driver)
    driver.handle(msg.Built("a", 2))
    driver.end_epoch("a")
    assert driver.read_mail()[1] == [
        msg.Pause(run_ends=False),
        msg.Regroup((1, 2), 1, 4, stream_epoch=1, reads_stream_from=0),
    ]


def test_group_grows_between_two_epochs_in_a_ring():
    driver = growing(stream=layout(3, is_ring=True))
    driver.handle(msg.Throughput(0, 100.0))
    driver.handle(msg.Joined("a"), msg.Joined("b"))
    driver.read_mail()
    finish_b(driver)
    driver.handle(msg.Built("a", 2))
    assert driver.read_mail() == {}
    driver.end_epoch("a")
    assert isinstance(driver.read_mail()[1][0], msg.Regroup)


def test_group_continues_when_its_recruit_is_dismissed():
    driver = ControllerDriver({"a": [0]}, trainers=2).begin(1)
    driver.plan = {"a": [0, 1]}
    driver.end_epoch("a")
    driver.handle(msg.Ready(2))
    assert driver.read_mail() == {
        1: [msg.Continue(1)],
        2: [msg.Join(driver.setup.spec.by_name["a"], 2)],
    }
    driver.plan = {"a": [0], "b": [1]}
    driver.end_epoch("a")
    assert driver.read_mail() == {1: [msg.Continue(2)], 2: [msg.Stop(final=False)]}
    assert driver.handle(msg.Built("a", 2)) == []  # sent before the dismissal arrived
    driver.handle(msg.Ready(2))
    assert isinstance(driver.read_mail()[2][0], msg.Start)


def test_group_releases_devices_at_the_end_of_its_epoch():
    driver = ControllerDriver(
        lambda progress: {"a": [1], "b": [0]} if progress.epochs_done else {"a": [0, 1]}, trainers=2
    ).begin()
    driver.end_epoch("a")
    assert driver.read_mail() == {1: [msg.Regroup((2,), 1, 2, stream_epoch=1, reads_stream_from=0)]}
    driver.handle(msg.Ready(1), msg.Regrouped("a", 0, 0.1))
    assert driver.read_mail() == {1: [msg.Start(driver.setup.spec.by_name["b"], (1,), 3, 0)]}


@pytest.mark.parametrize(
    "remaining",
    [
        {"outlives": True},
        {"parts": {"train": {"batch": {"when_scaled": "per_gpu"}}}},
        {"gpus": {"a": [2, 4]}},
    ],
    ids=["ranks may die", "the batch follows the GPUs", "too little stays"],
)
def test_group_that_cannot_change_stops_and_starts_again(remaining):
    driver = ControllerDriver(
        lambda progress: {"a": [1, 2]} if progress.epochs_done else {"a": [0, 1]},
        trainers=3,
        networks="a",
        **remaining,
    ).begin()
    driver.end_epoch("a")
    assert driver.read_mail() == {1: [msg.Stop(final=False)]}
    driver.handle(msg.Stopped("a", 0.0), msg.Ready(1), msg.Ready(2))
    assert isinstance(driver.read_mail()[2][0], msg.Start)


def test_failing_group_dismisses_its_recruits():
    driver = growing()
    finish_b(driver)
    driver.handle(msg.Failed("a", "NaN", "", may_pass=False))
    assert driver.read_mail()[2][0] == msg.Stop(final=False)


def test_stopping_group_dismisses_its_recruits():
    driver = growing()
    finish_b(driver)
    driver.end_epoch("a", final="1 epoch")
    assert driver.read_mail() == {1: [msg.Stop(final=True)], 2: [msg.Stop(final=False)]}


# ---- in step -----------------------------------------------------------------------------------


def in_step(plan, **options):
    driver = ControllerDriver(plan, stream=layout(3), **options)
    driver.handle(msg.Throughput(0, 100.0))
    return driver


def test_preprocessors_hold_epochs_of_joining_groups():
    driver = in_step({"a": [0], "b": [1]}, trainers=2)
    driver.send_ready()
    assert driver.read_mail()["preprocessor"] == [
        msg.Produce(limit=12, hold=0, first=0, turns=(0,))
    ]
    driver.handle(msg.Joined("a"))
    assert "preprocessor" not in driver.read_mail()
    driver.handle(msg.Joined("b"))
    assert driver.read_mail()["preprocessor"] == [
        msg.Produce(limit=12, hold=6, first=0, turns=(0,))
    ]


def test_groups_that_can_start_together_wait_for_each_other():
    driver = in_step({"a": [0], "b": [1]}, trainers=2)
    driver.send_ready(1)
    assert driver.read_mail() == {}
    driver.send_ready(2)
    assert {
        message.stream_epoch
        for messages in driver.read_mail().values()
        for message in messages
        if isinstance(message, msg.Start)
    } == {0}


def test_lockstep_groups_get_orders_together():
    driver = in_step({"a": [0], "b": [1]}, trainers=2).begin()
    driver.end_epoch("a")
    assert driver.read_mail() == {}
    driver.end_epoch("b")
    mail = driver.read_mail()
    assert (mail[1], mail[2]) == ([msg.Continue(1)], [msg.Continue(1)])


def test_lockstep_group_ahead_does_not_wait_forever():
    """A group can be ahead if its ranks have prepared their own rows for a while."""
    driver = in_step(
        lambda progress: {"a": [0], "b": [1]} if progress.epochs_done else {"a": [0]}, trainers=2
    ).begin()
    driver.end_epoch("a")
    driver.handle(msg.Joined("b"))
    driver.end_epoch("b", stream_epoch=2)  # while a is in epoch 1
    driver.read_mail()
    driver.end_epoch("a", stream_epoch=1)
    mail = driver.read_mail()
    assert (mail[1], mail[2]) == ([msg.Continue(2)], [msg.Continue(3)])


def test_epoch_begun_in_an_earlier_launch_is_not_the_granted_one():
    driver = in_step({"a": [0]}, networks="a", trainers=1, first_epoch=5).begin()
    driver.end_epoch("a", stream_epoch=2)
    assert driver.read_mail()[1] == [msg.Continue(5)]


def test_replay_repeats_the_epochs_of_a_history():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1, replayed=(0, 2, 5))
    driver.send_ready()
    assert driver.read_mail()[1][0].stream_epoch == 0
    driver.handle(msg.Joined("a"))
    driver.end_epoch("a", stream_epoch=0)
    driver.end_epoch("a", stream_epoch=2)
    assert driver.read_mail() == {1: [msg.Continue(2), msg.Continue(5)]}


def test_recruit_reads_the_stream_from_where_its_node_does():
    driver = in_step(
        lambda progress: {"a": [0, 1]} if progress.epochs_done else {"a": [0]},
        networks="a",
        trainers=2,
    ).begin()
    driver.end_epoch("a")
    driver.handle(msg.Built("a", 2), msg.Paused("a", 1))
    first, second = driver.read_mail()[1][-1], driver.read_mail()
    assert second == {}
    assert first.reads_stream_from == 2  # ranks that stay ignore it
    assert driver.handle(msg.Regrouped("a", 30, 0.1))


# ---- failing -----------------------------------------------------------------------------------


def test_transient_failure_doubles_the_backoff_each_time():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1, parts={"retries": 2}).begin()
    for seconds in (5.0, 10.0):
        driver.handle(msg.Failed("a", "stale", "", may_pass=True), msg.Ready(1))
        driver.handle(None, after=seconds - 0.1)
        assert driver.read_mail() == {}
        driver.handle(None, after=0.2)
        assert isinstance(driver.read_mail()[1][0], msg.Start)
        driver.handle(msg.Joined("a"))
    driver.handle(msg.Failed("a", "stale", "", may_pass=True))
    assert driver.statuses["a"].outcome == Outcome("stale", is_failure=True, may_pass=True)
    assert [event.retry for event in driver.events_of("NetworkRetried")] == [1, 2]


def test_backoff_leaves_the_devices_to_other_networks():
    driver = ControllerDriver({"a": [0]}, parts={"retries": 1}).begin()
    driver.plan = lambda progress: {"b": [0]} if "a" in progress.finished else {"a": [0]}
    driver.handle(msg.Failed("a", "stale", "", may_pass=True), msg.Ready(1))
    assert driver.read_mail()[1][0].network.name == "b"


def test_failed_export_is_retried():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1, parts={"retries": 1}).begin()
    driver.end_epoch("a", final="1 epoch")
    driver.handle(msg.Failed("a", "stale", "", may_pass=True), msg.Ready(1))
    assert driver.statuses["a"].outcome is None
    driver.handle(None, after=5.0)
    driver.handle(msg.Joined("a"), msg.Converged("a", "1 epoch"), msg.Stopped("a", 0.0))
    assert driver.controller.status is ExitStatus.OK


def test_unreadable_sample_is_logged_once_and_too_many_abort():
    driver = ControllerDriver(
        {"a": [0]},
        parts={"data": {"source": "builtin:digits", "max_unreadable": "5%"}},
        unreadable=frozenset({"known"}),
    )
    driver.handle(
        msg.SampleUnreadable("x", "torn", True),
        msg.SampleUnreadable("x", "torn", True),
        msg.SampleUnreadable("known", "torn", True),
        msg.SampleUnreadable("y", "torn", False),
    )
    assert [event.name for event in driver.events_of("SampleSkipped")] == ["x", "y"]
    driver.handle(msg.SampleUnreadable("z", "empty", True))
    assert kinds(driver.effects) == ["LogEvent", "AbortLaunch"]
    assert isinstance(driver.effects[1].error, UserError)
    assert "4 of 60 samples are unreadable" in str(driver.effects[1].error)


# ---- measuring ---------------------------------------------------------------------------------


def test_rates_are_measured_side_by_side_before_training():
    driver = ControllerDriver(
        {"a": [0]}, measures=True, trainers=2, parts={"profile": {"max_gpus": 1}}
    )
    driver.send_ready()
    assert [message for messages in driver.read_mail().values() for message in messages] == [
        msg.Measure(driver.setup.spec.by_name["a"], (1,), 1),
        msg.Measure(driver.setup.spec.by_name["b"], (2,), 2),
    ]
    driver.handle(msg.Measured("a", 1, StepRate(10.0), 1.0, ""), msg.Ready(1), after=2.0)
    driver.handle(
        msg.Measured("b", 1, StepRate(0.0), 1.0, "out of memory", may_pass=False), after=3.0
    )
    (profiled,) = driver.events_of("ProfilingFinished")
    assert (profiled.measurements, profiled.seconds, profiled.rates) == (2, 5.0, {"a": (10.0,)})
    assert driver.statuses == {
        "a": NetworkStatus(),
        "b": NetworkStatus((), Outcome("out of memory", is_failure=True)),
    }
    assert "SaveRates" in kinds(driver.effects)
    assert isinstance(driver.read_mail()[1][0], msg.Start)


def test_network_that_is_not_measured_has_middle_rates():
    driver = ControllerDriver(
        {"a": [0]},
        measures=True,
        unmeasured="b",
        trainers=2,
        parts={"profile": {"max_gpus": 1}},
    )
    driver.send_ready()
    driver.handle(msg.Measured("a", 1, StepRate(10.0), 1.0, ""), msg.Ready(1))
    (profiled,) = driver.events_of("ProfilingFinished")
    assert (profiled.measurements, profiled.rates) == (1, {"a": (10.0,), "b": (10.0,)})


@pytest.mark.parametrize("is_trained", [False, True])
def test_unmeasurable_network_fails_once_it_is_leased(is_trained):
    driver = ControllerDriver(
        {"a": [0]},
        measures=True,
        trainers=2,
        parts={"profile": {"max_gpus": 1}},
        elsewhere=frozenset("b"),
    )
    driver.send_ready()
    driver.handle(msg.Measured("a", 1, StepRate(10.0), 1.0, ""), msg.Ready(1))
    driver.handle(msg.Measured("b", 1, StepRate(0.0), 1.0, "out of memory"), msg.Ready(2))
    assert driver.events_of("ProfilingFinished")
    assert not driver.events_of("NetworkFailed")
    outcome = Outcome("9 epochs") if is_trained else None  # by another launch
    driver.handle(fx.LeaseGranted("b", NetworkStatus((), outcome), generation=1))
    failed = [event.reason for event in driver.events_of("NetworkFailed")]
    assert failed == ([] if is_trained else ["out of memory"])


def test_death_while_measuring_counts_only_with_the_lease():
    driver = ControllerDriver(
        {"a": [0]}, measures=True, trainers=3, elsewhere=frozenset("b"), outlives=True
    )
    driver.send_ready()
    ranks = {
        message.network.name: message.ranks[0]
        for messages in driver.read_mail().values()
        for message in messages
    }
    effects = driver.handle(fx.RanksDied((ranks["b"],)), fx.RanksDied((ranks["a"],)))
    assert [effect.network for effect in effects if isinstance(effect, fx.SaveDeath)] == ["a"]


def test_measurement_is_retried_after_a_transient_failure():
    driver = ControllerDriver(
        {"a": [0]}, networks="a", measures=True, trainers=1, parts={"retries": 1}
    )
    driver.send_ready()
    driver.handle(msg.Measured("a", 1, StepRate(0.0), 1.0, "stale", may_pass=True), msg.Ready(1))
    assert [type(message) for message in driver.read_mail()[1]] == [msg.Measure, msg.Measure]


def test_given_rates_keep_the_bounds_of_groups():
    driver = ControllerDriver({"a": [0]}, networks="a", measures=True, trainers=1)
    driver.send_ready()
    stored = [
        effect
        for effect in driver.handle(msg.Measured("a", 1, StepRate(10.0), 1.0, ""))
        if isinstance(effect, fx.SaveRates)
    ]
    assert [(network.rates, network.max_gpus) for network in stored[0].rates().models] == [
        ((10.0,), 4)
    ]


def test_rate_mismatch_is_logged():
    driver = ControllerDriver({"a": [0]}, networks="a", measures=True, trainers=1)
    driver.send_ready()
    driver.handle(msg.Measured("a", 1, StepRate(238.0, 0.4, 20), 1.0, ""), msg.Ready(1))
    driver.handle(
        msg.Joined("a"), msg.EpochDone("a", record(1), 0.0, "", rate=StepRate(1348.0, 0.02, 300))
    )
    (off,) = driver.events_of("RateMismatch")
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
    driver.send_ready()
    if not parts:
        driver.handle(msg.Measured("a", 1, StepRate(10.0), 1.0, ""), msg.Ready(1))
    driver.handle(msg.Joined("a"), msg.EpochDone("a", record(1), 0.0, "", rate=rate))
    assert driver.events_of("EpochEnded")
    assert driver.events_of("RateMismatch") == []


# ---- ending early ------------------------------------------------------------------------------


def test_end_request_pauses_groups_and_ends_when_all_are_idle():
    driver = ControllerDriver({"a": [0], "b": [1]}, trainers=3).begin()
    driver.handle(fx.EndRequested("SIGTERM came"))
    assert driver.read_mail() == {1: [msg.Pause(run_ends=True)], 2: [msg.Pause(run_ends=True)]}
    driver.handle(msg.Paused("a", 0))
    assert driver.read_mail() == {1: [msg.Stop(final=False)]}
    driver.end_epoch("b")
    assert driver.read_mail() == {2: [msg.Stop(final=False)]}
    driver.handle(msg.Stopped("a", 0.0), msg.Stopped("b", 0.0), msg.Ready(1))
    assert driver.controller.status is None
    driver.handle(msg.Ready(2))
    assert driver.controller.status is ExitStatus.RESUMABLE


def test_forming_group_is_paused_once_it_has_formed():
    driver = ControllerDriver({"a": [0]}, trainers=1)
    driver.send_ready()
    driver.read_mail()
    driver.handle(fx.EndRequested("SIGTERM came"))
    assert driver.read_mail() == {}
    driver.handle(msg.Joined("a"))
    assert driver.read_mail() == {1: [msg.Pause(run_ends=True)]}


def test_end_request_pauses_a_pausing_group_again():
    """It may be waiting for a verdict, and would ignore a pause for growing."""
    driver = growing()
    finish_b(driver)
    driver.handle(msg.Built("a", 2), fx.EndRequested("SIGTERM came"))
    assert driver.read_mail() == {1: [msg.Pause(run_ends=False), msg.Pause(run_ends=True)]}
    driver.handle(msg.Paused("a", 0))
    assert driver.read_mail() == {1: [msg.Stop(final=False)], 2: [msg.Stop(final=False)]}


def test_regrouping_group_is_paused_once_it_has_regrouped():
    driver = growing()
    finish_b(driver)
    driver.handle(msg.Built("a", 2), msg.Paused("a", 0), fx.EndRequested("SIGTERM came"))
    driver.read_mail()
    driver.handle(msg.Regrouped("a", 30, 0.1))
    assert driver.read_mail() == {1: [msg.Pause(run_ends=True)]}


def test_end_request_stops_measurements():
    driver = ControllerDriver({"a": [0]}, networks="a", measures=True, trainers=1)
    driver.send_ready()
    driver.handle(fx.EndRequested("SIGTERM came"))
    driver.handle(msg.Measured("a", 1, StepRate(10.0), 1.0, ""))
    assert driver.controller.status is None
    driver.handle(msg.Ready(1))
    assert driver.controller.status is ExitStatus.RESUMABLE


def late(plan, **options):
    """Return a driver with 5 seconds left, in which starting a group took 10 seconds."""
    driver = ControllerDriver(plan, ends_s=25.0, **options).begin()
    driver.handle(msg.Pace("a", 10, 1.0), after=10.0)
    driver.now = 20.0
    return driver


def test_group_to_be_replaced_continues_if_it_is_too_late():
    driver = late(lambda progress: {"b": [0]} if progress.epochs_done else {"a": [0]})
    driver.end_epoch("a")
    assert driver.read_mail() == {1: [msg.Continue(1)]}


def test_launch_starts_nothing_and_ends_if_it_is_too_late():
    driver = late(lambda progress: {"b": [1]} if progress.epochs_done else {"a": [0]}, trainers=2)
    driver.end_epoch("a", final="1 epoch")
    (late_,) = driver.events_of("TooLateToStart")
    assert (late_.networks, late_.left_s, late_.needed_s) == (("b",), 5.0, 10.0)
    driver.handle(msg.Stopped("a", 0.0), msg.Ready(1))
    assert driver.read_mail() == {1: [msg.Stop(final=True), msg.Exit()], 2: [msg.Exit()]}
    assert [event.reason for event in driver.events_of("LaunchInterrupted")] == [
        "too little of the walltime is left to start another group"
    ]
    assert len(driver.events_of("TooLateToStart")) == 1


# ---- deaths ------------------------------------------------------------------------------------


def fail_group(**options):
    driver = ControllerDriver({"a": [0, 1], "b": [2]}, trainers=3, outlives=True, **options).begin()
    driver.end_epoch("a")
    driver.read_mail()
    driver.handle(fx.RanksDied((2,)))
    return driver


def test_failed_group_returns_its_network_to_the_checkpoint():
    driver = fail_group()
    assert [(event.rank, event.device) for event in driver.events_of("RankDied")] == [(2, 1)]
    assert driver.read_mail() == {}
    driver.plan = {"a": [0], "b": [2]}
    assert driver.send_ready(1)[0] == fx.ReadCheckpoint("a")
    assert driver.read_mail() == {}
    # the second epoch was saved but not reported
    driver.handle(fx.CheckpointRead("a", NetworkStatus(history(0.5, 0.6)), 12))
    assert [(event.epochs, event.position) for event in driver.events_of("GroupFailed")] == [
        (2, 12)
    ]
    assert [event.record.epoch for event in driver.events_of("EpochEnded")] == [1, 2]
    assert driver.read_mail() == {}  # it is trained last, after b


def test_failed_group_holds_its_other_ranks_until_all_are_idle():
    driver = ControllerDriver({"a": [0, 1, 2]}, trainers=3, outlives=True).begin()
    driver.plan = {"b": [0]}
    driver.handle(fx.RanksDied((3,)), msg.Ready(1))
    assert driver.read_mail() == {}
    assert driver.send_ready(2)[0] == fx.ReadCheckpoint("a")
    assert [start.network.name for start in driver.read_mail()[1]] == ["b"]


def test_failed_group_has_its_messages_ignored():
    driver = fail_group()
    assert driver.end_epoch("a", final="2 epochs") == []
    assert (
        driver.handle(
            msg.Stopped("a", 0.0), msg.Failed("a", "NaN", "", may_pass=False), msg.Pace("a", 1, 1.0)
        )
        == []
    )


def test_message_of_a_dead_rank_may_arrive_late():
    driver = fail_group()
    driver.send_ready(1)
    driver.handle(fx.CheckpointRead("a", NetworkStatus(history(0.5)), 0))
    assert driver.handle(msg.Ready(2)) == []


def test_failed_network_gets_no_devices_before_its_checkpoint():
    driver = ControllerDriver(
        {"a": [0, 1]}, networks="a", gpus={"a": [2, 2]}, outlives=True
    ).begin()
    driver.plan = {"a": [2, 3]}
    driver.handle(fx.RanksDied((1,)))
    assert fx.ReadCheckpoint("a") in driver.send_ready(2)
    assert driver.read_mail() == {}
    driver.handle(fx.CheckpointRead("a", NetworkStatus(), 0))
    assert [event.devices for event in driver.events_of("GroupStarted")] == [(0, 1), (2, 3)]


def test_launch_awaits_the_checkpoint_of_its_last_network():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=2, outlives=True).begin()
    driver.end_epoch("a", final="1 epoch")
    assert fx.ReadCheckpoint("a") in driver.handle(fx.RanksDied((1,)))
    assert driver.controller.status is None
    driver.handle(fx.CheckpointRead("a", NetworkStatus(), 0))
    assert len(driver.events_of("GroupStarted")) == 1


def test_measurement_of_a_dead_rank_is_repeated_by_others():
    driver = ControllerDriver(
        {"a": [0]}, networks="a", measures=True, trainers=2, outlives=True, gpus={"a": [1, 1]}
    )
    driver.send_ready(2)
    driver.send_ready(1)
    driver.read_mail()
    driver.handle(fx.RanksDied((2,)))
    assert driver.read_mail() == {1: [msg.Measure(driver.setup.spec.by_name["a"], (1,), 2)]}


def test_network_planned_on_a_dead_trainer_gets_another():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=2, outlives=True)
    driver.send_ready(2)
    driver.plan = {"a": [1]}
    driver.handle(fx.RanksDied((1,)))
    assert driver.read_mail()[2][0].ranks == (2,)


def test_dead_preprocessor_delays_no_group():
    driver = ControllerDriver({"a": [0]}, trainers=1, stream=layout(9), outlives=True)
    driver.send_ready()
    assert driver.read_mail() == {}
    driver.handle(fx.RanksDied((0,)))
    assert [(event.rank, event.device) for event in driver.events_of("RankDied")] == [(0, None)]
    assert isinstance(driver.read_mail()[1][0], msg.Start)


def test_launch_ends_with_too_few_trainers_left():
    driver = ControllerDriver(
        {"a": [0, 1]}, networks="a", trainers=2, outlives=True, gpus={"a": [2, 2]}
    ).begin()
    driver.plan = {}
    driver.handle(fx.RanksDied((2,)), msg.Ready(1), fx.CheckpointRead("a", NetworkStatus(), 0))
    assert [event.reason for event in driver.events_of("LaunchInterrupted")] == [
        "1 rank died, and 1 trainer is too few for a"
    ]
    assert driver.controller.status is ExitStatus.RESUMABLE


def test_launch_ends_if_no_leased_network_fits():
    driver = ControllerDriver(
        {"a": [0, 1]},
        trainers=2,
        outlives=True,
        gpus={"a": [2, 2], "b": [2, 2]},
        elsewhere=frozenset("b"),
    ).begin()
    driver.plan = {}
    driver.handle(fx.RanksDied((2,)), msg.Ready(1), fx.CheckpointRead("a", NetworkStatus(), 0))
    assert [event.reason for event in driver.events_of("LaunchInterrupted")] == [
        "1 rank died, and 1 trainer is too few for a"
    ]


def test_launch_ends_without_trainers():
    driver = ControllerDriver({"a": [0]}, networks="a", trainers=1, outlives=True).begin()
    driver.handle(fx.RanksDied((1,)))
    assert driver.effects[-1] == fx.ReadCheckpoint("a")
    driver.handle(fx.CheckpointRead("a", NetworkStatus(), 0))
    assert driver.effects[-1] == fx.EndLaunch(ExitStatus.RESUMABLE)


def test_replay_does_not_outlive_its_ranks():
    driver = ControllerDriver(
        {"a": [0]}, networks="a", trainers=1, outlives=True, replayed=(0, 1)
    ).begin()
    fail = driver.handle(fx.RanksDied((1,)))[0]
    assert isinstance(fail, fx.AbortLaunch)
    assert isinstance(fail.error, InfrastructureError)


# ---- impossible inputs -------------------------------------------------------------------------

IMPOSSIBLE = {
    "epoch of a network without a group": msg.EpochDone("b", record(1), 0.0, ""),
    "stop without an order": msg.Stopped("a", 0.0),
    "pause without an order": msg.Paused("a", 0),
    "regrouping without an order": msg.Regrouped("a", 0, 0.0),
    "group that joins twice": msg.Joined("a"),
    "trainer that is ready twice": msg.Ready(2),
    "ready rank that is not a trainer": msg.Ready(0),
    "build of a rank that is not a recruit": msg.Built("a", 2),
    "measurement without an order": msg.Measured("a", 1, StepRate(10.0), 1.0, ""),
    "throughput of a rank that is not a preprocessor": msg.Throughput(1, 100.0),
    "checkpoint that was not requested": fx.CheckpointRead("a", NetworkStatus(), 0),
    "message for another receiver": msg.Demand(0, 7),
}


@pytest.mark.parametrize("message", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_input_raises_an_error_with_the_history(message):
    driver = ControllerDriver({"a": [0]}, trainers=2).begin()
    with pytest.raises(
        ProtocolViolation,
        match="cannot take|idle already|has no group|builds nothing|measurement is not running|"
        "not requested|unexpected input|does not produce|has reported",
    ) as caught:
        driver.handle(message)
    error = caught.value
    answer = fx.PolicyAnswered(Round((Member("a", (0,)),)))
    assert [moment.message for moment in error.history] == [
        None,
        answer,
        msg.Ready(1),
        msg.Ready(2),
        msg.Joined("a"),
        message,
    ]
    assert f"{message!r}" in str(error)
    assert "Start(network=NetworkSpec(name='a'" in error.report()
    again = driver.make()
    *before, last = error.history
    for moment in before:
        effects = again.handle(moment.now_s, moment.message)
        assert [effect for effect in effects if not isinstance(effect, fx.AskPolicy)] == [
            *moment.effects
        ]
    with pytest.raises(ProtocolViolation) as repeated:
        again.handle(last.now_s, last.message)
    assert repeated.value.history == error.history


def test_history_keeps_only_the_first_pace_report():
    driver = ControllerDriver({"a": [0]}, trainers=1).begin()
    driver.handle(*[msg.Pace("a", samples, 1.0) for samples in range(50)])
    with pytest.raises(ProtocolViolation) as caught:
        driver.handle(msg.Ready(0))
    assert [type(moment.message) for moment in caught.value.history].count(msg.Pace) == 1


def test_controller_releases_no_nodes_by_default():
    node_release = ControllerDriver({"a": [0, 1]}).controller.node_release
    with refused(UserError, "cannot release nodes"):
        node_release.choose("one", {"nodes": 1, "within_s": 60}, 0.0)
    assert not node_release.has_released
