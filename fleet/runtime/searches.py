"""The searches of a run: what of them is checked before it, made for it, and made again from its log."""

from __future__ import annotations

import math
import queue
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from fleet.domain.events import Event, Searched
from fleet.errors import SpecError, UserError
from fleet.monitor.eta import Coming, Outlook
from fleet.search.mind import Entry, Mind
from fleet.search.pruning import make_judge
from fleet.search.searcher import Mode, Resuming, Searcher, make_searcher
from fleet.spec import ModelEntry, NetworkSpec, Spec
from fleet.spec.search import Prune, Search, find_rule
from fleet.spec.space import Space
from fleet.units import format_duration


def make_searchers(ends: Spec) -> dict[str, Searcher]:
    """The searchers of a spec, by the names of their entries.

    Args:
        ends: the spec, with the networks that stand for those of its searches.

    Raises:
        SpecError: one cannot be made, or the rule of pruning; the message says which, and why.
    """
    searchers = {}
    with _said_at(ends, ("prune", "rule")):
        make_judge(ends.document.prune, 1, ends.seed)
    for index, entry in _searched(ends).items():
        assert entry.search is not None
        with _said_at(ends, ("models", index, "search", "ask")):
            searchers[entry.stem] = _made(entry.search, entry.space or {}, _mode(_one_of(ends, index)))
    return searchers


@contextmanager
def _said_at(spec: Spec, place: tuple) -> Iterator[None]:
    """A context in which what is wrong with a part of the user's own is a mistake at its place in the spec."""
    try:
        yield
    except UserError as error:
        wrong, _, right = str(error).partition("; ")
        raise SpecError([spec.origin.mistake(place, wrong, right)]) from error


def _made(search: Search, space: Space, mode: Mode) -> Searcher:
    """A searcher, made in a thread: its constructor has as long as each of its calls.

    Raises:
        UserError: it cannot be made, or not in time.
    """
    made: queue.SimpleQueue[Searcher | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            made.put(make_searcher(search.ask, space, search.seed, mode, search.options))
        except BaseException as error:
            made.put(error)

    threading.Thread(target=work, name="searcher", daemon=True).start()
    try:
        found = made.get(timeout=search.answer_within)
    except queue.Empty:
        raise UserError(f"{search.ask} was not made within {format_duration(search.answer_within)}; what takes long "
                        "should wait until it is asked, or search.answer_within be more") from None
    if isinstance(found, BaseException):
        raise found
    return found


def make_mind(spec: Spec, ends: Spec, searchers: Mapping[str, Searcher], trainers: int, judges: bool = True) -> Mind:
    """The mind of a run.

    Args:
        spec: with the networks that there are when the launch begins.
        ends: with those that stand for the networks of its searches.
        trainers: how many there are.
        judges: whether networks are pruned by the rule of the spec; in a replay none are.
    """
    prune, everyone = spec.document.prune if judges else Prune(), [*spec.networks, *ends.networks]
    entries = []
    for index, entry in _searched(ends).items():
        assert entry.search is not None
        one = _one_of(ends, index)
        entries.append(Entry(entry.stem, entry.search, entry.space or {}, _mode(one), one.train.converge.watched,
                             isinstance(searchers[entry.stem], Resuming)))
    most_epochs = max((network.train.converge.max_epochs for network in everyone), default=1)
    return Mind(entries, [network.name for network in spec.networks if network.number is None or not entries],
                make_judge(prune, most_epochs, spec.seed), prune.rule,
                _mode(everyone[0]) if everyone else "maximize",
                everyone[0].train.converge.watched if everyone else "val_accuracy", trainers,
                obeys=find_rule(prune.rule).obeys)


def outlook(mind: Mind) -> Outlook:
    """What estimates of the time left must know of searches."""
    coming = []
    for name, entry in mind.entries.items():
        networks, epochs = mind.coming(name)
        at_once = entry.settings.at_once
        coming.append(Coming(networks, epochs, math.inf if at_once == "auto" else at_once, mind.networks_of(name)))
    return Outlook(mind.paused.union(mind.pruned), mind.next_rung, mind.expected, tuple(coming))


def calls_of(log: Iterable[Event]) -> dict[str, Sequence[Searched]]:
    """The calls of earlier launches, by entry."""
    calls: dict[str, list[Searched]] = defaultdict(list)
    for event in log:
        if isinstance(event, Searched):
            calls[event.entry].append(event)
    return dict(calls)


def _searched(ends: Spec) -> dict[int, ModelEntry]:
    """The entries whose networks are asked for in this launch; none of them are in a replay."""
    places = {network.entry for network in ends.networks}
    return {index: entry for index, entry in ends.searches.items() if index in places}


def _one_of(ends: Spec, index: int) -> NetworkSpec:
    return next(network for network in ends.networks if network.entry == index)


def _mode(network: NetworkSpec) -> Mode:
    return "maximize" if network.train.converge.sign > 0 else "minimize"
