"""Searchers, called in a thread of rank 0, one call at a time, with a time limit.

A searcher may compute for seconds, while MPI, messages and the lease cannot wait. So the
coordinator passes a call to the thread (:meth:`Searchers.consult`) and polls for the answer in each
of its steps (:meth:`Searchers.poll_answer`). A searcher that raises or hangs is never called again;
a thread that hangs is abandoned, and the next call gets a new one.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from fleet.control.effects import SearcherAnswered, SearcherCallFailed
from fleet.domain.events import EarlierRunRead, SearcherCalled, SearcherStarted
from fleet.domain.run import RunSearch, RunState
from fleet.errors import SearchKeyError, SpecError, UserError
from fleet.runtime.warm_start import locate, read_earlier_run
from fleet.search.calls import AddPriorTrial, Call, make_call, replay, takes
from fleet.search.changed_settings import describe_start
from fleet.search.entries import Entry, entries_of
from fleet.search.pruning import make_pruner
from fleet.search.searcher import (
    AcceptsPriorTrials,
    Searcher,
    make_searcher,
)
from fleet.spec import Spec
from fleet.spec.model import one_line
from fleet.units import format_duration
from preprocess import user_code

Answer: TypeAlias = SearcherAnswered | SearcherCallFailed


@dataclass(frozen=True)
class StartedSearch:
    """A search at the start of a launch.

    Attributes:
        searcher: a new searcher, which has received no call.
        calls: the calls of earlier launches that it repeats.
        prior_trials: trials of earlier runs that no launch has passed to it.
        first_events: events to log before it is called.
        patience_s: longest time of one call, in seconds.
        note: what users should know about the sampler; may be empty.
    """

    searcher: Searcher
    calls: tuple[SearcherCalled, ...]
    prior_trials: list[AddPriorTrial]
    first_events: list[SearcherStarted | EarlierRunRead]
    patience_s: float
    note: str = ""


def start_searches(extremes: Spec, run: RunState) -> dict[str, StartedSearch]:
    """Start the searches of a spec, by the names of their entries.

    Args:
        extremes: the spec with the extreme networks of its searches.
        run: the state that earlier launches have left.

    Raises:
        SpecError: a searcher or the pruning rule cannot be made, or an earlier run cannot be read;
            the message says which and why.
    """
    searches = {}
    with _locating_mistakes(extremes, ("prune", "rule")):
        make_pruner(extremes.document.prune, 1, extremes.seed)
    for index, entry in entries_of(extremes).items():
        with _locating_mistakes(extremes, ("models", index, "search", "sampler")):
            searcher = _make_in_time(entry)
        accepts_trials = isinstance(searcher, AcceptsPriorTrials)
        search = run.search(entry.name)
        first_events: list[SearcherStarted | EarlierRunRead] = []
        start = describe_start(entry, search, accepts_trials)
        if start is not None:
            first_events.append(start)
            if start.is_another:  # a new searcher replays no calls of the previous one
                search = RunSearch(read=search.read)
        prior_trials: list[AddPriorTrial] = []
        for position, source in enumerate(entry.settings.warm_start):
            path = ("models", index, "search", "warm_start", position)
            with _locating_mistakes(extremes, path):
                if os.path.realpath(source) == os.path.realpath(extremes.output):
                    raise UserError(
                        f"{source} is the folder of this run, whose trials the search uses anyway; "
                        "remove it"
                    )
                located = locate(source, extremes.origin.file)
                trials, read = read_earlier_run(entry, source, search, accepts_trials, located)
            prior_trials += trials
            if read is not None:
                first_events.append(read)
        searches[entry.name] = StartedSearch(
            searcher,
            tuple(search.calls),
            prior_trials,
            first_events,
            entry.settings.timeout,
            _note_on_constraints(entry, searcher),
        )
    return searches


def _note_on_constraints(entry: Entry, searcher: Searcher) -> str:
    """Say that a sampler does not use the constraints of its search."""
    is_used = getattr(searcher, "uses_constraints", takes(searcher.tell, "violations"))
    if is_used or not entry.constraints:
        return ""
    return (
        f"note: {entry.name}: the sampler {entry.settings.sampler} does not use the constraints; "
        "reports leave out networks that violate them"
    )


@contextmanager
def _locating_mistakes(spec: Spec, path: tuple) -> Iterator[None]:
    """Report errors of user code as mistakes at a place in the spec."""
    try:
        yield
    except UserError as error:
        if isinstance(error, SearchKeyError):
            path = _path_of(error, path[:3])
        wrong, _, right = str(error).partition("; ")
        raise SpecError([spec.origin.mistake(path, wrong, right)]) from error


def _path_of(error: SearchKeyError, search: tuple) -> tuple:
    """Return the key path of a wrong key, given that of its search."""
    if error.path[0] == "space":
        return (*search[:-1], *error.path)
    return (*search, *error.path)


def _make_in_time(entry: Entry) -> Searcher:
    """Make a searcher in a thread within the time limit of its calls.

    Raises:
        UserError: the searcher cannot be made, or takes too long.
    """
    search = entry.settings
    construction: Future[Searcher] = Future()

    def work() -> None:
        try:
            construction.set_result(
                make_searcher(search.sampler, entry.space, search.seed, entry.modes, search.options)
            )
        except BaseException as error:
            construction.set_exception(error)

    thread = threading.Thread(target=work, name="searcher", daemon=True)
    thread.start()
    wait([construction], search.timeout)
    if not construction.done():
        user_code.abandon(thread)
        raise UserError(
            f"{search.sampler} was not constructed within {format_duration(search.timeout)}; move "
            "slow work from the constructor to the first call, or raise search.timeout"
        )
    return construction.result()


class _Task:
    """A call in the thread, preceded by replayed calls; ignored once abandoned."""

    def __init__(self, entry: str, call: str) -> None:
        self.entry = entry
        self.call = call
        self.since_s = time.monotonic()
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def begin(self, call: Call) -> None:
        """Start the time of a call."""
        self.call = str(call)
        self.since_s = time.monotonic()


class Searchers:
    """The searchers of a run.

    Args:
        searches: entry -> its search.
    """

    def __init__(self, searches: Mapping[str, StartedSearch]) -> None:
        self._searches = searches
        self._unreplayed = set(searches)
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] | None = None
        self._task: _Task | None = None
        self._thread: threading.Thread | None = None

    def consult(self, entry: str, call: Call) -> None:
        """Call a searcher in the thread, replaying earlier launches' calls first."""
        assert self._task is None, "calls never overlap"
        self._task = task = _Task(entry, str(call))
        searcher = self._searches[entry].searcher
        logged = self._searches[entry].calls if entry in self._unreplayed else ()
        self._unreplayed.discard(entry)

        def run() -> None:
            try:
                difference = replay(searcher, logged, task.begin)
                task.begin(call)
                result = make_call(searcher, call)
                task.answers.put(SearcherAnswered(entry, call, result, difference))
            except BaseException as error:  # users' searchers may raise anything, even SystemExit
                reason = f"{task.call} failed: {one_line(error)}"
                task.answers.put(SearcherCallFailed(entry, reason))

        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            self._thread = threading.Thread(
                target=_run_tasks, args=(self._tasks,), name="searcher", daemon=True
            )
            self._thread.start()
        self._tasks.put(run)

    def poll_answer(self) -> Answer | None:
        """Return the answer once there is one or its time is over; never blocks."""
        task = self._task
        if task is None:
            return None
        try:
            answer = task.answers.get_nowait()
        except queue.Empty:
            patience_s = self._searches[task.entry].patience_s
            if time.monotonic() < task.since_s + patience_s:
                return None
            self._tasks = None  # if its thread ever returns, it finds no further task
            if self._thread is not None:
                user_code.abandon(self._thread)
            answer = SearcherCallFailed(
                task.entry,
                f"{task.call} took longer than {format_duration(patience_s)} (search.timeout)",
            )
        self._task = None
        return answer

    def close(self) -> None:
        """Let the thread end, if it can."""
        if self._tasks is not None:
            self._tasks.put(None)
            self._tasks = None


def _run_tasks(tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    for task in iter(tasks.get, None):
        task()
