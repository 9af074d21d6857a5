"""Networks that are asked for, judged and dropped while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from fleet.domain.json_record import Kind, MayBeNan, OmitDefault
from fleet.spec.old_keys import search_with_new_keys, values_with_new_names
from fleet.units import pluralize

USER = "user"  # who judges from outside


class Searched(Kind, word="search"):
    """A call of a searcher, and what it answered; written before anything follows from it.

    Attributes:
        entry: of ``models``, by its name.
        call: ``ask``, ``report``, ``tell`` or ``resume``; ``know`` where it is told of a network that it has not asked
            for.
        number: of the network, counted from 0 within the entry; below 0 of one of an earlier run.
        epoch: of a report, counted from 1.
        value: of a report the monitored value, null where it is no number; of a tell the best one, if there is one, or
            one for each objective of several.
        outcome: of a tell: ``finished``, ``pruned`` or ``failed``.
        answer: of an ask a mapping, also where it was not this searcher's; of a report ``go_on``, ``pause`` or
            ``stop``, of a resume a number; or null. A tell has none.
        network: its name, once there is one.
        wrong: what is wrong with the values of an ask: then the network has failed.
        curve: of a network that it has not asked for, the monitored values of its epochs.
        source: the earlier run that it is of, if it is of one.
    """

    entry: str
    call: str
    number: Annotated[int | None, OmitDefault] = None
    epoch: Annotated[int | None, OmitDefault] = None
    value: Annotated[
        float | tuple[Annotated[float, MayBeNan], ...] | None, MayBeNan, OmitDefault
    ] = None
    outcome: Annotated[str, OmitDefault] = ""
    answer: Annotated[Any, OmitDefault] = ""
    network: Annotated[str, OmitDefault] = ""
    wrong: Annotated[str, OmitDefault] = ""
    curve: Annotated[tuple[Annotated[float, MayBeNan], ...], OmitDefault] = ()
    source: Annotated[str, OmitDefault] = ""

    def __post_init__(self) -> None:
        if self.call in ("ask", "know") and isinstance(self.answer, Mapping):
            object.__setattr__(self, "answer", values_with_new_names(self.answer))

    @property
    def come_to(self) -> tuple[float, ...]:
        """What a network of this run has come to in each of several objectives; nothing where that is not said."""
        is_of_run = self.call in ("tell", "know") and not self.source
        if is_of_run and isinstance(self.value, tuple):
            return self.value
        return ()


class SearcherBegan(Kind, word="searcher"):
    """A searcher begins; or the settings of the search are others than those of the launch before.

    Attributes:
        settings: who asks, from which space, and all else that the choice depends on.
        changed: what has changed, in words; nothing where the search begins.
        is_another: whether the choice depends on it, so that another searcher begins, which is told what is known.
        knows: whether it can be told of networks that it has not asked for.
    """

    entry: str
    settings: Mapping[str, Any]
    changed: Annotated[str, OmitDefault] = ""
    is_another: Annotated[bool, OmitDefault] = False
    knows: Annotated[bool, OmitDefault] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", search_with_new_keys(self.settings))


class EarlierRead(Kind, word="earlier"):
    """An earlier run was read: a searcher is told what it found.

    Attributes:
        told: how many of its networks.
        left_out: how many not, for each reason.
    """

    entry: str
    source: str
    told: int
    left_out: Annotated[Mapping[str, int], OmitDefault] = field(default_factory=dict, hash=False)

    @property
    def words(self) -> str:
        """The same in a sentence."""
        left = "".join(
            f"; {number} {'is' if number == 1 else 'are'} left out: {why}"
            for why, number in self.left_out.items()
        )
        return f"the searcher of {self.entry} is told of {pluralize(self.told, 'network')} of {self.source}{left}"


class SearchFailed(Kind, word="search_failed"):
    """A searcher raised, did not answer in time, or answered what cannot be understood: it is not called again."""

    entry: str
    reason: str


class ReplayDiffered(Kind, word="replay_differs"):
    """A searcher that heard the calls of earlier launches again has answered one of them otherwise; the log holds.

    Attributes:
        difference: the call, the answer in the log, and the one of now.
    """

    entry: str
    difference: str


class NetworkAdded(Kind, word="added"):
    """A network has come to the run that no spec names; a launch that goes on makes it again from this line.

    Attributes:
        entry: of ``models``, by its name.
        number: within that entry.
        values: that were asked for, by the keys of the entry's space.
        bounds: the fewest and the most GPUs that it may have; None if there is no upper bound.
        max_epochs: that it is trained at most.
        parent: the network from whose weights it starts, if there is one.
        parent_epoch: after which epoch of that.
        wrong: why it cannot be trained: then it has failed.
    """

    network: str
    entry: str
    number: int
    values: Mapping[str, Any]
    bounds: tuple[int, int | None]
    max_epochs: int
    parent: Annotated[str, OmitDefault] = ""
    parent_epoch: Annotated[int, OmitDefault] = 0
    wrong: Annotated[str, OmitDefault] = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", values_with_new_names(self.values))


class NetworkJudged(Kind, word="judged"):
    """A network is paused or dropped before it is done, or goes on after a pause.

    Attributes:
        epochs: how many it has ended; one that is judged from outside may end the one that it is in, too.
        verdict: ``pause``, ``stop`` or ``go_on``.
        by: who says so: the rule, ``searcher``, or both; ``user`` from outside; ``end`` where nothing is left that
            could let it go on.
        left: how many are judged in the same moment, after this one.
    """

    network: str
    epochs: int
    verdict: str
    by: tuple[str, ...]
    left: Annotated[int, OmitDefault] = 0
