"""What an ensemble is told beside messages, and what it wants to be done (pure values)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from fleet.comm.messages import Message, Tag
from fleet.domain.events import Event, NetworkAdded
from fleet.domain.network import Death, EpochRecord, NetworkStatus
from fleet.errors import ExitStatus, FleetError
from fleet.search.calls import Call
from fleet.search.controller import AddNetwork, CallSearcher, LogEvent
from fleet.search.searcher import Verdict
from fleet.spec import NetworkSpec
from scheduler.base import Network, RateTable
from scheduler.ensemble.online import Traits

if TYPE_CHECKING:
    from scheduler.eviction.plan import Action

PATIENCE_S = 30.0  # for groups that do not answer when a launch ends

# ---- heard -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RanksDied:
    """Some ranks have died, and all that they had said before is heard."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class EndRequested:
    """The launch is to end before its networks are done: a signal came, or its time is nearly over.

    Attributes:
        patience_s: seconds for which groups that do not answer are waited for.
    """

    reason: str
    patience_s: float = PATIENCE_S


@dataclass(frozen=True)
class CheckpointRead:
    """The answer to :class:`ReadCheckpoint`.

    Attributes:
        standing: how far the network is by its newest whole checkpoint.
        position: samples of the next epoch that it has consumed there.
    """

    network: str
    standing: NetworkStatus
    position: int


@dataclass(frozen=True)
class Leased:
    """Of several launches that work on the networks of a run, this one may train a network from now on.

    Attributes:
        standing: how far the network is by its newest whole checkpoint; if it is over, there is nothing to do.
        generation: of its lease.
        position: samples of the next epoch that it has consumed there.
        took_over: whether the launch before had not let go.
        unlogged: epochs that are in the checkpoint, and in no event log.
        is_news: whether no event log says that it is over, if it is.
        deaths: of ranks that trained it.
    """

    network: str
    standing: NetworkStatus
    generation: int
    position: int = 0
    took_over: bool = False
    unlogged: tuple[EpochRecord, ...] = ()
    is_news: bool = False
    deaths: tuple[Death, ...] = ()


@dataclass(frozen=True)
class Admitted:
    """A network has come to the run, and has been looked at.

    Attributes:
        added: what the log says of it; with what is wrong, if it cannot be trained.
        key: equal ones train at equal speed.
        traits: what is known of its speed before it has trained; None where nobody learns rates.
        known: GPUs -> samples/s, of earlier runs.
        rates: what policies are told of it, where a file says it.
    """

    network: NetworkSpec
    added: NetworkAdded
    key: str = ""
    traits: Traits | None = None
    known: Mapping[int, float] = field(default_factory=dict)
    rates: Network | None = None


@dataclass(frozen=True)
class SearcherAnswered:
    """A searcher has answered a call.

    Attributes:
        difference: where it has answered a call of earlier launches otherwise than then, just before; or nothing.
    """

    entry: str
    call: Call
    answer: Any
    difference: str = ""


@dataclass(frozen=True)
class SearcherCallFailed:
    """A searcher has raised, or does not answer."""

    entry: str
    reason: str


@dataclass(frozen=True)
class NetworkCommand:
    """Somebody outside wants a network to pause, to stop, or to go on; it is one that is not over."""

    network: str
    verdict: Verdict


@dataclass(frozen=True)
class NodeOffer:
    """The nodes that are given back upon a request.

    Attributes:
        nodes: their numbers.
        hosts: what they are called.
        ways: network -> what its group does: ``app``, it saves; ``kill``, it gives up what it has trained since its
            last checkpoint.
    """

    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    ways: Mapping[str, Action]


@dataclass(frozen=True)
class NodesRequested:
    """Somebody outside wants nodes back, by a command, and these were chosen; see :mod:`fleet.control.node_release`."""

    command: str
    offer: NodeOffer


Heard: TypeAlias = (
    Message
    | RanksDied
    | EndRequested
    | CheckpointRead
    | Leased
    | Admitted
    | SearcherAnswered
    | SearcherCallFailed
    | NetworkCommand
    | NodesRequested
)

# ---- wanted ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SendMessage:
    """Send a message to a rank."""

    rank: int
    tag: Tag
    message: Message


@dataclass(frozen=True)
class SaveParameterCount:
    """Write down how many parameters a network has: it has been built."""

    network: str
    parameters: int


@dataclass(frozen=True)
class SaveRates:
    """Write down the rates that were found out, in time.

    Attributes:
        rates: gives them as they are by then; of thousands of networks that is some work.
    """

    rates: Callable[[], RateTable] = field(compare=False)


@dataclass(frozen=True)
class ReadCheckpoint:
    """Find out how far a network is whose group has lost a rank; :class:`CheckpointRead` is the answer."""

    network: str


@dataclass(frozen=True)
class KeepDeath:
    """Remember, also for later launches, that a rank has died, or does not come back, which trains a network."""

    network: str
    death: Death


@dataclass(frozen=True)
class AbortLaunch:
    """End all ranks at once: no rank can go on."""

    error: FleetError


@dataclass(frozen=True)
class EndLaunch:
    """The launch is over; all ranks have been told.

    Attributes:
        is_cut: whether some do not listen, so that they must be ended.
    """

    status: ExitStatus
    is_cut: bool = False


# Of what the mind of searches decides: Note, log an event and show it to all who watch; Consult, call a searcher, which
# Consulted or ConsultFailed answers; Add, look at a network that was asked for, which Admitted answers.
Effect: TypeAlias = (
    SendMessage
    | LogEvent
    | SaveParameterCount
    | SaveRates
    | KeepDeath
    | ReadCheckpoint
    | CallSearcher
    | AddNetwork
    | AbortLaunch
    | EndLaunch
)


class Outbox:
    """Collects what is to be done at a moment, in order.

    Attributes:
        now_s: the moment, in seconds of the clock of :meth:`fleet.control.controller.Ensemble.handle`.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._effects: list[Effect] = []

    def add(self, effect: Effect) -> None:
        """Have something done."""
        self._effects.append(effect)

    def note(self, event: Event) -> None:
        """Have an event logged and shown."""
        self.add(LogEvent(event))

    def tell(self, ranks: Iterable[int], tag: Tag, message: Message) -> None:
        """Have a message sent to some ranks."""
        for rank in ranks:
            self.add(SendMessage(rank, tag, message))

    def take(self) -> list[Effect]:
        """What has been collected since this was called last."""
        effects = self._effects
        self._effects = []
        return effects
