"""The protocol of searchers, and the samplers ``random`` and ``grid``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from fleet.errors import UserError
from fleet.plugins import load_object
from fleet.spec.dimensions import Member, Space, key_of_value
from fleet.spec.drawing import members
from fleet.spec.enumeration import combinations, endless_name
from fleet.spec.model import one_line
from fleet.spec.search import OPTUNA_SAMPLERS, Mode
from fleet.vocabulary.foreign_names import did_you_mean_name
from preprocess.user_code import UserCode, seed_generators


class Verdict(StrEnum):
    """The decision on a network at the end of an epoch; a later one is stricter."""

    GO_ON = "go_on"
    PAUSE = "pause"
    STOP = "stop"

    def stricter(self, verdict: Verdict) -> Verdict:
        """Return the stricter of two verdicts.

        >>> Verdict.PAUSE.stricter(Verdict.GO_ON)
        <Verdict.PAUSE: 'pause'>
        """
        order = list(Verdict)
        return max(self, verdict, key=order.index)


class TrialOutcome(StrEnum):
    """How a network ended, for its searcher."""

    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"


class Searcher(Protocol):
    """Proposes networks and judges them; constructed as ``Searcher(space, seed, mode, **options)``.

    One thread of rank 0 calls it. Calls never overlap, and the log of the run keeps their order: a
    resumed launch repeats them. Answers should therefore depend on arguments and earlier calls
    only, and on no clock or file.

    Args:
        space: name -> a tuple of choices, a :class:`~fleet.spec.dimensions.Range` (``low``,
            ``high``, ``log``, ``integer``, ``step``, ``prior``, ``when``), or
            :class:`~fleet.spec.dimensions.Choices` (a sequence with ``weights`` and ``when``).
        seed: seed for all random choices.
        mode: ``maximize`` or ``minimize``; a tuple for several objectives.
        options: those of the spec.
    """

    def ask(self, number: int) -> Mapping[str, Any] | None:
        """Propose the values of a network.

        Args:
            number: number of the network, counted from 0 within the entry.

        Returns:
            A value for each key of the space that is used (:func:`fleet.api.is_active`); optionally
            also ``parent``, the number of the network from whose weights it starts. None to propose
            nothing now: ``ask`` is called again after the next report or tell.
        """

    def report(self, number: int, epoch: int, value: float) -> str:
        """Judge a network that has ended an epoch.

        With ``repeats`` it is called once all repeats have ended the epoch, with their mean. A
        method with a parameter ``spread`` also receives their standard deviation, as does ``tell``:
        None for fewer than two finite values.

        Args:
            number: number of the network.
            epoch: counted from 1.
            value: value of the monitored quantity, which is the first objective; NaN if there is
                none.

        Returns:
            ``go_on``, ``pause`` or ``stop``.
        """

    def tell(self, number: int, outcome: str, value: Any) -> None:
        """Record that a network has ended.

        Args:
            number: number of the network.
            outcome: ``finished``, ``pruned`` or ``failed``.
            value: the best monitored value, None if there is none. A tuple for several objectives,
                with NaN for unknown values.
        """


@runtime_checkable
class ResumesTrials(Protocol):
    """A searcher that may resume networks that it has paused."""

    def resume(self) -> int | None:
        """Return the number of a paused network to resume, or None."""


@runtime_checkable
class AcceptsPriorTrials(Protocol):
    """A searcher that accepts networks that it has not proposed."""

    def add_prior_trial(self, number: int, values: Mapping[str, Any]) -> None:
        """Add a network with these values; reports, whose answers are ignored, and a tell follow.

        Args:
            number: below 0 for a network of an earlier run; otherwise of this run, proposed by
                another searcher.
            values: values by the keys of the space.
        """


class _SpaceSearcher:
    """Iterates over members of a space, whatever their results, except prior trials.

    Args:
        members: members in their order.
    """

    judges = False  # no network is paused or pruned

    def __init__(self, members: Iterator[Member]) -> None:
        self._members = members
        self._listed = list[Member]()
        self._prior_values = set[str]()
        self._first: int | None = (
            None  # the number that was asked for first; others have asked for those before
        )

    def ask(self, number: int) -> Member | None:
        """Return the next member, the same one for the same number; None after the last one."""
        self._first = number if self._first is None else self._first
        while len(self._listed) <= number - self._first:
            member = next(
                (
                    candidate
                    for candidate in self._members
                    if key_of_value(candidate) not in self._prior_values
                ),
                None,
            )
            if member is None:
                return None
            self._listed.append(member)
        return self._listed[number - self._first]

    def add_prior_trial(self, number: int, values: Mapping[str, Any]) -> None:
        """Skip these values."""
        self._prior_values.add(key_of_value(dict(values)))

    def report(self, number: int, epoch: int, value: float) -> str:
        """Let every network continue."""
        return Verdict.GO_ON

    def tell(self, number: int, outcome: str, value: Any) -> None:
        """Ignore the outcome."""


class RandomSearcher(_SpaceSearcher):
    """Draws members at random, each once: the same as ``count`` draws with the same seed."""

    def __init__(self, space: Space, seed: int, mode: Mode) -> None:
        super().__init__(members(space, seed))


class GridSearcher(_SpaceSearcher):
    """Iterates over all combinations, in the order of ``grid``.

    Raises:
        UserError: a range has infinitely many values.
    """

    def __init__(self, space: Space, seed: int, mode: Mode) -> None:
        super().__init__(combinations(space))
        name = endless_name(space)
        if name is not None:
            raise UserError(
                f"grid needs lists and ranges of integers, and {name} is neither; give a list, a "
                "step, or sampler: random"
            )


SEARCHERS = {"random": RandomSearcher, "grid": GridSearcher}


def may_judge(searcher: Searcher) -> bool:
    """Return True if a searcher may pause or prune networks, unless it says ``judges = False``."""
    return bool(getattr(searcher, "judges", True))


def make_searcher(
    ask: str, space: Space, seed: int, mode: Mode | tuple[Mode, ...], options: Mapping[str, Any]
) -> Searcher:
    """Return the searcher of a name, or of an import path ``module:Class``.

    Optuna is imported for its samplers only.

    Args:
        ask: the name or import path.
        space: space of the search.
        seed: seed for all random choices.
        mode: ``maximize`` or ``minimize``; a tuple for several objectives.
        options: options of the spec.

    Raises:
        UserError: the searcher is unknown, cannot be constructed, or lacks a method.
    """
    if ask not in SEARCHERS and ask not in OPTUNA_SAMPLERS and ":" not in ask:
        names = [*SEARCHERS, *OPTUNA_SAMPLERS]
        raise UserError(
            f"no sampler is named {ask!r}{did_you_mean_name(ask, names)}; use "
            f"{', '.join(names)}, or an import path module:Class"
        )
    if ask in SEARCHERS:
        return _construct(ask, SEARCHERS[ask], space, seed, mode, options)
    make_by_optuna = _load_optuna(ask) if ask in OPTUNA_SAMPLERS else None
    code = UserCode()
    with code.running():
        seed_generators(seed)
        kind = make_by_optuna or load_object(ask, "searcher")
        searcher = _construct(ask, kind, space, seed, mode, options)
    _CODES[id(searcher)] = searcher, code
    return searcher


def _load_optuna(word: str) -> Callable[..., Searcher]:
    """Return what makes the searcher of a sampler of Optuna.

    Raises:
        UserError: Optuna is not installed, or is too old.
    """
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            f"the sampler {word} needs Optuna ({one_line(error)}); run `pip install optuna`"
        ) from None
    if not hasattr(optuna.trial.Trial, "set_constraint"):
        raise UserError(
            f"the sampler {word} needs Optuna 5, and {optuna.__version__} is installed; run "
            "`pip install 'optuna>=5'`"
        )
    from fleet.search.optuna_samplers import OptunaSearcher

    def make(
        space: Space, seed: int, mode: Mode | tuple[Mode, ...], /, **options: Any
    ) -> OptunaSearcher:
        return OptunaSearcher(word, space, seed, mode, options)

    return make


_CODES: dict[int, tuple[Searcher, UserCode]] = {}  # of searchers of users


def in_user_code(searcher: Searcher) -> AbstractContextManager[None]:
    """Return a context that isolates changes of a searcher to the process."""
    if isinstance(searcher, _SpaceSearcher):
        return nullcontext()
    return _CODES.setdefault(id(searcher), (searcher, UserCode()))[1].running()


def _construct(
    ask: str,
    kind: Any,
    space: Space,
    seed: int,
    mode: Mode | tuple[Mode, ...],
    options: Mapping[str, Any],
) -> Searcher:
    try:
        # copies, because it may change them
        searcher: Any = kind(copy.deepcopy(space), seed, mode, **copy.deepcopy(dict(options)))
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a class of a user's may raise anything
        raise UserError(f"{ask} cannot be constructed: {one_line(error)}") from error
    missing = [
        method
        for method in ("ask", "report", "tell")
        if not callable(getattr(searcher, method, None))
    ]
    if missing:
        raise UserError(
            f"{ask} has no method {', '.join(missing)}; a searcher has ask, report and tell"
        )
    if not hasattr(searcher, "add_prior_trial") and hasattr(searcher, "known"):
        searcher.add_prior_trial = searcher.known  # its name before 0.3
    return searcher
