"""The violations of constraints that a searcher receives."""

import math

import pytest

from fleet.domain.events import NetworkAdded, SearcherCalled, SearcherStarted
from fleet.domain.run import RunState
from fleet.search.calls import Tell, as_call, as_event, make_call
from fleet.search.entries import Entry
from fleet.spec.dimensions import Range
from tests.fleet.search.launches import Launch, run_killed, search_of
from tests.fleet.search.searchers import Careful

SPACE = {"train.optimizer.learning_rate": Range(1e-5, 0.1, log=True)}


class Constrained(Careful):
    """Records violations."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.violations = {}

    def tell(self, number, outcome, value, violations):
        self.violations[number] = violations
        super().tell(number, outcome, value)


CONSTRAINED = "tests.fleet.search.test_constraints:Constrained"


class Sized(Launch):
    """A launch in which network N has 100 · N parameters."""

    def train(self, name):
        self.run_state.set_parameters(name, 100 * self.controller.trials[name].number)
        super().train(name)


def test_searcher_receives_violations():
    search = search_of(CONSTRAINED, max_trials=4, constraints=["parameters <= 150", "rate >= 10"])
    launch, disk, _ = run_killed([], search, SPACE, kind=Sized, epochs=2)
    assert {number: row[0] for number, row in launch.searcher.violations.items()} == {
        0: -150.0,
        1: -50.0,
        2: 50.0,
        3: 150.0,
    }
    assert all(row[1] == -90.0 for row in launch.searcher.violations.values())  # 100 samples/s
    assert disk.run.violations["net-3"] == (150.0, -90.0)


def test_resumed_searcher_receives_the_same_violations():
    search = search_of(CONSTRAINED, max_trials=6, constraints=["epochs <= 1"])
    reference, _, _ = run_killed([], search, SPACE, epochs=3)
    killed, _, differences = run_killed([9, 14, 20], search, SPACE, epochs=3)
    assert killed.searcher.violations == reference.searcher.violations != {}
    assert not differences


def test_searcher_without_the_parameter_does_not_receive_them():
    searcher = Careful({}, 0, "maximize")
    assert make_call(searcher, Tell(0, "finished", 0.5, (3.0,))) is None


def test_unknown_violation_is_logged_as_null():
    call = Tell(0, "failed", None, (math.nan, 2.0))
    event = as_event("net", call, None, "net-0")
    again = as_call(event)
    assert math.isnan(again.violations[0])
    assert again.violations[1] == 2.0


def test_changed_constraints_forget_violations():
    run = RunState()
    for constraints in (["epochs <= 1"], ["epochs <= 2"]):
        settings = {"objectives": [], "constraints": constraints}
        run.apply(0.0, SearcherStarted("net", settings))
        if not run.added:
            run.apply(0.0, NetworkAdded("net-0", "net", 0, {}, bounds=(1, None), max_epochs=3))
            call = SearcherCalled("net", "tell", 0, network="net-0", violations=(2.0,))
            run.apply(0.0, call)
            assert run.violations == {"net-0": (2.0,)}
    assert not run.violations


@pytest.mark.parametrize("text", ["parameters <= 3", "val_accuracy > 0.5"])
def test_entry_reads_its_constraints(text):
    entry = Entry("net", search_of(constraints=[text]), SPACE)
    assert [constraint.text for constraint in entry.constraints] == [text]
