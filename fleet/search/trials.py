"""What searches remember of each network, beside its status (pure)."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import stdev
from typing import NamedTuple

from fleet.domain.network import BestEpoch, NetworkStatus
from fleet.search.searcher import TrialOutcome, Verdict
from fleet.spec import Stopping


class EpochValue(NamedTuple):
    """An epoch of a network: its monitored value, and the best score so far."""

    epoch: int
    value: float
    score: float


@dataclass
class Trial:
    """A network, as searches see it: what no event tells.

    Attributes:
        entry, number: empty for a network that no searcher proposed.
        stopping: decides which epoch is the best.
        configuration: name of the configuration that it repeats; by default its own name.
        best: the best of the epochs that the pruner has received. It receives each epoch once, so
            these are not the logged ones after a network has fallen back to a checkpoint.
        awaits_answer: whether the searcher has yet to answer about its newest epoch.
        awaits_repeats: whether it waits until the other repeats have ended its newest epoch.
        paused_by: who has paused it.
        has_ended: whether it has finished, failed or been pruned.
        outcome: how it has ended, once that is certain.
        is_excluded: whether its values no longer count: it has failed, or a user has stopped it.
        is_done: whether nothing was left to train after its newest epoch.
    """

    name: str
    entry: str = ""
    number: int = -1
    stopping: Stopping = field(default_factory=Stopping)
    configuration: str = ""
    best: BestEpoch = field(default_factory=BestEpoch)
    awaits_answer: bool = False
    awaits_repeats: bool = False
    paused_by: frozenset[str] = frozenset()
    has_ended: bool = False
    outcome: TrialOutcome | None = None
    is_excluded: bool = False
    is_done: bool = False
    _newest: EpochValue | None = None
    _ahead: deque[EpochValue] = field(default_factory=deque)  # later epochs than ``_newest``

    def __post_init__(self) -> None:
        self.configuration = self.configuration or self.name

    @property
    def epochs(self) -> int:
        """The number of epochs that it has ended."""
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

    def add_epoch(self, value: float) -> None:
        """Remember the value of the newest epoch, and the best score, until they are passed on."""
        score = self.best.score if math.isfinite(self.best.score) else -math.inf
        self._ahead.append(EpochValue(self.epochs, value, score))

    def value_at(self, epoch: int) -> EpochValue | None:
        """Return what is known after an epoch; epochs before it are forgotten."""
        while self._ahead and self._ahead[0].epoch <= epoch:
            self._newest = self._ahead.popleft()
        return self._newest


@dataclass
class Configuration:
    """Networks that are judged as one: they differ in their seeds only. Usually it is one network.

    Attributes:
        name: that of its only network, or of all its repeats.
        entry, number: empty if no searcher proposed it.
        trials: its networks by name.
        epochs: the number of epochs that the pruner has received, which all have ended.
        verdict: verdict of the pruner on its newest epoch, until it is acted on.
        paused_by: the rule and the searcher, if they have paused it.
        stopped_by: who has pruned it, except users, who stop single networks.
        has_ended: whether its searcher was told how it has ended.
    """

    name: str
    entry: str = ""
    number: int = -1
    trials: dict[str, Trial] = field(default_factory=dict)
    epochs: int = 0
    verdict: Verdict = Verdict.GO_ON
    paused_by: frozenset[str] = frozenset()
    stopped_by: frozenset[str] = frozenset()
    has_ended: bool = False

    @property
    def has_repeats(self) -> bool:
        """Whether it has several networks."""
        return len(self.trials) > 1

    @property
    def counted(self) -> list[Trial]:
        """The networks whose values count: those of failed ones only if all have failed."""
        trials = self.trials.values()
        return [trial for trial in trials if not trial.is_excluded] or list(trials)

    @property
    def is_done(self) -> bool:
        """Whether nothing was left to train after its newest epoch."""
        return all(trial.is_done and trial.epochs <= self.epochs for trial in self.counted)

    @property
    def is_alive(self) -> bool:
        """Whether some of its networks have neither ended nor been paused."""
        return any(trial.is_alive for trial in self.trials.values())

    @property
    def lagging(self) -> list[Trial]:
        """The networks that have yet to end the next epoch."""
        return [
            trial for trial in self.counted if trial.epochs <= self.epochs and not trial.is_done
        ]

    def next_epoch(self) -> list[EpochValue]:
        """Return the next epoch of all networks that count; empty until all have ended it.

        A network that has finished earlier counts with its last epoch.
        """
        counted = self.counted
        if self.lagging or all(trial.epochs <= self.epochs for trial in counted):
            return []
        values = [trial.value_at(self.epochs + 1) for trial in counted]
        return [value for value in values if value is not None]

    @property
    def outcome(self) -> TrialOutcome | None:
        """How it has ended; None while that is uncertain."""
        if any(trial.outcome is None for trial in self.trials.values()):
            return None
        counted = {trial.outcome for trial in self.counted}
        for outcome in (TrialOutcome.PRUNED, TrialOutcome.FINISHED):
            if outcome in counted:
                return outcome
        return TrialOutcome.FAILED

    @property
    def values(self) -> tuple[float, ...]:
        """The best monitored value of each network that counts; NaN without one."""
        values = [trial.value for trial in self.counted]
        return tuple(math.nan if value is None else value for value in values)


class Trials(dict[str, Trial]):
    """All networks of a run by name, indexed by what holds them up.

    Attributes:
        configurations: the same networks, by what they repeat.
        alive: entry -> its networks that have neither ended nor been paused.
        paused: networks that get no devices until they are resumed.
        awaited: networks whose groups wait for the answer of a searcher, or for other repeats.
    """

    def __init__(self) -> None:
        super().__init__()
        self.configurations: dict[str, Configuration] = {}
        self.alive: defaultdict[str, set[str]] = defaultdict(set)
        self.paused = set[str]()
        self.awaited = set[str]()

    def index(self, trial: Trial) -> None:
        """Add a network, or update the sets that it belongs to."""
        self[trial.name] = trial
        self._add_to_configuration(trial)
        for names, belongs in (
            (self.alive[trial.entry], trial.is_alive),
            (self.paused, bool(trial.paused_by)),
            (self.awaited, trial.awaits_answer or trial.awaits_repeats),
        ):
            (names.add if belongs else names.discard)(trial.name)

    def _add_to_configuration(self, trial: Trial) -> None:
        configuration = self.configurations.get(trial.configuration)
        if configuration is None:
            configuration = Configuration(trial.configuration, trial.entry, trial.number)
            self.configurations[trial.configuration] = configuration
        configuration.trials[trial.name] = trial

    def configuration_of(self, network: str) -> Configuration:
        """Return the configuration of a network."""
        return self.configurations[self[network].configuration]

    def configuration_name(self, network: str) -> str:
        """Return what a network repeats; the network itself if it is unknown."""
        trial = self.get(network)
        return network if trial is None else trial.configuration

    def configurations_of(self, networks: Iterable[str]) -> set[str]:
        """Return the names of the configurations of networks."""
        return {self[name].configuration for name in networks}

    def alive_configurations(self, entry: str) -> set[str]:
        """Return the configurations of an entry of which a network is alive."""
        return self.configurations_of(self.alive[entry])


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of values; NaN if there are none, or if one of several is not finite.

    >>> mean_of([0.5, 1.0]), mean_of([0.5, math.inf]), mean_of([math.inf])
    (0.75, nan, inf)
    """
    if len(values) == 1:
        return values[0]
    if not values or not all(map(math.isfinite, values)):
        return math.nan
    return math.fsum(value / len(values) for value in values)


def spread_of(values: Sequence[float]) -> float | None:
    """Return the standard deviation of values (with n - 1); None for fewer than two finite ones.

    >>> spread_of([1.0, 3.0]), spread_of([1.0]), spread_of([1.0, math.nan])
    (1.4142135623730951, None, None)
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    return stdev(values)


def outcome_of(status: NetworkStatus) -> TrialOutcome:
    """Return how a network with this status has ended, for its searcher."""
    if status.is_finished:
        return TrialOutcome.FINISHED
    if status.is_pruned and not status.is_skipped:
        return TrialOutcome.PRUNED
    return TrialOutcome.FAILED
