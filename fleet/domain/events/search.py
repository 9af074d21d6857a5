"""Events of searches and pruning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from pydantic import Field

from fleet.domain.json_record import JsonRecord, OmitDefault
from fleet.domain.network import Score
from fleet.spec.old_keys import values_with_new_names, with_new_keys
from launch.errors import pluralize

USER = "user"  # the judge in verdicts by commands
REPEATS = "repeats"  # the judge in verdicts on networks that wait for other repeats


class SearcherCalled(JsonRecord, word="search"):
    """A call of a searcher, and its answer; written before it has any effect.

    Attributes:
        entry: name of the entry of ``models``.
        call: ``ask``, ``report``, ``tell`` or ``resume``; ``know`` for a prior trial.
        number: number of the network, counted from 0 within the entry; below 0 for an earlier run.
        epoch: for a report, counted from 1.
        value: for a report the monitored value, null for NaN; for a tell the best one, if any, or
            one per objective.
        outcome: for a tell: ``finished``, ``pruned`` or ``failed``.
        answer: of an ask a mapping, also if another searcher gave it; of a report ``go_on``,
            ``pause`` or ``stop``; of a resume a number; or null. A tell has none.
        network: its name, once there is one.
        wrong: what is wrong with the values of an ask: then the network has failed.
        curve: for a prior trial, the monitored values of its epochs.
        source: the earlier run of a prior trial.
        violations: for a tell or a prior trial, the violation of each constraint: at most 0 if it
            is met, null for NaN.
        spread: the standard deviation of ``value`` over repeats, if there are several.
        repeats: of an ask, the number of networks that are trained with its values.
    """

    entry: str
    call: str
    number: Annotated[int | None, OmitDefault] = None
    epoch: Annotated[int | None, OmitDefault] = None
    value: Annotated[
        Score | tuple[Score, ...] | None, Field(union_mode="left_to_right"), OmitDefault
    ] = None
    outcome: Annotated[str, OmitDefault] = ""
    answer: Annotated[Any, OmitDefault] = ""
    network: Annotated[str, OmitDefault] = ""
    wrong: Annotated[str, OmitDefault] = ""
    curve: Annotated[tuple[Score, ...], OmitDefault] = ()
    source: Annotated[str, OmitDefault] = ""
    violations: Annotated[tuple[Score, ...], OmitDefault] = ()
    spread: Annotated[
        Score | tuple[Score, ...] | None, Field(union_mode="left_to_right"), OmitDefault
    ] = None
    repeats: Annotated[int, OmitDefault] = 1

    def __post_init__(self) -> None:
        if self.call in ("ask", "know") and isinstance(self.answer, Mapping):
            object.__setattr__(self, "answer", values_with_new_names(self.answer))

    @property
    def objective_values(self) -> tuple[float, ...]:
        """The values of a network of this run for several objectives; empty otherwise."""
        if self.is_end_of_network and isinstance(self.value, tuple):
            return self.value
        return ()

    @property
    def is_end_of_network(self) -> bool:
        """Whether the searcher receives how a network of this run ended."""
        return self.call in ("tell", "know") and not self.source


class SearcherStarted(JsonRecord, word="searcher"):
    """A searcher has started, or the settings of its search have changed since the last launch.

    Attributes:
        settings: the sampler, the space, and everything else that proposals depend on.
        changed: a description of the changes; empty when the search begins.
        is_another: whether proposals depend on them, so that a new searcher starts and receives all
            known trials.
        knows: whether the searcher accepts prior trials.
    """

    entry: str
    settings: Mapping[str, Any]
    changed: Annotated[str, OmitDefault] = ""
    is_another: Annotated[bool, OmitDefault] = False
    knows: Annotated[bool, OmitDefault] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", with_new_keys(self.settings, section="search").content)


class EarlierRunRead(JsonRecord, word="earlier"):
    """An earlier run was read, and its results were passed to a searcher.

    Attributes:
        told: number of its networks that were passed on.
        left_out: reason -> number of networks that were not.
    """

    entry: str
    source: str
    told: int
    left_out: Annotated[Mapping[str, int], OmitDefault] = field(default_factory=dict, hash=False)

    @property
    def summary(self) -> str:
        """The event in one sentence."""
        reasons = "".join(
            f"; {number} {'is' if number == 1 else 'are'} left out: {reason}"
            for reason, number in self.left_out.items()
        )
        networks = pluralize(self.told, "network")
        return f"the searcher of {self.entry} received {networks} of {self.source}{reasons}"


class SearcherFailed(JsonRecord, word="search_failed"):
    """A searcher raised, timed out, or gave an invalid answer: it is not called again."""

    entry: str
    reason: str


class ReplayDiffered(JsonRecord, word="replay_differs"):
    """A searcher answered a replayed call in another way; the log holds.

    Attributes:
        difference: the call, the logged answer, and the new one.
    """

    entry: str
    difference: str


class NetworkAdded(JsonRecord, word="added"):
    """A network that the spec does not have was added; later launches rebuild it from this line.

    Attributes:
        entry: name of the entry of ``models``; empty for a network that a command added.
        number: within that entry; repeats have the same.
        values: the proposed values, by the keys of the entry's space.
        bounds: its minimum and maximum of GPUs; None without a maximum.
        max_epochs: maximum number of epochs.
        parent: the network from whose weights it starts, if any.
        parent_epoch: the epoch of these weights.
        wrong: why it cannot be trained: then it has failed.
        repeat: which repeat of its configuration it is; None without repeats.
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
    repeat: Annotated[int | None, OmitDefault] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", values_with_new_names(self.values))


class NetworkVerdict(JsonRecord, word="judged"):
    """A network is paused or pruned before it has finished, or resumed.

    Attributes:
        epochs: its ended epochs; after a command it may still end its current one.
        verdict: ``pause``, ``stop`` or ``go_on``.
        by: who decided: the rule, ``searcher``, or both; ``user`` for a command; ``repeats`` while
            it waits for other repeats of its configuration; ``end`` if nothing is left that could
            resume it.
        left: number of further verdicts of the same moment.
    """

    network: str
    epochs: int
    verdict: str
    by: tuple[str, ...]
    left: Annotated[int, OmitDefault] = 0
