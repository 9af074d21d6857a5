"""The calls of a searcher, and the validation of its answers (pure).

Every answer is converted to plain JSON here, so that the logged answer is the one that is used.
"""

from __future__ import annotations

import copy
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np

from fleet.domain.events import SearcherCalled
from fleet.errors import UserError, short_repr
from fleet.search.searcher import AcceptsPriorTrials, ResumesTrials, Searcher, Verdict, in_user_code
from fleet.spec.old_keys import values_with_new_names


@dataclass(frozen=True)
class Ask:
    """Propose the values of a network."""

    number: int


@dataclass(frozen=True)
class Report:
    """A network has ended an epoch with this value.

    If it is repeated, all its repeats have ended the epoch: the value is their mean, with its
    standard deviation as ``spread``.
    """

    number: int
    epoch: int
    value: float
    spread: float | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Tell:
    """A network is ``finished``, ``pruned`` or ``failed``, with its best value if any.

    With several objectives there is a value for each, NaN if unknown. With constraints there is
    the violation of each: at most 0 if it is met, NaN if it is unknown. Of repeats, value and
    violations are means, and ``spread`` is the standard deviation of the value.
    """

    number: int
    outcome: str
    value: float | tuple[float, ...] | None
    violations: tuple[float, ...] = ()
    spread: float | tuple[float, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Resume:
    """Name a paused network to resume."""


@dataclass(frozen=True)
class AddPriorTrial:
    """A network that this searcher has not proposed.

    Attributes:
        number: number of a network of this run that another searcher proposed; below 0 for an
            earlier run.
        values: values by the keys of the space.
        curve: the monitored value of each of its epochs.
        outcome, value, violations, spread: how it ended, as in :class:`Tell`; empty if it has not
            ended.
        name: name of the network.
        source: the earlier run.
    """

    number: int
    values: Mapping[str, Any]
    curve: tuple[float, ...]
    outcome: str = ""
    value: float | tuple[float, ...] | None = None
    name: str = ""
    source: str = ""
    violations: tuple[float, ...] = ()
    spread: float | tuple[float, ...] | None = field(default=None, repr=False)


Call: TypeAlias = Ask | Report | Tell | Resume | AddPriorTrial


class InvalidAnswer(UserError):
    """A searcher gave an invalid answer; the message says what would be right."""


def make_call(searcher: Searcher, call: Call) -> Any:
    """Call a searcher; return its answer as JSON.

    Raises:
        InvalidAnswer: the answer is invalid.
        BaseException: anything that the searcher raises.
    """
    with in_user_code(searcher):
        return _answer(searcher, call)


def _answer(searcher: Searcher, call: Call) -> Any:
    match call:
        case Ask(number):
            return _values(searcher.ask(number))
        case Report():
            return _verdict(_report(searcher, call))
        case Tell():
            _tell(searcher, call)
            return None
        case AddPriorTrial():
            if isinstance(searcher, AcceptsPriorTrials):
                _pass_prior_trial(searcher, call)
            return None
        case Resume():
            return _number(searcher.resume() if isinstance(searcher, ResumesTrials) else None)


def _pass_prior_trial(searcher: Any, trial: AddPriorTrial) -> None:
    """Tell a searcher about a prior trial; its answers to reports are ignored."""
    searcher.add_prior_trial(trial.number, copy.deepcopy(dict(trial.values)))
    for epoch, value in enumerate(trial.curve, 1):
        searcher.report(trial.number, epoch, value)
    if trial.outcome:
        _tell(searcher, trial)


def _report(searcher: Searcher, call: Report) -> Any:
    optional = {"spread": call.spread} if takes(searcher.report, "spread") else {}
    return searcher.report(call.number, call.epoch, call.value, **optional)


_OPTIONAL = ("violations", "spread")  # arguments of ``tell`` that a searcher need not take


def _tell(searcher: Any, call: Tell | AddPriorTrial) -> None:
    """Tell a searcher how a network ended, with the optional arguments that it takes."""
    optional = {name: getattr(call, name) for name in _OPTIONAL if takes(searcher.tell, name)}
    searcher.tell(call.number, call.outcome, call.value, **optional)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return True if a function takes an argument of this name.

    >>> takes(lambda number, violations=(): None, "violations"), takes(print, "violations")
    (True, False)
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function without a signature
        return False
    return name in parameters


def _values(answer: Any) -> dict[str, Any] | None:
    if answer is None:
        return None
    if not isinstance(answer, Mapping):
        raise InvalidAnswer(
            f"ask answered {short_repr(answer)}; it should be a mapping of the space's keys, "
            "or None"
        )
    return values_with_new_names(_plain(answer))


def _verdict(answer: Any) -> str:
    try:
        return Verdict(answer).value
    except ValueError:
        raise InvalidAnswer(
            f"report answered {short_repr(answer)}; it should be {', '.join(Verdict)}"
        ) from None


def _number(answer: Any) -> int | None:
    if answer is None:
        return None
    if isinstance(answer, bool) or not isinstance(answer, numbers.Integral):
        raise InvalidAnswer(
            f"resume answered {short_repr(answer)}; it should be the number of a paused network, "
            "or None"
        )
    return int(answer)


def _plain(value: Any) -> Any:
    """Convert a value to JSON: NumPy numbers become Python numbers, tuples become lists.

    NaN, infinity and numbers beyond floats become text that no space contains: only the network
    with such a value fails.

    Raises:
        InvalidAnswer: the value cannot be JSON, like an arbitrary object.

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
        f"ask answered {short_repr(value)}; use finite numbers, text, lists and mappings of text"
    )


# ---- the log -----------------------------------------------------------------------------------

_WORDS: Mapping[type[Call], str] = {
    Ask: "ask",
    Report: "report",
    Tell: "tell",
    Resume: "resume",
    AddPriorTrial: "know",
}


def as_event(
    entry: str, call: Call, answer: Any, network: str, wrong: str = "", repeats: int = 1
) -> SearcherCalled:
    """Return the event of a call and its answer.

    Args:
        entry: name of the entry.
        call: the call.
        answer: the answer, as JSON.
        network: its name, if there is one.
        wrong: what is wrong with the values of an ask.
        repeats: number of networks with the values of an ask.
    """
    content = vars(call) | {
        "answer": answer,
        "network": network,
        "wrong": wrong,
        "repeats": repeats,
    }
    if isinstance(call, AddPriorTrial):
        content |= {"answer": dict(content.pop("values")), "network": content.pop("name")}
    elif isinstance(call, Tell):
        del content["answer"]
    return SearcherCalled(entry, _WORDS[type(call)], **content)


def as_call(event: SearcherCalled) -> Call:
    """Return the call of an event.

    Raises:
        UserError: the call is unknown, or lacks something.
    """
    content = vars(event) | {"values": event.answer, "name": event.network}
    number = -1 if event.number is None else event.number
    match event.call:
        case "resume":
            is_whole = True
        case "know":
            is_whole = event.number is not None and isinstance(event.answer, Mapping)
        case "report":
            is_whole = number >= 0 and event.epoch is not None and isinstance(event.value, float)
        case _:
            is_whole = number >= 0
    for kind, word in _WORDS.items():
        if is_whole and word == event.call:
            return kind(**{field.name: content[field.name] for field in fields(kind)})
    raise UserError(f"{event} is no call of a searcher")


def replay(
    searcher: Searcher,
    logged: Iterable[SearcherCalled],
    begin: Callable[[Call], None] = lambda call: None,
) -> str:
    """Repeat the calls of a log in order; return how the first answer differs, or an empty text.

    Args:
        searcher: a new searcher.
        logged: the events of its calls.
        begin: called with each call before it is made.

    Raises:
        BaseException: anything that the searcher raises, or an invalid answer.
    """
    first = ""
    for event in logged:
        begin(call := as_call(event))
        answer = make_call(searcher, call)
        if not first and not isinstance(call, Tell | AddPriorTrial) and answer != event.answer:
            first = (
                f"a replayed answer differs: {call} was answered by {event.answer!r}, "
                f"and now by {answer!r}"
            )
    return first
