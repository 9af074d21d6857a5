"""What searches remember of each network, beside its status (pure)."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from fleet.domain.network import BestEpoch, NetworkStatus
from fleet.search.searcher import TrialOutcome, Verdict
from fleet.spec import Stopping


@dataclass
class Trial:
    """A network, as searches see it: what no event tells.

    Attributes:
        entry, number: empty for a network that no searcher proposed.
        stopping: decides which epoch is the best.
        best: the best of the epochs that the pruner has received. It receives each epoch once, so
            these are not the logged ones after a network has fallen back to a checkpoint.
        verdict: verdict of the pruner on its newest epoch, until it is acted on.
        awaits_answer: whether the searcher has yet to answer about its newest epoch.
        paused_by: who has paused it.
        has_ended: whether it has finished, failed or been pruned.
    """

    name: str
    entry: str = ""
    number: int = -1
    stopping: Stopping = field(default_factory=Stopping)
    best: BestEpoch = field(default_factory=BestEpoch)
    verdict: Verdict = Verdict.GO_ON
    awaits_answer: bool = False
    paused_by: frozenset[str] = frozenset()
    has_ended: bool = False

    @property
    def epochs(self) -> int:
        """The number of epochs that the pruner has received."""
        if self.best.newest is None:
            return 0
        return self.best.newest.epoch

    @property
    def value(self) -> float | None:
        """The monitored value of its best epoch; None without a finite one."""
        if math.isfinite(self.best.score):
            return self.stopping.sign * self.best.score
        return None

    @property
    def is_alive(self) -> bool:
        """Whether it has neither ended nor been paused."""
        return not (self.has_ended or self.paused_by)


class Trials(dict[str, Trial]):
    """All networks of a run by name, indexed by what holds them up.

    Attributes:
        alive: entry -> its networks that have neither ended nor been paused.
        paused: networks that get no devices until they are resumed.
        awaited: networks whose groups wait for the answer of a searcher.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive: defaultdict[str, set[str]] = defaultdict(set)
        self.paused = set[str]()
        self.awaited = set[str]()

    def index(self, trial: Trial) -> None:
        """Add a network, or update the sets that it belongs to."""
        self[trial.name] = trial
        for names, belongs in (
            (self.alive[trial.entry], trial.is_alive),
            (self.paused, bool(trial.paused_by)),
            (self.awaited, trial.awaits_answer),
        ):
            (names.add if belongs else names.discard)(trial.name)


def outcome_of(status: NetworkStatus) -> TrialOutcome:
    """Return how a network with this status has ended, for its searcher."""
    if status.is_finished:
        return TrialOutcome.FINISHED
    if status.is_pruned and not status.is_skipped:
        return TrialOutcome.PRUNED
    return TrialOutcome.FAILED
