"""The question to the policy, and what happens until it is answered."""

import pytest

from fleet.comm import messages as m
from fleet.control import effects as e
from fleet.control.history import ProtocolViolation
from fleet.errors import ExitStatus
from scheduler.base import Member, Round
from tests.fleet.control.driver import ControllerDriver
from tests.fleet.histories import record

BOTH = {"a": [0], "b": [1]}
EPOCH = record(1, stream_epoch=0)


class WaitingDriver(ControllerDriver):
    """A controller of two networks in training, whose policy has just been asked."""

    def __init__(self):
        super().__init__(BOTH, trainers=2, outlives=True)
        self.begin()
        self.receive(m.EpochDone("a", EPOCH, 0.0, ""))

    def receive(self, message):
        """Handle an input, without answering the policy's question; return the orders."""
        effects = self.controller.handle(self.now, message)
        for effect in effects:
            if isinstance(effect, e.AskPolicy):
                self.question = effect
        return [
            (effect.rank, type(effect.message))
            for effect in effects
            if isinstance(effect, e.SendMessage)
        ]

    def answer(self):
        """Answer the question as it was asked."""
        return self.receive(self.ask(self.question))


def test_answer_continues_the_decision():
    assert WaitingDriver().answer() == [(1, m.Continue)]


def test_inputs_before_the_answer_cause_no_decision():
    driver = WaitingDriver()
    assert driver.receive(m.EpochDone("b", EPOCH, 0.0, "")) == []
    driver.now += 1000.0
    assert driver.receive(None) == []


@pytest.mark.parametrize(
    "message",
    [e.RanksDied((2,)), m.Converged("b", "no better"), m.EpochDone("b", EPOCH, 0.0, "")],
    ids=["death", "finished network", "epoch"],
)
def test_answer_about_an_earlier_state_is_dropped(message):
    driver = WaitingDriver()
    driver.receive(message)
    first = driver.question
    assert driver.answer() == []
    assert driver.question is not first
    assert (1, m.Continue) in driver.answer()


def test_launch_that_was_to_end_ignores_the_answer():
    driver = WaitingDriver()
    driver.receive(e.EndRequested("SIGTERM"))
    assert driver.answer() == [(1, m.Stop)]
    driver.receive(m.Stopped("a", 0.0))
    driver.receive(m.Ready(1))
    driver.receive(m.Paused("b", 0))
    driver.receive(m.Stopped("b", 0.0))
    driver.receive(m.Ready(2))
    assert driver.controller.status is ExitStatus.RESUMABLE


def test_answer_without_a_question_is_a_protocol_violation():
    driver = ControllerDriver(BOTH, trainers=2).begin()
    with pytest.raises(ProtocolViolation, match="the policy was not asked"):
        driver.controller.handle(0.0, e.PolicyAnswered(Round((Member("a", (0,)),))))


def test_progress_has_the_state_of_the_question():
    driver = WaitingDriver()
    assert dict(driver.question.progress.epochs_done) == {"a": 1.0}
    assert driver.question.progress.target == Round((Member("a", (0,)), Member("b", (1,))))
