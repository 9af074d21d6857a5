"""All that one searcher has been asked and told, and what to say to it next (pure).

A conversation is made of answered calls, and of nothing else: :meth:`SearcherSession.take` is given each, whether it was
answered just now or by an earlier launch, and says what follows. So a conversation that is read from a log is the one
that was written there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fleet.errors import UserError
from fleet.search.calls import AddPriorTrial, Ask, Call, InvalidAnswer, Report, Resume, Tell
from fleet.search.searcher import End, Verdict
from fleet.spec.space import Member, Space, key_of_value, member_of

PARENT = "parent"  # the key of an answer that is none of the space

WRONG_IN_A_ROW = 10  # answers to ask; then nothing is asked any more


@dataclass(frozen=True)
class Proposal:
    """A network was asked for.

    Attributes:
        values: of the space's keys; as they were answered, if something is wrong with them.
        parent: the number of the network from whose weights it starts, if there is one.
        wrong: what is wrong with the answer; then the network has failed.
    """

    number: int
    values: Member
    parent: int | None = None
    wrong: str = ""


# An ask or, of a report, what it says; of a resume, the number of the network that goes on.
Follows: TypeAlias = Proposal | Verdict | int | None


class SearcherSession:
    """What was said to one searcher, and by it.

    Args:
        space: from which it chooses.
        most: networks that it is asked for.
        resumes: whether it can say which paused network goes on.
    """

    def __init__(self, space: Space, most: int, resumes: bool = False) -> None:
        self._space = space
        self._most = most
        self._resumes = resumes
        self._asked: dict[int, Proposal] = {}
        self._seen: dict[
            str, int
        ] = {}  # the values of networks without a parent -> the first of them
        self._verdicts: dict[tuple[int, int], Verdict] = {}  # by number and epoch
        self._told: dict[int, Tell] = {}
        self._heard: dict[
            int, int
        ] = {}  # number -> the epochs of which the searcher hears otherwise, or never
        self._earlier: dict[str, AddPriorTrial] = {}  # of earlier runs, by run and name
        self._paused: set[int] = set()  # by the searcher
        self._ended: set[int] = (
            set()
        )  # those of them that are over, such as those that were done when it paused them
        self._to_say: dict[
            tuple[object, ...], Report | Tell | AddPriorTrial
        ] = {}  # in order, each once
        self._wrong = 0  # answers to ask, one after another
        self._is_dry = (
            False  # whether None was the answer to the last question, and nothing was said since
        )
        self._has_tried = False  # whether it was asked which to resume, and nothing was said since
        self.failure = ""  # why it is not called again

    # ---- what is known ----

    @property
    def number(self) -> int:
        """Of the network that is asked for next."""
        return len(self._asked)

    @property
    def asked(self) -> Mapping[int, Proposal]:
        """All that were asked for, by number."""
        return self._asked

    @property
    def is_closed(self) -> bool:
        """Whether no network is asked for any more, whatever is said."""
        return bool(self.failure) or len(self._asked) >= self._most or self._wrong >= WRONG_IN_A_ROW

    @property
    def may_ask(self) -> bool:
        """Whether a network can be asked for now."""
        return not self.is_closed and not self._is_dry

    def verdict(self, number: int, epoch: int) -> Verdict | None:
        """How the searcher has judged that epoch; None if it has not."""
        return self._verdicts.get((number, epoch))

    # ---- what to say ----

    def report(self, number: int, epoch: int, value: float) -> None:
        """Say that an epoch has ended, unless that was said; infinite values are no numbers either."""
        call = Report(number, epoch, value if math.isfinite(value) else math.nan)
        is_known = (
            (number, epoch) in self._verdicts
            or number in self._told
            or epoch <= self._heard.get(number, 0)
        )
        if not self.failure and not is_known:
            self._to_say.setdefault(_key(call), call)

    def tell(self, number: int, end: End, value: float | None) -> None:
        """Say how it ended with a network, unless that was said."""
        if not self.failure and number not in self._told:
            call = Tell(
                number, end.value, value if value is not None and math.isfinite(value) else None
            )
            self._to_say.setdefault(_key(call), call)

    def know(self, earlier: Iterable[AddPriorTrial]) -> None:
        """Say what earlier runs found, as far as that was not said."""
        for one in earlier:
            key = f"{one.source}/{one.name}"
            if key not in self._earlier:
                self._earlier[key] = call = replace(one, number=-1 - len(self._earlier))
                self._to_say[_key(call)] = call

    def change(
        self,
        space: Space,
        knows: bool,
        curves: Mapping[int, Sequence[float]],
        names: Mapping[int, str],
        judges_alike: bool = True,
    ) -> None:
        """Another searcher takes over: it is told of all networks that fit its space, and judges what comes.

        Args:
            space: from which it chooses.
            knows: whether it can be told of networks that it has not asked for.
            curves: number -> the monitored values of the epochs of a network that was asked for.
            names: number -> its name.
            judges_alike: whether the same counts as before; if not, what earlier runs found is to be read anew.
        """
        self._to_say.clear()
        self._paused.clear()
        self._verdicts.clear()  # one that nobody has acted on yet is none any more
        if not judges_alike:
            self._earlier.clear()
        self._heard_more()
        self._wrong = 0
        for key, one in self._earlier.items():
            if knows and (member := fitting(space, one.values)) is not None:
                self._earlier[key] = call = replace(one, values=member)
                self._to_say[_key(call)] = call
        for number, asked in self._asked.items():
            member = fitting(space, asked.values)
            told = self._told.get(number, Tell(number, "", None))
            if asked.wrong or member is None or not knows:
                self._told[number] = told  # it is none of its networks
                continue
            self._heard[number] = len(curves.get(number, ()))
            call = AddPriorTrial(
                number,
                member,
                tuple(curves.get(number, ())),
                told.outcome,
                told.value,
                names.get(number, ""),
            )
            self._to_say[_key(call)] = call

    def next(self, wants_network: bool) -> Call | None:
        """The call to make now; None where there is nothing to say.

        Args:
            wants_network: whether one more should be alive.
        """
        if self.failure:
            return None
        if self._to_say:
            return next(iter(self._to_say.values()))
        if wants_network and self._resumes and self._paused and not self._has_tried:
            return Resume()
        if wants_network and self.may_ask:
            return Ask(self.number)
        return None

    def awaits(self, number: int) -> bool:
        """Whether something is still to be said about a network."""
        return any(
            call.number == number and not isinstance(call, AddPriorTrial)
            for call in self._to_say.values()
        )

    def fail(self, reason: str) -> None:
        """The searcher is not called again."""
        self.failure = reason
        self._to_say.clear()

    # ---- answers ----

    def take(self, call: Call, answer: Any, recalled: str | None = None) -> Follows:
        """A call was answered; returns what follows.

        Args:
            answer: as :func:`fleet.search.calls.make` returns it.
            recalled: of an ask in the log: what was found wrong with it then. The space may be another one by now.

        Raises:
            InvalidAnswer: that cannot be, whoever is asked: the searcher should not be called again.
        """
        self._to_say.pop(_key(call), None)  # the first, but where a launch has broken off
        match call:
            case Ask(number):
                return self._take_ask(number, answer, recalled)
            case Report(number, epoch, _):
                self._heard_more()
                self._verdicts[number, epoch] = verdict = Verdict(answer)
                if verdict is Verdict.PAUSE:
                    self._paused.add(number)
                return verdict
            case AddPriorTrial():
                self._heard_more()
                if call.source:
                    self._earlier[f"{call.source}/{call.name}"] = call
                return None
            case Tell(number, _, _):
                self._heard_more()
                self._told[number] = call
                if number in self._paused:
                    self._paused.remove(number)
                    self._ended.add(number)
                return None
            case Resume():
                return self._take_resume(answer)

    def _heard_more(self) -> None:
        self._is_dry = self._has_tried = False

    def _take_resume(self, answer: int | None) -> int | None:
        self._has_tried = True
        if answer is None or answer in self._ended:
            return None
        if answer not in self._paused:
            raise InvalidAnswer(f"resume answered {answer}, which is no network that it has paused")
        self._paused.remove(answer)
        self._has_tried = False
        return answer

    def _take_ask(
        self, number: int, answer: Mapping[str, Any] | None, recalled: str | None
    ) -> Proposal | None:
        if answer is None:
            self._is_dry = True
            return None
        values = {name: value for name, value in answer.items() if name != PARENT}
        parent = answer.get(PARENT)
        if recalled is not None:
            asked = Proposal(number, values, parent, recalled)
            if parent is None and not recalled:
                self._seen.setdefault(key_of_value(values), number)
        else:
            asked = self._checked(number, values, parent)
        self._wrong = self._wrong + 1 if asked.wrong else 0
        self._asked[number] = asked
        return asked

    def _checked(self, number: int, values: Mapping[str, Any], parent: Any) -> Proposal:
        """What was asked for, with what is wrong with it."""
        try:
            member = member_of(self._space, values)
            if (
                parent is None
                and (before := self._seen.setdefault(key_of_value(member), number)) != number
            ):
                raise UserError(
                    f"the same values as of number {before}; each network should be another one"
                )
            if parent is not None and (type(parent) is not int or parent not in self._asked):
                raise UserError(
                    f"{parent!r} is no parent; it should be the number of a network that was asked for"
                )
            if parent is not None and self._asked[parent].wrong:
                raise UserError(
                    f"{parent} is no parent: what was asked for as that number was refused, and has no "
                    "weights"
                )
        except UserError as error:
            return Proposal(number, dict(values), wrong=f"ask({number}): {error}")
        return Proposal(number, member, parent)


def fitting(space: Space, values: Mapping[str, Any]) -> Member | None:
    """The member of a space that has these values, if there is one."""
    try:
        return member_of(space, values)
    except UserError:
        return None


def _key(call: Call) -> tuple[object, ...]:
    """Equal for calls that are one, also where a log says otherwise how an epoch or a network has ended."""
    return type(call), getattr(call, "number", None), getattr(call, "epoch", None)
