"""Searchers, called in a thread of rank 0, one call at a time, with a time limit.

A searcher may think for seconds, while MPI, messages and the lease cannot wait. So the coordinator
hands over a call (:meth:`Searchers.consult`) and looks at each of its steps whether the answer is
there (:meth:`Searchers.poll_answer`). A searcher that raises or hangs is never called again; a
thread that hangs is left behind, and the next call has another.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from fleet.control.effects import SearcherAnswered, SearcherCallFailed
from fleet.domain.events import SearcherCalled
from fleet.domain.run import RunState
from fleet.errors import SpecError, UserError
from fleet.runtime.warm_start import read_earlier_run
from fleet.search.calls import Call, make_call, replay
from fleet.search.controller import Entry, entries_of
from fleet.search.pruning import make_pruner
from fleet.search.searcher import AcceptsPriorTrials, Searcher, make_searcher
from fleet.spec import Spec
from fleet.spec.model import one_line
from fleet.units import format_duration
from preprocess import user_code

_PATIENCE_S = 60.0  # for one call, if no limit is set


Answer: TypeAlias = SearcherAnswered | SearcherCallFailed


def make_searchers(ends: Spec, run: RunState) -> dict[str, Searcher]:
    """Make the searchers of a spec, by the names of their entries.

    Args:
        ends: the spec, with the networks that stand for those of its searches.
        run: as earlier launches have left it.

    Raises:
        SpecError: one cannot be made, or the rule of pruning; or an earlier run cannot be read. The
            message says which, and why.
    """
    searchers = {}
    with _locating_mistakes(ends, ("prune", "rule")):
        make_pruner(ends.document.prune, 1, ends.seed)
    for index, entry in entries_of(ends).items():
        with _locating_mistakes(ends, ("models", index, "search", "sampler")):
            searchers[entry.name] = _make_in_time(entry)
        for position, source in enumerate(entry.settings.warm_start):
            with _locating_mistakes(ends, ("models", index, "search", "warm_start", position)):
                if os.path.realpath(source) == os.path.realpath(ends.output):
                    raise UserError(
                        f"{source} is the folder of this run, of which a search knows anyway; left out"
                    )
                read_earlier_run(
                    entry,
                    source,
                    run.search(entry.name),
                    isinstance(searchers[entry.name], AcceptsPriorTrials),
                )
    return searchers


@contextmanager
def _locating_mistakes(spec: Spec, path: tuple) -> Iterator[None]:
    """Report errors of user code as mistakes at a place in the spec."""
    try:
        yield
    except UserError as error:
        wrong, _, right = str(error).partition("; ")
        raise SpecError([spec.origin.mistake(path, wrong, right)]) from error


def _make_in_time(entry: Entry) -> Searcher:
    """Make a searcher in a thread within the time limit of its calls.

    Raises:
        UserError: it cannot be made, or not in time.
    """
    search = entry.settings
    results: queue.SimpleQueue[Searcher | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put(
                make_searcher(search.sampler, entry.space, search.seed, entry.modes, search.options)
            )
        except BaseException as error:
            results.put(error)

    thread = threading.Thread(target=work, name="searcher", daemon=True)
    thread.start()
    try:
        result = results.get(timeout=search.timeout)
    except queue.Empty:
        user_code.abandon(thread)
        raise UserError(
            f"{search.sampler} was not made within {format_duration(search.timeout)}; what takes long "
            "should wait until it is asked, or search.timeout be more"
        ) from None
    if isinstance(result, BaseException):
        raise result
    return result


class _Work:
    """The work of the thread for one entry; ignored once abandoned."""

    def __init__(self, entry: str, name: str) -> None:
        self.entry = entry
        self.doing = name
        self.since_s = time.monotonic()
        self.done: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def begin(self, call: Call) -> None:
        """Start the time of a call."""
        self.doing = str(call)
        self.since_s = time.monotonic()


class Searchers:
    """The searchers of a run.

    Args:
        searchers: by the names of their entries.
        logged: the calls of earlier launches, by entry.
        patience_s: how long one call may take, in seconds, by entry.
    """

    def __init__(
        self,
        searchers: Mapping[str, Searcher],
        logged: Mapping[str, Sequence[SearcherCalled]] | None = None,
        patience_s: Mapping[str, float] | None = None,
    ) -> None:
        self._searchers = dict(searchers)
        self._logged = dict(logged or {})
        self._patience_s = dict(patience_s or {})
        self._orders: queue.SimpleQueue[Callable[[], None] | None] | None = None
        self._work: _Work | None = None
        self._thread: threading.Thread | None = None

    def consult(self, entry: str, call: Call) -> None:
        """Call a searcher in the thread, replaying earlier launches' calls first."""
        searcher = self._searchers[entry]
        logged = self._logged.pop(entry, ())

        def do(work: _Work) -> Answer:
            difference = replay(searcher, logged, work.begin)
            work.begin(call)
            return SearcherAnswered(entry, call, make_call(searcher, call), difference)

        self._start(entry, str(call), do)

    def poll_answer(self) -> Answer | None:
        """Return the answer once there is one or its time is over; never blocks."""
        work = self._work
        if work is None:
            return None
        try:
            answer = work.done.get_nowait()
        except queue.Empty:
            patience_s = self._patience_s.get(work.entry, _PATIENCE_S)
            if time.monotonic() < work.since_s + patience_s:
                return None
            self._orders = None  # its thread may come back, and finds nothing more to do
            if self._thread is not None:
                user_code.abandon(self._thread)
            answer = SearcherCallFailed(
                work.entry,
                f"{work.doing} took longer than {format_duration(patience_s)} (search.timeout)",
            )
        self._work = None
        return answer

    def close(self) -> None:
        """Let the thread end, if it can."""
        if self._orders is not None:
            self._orders.put(None)
            self._orders = None

    # ---- the thread ----

    def _start(self, entry: str, name: str, do: Callable[[_Work], Answer]) -> None:
        assert self._work is None, "calls never overlap"
        self._work = work = _Work(entry, name)

        def order() -> None:
            try:
                answer = do(work)
            except (
                BaseException
            ) as error:  # a searcher of a user's may raise anything, SystemExit as well
                answer = SearcherCallFailed(entry, f"{work.doing} failed: {one_line(error)}")
            work.done.put(answer)

        if self._orders is None:
            self._orders = queue.SimpleQueue()
            self._thread = threading.Thread(
                target=_serve, args=(self._orders,), name="searcher", daemon=True
            )
            self._thread.start()
        self._orders.put(order)


def _serve(orders: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (order := orders.get()) is not None:
        order()
