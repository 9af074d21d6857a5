"""Searches that resume with changed settings, or start with results of earlier runs."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.events import NetworkAdded, SearcherCalled, SearcherStarted
from fleet.domain.run import RunState
from fleet.search.calls import AddPriorTrial, Ask, Tell
from fleet.search.changed_settings import describe_start
from fleet.search.entries import Entry
from fleet.search.searcher import RandomSearcher, TrialOutcome
from fleet.spec.dimensions import Range
from tests.examples import examples
from tests.fleet.search.launches import LEARNING_RATE, Disk, Killed, Launch, search_of
from tests.fleet.search.searchers import Careful

SPACE = {LEARNING_RATE: Range(1e-5, 0.1, log=True)}
NARROW = {LEARNING_RATE: Range(1e-3, 0.1, log=True)}


class RecordingSearcher(Careful):
    """Accepts prior trials, and records all calls in order."""

    def __init__(self, space, seed, mode, **options):
        super().__init__(space, seed, mode, **options)
        self.calls = []

    def add_prior_trial(self, number, values):
        self.calls.append((number, values))

    def report(self, number, epoch, value):
        self.calls.append((number, epoch, value))
        return super().report(number, epoch, value)

    def tell(self, number, outcome, value):
        self.calls.append((number, outcome, value))
        super().tell(number, outcome, value)


RECORDING = "tests.fleet.search.test_changed_settings:RecordingSearcher"


def start_launch(disk, search, space, steps=None, earlier=()):
    """Begin a launch like the coordinator: changes of settings are logged first."""
    entry = Entry("net", search, space)
    began = describe_start(entry, disk.search, knows=True)
    return Launch(disk, search, space, steps=steps, began=began, earlier=earlier, epochs=5)


def run(kills, *parts, earlier=()):
    """Kill launches after numbers of writes; each uses the next (search, space), the last ends."""
    disk, part = Disk(), 0
    for steps in kills:
        with suppress(Killed):
            start_launch(disk, *parts[part], steps, earlier).run()
        part = min(part + 1, len(parts) - 1)
    return start_launch(disk, *parts[-1], None, earlier).run(), disk


@given(st.integers(5, 60), st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=examples(40), deadline=None)
def test_new_searcher_reaches_the_same_state_after_any_kill(before, kills):
    parts = (
        (search_of(RECORDING, max_trials=8, seed=1), SPACE),
        (search_of(RECORDING, max_trials=12, seed=2), NARROW),
    )
    reference, _ = run([before], *parts)
    killed, disk = run([before, *kills], *parts)
    assert killed.searcher.calls == reference.searcher.calls
    assert killed.outcomes == reference.outcomes
    assert not killed.difference
    assert sum(event.is_another for event in disk.of(SearcherStarted)) == 1
    proposals = [
        event.number for event in disk.of(SearcherCalled) if event.call == "ask" and event.answer
    ]
    assert proposals == list(range(len(proposals)))


def test_new_searcher_receives_trials_that_fit_its_space():
    disk = Disk()
    with pytest.raises(Killed):
        start_launch(disk, search_of("random", max_trials=8), SPACE, steps=30).run()
    proposals = {
        event.number: event.answer[LEARNING_RATE]
        for event in disk.of(SearcherCalled)
        if event.call == "ask"
    }
    launch = start_launch(disk, search_of(RECORDING, max_trials=8), NARROW).run()
    [_, began] = disk.of(SearcherStarted)
    inside = [number for number, value in proposals.items() if value >= 1e-3]
    assert f"space.{LEARNING_RATE} was {{low: 1e-05, high: 0.1, log: True}} and is" in began.changed
    outside = len(proposals) - len(inside)
    assert (
        f"the searcher receives {len(inside)} networks, but not {outside} outside" in began.changed
    )
    rates = [event for event in disk.of(SearcherCalled) if event.call == "know"]
    assert [event.number for event in rates] == inside
    assert set(launch.outcomes) == {f"net-{number}" for number in range(8)}
    assert all(end is not None for _, end in launch.outcomes.values())


def test_changed_max_trials_keeps_the_searcher():
    disk = Disk()
    start_launch(disk, search_of("random", max_trials=3), SPACE).run()
    launch = start_launch(disk, search_of("random", max_trials=5), SPACE).run()
    began = disk.of(SearcherStarted)[-1]
    assert (began.changed, began.is_another) == ("max_trials was 3 and is 5", False)
    assert launch.calls[0] == Ask(3)
    assert describe_start(launch.entry, disk.search, knows=True) is None


def test_new_searcher_without_prior_trials_counts_on():
    disk = Disk()
    with pytest.raises(Killed):
        start_launch(disk, search_of("random", max_trials=6), SPACE, steps=20).run()
    search = search_of("tests.fleet.search.searchers:Careful", max_trials=6)
    entry = Entry("net", search, SPACE)
    began = describe_start(entry, disk.search, knows=False)
    assert "has no method `add_prior_trial`, and does not receive" in began.changed
    launch = Launch(disk, search, SPACE, began=began, epochs=5).run()
    assert not [call for call in launch.calls if isinstance(call, AddPriorTrial)]
    proposals = {
        event.number for event in disk.of(SearcherCalled) if event.call == "ask" and event.answer
    }
    assert proposals == set(range(6))


EARLIER = (
    AddPriorTrial(0, {LEARNING_RATE: 0.01}, (0.5, 0.6), "finished", 0.6, "a-0", "runs/a"),
    AddPriorTrial(0, {LEARNING_RATE: 0.02}, (0.1,), "pruned", 0.1, "a-1", "runs/a"),
)


@given(st.lists(st.integers(0, 30), max_size=6))
@settings(max_examples=examples(20), deadline=None)
def test_prior_trials_are_reported_first_and_once(kills):
    part = (search_of(RECORDING, max_trials=4), SPACE)
    launch, disk = run(kills, part, earlier=EARLIER)
    assert launch.searcher.calls[:7] == [
        (-1, {LEARNING_RATE: 0.01}),
        (-1, 1, 0.5),
        (-1, 2, 0.6),
        (-1, "finished", 0.6),
        (-2, {LEARNING_RATE: 0.02}),
        (-2, 1, 0.1),
        (-2, "pruned", 0.1),
    ]
    assert [event.source for event in disk.of(SearcherCalled) if event.call == "know"] == [
        "runs/a"
    ] * 2
    assert launch.searcher.calls == run([], part, earlier=EARLIER)[0].searcher.calls


def test_random_and_grid_skip_prior_trials():
    space = {"kernel": (3, 5, 7), "width": (8, 16)}
    for ask in ("random", "grid"):
        disk, earlier = (
            Disk(),
            (AddPriorTrial(0, {"kernel": 3, "width": 16}, (), "finished", 0.5, "a-0", "runs/a"),),
        )
        launch = start_launch(disk, search_of(ask, max_trials=9), space, earlier=earlier).run()
        values = [tuple(add.values.values()) for add in launch.added.values()]
        assert len(set(values)) == len(values) == 5
        assert (3, 16) not in values


def test_searcher_receives_all_objectives():
    search = search_of(
        "random",
        max_trials=2,
        objectives=[
            {"value": "val_accuracy"},
            {"value": "parameters"},
            {"value": "rate"},
            {"value": "epochs"},
        ],
    )
    launch = start_launch(Disk(), search, SPACE)
    assert launch.entry.modes == ("maximize", "minimize", "maximize", "minimize")
    launch.run_state.parameters |= {"net-0": 70, "net-1": 80}
    launch.controller.sampling.rate_of = {"net-0": 12.5}.get
    launch.run()
    values = {call.number: call.value for call in launch.calls if isinstance(call, Tell)}
    assert values[0][1:] == (70.0, 12.5, launch.done("net-0"))
    assert values[1][1:3] == (80.0, 100.0)  # the rate of its epochs


class OutcomeRecorder(RandomSearcher):
    """Records outcomes; if ``pauses``, it pauses each network after two epochs for good."""

    def __init__(self, space, seed, mode, pauses=False):
        super().__init__(space, seed, mode)
        self.pauses = pauses
        self.outcomes = {}

    def report(self, number, epoch, value):
        return "pause" if self.pauses and epoch == 2 else "go_on"

    def tell(self, number, outcome, value):
        self.outcomes[number] = value


OUTCOME_RECORDER = "tests.fleet.search.test_changed_settings:OutcomeRecorder"


def test_new_searcher_receives_values_of_new_objectives():
    disk, run = Disk(), RunState()
    start_launch(disk, search_of("random", max_trials=4), SPACE, earlier=EARLIER).run()
    several = search_of(
        OUTCOME_RECORDER, max_trials=5, objectives=[{"value": "val_accuracy"}, {"value": "epochs"}]
    )
    anew = [replace(subject, value=(subject.value, 2.0)) for subject in EARLIER]
    launch = start_launch(disk, several, SPACE, earlier=anew).run()
    best = {number: launch.controller.trials[f"net-{number}"].value for number in range(5)}
    assert launch.searcher.outcomes == {
        -1: (0.6, 2.0),
        -2: (0.1, 2.0),
        **{number: (best[number], 5.0) for number in range(5)},
    }
    for name in launch.added:
        run.apply(0.0, NetworkAdded(name, "net", int(name[4:]), {}, (1, None), 5))
    for event in disk.events:
        run.apply(0.0, event)
    assert run.objective_values == {f"net-{number}": (best[number], 5.0) for number in range(5)}
    back = start_launch(
        disk, search_of(OUTCOME_RECORDER, max_trials=5), SPACE, earlier=EARLIER
    ).run()
    assert back.searcher.outcomes == {-1: 0.6, -2: 0.1, **best}
    run.apply(0.0, disk.of(SearcherStarted)[-1])
    assert run.objective_values == {}


def test_new_searcher_ignores_unlogged_pauses_of_the_old_one():
    disk, steps = Disk(), 0
    while not any(event.answer == "pause" for event in disk.of(SearcherCalled)):
        disk, steps = Disk(), steps + 1
        with pytest.raises(Killed):
            start_launch(
                disk,
                search_of(OUTCOME_RECORDER, max_trials=3, options={"pauses": True}),
                SPACE,
                steps=steps,
            ).run()
    launch = start_launch(disk, search_of(OUTCOME_RECORDER, max_trials=3), SPACE).run()
    assert set(launch.outcomes.values()) == {(5, TrialOutcome.FINISHED)}
