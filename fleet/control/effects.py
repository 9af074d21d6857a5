"""Inputs of the controller other than messages, and its effects (pure values)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from fleet.comm.messages import Message, Tag
from fleet.domain.events import Event, NetworkAdded
from fleet.domain.network import Death, EpochRecord, NetworkStatus
from fleet.domain.run import RunState
from fleet.errors import ExitStatus, FleetError
from fleet.search.calls import Call
from fleet.search.decisions import AddNetwork, CallSearcher
from fleet.search.searcher import Verdict
from fleet.spec import NetworkSpec
from scheduler.base import Cluster, GroupShape, Network, Progress, RateTable, Round
from scheduler.ensemble.online import Traits
from scheduler.ensemble.probing import Probes
from scheduler.ensemble.spans import PriorRates

if TYPE_CHECKING:
    from scheduler.eviction.plan import Action

PATIENCE_S = 30.0  # for groups that do not answer when a launch ends

# ---- inputs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RanksDied:
    """Some ranks have died, and all their messages have been handled."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class EndRequested:
    """The launch must end before its networks have finished: a signal, or the end of its walltime.

    Attributes:
        patience_s: seconds to wait for groups that do not answer.
    """

    reason: str
    patience_s: float = PATIENCE_S


@dataclass(frozen=True)
class CheckpointRead:
    """The answer to :class:`ReadCheckpoint`.

    Attributes:
        status: status of the network by its newest intact checkpoint.
        position: samples of the next epoch that are consumed in that state.
    """

    network: str
    status: NetworkStatus
    position: int


@dataclass(frozen=True)
class LeaseGranted:
    """This launch, one of several, has acquired the lease of a network.

    Attributes:
        status: status of the network by its newest intact checkpoint; if it has ended, nothing is
            trained.
        generation: generation of the lease.
        position: samples of the next epoch that are consumed in that state.
        took_over: whether the previous launch had not released the lease.
        unlogged: epochs that are in the checkpoint but in no event log.
        is_news: whether the network has ended and no event log says so.
        deaths: deaths of ranks that trained it.
    """

    network: str
    status: NetworkStatus
    generation: int
    position: int = 0
    took_over: bool = False
    unlogged: tuple[EpochRecord, ...] = ()
    is_news: bool = False
    deaths: tuple[Death, ...] = ()


@dataclass(frozen=True)
class NetworkAdmitted:
    """A new network has been validated.

    Attributes:
        added: its event, with the reason if it cannot be trained.
        key: equal for networks of equal rates.
        traits: features for estimating its rate; None if rates are not learned.
        prior_rates: shape or GPUs -> samples/s, from earlier runs.
        rates: its row of the rates file, if there is one.
    """

    network: NetworkSpec
    added: NetworkAdded
    key: str = ""
    traits: Traits | None = None
    prior_rates: PriorRates = field(default_factory=dict)
    rates: Network | None = None


@dataclass(frozen=True)
class PolicyAnswered:
    """The answer to :class:`AskPolicy`.

    An answer about a state that has changed since is dropped, and the policy is asked again.

    Attributes:
        round: what should train where now.
        seconds: duration of the call.
        probes: the rates that the policy only probes.
    """

    round: Round
    seconds: float = 0.0
    probes: Probes = frozenset()


@dataclass(frozen=True)
class SearcherAnswered:
    """A searcher has answered a call.

    Attributes:
        difference: how its answer to a replayed call differed from the log, or empty.
    """

    entry: str
    call: Call
    answer: Any
    difference: str = ""


@dataclass(frozen=True)
class SearcherCallFailed:
    """A searcher has raised or timed out."""

    entry: str
    reason: str


@dataclass(frozen=True)
class NetworkCommand:
    """A user pauses, stops or resumes a network, which has not ended."""

    network: str
    verdict: Verdict


@dataclass(frozen=True)
class NodeOffer:
    """The nodes that a request would release.

    Attributes:
        nodes: their numbers.
        hosts: their names.
        actions: network -> what its group does: ``app`` saves; ``kill`` gives up its training since
            its last checkpoint.
    """

    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    actions: Mapping[str, Action]


@dataclass(frozen=True)
class NodesRequested:
    """A command requests nodes, and these were chosen; see :mod:`fleet.control.node_release`."""

    command: str
    offer: NodeOffer


Input: TypeAlias = (
    Message
    | RanksDied
    | EndRequested
    | CheckpointRead
    | LeaseGranted
    | NetworkAdmitted
    | PolicyAnswered
    | SearcherAnswered
    | SearcherCallFailed
    | NetworkCommand
    | NodesRequested
)

# ---- effects -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SendMessage:
    """Send a message to a rank."""

    rank: int
    tag: Tag
    message: Message


@dataclass(frozen=True)
class LogEvent:
    """Log an event that the state of the run has, and show it to observers.

    Attributes:
        t_s: its time, on the clock of :meth:`fleet.control.controller.Controller.handle`.
    """

    event: Event
    t_s: float


@dataclass(frozen=True)
class SaveRates:
    """Write the known rates to profile.json, when there is time.

    Attributes:
        rates: returns the current rates; expensive for thousands of networks.
    """

    rates: Callable[[], RateTable] = field(compare=False)


@dataclass(frozen=True)
class ReadCheckpoint:
    """Read the checkpoint of a failed group's network; :class:`CheckpointRead` is the answer."""

    network: str


@dataclass(frozen=True)
class AskPolicy:
    """Ask the policy what should train where; :class:`PolicyAnswered` is the answer.

    The progress has views of the controller's state, which are valid until its next input.

    Attributes:
        rates: the known rates, limited by the input.
        progress: what trains now, and how far networks are.
        cluster: the devices that can be used.
        rate_floor: network -> lower bounds of its rates; None if rates are not estimated.
        is_span_untried: returns whether it is worth knowing how fast a network trains in groups
            that lie otherwise; None if rates are not estimated.
    """

    rates: RateTable = field(compare=False)
    progress: Progress = field(compare=False)
    cluster: Cluster = field(compare=False)
    rate_floor: Callable[[str], Sequence[float]] | None = field(compare=False)
    is_span_untried: Callable[[str, GroupShape], bool] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SaveDeath:
    """Save that a rank died or stopped answering while training a network, for later launches."""

    network: str
    death: Death


@dataclass(frozen=True)
class AbortLaunch:
    """End all ranks at once: no rank can continue."""

    error: FleetError


@dataclass(frozen=True)
class EndLaunch:
    """The launch has ended; all ranks have been notified.

    Attributes:
        must_kill: whether unresponsive ranks must be killed.
    """

    status: ExitStatus
    must_kill: bool = False


# Decisions of the search controller are effects, too. SearcherAnswered or SearcherCallFailed
# answers CallSearcher; NetworkAdmitted answers AddNetwork.
Effect: TypeAlias = (
    SendMessage
    | LogEvent
    | SaveRates
    | SaveDeath
    | ReadCheckpoint
    | AskPolicy
    | CallSearcher
    | AddNetwork
    | AbortLaunch
    | EndLaunch
)


class Outbox:
    """Collects effects in order, and applies events to the state of the run.

    Args:
        run: the state of the run after earlier launches.

    Attributes:
        run: the state of the run after all events so far.
        now_s: the time, in seconds of the clock of
            :meth:`fleet.control.controller.Controller.handle`.
    """

    def __init__(self, run: RunState) -> None:
        self.run = run
        # Time of the run at which this launch begins.
        self._began_s = 0.0 if run.launch is None else run.launch.ended_s
        self.now_s = 0.0
        self._effects: list[Effect] = []

    def add(self, effect: Effect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def log(self, event: Event) -> None:
        """Apply an event to the state of the run, then log it and show it to observers."""
        self.run.apply(self._began_s + self.now_s, event)
        self.add(LogEvent(event, self.now_s))

    def send(self, ranks: Iterable[int], tag: Tag, message: Message) -> None:
        """Send a message to some ranks.

        Args:
            ranks: the receivers.
            tag: tag of the message.
            message: its content.
        """
        for rank in ranks:
            self.add(SendMessage(rank, tag, message))

    def drain(self) -> list[Effect]:
        """Return the effects since the last call."""
        effects = self._effects
        self._effects = []
        return effects
