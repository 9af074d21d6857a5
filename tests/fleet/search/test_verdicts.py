"""Who is paused by whom, and who is resumed."""

import pytest

from fleet.domain.events import NetworkVerdict
from fleet.domain.events.search import USER
from fleet.domain.run import RunState
from fleet.search.controller import SearchController
from fleet.search.pruning import Pruner
from fleet.search.searcher import Verdict
from fleet.spec.search import Prune
from tests.fleet.search.launches import record


class Pausing(Pruner):
    """Pauses every network after each epoch, and records which it may resume."""

    def __init__(self):
        super().__init__(Prune(), 9, 0)
        self.waiting = set()

    def add(self, name, epochs, score, is_done=False):
        self.waiting.add(name)
        return Verdict.PAUSE

    def let_go_on(self, name):
        self.waiting.discard(name)


@pytest.fixture
def controller():
    return SearchController(RunState(), [], ["a"], Pausing(), "mine", trainers=1)


def verdicts(controller):
    return [(event.verdict, event.by) for event in controller.decide()]


def test_verdicts_resume_a_network_that_nobody_pauses(controller):
    controller.end_epoch("a", record(1, 0.5), is_done=False)
    controller.apply_command("a", Verdict.PAUSE)
    controller.verdicts.resume("a", "mine")
    assert not controller.pruner.waiting
    controller.apply_command("a", Verdict.GO_ON)
    assert verdicts(controller) == [
        ("pause", ("mine",)),
        ("pause", ("mine", USER)),
        ("pause", (USER,)),
        ("go_on", (USER,)),
    ]


def test_verdicts_of_commands_keep_that_of_the_pruner(controller):
    trial = controller.trials["a"]
    controller.verdicts.add_epoch(trial, record(1, 0.5), is_done=False)
    controller.apply_command("a", Verdict.PAUSE)
    assert controller.trials.configurations["a"].verdict is Verdict.PAUSE
    assert controller.pruner.waiting == {"a"}
    controller.verdicts.judge(controller.trials.configurations["a"])
    assert trial.paused_by == {"mine", USER}


def test_verdicts_of_a_log_have_the_same_effect(controller):
    controller.end_epoch("a", record(1, 0.5), is_done=False)
    controller.apply_command("a", Verdict.STOP)
    logged = controller.decide()
    assert all(isinstance(event, NetworkVerdict) for event in logged)
    again = SearchController(RunState(), [], ["a"], Pausing(), "mine", trainers=1)
    again.verdicts.add_epoch(again.trials["a"], record(1, 0.5), is_done=False)
    for event in logged:
        again.verdicts.apply(event)
    again.decide()
    assert again.trials == controller.trials
    assert again.pruner.waiting == controller.pruner.waiting
