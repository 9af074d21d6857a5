"""The search controller: proposals, verdicts, and resuming after kills."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.events import (
    EnergyUsed,
    EpochEnded,
    NetworkVerdict,
    SearcherCalled,
    SearcherFailed,
)
from fleet.domain.run import RunState
from fleet.search.calls import Ask, Report, Resume, Tell
from fleet.search.controller import SearchController
from fleet.search.decisions import CallSearcher
from fleet.search.entries import Entry
from fleet.search.pruning import make_pruner
from fleet.search.searcher import TrialOutcome, Verdict
from fleet.spec import Stopping
from fleet.spec.dimensions import Range
from fleet.spec.search import Budget, Prune
from fleet.units import J_PER_KWH
from tests.examples import examples
from tests.fleet.search.launches import LEARNING_RATE, Disk, Launch, record, run_killed, search_of
from tests.fleet.search.searchers import Scripted

SPACE = {LEARNING_RATE: Range(1e-5, 0.1, log=True)}
CAREFUL = "tests.fleet.search.searchers:Careful"
RULES = [
    Prune(),
    Prune(rule="none"),
    Prune(rule="asha"),
    Prune(rule="asha", on_fail="stop"),
    Prune(rule="hyperband"),
    Prune(rule="asha", synchronous=True),
    Prune(rule="hyperband", synchronous=True),
    Prune(rule="median", min_trials=2),
    Prune(rule="median", synchronous=True, min_trials=2),
    Prune(rule="learning_curve", min_trials=2),
    Prune(rule="auto"),
    Prune(rule="auto", on_fail="stop"),
]


def run(search, prune=Prune(), **more):
    launch, disk, _ = run_killed([], search, SPACE, prune=prune, **more)
    return launch, disk


# ---- resuming after kills ----------------------------------------------------------------------


@given(
    st.sampled_from(RULES),
    st.sampled_from(["random", CAREFUL]),
    st.lists(st.integers(0, 60), max_size=12),
    st.integers(0, 3),
)
@settings(max_examples=examples(60), deadline=None)
def test_search_after_kills_decides_the_same(prune, ask, kills, seed):
    search = search_of(ask, max_trials=12, seed=seed)
    reference, _ = run(search, prune)
    killed, _, differences = run_killed(kills, search, SPACE, prune=prune)
    assert killed.decisions == reference.decisions
    assert killed.outcomes == reference.outcomes
    assert not differences


@given(
    st.sampled_from(RULES),
    st.sampled_from(["random", CAREFUL]),
    st.lists(st.integers(0, 60), max_size=8),
)
@settings(max_examples=examples(30), deadline=None)
def test_search_reports_every_network_and_epoch_once(prune, ask, kills):
    launch, disk, _ = run_killed(
        kills, search_of(ask, max_trials=12), SPACE, prune=prune, fixed=("fixed-1", "fixed-2")
    )
    assert all(end is not None for _, end in launch.outcomes.values())
    tells = Counter(event.number for event in disk.of(SearcherCalled) if event.call == "tell")
    assert tells == Counter(range(len(launch.added)))
    reports = Counter(
        (event.number, event.epoch) for event in disk.of(SearcherCalled) if event.call == "report"
    )
    epochs = {
        (event.network, event.record.epoch)
        for event in disk.of(EpochEnded)
        if event.network.startswith("net")
    }
    assert reports == Counter((int(name[4:]), epoch) for name, epoch in epochs)


def test_search_logs_causes_before_effects():
    _, disk = run(search_of(CAREFUL, max_trials=8))
    proposals, judged = set(), {}
    for event in disk.events:
        if isinstance(event, SearcherCalled) and event.call == "ask" and event.answer is not None:
            proposals.add(event.network)
        if isinstance(event, SearcherCalled) and event.call == "report":
            judged[event.network, event.epoch] = event.answer
        if isinstance(event, EpochEnded):
            assert event.network in proposals
        if (
            isinstance(event, NetworkVerdict)
            and event.by == ("searcher",)
            and event.verdict != "go_on"
        ):
            assert judged[event.network, event.epochs] == event.verdict


def test_replay_notes_another_answer_and_keeps_the_logged_one():
    _, disk, _ = run_killed([25], search_of("random", max_trials=6, seed=0), SPACE)
    halfway = Disk(disk.lines[:25], {})
    proposals = {
        event.network: event.answer for event in halfway.of(SearcherCalled) if event.call == "ask"
    }
    launch = Launch(halfway, search_of("random", max_trials=6, seed=1), SPACE)
    assert launch.difference.startswith("a replayed answer differs: Ask(number=0) was answered by")
    assert {name: add.values for name, add in launch.added.items()} == proposals


def test_trial_outside_of_a_changed_space_is_kept():
    _, disk, _ = run_killed([25], search_of(max_trials=6), SPACE)
    launch = Launch(disk, search_of(max_trials=6), {LEARNING_RATE: Range(0.5, 0.6)})
    assert not any(add.wrong for add in launch.added.values())


# ---- proposals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("max_concurrent", [1, 4])
def test_search_keeps_max_concurrent_networks_alive(max_concurrent):
    launch = Launch(Disk(), search_of(max_trials=10, max_concurrent=max_concurrent), SPACE)
    maximum = 0

    def watched(name, epoch):
        nonlocal maximum
        maximum = max(maximum, len(launch.controller.trials.alive["net"]))
        return 0.5

    launch.value = watched
    launch.run()
    assert maximum == max_concurrent


def test_search_proposes_two_more_networks_than_train():
    search = search_of(max_trials=10)
    controller = SearchController(
        RunState(),
        [Entry("net", search, SPACE)],
        [],
        make_pruner(Prune(), 9, 0),
        "searcher",
        trainers=2,
    )
    training = []
    for number in range(5):
        assert controller.decide(training)[-1] == CallSearcher("net", Ask(number))
        controller.handle_answer("net", Ask(number), {LEARNING_RATE: 0.001 * (number + 1)})
        training = [f"net-{trained}" for trained in range(min(number + 1, 3))]
    assert not any(isinstance(decision, CallSearcher) for decision in controller.decide(training))


def test_promotion_before_the_searcher_answers_resumes_a_trial():
    controller = SearchController(
        RunState(),
        [Entry("net", search_of(max_trials=2, max_concurrent=4), SPACE)],
        [],
        make_pruner(Prune(rule="asha", factor=2), 9, 0),
        "asha",
        trainers=2,
    )
    for number in range(2):
        controller.decide()
        controller.handle_answer("net", Ask(number), {LEARNING_RATE: 0.001 * (number + 1)})
    controller.end_epoch("net-0", record(1, 0.9), is_done=False)
    assert controller.decide()[-1] == CallSearcher("net", Report(0, 1, 0.9))
    # so the first one is the better half
    controller.end_epoch("net-1", record(1, 0.1), is_done=False)
    controller.decide()
    controller.handle_answer("net", Report(0, 1, 0.9), "go_on")
    assert "net-0" in controller.trials.alive["net"] - controller.trials.awaited


@pytest.mark.parametrize("budget", [Budget(epochs=20), Budget(gpu_hours=20 / 3600)])
def test_budget_ends_proposals_but_not_training(budget):
    launch, disk = run(search_of(budget=budget, max_trials=100, max_concurrent=2))
    spent = next(
        index
        for index, event in enumerate(disk.events)
        if sum(isinstance(subject, EpochEnded) for subject in disk.events[: index + 1]) == 20
    )
    assert not [
        event
        for event in disk.events[spent:]
        if isinstance(event, SearcherCalled) and event.call == "ask"
    ]
    assert {end for _, end in launch.outcomes.values()} == {TrialOutcome.FINISHED}


def test_budget_of_energy_counts_all_networks():
    state = RunState()
    controller = SearchController(
        state,
        [Entry("net", search_of(budget=Budget(kwh=2), max_concurrent=3), SPACE)],
        [],
        make_pruner(Prune(), 9, 0),
        "none",
        trainers=2,
    )
    for number in range(2):
        assert controller.decide()[-1] == CallSearcher("net", Ask(number))
        controller.handle_answer("net", Ask(number), {LEARNING_RATE: 0.001 * (number + 1)})
    for number in range(2):
        controller.end_epoch(f"net-{number}", record(1, 0.5), is_done=False)
        state.apply(0.0, EnergyUsed(f"net-{number}", 0.8 * J_PER_KWH))
        state.apply(0.0, EnergyUsed("another", 9 * J_PER_KWH))
    assert remaining_trials(controller)[1] == pytest.approx(0.5)  # epochs, of .8 kWh each
    state.apply(0.0, EnergyUsed("net-0", 0.4 * J_PER_KWH))
    assert remaining_trials(controller)[:2] == (0, 0)
    for number in range(2):
        called = controller.decide()[-1]
        assert called == CallSearcher("net", Report(number, 1, 0.5))
        controller.handle_answer("net", called.call, "go_on")
    assert not any(isinstance(decision, CallSearcher) for decision in controller.decide())


def remaining_trials(controller):
    """Return the networks and epochs that may still come, and the epochs of proposed networks."""
    (subject,) = controller.remaining_work.searches
    return subject.networks, subject.epochs, subject.proposed


def test_remaining_work_follows_space_and_budget():
    few = {"blocks.0": Range(1, 3, integer=True)}
    controller = SearchController(
        RunState(),
        [
            Entry(
                "net",
                search_of(max_trials=20, budget=Budget(epochs=50)),
                few,
            )
        ],
        [],
        make_pruner(Prune(), 5, 0),
        "none",
        trainers=2,
    )
    assert remaining_trials(controller)[:2] == (3, 50)  # a space of three
    launch, _ = run(search_of(max_trials=20, budget=Budget(gpu_hours=1)))
    assert remaining_trials(launch.controller) == (
        0,
        0,
        {name: epochs for name, (epochs, _) in launch.outcomes.items()},
    )
    spent, _ = run(search_of(max_trials=20, max_concurrent=1, budget=Budget(epochs=3)))
    assert remaining_trials(spent.controller)[:2] == (0, 0)


def test_budget_ends_promotions():
    launch, _ = run(
        search_of(budget=Budget(epochs=12), max_trials=100, max_concurrent=4), Prune(rule="asha")
    )
    assert sum(epochs for epochs, _ in launch.outcomes.values()) <= 12 + 4 * 9
    assert all(end is not None for _, end in launch.outcomes.values())


def test_ask_is_repeated_after_none_and_a_report():
    asks = [{LEARNING_RATE: 0.01}, None, {LEARNING_RATE: 0.02}]
    searcher = Scripted(SPACE, 0, "maximize", asks)
    launch = Launch(Disk(), search_of(max_trials=2), SPACE, searcher=searcher).run()
    calls = [type(call) for call in launch.calls[:4]]
    assert calls == [Ask, Ask, Report, Ask]
    assert set(launch.outcomes) == {"net-0", "net-1"}


def test_search_ends_if_nothing_is_proposed():
    launch = Launch(
        Disk(), search_of(max_trials=5), SPACE, searcher=Scripted(SPACE, 0, "maximize")
    ).run()
    assert launch.outcomes == {}
    assert not launch.controller.sampling.has_failed


# ---- pauses ------------------------------------------------------------------------------------


def two(**script):
    return Scripted(SPACE, 0, "maximize", [{LEARNING_RATE: 0.01}, {LEARNING_RATE: 0.02}], **script)


def test_pause_by_a_searcher_ends_with_its_resume():
    searcher = two(reports={(0, 2): "pause"}, resumes=[0])
    launch = Launch(
        Disk(), search_of(max_trials=2, max_concurrent=1), SPACE, searcher=searcher
    ).run()
    assert launch.outcomes == {
        "net-0": (9, TrialOutcome.FINISHED),
        "net-1": (9, TrialOutcome.FINISHED),
    }
    assert Resume() in launch.calls
    judged = [
        (event.network, event.epochs, event.verdict) for event in launch.disk.of(NetworkVerdict)
    ]
    assert judged == [("net-0", 2, "pause"), ("net-0", 2, "go_on")]
    resumes = [event for event in launch.disk.of(SearcherCalled) if event.call == "resume"]
    assert [(event.answer, event.network) for event in resumes if event.answer is not None] == [
        (0, "net-0")
    ]


def test_resume_may_name_a_trial_that_has_ended():
    searcher = two(reports={(0, 9): "pause", (1, 2): "pause"}, resumes=[0, 1])
    launch = Launch(
        Disk(), search_of(max_trials=3, max_concurrent=1), SPACE, searcher=searcher
    ).run()
    assert not launch.controller.sampling.has_failed
    assert launch.outcomes["net-0"] == (9, TrialOutcome.FINISHED)


def test_paused_networks_are_pruned_in_the_end():
    launch = Launch(
        Disk(), search_of(max_trials=2), SPACE, searcher=two(reports={(0, 2): "pause"})
    ).run()
    assert launch.outcomes == {
        "net-0": (2, TrialOutcome.PRUNED),
        "net-1": (9, TrialOutcome.FINISHED),
    }
    assert ("pruned", 0) in [call[:2] for call in launch.searcher.tells]


def test_verdict_is_the_stricter_of_rule_and_searcher():
    prune = Prune(rule="asha", min_epochs=2, on_fail="pause")
    launch = Launch(
        Disk(), search_of(max_trials=2), SPACE, prune, searcher=two(reports={(0, 2): "stop"})
    ).run()
    assert launch.outcomes["net-0"] == (2, TrialOutcome.PRUNED)


def test_rule_none_ignores_verdicts_of_searchers():
    launch = Launch(
        Disk(),
        search_of(max_trials=2),
        SPACE,
        Prune(rule="none"),
        searcher=two(reports={(0, 2): "stop"}),
    ).run()
    assert launch.outcomes["net-0"] == (9, TrialOutcome.FINISHED)


def test_pruner_judges_networks_of_the_spec():
    disk = Disk()
    fixed = tuple(f"fixed-{number}" for number in range(9))
    launch = Launch(
        disk, search_of(max_trials=1), SPACE, Prune(rule="asha", synchronous=True), fixed=fixed
    ).run()
    assert Counter(epochs for epochs, _ in launch.outcomes.values()) == {1: 7, 3: 2, 9: 1}


def test_synchronous_rungs_do_not_depend_on_speed():
    def winners(trainers, max_concurrent):
        launch, _ = run(
            search_of(max_trials=27, max_concurrent=max_concurrent),
            Prune(rule="asha", synchronous=True),
            trainers=trainers,
        )
        return {name for name, (_, end) in launch.outcomes.items() if end is TrialOutcome.FINISHED}

    assert winners(1, 1) == winners(4, 9) == winners(30, "auto")


def test_nan_is_never_among_the_best():
    def value(name, epoch):
        return math.nan if name == "net-0" else 0.5

    launch, _ = run(
        search_of(max_trials=6, max_concurrent=1), Prune(rule="asha", on_fail="stop"), value=value
    )
    assert launch.outcomes["net-0"] == (1, TrialOutcome.PRUNED)


# ---- searchers that misbehave ------------------------------------------------------------------

GOOD = {LEARNING_RATE: 0.01}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({LEARNING_RATE: 1.0}, "is not between"),
        ({}, "has no value"),
        ({**GOOD, "width": 3}, "has no 'width'"),
        (GOOD, "the same values as number 0"),
        ({**GOOD, "parent": 7}, "7 is no parent"),
        ({**GOOD, "parent": "net-0"}, "'net-0' is no parent"),
        ({**GOOD, "parent": True}, "True is no parent"),
    ],
)
def test_invalid_proposal_is_a_failed_network(answer, says):
    searcher = Scripted(SPACE, 0, "maximize", [GOOD, answer, {LEARNING_RATE: 0.03}])
    launch = Launch(Disk(), search_of(max_trials=3), SPACE, searcher=searcher).run()
    assert says in launch.added["net-1"].wrong
    assert [end for _, end in launch.outcomes.values()] == [
        TrialOutcome.FINISHED,
        TrialOutcome.FAILED,
        TrialOutcome.FINISHED,
    ]
    assert ("failed", 1, None) in searcher.tells
    assert not launch.controller.sampling.has_failed


def test_refused_trial_cannot_be_a_parent():
    searcher = Scripted(SPACE, 0, "maximize", [{LEARNING_RATE: 1.0}, {**GOOD, "parent": 0}])
    launch = Launch(Disk(), search_of(max_trials=2), SPACE, searcher=searcher).run()
    assert "0 is no parent: that network was refused" in launch.added["net-1"].wrong


def test_proposal_may_repeat_the_values_of_its_parent():
    searcher = Scripted(SPACE, 0, "maximize", [GOOD, {**GOOD, "parent": 0}])
    launch = Launch(Disk(), search_of(max_trials=2), SPACE, searcher=searcher).run()
    assert launch.added["net-1"].parent == "net-0"
    assert not launch.added["net-1"].wrong


def test_search_ends_after_ten_invalid_proposals():
    launch = Launch(
        Disk(),
        search_of(max_trials=100),
        SPACE,
        searcher=Scripted(SPACE, 0, "maximize", [GOOD] * 50),
    ).run()
    assert len(launch.outcomes) == 11


@pytest.mark.parametrize("answer", [ValueError("no"), 3, {LEARNING_RATE: object()}, {1: 2}])
def test_searcher_is_not_called_after_an_invalid_answer(answer):
    launch = Launch(
        Disk(),
        search_of(max_trials=3),
        SPACE,
        searcher=Scripted(SPACE, 0, "maximize", [GOOD, answer]),
    ).run()
    assert launch.outcomes == {"net-0": (9, TrialOutcome.FINISHED)}
    assert launch.controller.sampling.has_failed
    assert len(launch.disk.of(SearcherFailed)) == 1


@pytest.mark.parametrize("answer", ["maybe", None, True, RuntimeError("lost")])
def test_networks_of_a_failed_searcher_train_on(answer):
    launch = Launch(
        Disk(), search_of(max_trials=2), SPACE, searcher=two(reports={(0, 2): answer})
    ).run()
    assert launch.outcomes == {
        "net-0": (9, TrialOutcome.FINISHED),
        "net-1": (9, TrialOutcome.FINISHED),
    }
    assert launch.controller.sampling.has_failed


@pytest.mark.parametrize("answer", [1, 7])
def test_resume_of_an_unpaused_network_fails_the_searcher(answer):
    searcher = two(reports={(0, 2): "pause"}, resumes=[answer])
    launch = Launch(Disk(), search_of(max_trials=2), SPACE, searcher=searcher).run()
    assert launch.controller.sampling.has_failed
    assert launch.outcomes["net-0"] == (2, TrialOutcome.PRUNED)


def test_fixed_searcher_is_called_again_by_the_next_launch():
    disk = Disk()
    broken = Scripted(SPACE, 0, "maximize", [GOOD, ValueError("no")])
    Launch(disk, search_of(max_trials=2), SPACE, searcher=broken).run()
    mended = Scripted(SPACE, 0, "maximize", [GOOD, {LEARNING_RATE: 0.02}])
    launch = Launch(disk, search_of(max_trials=2), SPACE, searcher=mended).run()
    assert launch.outcomes == {
        "net-0": (9, TrialOutcome.FINISHED),
        "net-1": (9, TrialOutcome.FINISHED),
    }
    assert ("finished", 0, pytest.approx(launch.controller.trials["net-0"].value)) in mended.tells


# ---- networks that are pruned in their last epoch ----------------------------------------------


class Late(Launch):
    """A launch with commands that prune each network with an even number in its last epoch."""

    def train(self, name):
        if self.done(name) == self.epochs - 1 and int(name[4:]) % 2 == 0:
            if not self.controller.trials[name].has_ended:
                self.controller.apply_command(name, Verdict.STOP)
            self.do(self.controller.decide(busy={name}))
        super().train(name)


def reported_outcomes(disk):
    return {
        event.number: event.outcome for event in disk.of(SearcherCalled) if event.call == "tell"
    }


def test_trial_pruned_in_its_last_epoch_is_told_finished():
    launch, disk, _ = run_killed([], search_of(max_trials=4), SPACE, kind=Late)
    assert set(launch.outcomes.values()) == {(9, TrialOutcome.FINISHED)}
    assert reported_outcomes(disk) == dict.fromkeys(range(4), "finished")
    assert {event.network for event in disk.of(NetworkVerdict)} == {"net-0", "net-2"}
    assert len([event for event in disk.of(SearcherCalled) if event.call == "report"]) == 36


@pytest.mark.long_but_first
@pytest.mark.parametrize("ask", ["random", CAREFUL])
def test_trial_pruned_in_its_last_epoch_survives_any_kill(ask):
    search = search_of(ask, max_trials=2)
    _, reference, _ = run_killed([], search, SPACE, kind=Late)
    for steps in range(len(reference.lines) + 20):
        launch, disk, differences = run_killed([steps], search, SPACE, kind=Late)
        ends = {int(name[4:]): end.value for name, (_, end) in launch.outcomes.items()}
        assert reported_outcomes(disk) == ends
        assert Counter(
            event.number for event in disk.of(SearcherCalled) if event.call == "tell"
        ) == Counter(list(ends))
        assert all(
            end == "finished" or launch.outcomes[f"net-{number}"][0] < 9
            for number, end in ends.items()
        )
        assert not differences


def test_pruned_trial_is_reported_once_it_cannot_finish():
    launch = Launch(Disk(), search_of(max_trials=1), SPACE)
    launch.do(launch.controller.decide())
    launch.consult()
    launch.do(launch.controller.decide())
    launch.controller.apply_command("net-0", Verdict.STOP)
    launch.do(launch.controller.decide(busy={"net-0"}))
    assert (launch.pending_call, launch.controller.is_over) == (None, False)
    launch.do(launch.controller.decide())
    assert launch.pending_call.call == Tell(0, "pruned", None)


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, pytest.param(10**400, id="large")])
def test_proposal_of_nan_fails_only_its_network(bad):
    answers = [GOOD, {LEARNING_RATE: bad}, {LEARNING_RATE: 0.03}]
    searcher = Scripted(SPACE, 0, "maximize", answers)
    launch = Launch(Disk(), search_of(max_trials=3), SPACE, searcher=searcher).run()
    assert [end for _, end in launch.outcomes.values()] == [
        TrialOutcome.FINISHED,
        TrialOutcome.FAILED,
        TrialOutcome.FINISHED,
    ]
    assert not launch.controller.sampling.has_failed


def reported_value(search, values, stopping=Stopping()):
    """Return the value that a searcher receives for a network with these values per epoch."""
    entry = Entry("net", search, SPACE)
    run = RunState()
    controller = SearchController(run, [entry], [], make_pruner(Prune(), 9, 0), "none", trainers=1)
    consult = controller.decide()[-1]
    controller.handle_answer("net", consult.call, GOOD)
    controller.admit("net-0", stopping)
    for epoch, value in enumerate(values, start=1):
        run.apply(0.0, EpochEnded("net-0", record(epoch, value)))
        controller.end_epoch("net-0", record(epoch, value), epoch == len(values))
    controller.end_network("net-0", TrialOutcome.FINISHED)
    while True:
        call = next(
            subject.call for subject in controller.decide() if isinstance(subject, CallSearcher)
        )
        if isinstance(call, Tell):
            return call.value
        controller.handle_answer("net", call, "go_on")


@pytest.mark.parametrize(("min_delta", "best"), [(0.0, 0.7), (0.2, 0.5)])
def test_searcher_receives_the_best_value_of_the_table(min_delta, best):
    stopping = Stopping(min_delta=min_delta)
    assert reported_value(search_of(max_trials=1), [0.5, 0.6, 0.7], stopping) == best


def test_several_objectives_are_a_tuple_even_with_nan():
    several = search_of(max_trials=1, objectives=[{"value": "val_accuracy"}, {"value": "epochs"}])
    first, epochs = reported_value(several, [math.nan])
    assert math.isnan(first)
    assert epochs == 1
