"""The thread that calls searchers, without blocking and with a time limit."""

import threading
import time

import pytest

from fleet.control.effects import SearcherAnswered, SearcherCallFailed
from fleet.domain.events import EarlierRunRead, SearcherCalled, SearcherStarted
from fleet.domain.run import RunSearch
from fleet.runtime import warm_start
from fleet.runtime.searchers import Searchers, StartedSearch
from fleet.runtime.warm_start import read_earlier_run
from fleet.search.calls import AddPriorTrial, Ask, Report, Tell
from fleet.search.entries import Entry
from fleet.spec.search import Search
from tests.fakes import Clock


class Slow:
    """Answers once ``may_answer`` is set."""

    def __init__(self):
        self.may_answer = threading.Event()

    def ask(self, number):
        self.may_answer.wait(20)
        return {"width": number}

    def report(self, number, epoch, value):
        raise SystemExit("enough")

    def tell(self, number, outcome, value):
        return None


def search_of(searcher, *calls, patience_s=60.0):
    """Return a search whose searcher repeats calls of earlier launches."""
    return StartedSearch(searcher, calls, [], [], patience_s)


def await_answer(searchers):
    for _ in range(2000):
        answer = searchers.poll_answer()
        if answer is not None:
            return answer
        time.sleep(0.005)
    raise AssertionError("no answer")


@pytest.fixture
def slow():
    searcher = Slow()
    yield searcher
    searcher.may_answer.set()


def test_searchers_return_an_answer_once(slow):
    searchers = Searchers({"net": search_of(slow)})
    searchers.consult("net", Ask(3))
    assert searchers.poll_answer() is None
    with pytest.raises(AssertionError, match="calls never overlap"):
        searchers.consult("net", Ask(4))
    slow.may_answer.set()
    assert await_answer(searchers) == SearcherAnswered("net", Ask(3), {"width": 3})
    assert searchers.poll_answer() is None
    searchers.close()


def test_searchers_report_any_exception():
    searchers = Searchers({"net": search_of(Slow())})
    searchers.consult("net", Report(0, 1, 0.5))
    assert await_answer(searchers) == SearcherCallFailed(
        "net", "Report(number=0, epoch=1, value=0.5) failed: SystemExit: enough"
    )
    searchers.close()


def test_searchers_replace_a_hanging_thread(slow):
    searchers = Searchers({"net": search_of(slow, patience_s=0.05), "other": search_of(Slow())})
    searchers.consult("net", Ask(0))
    assert await_answer(searchers) == SearcherCallFailed(
        "net", "Ask(number=0) took longer than 0.1 s (search.timeout)"
    )
    searchers.consult("other", Tell(0, "finished", 0.5))
    assert await_answer(searchers) == SearcherAnswered("other", Tell(0, "finished", 0.5), None)
    searchers.close()


def test_searchers_limit_the_time_of_each_replayed_call(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("fleet.runtime.searchers.time", clock)

    class Thoughtful(Slow):
        def ask(self, number):
            clock.now += 0.15
            return {"width": number}

    logged = [
        SearcherCalled("net", "ask", number, answer={"width": number}) for number in range(10)
    ]
    searchers = Searchers({"net": search_of(Thoughtful(), *logged, patience_s=0.2)})
    searchers.consult("net", Ask(10))
    assert await_answer(searchers) == SearcherAnswered("net", Ask(10), {"width": 10})
    searchers.close()


def test_searchers_report_a_differing_replayed_answer(slow):
    slow.may_answer.set()
    searchers = Searchers(
        {
            "net": search_of(
                slow,
                SearcherCalled("net", "ask", 0, answer={"width": 0}),
                SearcherCalled("net", "ask", 1, answer={"width": 7}),
            )
        }
    )
    searchers.consult("net", Ask(2))
    assert await_answer(searchers) == SearcherAnswered(
        "net",
        Ask(2),
        {"width": 2},
        (
            "a replayed answer differs: Ask(number=1) was answered by {'width': 7}, and now by "
            "{'width': 1}"
        ),
    )
    searchers.consult("net", Ask(3))
    assert await_answer(searchers).difference == ""  # calls are replayed once
    searchers.close()


def test_searchers_that_are_new_get_prior_trials_again(monkeypatch):
    entry = Entry(
        "net",
        Search(sampler="random", max_trials=9),
        {"width": (1, 2, 3)},
    )
    trials = [AddPriorTrial(0, {"width": 3}, (), "finished", 0.5, "a-2", "runs/a")]
    monkeypatch.setattr(
        warm_start, "read_prior_trials", lambda run, space, objectives, constraints: (trials, {})
    )
    search, read = RunSearch(), EarlierRunRead("net", "runs/a", 1)
    search.add_earlier_run(EarlierRunRead("net", "runs/a", 2))
    for number in range(2):
        search.add_call(
            SearcherCalled(
                "net",
                "know",
                -1 - number,
                answer={"width": 1 + number},
                network=f"a-{number}",
                source="runs/a",
            )
        )
    assert read_earlier_run(entry, "runs/a", search, accepts_trials=True) == ([], None)
    search.start_searcher(SearcherStarted("net", {}, "space", is_another=True))
    assert read_earlier_run(entry, "runs/a", search, accepts_trials=True) == (trials, read)
    search.add_earlier_run(read)
    # killed before the searcher received the trials
    assert read_earlier_run(entry, "runs/a", search, accepts_trials=True) == (trials, None)
