"""What a searcher is called with, and what may be understood of its answers (pure).

Everything that a searcher may answer becomes plain JSON here, so that what is logged is what is acted on.
"""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fleet.domain.events import Searched
from fleet.errors import UserError
from fleet.search.searcher import AcceptsPriorTrials, ResumesTrials, Searcher, Verdict, running
from fleet.spec.old_keys import values_with_new_names


@dataclass(frozen=True)
class Ask:
    """Choose the values of a network."""

    number: int


@dataclass(frozen=True)
class Report:
    """A network has ended an epoch with this value."""

    number: int
    epoch: int
    value: float


@dataclass(frozen=True)
class Tell:
    """A network is over: ``finished``, ``pruned`` or ``failed``, with its best value if it has one.

    Of several objectives there is a value for each, NaN where it is not known.
    """

    number: int
    outcome: str
    value: float | tuple[float, ...] | None


@dataclass(frozen=True)
class Resume:
    """Name a paused network that may go on."""


@dataclass(frozen=True)
class AddPriorTrial:
    """Take note of a network that this searcher has not asked for.

    Attributes:
        number: of a network of this run, whom another searcher has asked for; below 0 of one of an earlier run.
        values: of the keys of the space.
        curve: the monitored value of each of its epochs.
        outcome, value: how it ended, as in :class:`Tell`; nothing where that is yet to be told.
        name: of the network.
        source: the earlier run.
    """

    number: int
    values: Mapping[str, Any]
    curve: tuple[float, ...]
    outcome: str = ""
    value: float | tuple[float, ...] | None = None
    name: str = ""
    source: str = ""


Call: TypeAlias = Ask | Report | Tell | Resume | AddPriorTrial


class InvalidAnswer(UserError):
    """A searcher has answered what cannot be understood; the message says what, and what would be right."""


def make(searcher: Searcher, call: Call) -> Any:
    """Call a searcher; returns its answer as JSON has it.

    Raises:
        InvalidAnswer: that cannot be understood.
        BaseException: whatever the searcher raises.
    """
    with running(searcher):
        return _answer(searcher, call)


def _answer(searcher: Searcher, call: Call) -> Any:
    match call:
        case Ask(number):
            return _values(searcher.ask(number))
        case Report(number, epoch, value):
            return _verdict(searcher.report(number, epoch, value))
        case Tell(number, outcome, value):
            searcher.tell(number, outcome, value)
            return None
        case AddPriorTrial():
            if isinstance(searcher, AcceptsPriorTrials):
                _tell_all(searcher, call)
            return None
        case Resume():
            return _number(searcher.resume() if isinstance(searcher, ResumesTrials) else None)


def _tell_all(searcher: Any, known: AddPriorTrial) -> None:
    """Tell of a network that a searcher has not asked for; what it answers to reports has no meaning then."""
    searcher.known(known.number, copy.deepcopy(dict(known.values)))
    for epoch, value in enumerate(known.curve, 1):
        searcher.report(known.number, epoch, value)
    if known.outcome:
        searcher.tell(known.number, known.outcome, known.value)


def _values(answer: Any) -> dict[str, Any] | None:
    if answer is None:
        return None
    if not isinstance(answer, Mapping):
        raise InvalidAnswer(
            f"ask answered {_shown(answer)}; it should be a mapping of the space's keys, or None"
        )
    return values_with_new_names(_plain(answer))


def _verdict(answer: Any) -> str:
    try:
        return Verdict(answer).value
    except ValueError:
        raise InvalidAnswer(
            f"report answered {_shown(answer)}; it should be {', '.join(Verdict)}"
        ) from None


def _number(answer: Any) -> int | None:
    if answer is None:
        return None
    if isinstance(answer, bool) or not isinstance(answer, numbers.Integral):
        raise InvalidAnswer(
            f"resume answered {_shown(answer)}; it should be the number of a paused network, or None"
        )
    return int(answer)


def _plain(value: Any) -> Any:
    """A value as JSON has it: numbers of numpy become numbers of Python, tuples lists.

    NaN, infinity and numbers beyond a float's become text that no space has: only the network with such a value fails.

    Raises:
        InvalidAnswer: it cannot be JSON, as an object.

    >>> _plain({"rate": np.float32(0.5), "blocks": (np.int64(1), True), "decay": float("nan")})
    {'rate': 0.5, 'blocks': [1, True], 'decay': '<nan>'}
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Real):
        try:
            is_finite = math.isfinite(value)
        except OverflowError:
            return "<too large>"
        if not is_finite:
            return f"<{float(value)}>"
        if isinstance(value, numbers.Integral):
            return int(value)
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): _plain(item) for key, item in value.items()}
    raise InvalidAnswer(
        f"ask answered {_shown(value)}; use finite numbers, text, lists and mappings of text"
    )


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    if len(text) <= 80:
        return text
    return text[:77] + "..."


# ---- the log -----------------------------------------------------------------------------------


def as_event(entry: str, call: Call, answer: Any, network: str, wrong: str = "") -> Searched:
    """The line of a call and its answer."""
    match call:
        case Ask(number):
            return Searched(entry, "ask", number, answer=answer, network=network, wrong=wrong)
        case Report(number, epoch, value):
            return Searched(entry, "report", number, epoch, value, answer=answer, network=network)
        case Tell(number, outcome, value):
            return Searched(entry, "tell", number, value=value, outcome=outcome, network=network)
        case AddPriorTrial(number, values, curve, outcome, value, name, source):
            return Searched(
                entry,
                "know",
                number,
                value=value,
                outcome=outcome,
                answer=dict(values),
                network=name,
                curve=curve,
                source=source,
            )
        case Resume():
            return Searched(entry, "resume", answer=answer, network=network)


def as_call(event: Searched) -> Call:
    """The call that a line tells of.

    Raises:
        UserError: there is none of that name, or it lacks something.
    """
    number = -1 if event.number is None else event.number
    match event.call:
        case "ask" if number >= 0:
            return Ask(number)
        case "report" if number >= 0 and event.epoch is not None and isinstance(event.value, float):
            return Report(number, event.epoch, event.value)
        case "tell" if number >= 0:
            return Tell(number, event.outcome, event.value)
        case "resume":
            return Resume()
        case "know" if event.number is not None and isinstance(event.answer, Mapping):
            return AddPriorTrial(
                event.number,
                event.answer,
                event.curve,
                event.outcome,
                event.value,
                event.network,
                event.source,
            )
    raise UserError(f"{event} is no call of a searcher")


def replay(
    searcher: Searcher,
    logged: Iterable[Searched],
    begin: Callable[[Call], None] = lambda call: None,
) -> str:
    """Make the calls of a log again, in their order; returns which answer is the first to differ, or nothing.

    Args:
        begin: is told of each call before it is made.

    Raises:
        BaseException: whatever the searcher raises, or that its answer is nonsense.
    """
    first = ""
    for event in logged:
        begin(call := as_call(event))
        answer = make(searcher, call)
        if not first and not isinstance(call, Tell | AddPriorTrial) and answer != event.answer:
            first = f"a replayed answer differs: {call} was answered by {event.answer!r}, and now by {answer!r}"
    return first
