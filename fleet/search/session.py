"""The state of one searcher, and the next call to make (pure).

The state consists of answered calls only: :meth:`SearcherSession.handle_answer` receives each,
whether it was answered now or in an earlier launch, and returns what follows. So a session restored
from a log equals the one that wrote it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from fleet.errors import UserError
from fleet.search.calls import AddPriorTrial, Ask, Call, InvalidAnswer, Report, Resume, Tell
from fleet.search.decisions import AddNetwork
from fleet.search.entries import Entry
from fleet.search.searcher import TrialOutcome, Verdict
from fleet.spec.dimensions import Member, Space, key_of_value
from fleet.spec.space import member_of

PARENT = "parent"  # a key of answers that is not in the space

MAX_INVALID = 10  # invalid answers to ask after which the search ends


# An ask or, of a report, what it says; of a resume, the number of the network that goes on.
AnswerEffect: TypeAlias = AddNetwork | Verdict | int | None


class SearcherSession:
    """The calls and answers of one searcher.

    Args:
        entry: the entry whose networks it proposes.
        resumes: whether the searcher can resume paused networks.

    Attributes:
        proposals: all proposals, by number.
        verdicts: (number, epoch) -> the searcher's verdict.
        failure: why the searcher is not called again; empty if it is.
    """

    def __init__(self, entry: Entry, resumes: bool) -> None:
        self._entry = entry
        self._resumes = resumes
        self.proposals: dict[int, AddNetwork] = {}
        # values of networks without a parent -> number of the first such network
        self._seen: dict[str, int] = {}
        self.verdicts: dict[tuple[int, int], Verdict] = {}
        self._outcomes: dict[int, Tell] = {}
        # number -> epochs that are not reported to this searcher
        self._prior_epochs: dict[int, int] = {}
        self._earlier: dict[str, AddPriorTrial] = {}  # of earlier runs, by run and name
        self._paused: set[int] = set()  # by the searcher
        self._ended: set[int] = set()  # paused networks that have ended
        # pending calls in order, each once
        self._pending: dict[tuple[object, ...], Report | Tell | AddPriorTrial] = {}
        self._wrong = 0  # consecutive invalid answers to ask
        self._has_no_proposal = False  # whether the last ask returned None, with no report since
        self._has_tried = False  # whether resume was called, with no report since
        self.failure = ""

    # ---- queries ----

    @property
    def number(self) -> int:
        """The number of the network that is proposed next."""
        return len(self.proposals)

    @property
    def is_closed(self) -> bool:
        """Whether no more networks are proposed."""
        return (
            bool(self.failure)
            or len(self.proposals) >= self._entry.settings.limit
            or self._wrong >= MAX_INVALID
        )

    @property
    def may_ask(self) -> bool:
        """Whether a network can be proposed now."""
        return not self.is_closed and not self._has_no_proposal

    # ---- calls ----

    def report(self, number: int, epoch: int, value: float, spread: float | None = None) -> None:
        """Queue the report of an epoch, unless it was made; infinite values become NaN."""
        call = Report(number, epoch, value if math.isfinite(value) else math.nan, spread)
        is_known = (
            (number, epoch) in self.verdicts
            or number in self._outcomes
            or epoch <= self._prior_epochs.get(number, 0)
        )
        if not self.failure and not is_known:
            self._pending.setdefault(_key(call), call)

    def tell(self, number: int, outcome: TrialOutcome) -> None:
        """Queue the outcome of a network, unless it was reported; its value is added later."""
        if not self.failure and number not in self._outcomes:
            call = Tell(number, outcome.value, None)
            self._pending.setdefault(_key(call), call)

    def add_prior_trials(self, earlier: Iterable[AddPriorTrial]) -> None:
        """Queue the results of earlier runs that the searcher does not know."""
        for trial in earlier:
            key = f"{trial.source}/{trial.name}"
            if key not in self._earlier:
                self._earlier[key] = call = replace(trial, number=-1 - len(self._earlier))
                self._pending[_key(call)] = call

    def replace_searcher(
        self,
        space: Space,
        knows: bool,
        curves: Mapping[int, Sequence[float]],
        judges_alike: bool,
    ) -> None:
        """Replace the searcher: the new one receives all networks that fit, and judges from now on.

        Args:
            space: space of the new searcher.
            knows: whether it accepts prior trials.
            curves: number -> the monitored values of the epochs of a proposed network.
            judges_alike: whether objectives are unchanged; if not, earlier runs are read again.
        """
        self._pending.clear()
        self._paused.clear()
        self.verdicts.clear()  # pending verdicts are void
        if not judges_alike:
            self._earlier.clear()
        self._allow_asking()
        self._wrong = 0
        for key, trial in self._earlier.items():
            if knows and (member := match_space(space, trial.values)) is not None:
                self._earlier[key] = call = replace(trial, values=member)
                self._pending[_key(call)] = call
        for number, proposal in self.proposals.items():
            member = match_space(space, proposal.values)
            tell = self._outcomes.get(number, Tell(number, "", None))
            if proposal.wrong or member is None or not knows:
                self._outcomes[number] = tell  # the new searcher does not own it
                continue
            self._prior_epochs[number] = len(curves[number])
            call = AddPriorTrial(
                number,
                member,
                tuple(curves[number]),
                tell.outcome,
                tell.value,
                self._entry.configuration_name(number),
                violations=tell.violations,
                spread=tell.spread,
            )
            self._pending[_key(call)] = call

    def next_call(self, wants_network: bool) -> Call | None:
        """Return the next call; None if there is nothing to call.

        Args:
            wants_network: whether one more network should be alive.
        """
        if self.failure:
            return None
        if self._pending:
            return next(iter(self._pending.values()))
        if wants_network and self._resumes and self._paused and not self._has_tried:
            return Resume()
        if wants_network and self.may_ask:
            return Ask(self.number)
        return None

    def awaits(self, number: int) -> bool:
        """Return True if a call about a network is still to be made."""
        return any(
            call.number == number and not isinstance(call, AddPriorTrial)
            for call in self._pending.values()
        )

    def fail(self, reason: str) -> None:
        """Stop calling the searcher."""
        self.failure = reason
        self._pending.clear()

    # ---- answers ----

    def handle_answer(self, call: Call, answer: Any, recalled: str | None = None) -> AnswerEffect:
        """Record an answered call; return what follows.

        Args:
            call: the call.
            answer: as :func:`fleet.search.calls.make_call` returns it.
            recalled: for an ask in the log: what was wrong with it; the space may have changed
                since.

        Raises:
            InvalidAnswer: the answer is invalid in any space: the searcher must not be called
                again.
        """
        self._pending.pop(_key(call), None)  # the first, but where a launch has broken off
        match call:
            case Ask(number):
                return self._take_ask(number, answer, recalled)
            case Report(number, epoch):
                self._allow_asking()
                self.verdicts[number, epoch] = verdict = Verdict(answer)
                if verdict is Verdict.PAUSE:
                    self._paused.add(number)
                return verdict
            case AddPriorTrial():
                self._allow_asking()
                if call.source:
                    self._earlier[f"{call.source}/{call.name}"] = call
                return None
            case Tell(number):
                self._allow_asking()
                self._outcomes[number] = call
                if number in self._paused:
                    self._paused.remove(number)
                    self._ended.add(number)
                return None
            case Resume():
                return self._take_resume(answer)

    def _allow_asking(self) -> None:
        self._has_no_proposal = self._has_tried = False

    def _take_resume(self, answer: int | None) -> int | None:
        self._has_tried = True
        if answer is None or answer in self._ended:
            return None
        if answer not in self._paused:
            raise InvalidAnswer(f"resume answered {answer}, which is no network paused by it")
        self._paused.remove(answer)
        self._has_tried = False
        return answer

    def _take_ask(
        self, number: int, answer: Mapping[str, Any] | None, recalled: str | None
    ) -> AddNetwork | None:
        if answer is None:
            self._has_no_proposal = True
            return None
        values = {name: value for name, value in answer.items() if name != PARENT}
        parent = answer.get(PARENT)
        if recalled is not None:
            proposal = self._propose(number, values, parent, recalled)
            if parent is None and not recalled:
                self._seen.setdefault(key_of_value(values), number)
        else:
            proposal = self._checked(number, values, parent)
        self._wrong = self._wrong + 1 if proposal.wrong else 0
        self.proposals[number] = proposal
        return proposal

    def _checked(self, number: int, values: Mapping[str, Any], parent: Any) -> AddNetwork:
        """Return the proposal, with what is wrong with it."""
        try:
            member = member_of(self._entry.space, values)
            if (
                parent is None
                and (before := self._seen.setdefault(key_of_value(member), number)) != number
            ):
                raise UserError(f"the same values as number {before}; each network must differ")
            if parent is not None and (type(parent) is not int or parent not in self.proposals):
                raise UserError(
                    f"{parent!r} is no parent; it should be the number of a proposed network"
                )
            if parent is not None and self.proposals[parent].wrong:
                raise UserError(
                    f"{parent} is no parent: that network was refused, and has no weights"
                )
        except UserError as error:
            return self._propose(number, dict(values), wrong=f"ask({number}): {error}")
        return self._propose(number, member, parent)

    def _propose(
        self, number: int, values: Member, parent: int | None = None, wrong: str = ""
    ) -> AddNetwork:
        name_of = self._entry.configuration_name
        parent_name = None if parent is None else name_of(parent)
        return AddNetwork(name_of(number), self._entry.name, number, values, parent_name, wrong)


def match_space(space: Space, values: Mapping[str, Any]) -> Member | None:
    """Return the member of a space with these values, if there is one."""
    try:
        return member_of(space, values)
    except UserError:
        return None


def _key(call: Call) -> tuple[object, ...]:
    """Return a key that is equal for calls about the same epoch or network."""
    return type(call), getattr(call, "number", None), getattr(call, "epoch", None)
