"""Who asks for networks: the protocol that a searcher follows, and our own two."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from fleet.errors import UserError
from fleet.plugins import load_object
from fleet.spec.model import one_line
from fleet.spec.search import Mode
from fleet.spec.space import Member, Range, Space, key_of_value, member_at, members
from preprocess.user_code import UserCode, seed_generators


class Verdict(StrEnum):
    """What is to become of a network at the end of an epoch; a later one is stricter."""

    GO_ON = "go_on"
    PAUSE = "pause"
    STOP = "stop"

    def stricter(self, other: Verdict) -> Verdict:
        """The stricter of two.

        >>> Verdict.PAUSE.stricter(Verdict.GO_ON)
        <Verdict.PAUSE: 'pause'>
        """
        order = list(Verdict)
        return max(self, other, key=order.index)


class End(StrEnum):
    """How it ended with a network, for its searcher."""

    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"


class Searcher(Protocol):
    """Proposes networks and judges them; constructed as ``Searcher(space, seed, mode, **options)``.

    It is called by one thread of rank 0. Calls never overlap, and the log of the run keeps their order: a launch that
    goes on makes them again. So what it answers should follow from its arguments and the calls before, and from no
    clock or file.

    Args:
        space: name -> :class:`~fleet.spec.space.Range` (``low``, ``high``, ``log``, ``integer``), or a tuple of
            choices.
        seed: of all that is random.
        mode: whether high or low values are good: ``maximize`` or ``minimize``; of several objectives a tuple.
        options: those of the spec.
    """

    def ask(self, number: int) -> Mapping[str, Any] | None:
        """Choose the values of a network.

        Args:
            number: of the network, counted from 0 within the entry.

        Returns:
            A value for each key of the space; perhaps also ``parent``, the number of the network from whose weights it
            starts. None where there is nothing to ask for now: it is asked again after the next report or tell.
        """

    def report(self, number: int, epoch: int, value: float) -> str:
        """A network has ended an epoch.

        Args:
            number: of the network.
            epoch: counted from 1.
            value: of the monitored quantity, which is the first objective; NaN where there is none.

        Returns:
            ``go_on``, ``pause`` or ``stop``.
        """

    def tell(self, number: int, outcome: str, value: Any) -> None:
        """A network is over.

        Args:
            number: of the network.
            outcome: ``finished``, ``pruned`` or ``failed``.
            value: the best value of the monitored quantity, None where there is none. Of several objectives a tuple
                of what the network came to in each, NaN where that is not known.
        """


@runtime_checkable
class ResumesTrials(Protocol):
    """A searcher that may let networks go on which it has paused."""

    def resume(self) -> int | None:
        """The number of a paused network that may go on, or None."""


@runtime_checkable
class AcceptsPriorTrials(Protocol):
    """A searcher that can be told of networks that it has not asked for."""

    def known(self, number: int, values: Mapping[str, Any]) -> None:
        """There is a network with these values; of it there are reports, whose answers have no meaning, and a tell.

        Args:
            number: below 0 of a network of an earlier run. Otherwise it is one of this run, whom another searcher has
                asked for.
        """


class _Listing:
    """Goes through members of a space, whatever becomes of them, but for those that are known.

    Args:
        members: in their order.
    """

    def __init__(self, members: Iterator[Member]) -> None:
        self._members = members
        self._listed = list[Member]()
        self._known = set[str]()
        self._first: int | None = (
            None  # the number that was asked for first; others have asked for those before
        )

    def ask(self, number: int) -> Member | None:
        """The next member; None beyond the last one. Of a number it is always the same."""
        self._first = number if self._first is None else self._first
        while len(self._listed) <= number - self._first:
            member = next(
                (one for one in self._members if key_of_value(one) not in self._known), None
            )
            if member is None:
                return None
            self._listed.append(member)
        return self._listed[number - self._first]

    def known(self, number: int, values: Mapping[str, Any]) -> None:
        """These values need not be tried again."""
        self._known.add(key_of_value(dict(values)))

    def report(self, number: int, epoch: int, value: float) -> str:
        """It judges nothing."""
        return Verdict.GO_ON

    def tell(self, number: int, outcome: str, value: Any) -> None:
        """It learns nothing."""


class RandomSearcher(_Listing):
    """Draws members at random, each once: those that ``count`` draws with the same seed."""

    def __init__(self, space: Space, seed: int, mode: Mode) -> None:
        super().__init__(members(space, seed))


class GridSearcher(_Listing):
    """All combinations, in the order of ``grid``.

    Raises:
        UserError: a range has no end of values.
    """

    def __init__(self, space: Space, seed: int, mode: Mode) -> None:
        numbers = itertools.count()
        super().__init__(iter(lambda: member_at(space, next(numbers)), None))
        for name, dimension in space.items():
            if isinstance(dimension, Range) and not dimension.integer:
                raise UserError(
                    f"grid goes through lists and ranges of integers, and {name} is neither; give a list, "
                    "or ask: random"
                )


SEARCHERS = {"random": RandomSearcher, "grid": GridSearcher}


def make_searcher(
    ask: str, space: Space, seed: int, mode: Mode | tuple[Mode, ...], options: Mapping[str, Any]
) -> Searcher:
    """The searcher of a name, or of an import path ``module:Class``.

    Raises:
        UserError: there is none, it cannot be constructed, or it lacks a method.
    """
    if ask not in SEARCHERS and ":" not in ask:
        raise UserError(
            f"no searcher is named {ask!r}; one of {', '.join(SEARCHERS)}, or an import path module:Class"
        )
    if ask in SEARCHERS:
        return _made(ask, SEARCHERS[ask], space, seed, mode, options)
    code = UserCode()
    with code.running():
        seed_generators(seed)
        searcher = _made(ask, load_object(ask, "searcher"), space, seed, mode, options)
    _CODES[id(searcher)] = searcher, code
    return searcher


_CODES: dict[int, tuple[Searcher, UserCode]] = {}  # of searchers of users


def running(searcher: Searcher) -> AbstractContextManager[None]:
    """A context in which a searcher is called: what it changes in the process is put back, and kept for it."""
    if isinstance(searcher, _Listing):
        return nullcontext()
    return _CODES.setdefault(id(searcher), (searcher, UserCode()))[1].running()


def _made(
    ask: str,
    kind: Any,
    space: Space,
    seed: int,
    mode: Mode | tuple[Mode, ...],
    options: Mapping[str, Any],
) -> Searcher:
    try:
        # What it does with them changes neither the space nor what the spec says.
        searcher: Searcher = kind(copy.deepcopy(space), seed, mode, **copy.deepcopy(dict(options)))
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a class of a user's may raise anything
        raise UserError(f"{ask} cannot be made: {one_line(error)}") from error
    lacks = [
        method
        for method in ("ask", "report", "tell")
        if not callable(getattr(searcher, method, None))
    ]
    if lacks:
        raise UserError(
            f"{ask} has no method {', '.join(lacks)}; a searcher has ask, report and tell"
        )
    return searcher
