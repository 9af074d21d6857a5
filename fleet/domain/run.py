"""What a run is by now: all that follows from its events (pure).

:class:`RunState` is the only place that knows what becomes of networks, groups, rates and searches when something
happens. Whoever wants to know looks it up here: the coordinator's estimates, the live view, the report, the table of
results. It knows no MPI, no clock and no disk, so a run that goes on and the log of one that is over are read alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fleet.domain import events as e
from fleet.domain.network import DATA, EpochRecord, NetworkStatus, Outcome
from fleet.domain.network_status import Change, accepting, after, until
from fleet.spec import Spec, Stopping
from fleet.units import format_duration, pluralize
from scheduler.base import Network, Record
from scheduler.ensemble.rates import rate

# What a launch may say before it logs the epochs that the one before it had saved.
_AT_FIRST = (e.RatesGiven, e.RatesRemembered, e.SharingLearned, e.EpochEnded)

FOUND_DONE = Outcome("a launch has found it done")  # whatever has become of it: no log says so


@dataclass(frozen=True)
class Broken:
    """A launch was killed; no log says so, for nobody was left to write it."""


@dataclass
class RunLaunch:
    """A launch, from its start to all that is known of it.

    Attributes:
        began_s, ended_s: when its first and its newest event were, in seconds of the run.
        rounds: that have begun.
        plans: how often the policy wanted something else.
        profiling_s, scheduling_s: seconds for which all devices waited for rates, and for the policy.
        checkpointing_s: GPU-seconds for which checkpoints blocked training.
        regrouping_s: GPU-seconds for which groups stood still to change their devices.
        rates: network -> samples/s on 1, 2, ... GPUs, as the policy was told last.
        stream, supply: how its input began, and what it gives; None where nobody prepares samples for all.
        first_step: when the first step was, of which network, and when the group of that was formed.
        corrected: how many wrong rates were put right.
        lost: the devices that are no more.
        building: seconds that it took to build networks, of measurements and first epochs.
        forming: network -> seconds that each of its groups took to form, beyond its first epoch.
        stops: of groups, each with the outcome of its network by then; None where that had yet to train.
        timed: network -> the epochs of its groups but the first of each, which forms the group.
        has_begun: whether it has come beyond what a launch says at first, where epochs are logged late.
        groups: network -> the group that trains it.
    """

    start: e.Started
    began_s: float
    ended_s: float
    rounds: int = 0
    plans: int = 0
    profiling_s: float = 0.0
    scheduling_s: float = 0.0
    checkpointing_s: float = 0.0
    regrouping_s: float = 0.0
    rates: dict[str, tuple[float, ...]] = field(default_factory=dict)
    stream: e.StreamStarted | None = None
    supply: e.SupplyFound | None = None
    first_step: tuple[float, e.FirstStep, float] | None = None
    corrected: int = 0
    lost: set[int] = field(default_factory=set)
    building: list[float] = field(default_factory=list)
    forming: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    stops: list[tuple[e.GroupStopped, Outcome | None]] = field(default_factory=list)
    timed: defaultdict[str, list[EpochRecord]] = field(default_factory=lambda: defaultdict(list))
    has_begun: bool = False
    _before: RunLaunch | None = None
    _killed: Mapping[str, int] = field(
        default_factory=dict
    )  # network -> place in the run's records
    groups: dict[str, RunGroup] = field(default_factory=dict)
    _tenants: Counter[int] = field(default_factory=Counter)  # GPU -> how many networks

    @cached_property
    def devices(self) -> frozenset[int]:
        """Where its trainers are."""
        return frozenset(self.start.devices)

    @cached_property
    def gpus(self) -> frozenset[int]:
        """Its GPUs, or what takes their place; one with several slots counts once."""
        return frozenset(map(self.gpu, self.devices))

    def gpu(self, device: int) -> int:
        """The GPU of a device, by the number of its first slot."""
        place = device % self.start.gpus_per_node
        return device - place + place % (self.start.gpus_per_node // self.start.slots)

    @property
    def gpu_seconds(self) -> float:
        """The time of all its GPUs."""
        return (self.ended_s - self.began_s) * len(self.gpus)

    def share(self, devices: Iterable[int]) -> float:
        """How many GPUs these devices are; networks that share one have equal parts of it."""
        return sum(1 / self._tenants[self.gpu(device)] for device in devices)

    def ended(self, status: int, seconds: float) -> e.Ended:
        """The event that ends it.

        Args:
            status: how it ended (:class:`fleet.errors.ExitStatus`).
            seconds: since it began.
        """
        return e.Ended(
            status,
            seconds,
            self.rounds,
            self.profiling_s,
            self.scheduling_s,
            self.checkpointing_s,
            self.regrouping_s,
        )

    def summary(self, seconds: float) -> str:
        """How long it took, and the shares of what is not training ([FLEET] Table 4).

        Args:
            seconds: since it began.
        """
        total = max(seconds, 1e-9)
        gpu_seconds = total * max(self.start.cluster.whole_gpus, 1)
        return (
            f"{format_duration(total)} in {pluralize(self.rounds, 'round')}; "
            f"profiling {self.profiling_s / total:.1%}, scheduling {self.scheduling_s / total:.3%}, "
            f"checkpointing {self.checkpointing_s / gpu_seconds:.2%}, "
            f"regrouping {self.regrouping_s / gpu_seconds:.2%} of it"
        )


@dataclass
class RunGroup:
    """The devices that train a network.

    Attributes:
        devices: the master's first.
        began_s: when it was told to begin.
        first_s: seconds from then to the end of its first epoch, until the second one ends.
        ended_s: when its newest epoch ended.
    """

    launch: RunLaunch
    devices: tuple[int, ...]
    began_s: float
    first_s: float | None = None
    ended_s: float | None = None
    _latest: type = e.GroupStarted  # what it has done last, and when
    _latest_s: float = 0.0


@dataclass
class RunNetwork:
    """A network of the run.

    Attributes:
        number: within its entry if a search has asked for it, otherwise among all of the run.
        max_epochs: that it is trained at most.
        monitor: what it monitors, where its spec says so.
        standing: how far it is.
        parameters: how many it has, where the log says so.
        group: that trains it.
    """

    number: int
    max_epochs: int
    monitor: str | None = None
    standing: NetworkStatus = field(default_factory=NetworkStatus)
    parameters: int | None = None
    group: RunGroup | None = None

    @property
    def epochs(self) -> int:
        """How many epochs it has trained; its history may lack some of which no log tells."""
        if self.standing.history:
            return self.standing.history[-1].epoch
        return 0


@dataclass
class RunSearch:
    """What the searchers of an entry have heard and answered, one after another.

    Attributes:
        settings: with which the search went on last; None where the log does not say how it began.
        asks: what they answered to ``ask``, all of them.
        calls: all that the newest one has heard and answered.
        earlier: run -> what of it the newest one is told.
        read: the earlier runs that any of them was told of.
    """

    settings: Mapping[str, Any] | None = None
    asks: list[e.Searched] = field(default_factory=list)
    calls: list[e.Searched] = field(default_factory=list)
    earlier: dict[str, e.EarlierRead] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    def hear(self, call: e.Searched) -> None:
        """A searcher has answered."""
        self.calls.append(call)
        if call.call == "ask":
            self.asks.append(call)

    def begin(self, began: e.SearcherBegan) -> None:
        """A search begins, or goes on with other settings, perhaps with another searcher."""
        self.settings = began.settings
        if began.is_another:
            self.calls = []
            self.earlier = {}

    def tell(self, read: e.EarlierRead) -> None:
        """The searcher is told what an earlier run found."""
        self.earlier[read.source] = read
        self.read.add(read.source)


@dataclass(frozen=True)
class RunEpoch:
    """The end of an epoch.

    Attributes:
        t_s: seconds of the run.
        after: what the network's group did last before; None without a group.
        gap_s: seconds from that to the beginning of the epoch.
    """

    t_s: float
    network: str
    record: EpochRecord
    after: type | None = None
    gap_s: float = 0.0


class RunState:
    """See the module.

    Args:
        spec: of the run: its networks, and what holds for those that come later; the log says most without it.

    Attributes:
        networks: by name; grows.
        launches: in the order in which they began.
        epochs: all that have ended, also those that were trained again.
        records: who had which devices, and when epochs ended.
        regrouped: seconds that each change of a group took.
        sharing: what networks that share a GPU train together.
        cache: what becomes of decoded samples.
        added: the networks that came while the run went on.
        given: network that was added from outside -> its entry.
        commands: that were taken up.
        searches: entry -> what its searchers have heard and answered.
        told: network -> what its searcher was told that it has come to, where several objectives count.
        judged: verdict -> network -> its newest judgement of that kind.
        data_changes: each time that networks went on with data that had changed.
        missed: chunks of a ring that a group could not take.
    """

    def __init__(self, spec: Spec | None = None) -> None:
        self._spec = spec
        if spec is None:
            self._converge = Stopping()
        else:
            self._converge = spec.document.train.stopping
        self.networks: dict[str, RunNetwork] = {}
        self.launches: list[RunLaunch] = []
        self.epochs: list[RunEpoch] = []
        self.records: list[Record] = []
        self.regrouped: list[float] = []
        self.sharing: tuple[float, ...] = (1.0,)
        self.cache: e.CacheChosen | None = None
        self.added: dict[str, e.NetworkAdded] = {}
        self.given: dict[str, Mapping[str, Any]] = {}
        self.commands: list[e.Commanded] = []
        self.searches: dict[str, RunSearch] = {}
        self.told: dict[str, tuple[float, ...]] = {}
        self.judged: dict[str, dict[str, e.NetworkJudged]] = {"pause": {}, "stop": {}, "go_on": {}}
        self.data_changes: list[e.DataChanged] = []
        self.missed = 0
        self._logged: set[tuple[str, int, int]] = set()  # network, epoch, and epoch of the stream
        self._running: dict[object, RunLaunch] = {}  # log -> its newest launch
        if spec is None:
            self._entries = {}
        else:
            self._entries = {entry.stem: entry for entry in spec.searches.values()}
        for network in () if spec is None else spec.networks:
            converge = network.train.stopping
            self._meet(network.name, converge.monitor, converge.max_epochs)

    @property
    def launch(self) -> RunLaunch | None:
        """The newest one."""
        if self.launches:
            return self.launches[-1]
        return None

    @property
    def refused(self) -> set[str]:
        """The networks that came and cannot be trained: something else stands in the spec for each."""
        return {name for name, added in self.added.items() if added.wrong}

    @property
    def standings(self) -> dict[str, NetworkStatus]:
        """How far each network is."""
        return {name: network.standing for name, network in self.networks.items()}

    def standing(self, name: str) -> NetworkStatus:
        """How far a network is; one of which nobody has told has not begun."""
        if network := self.networks.get(name):
            return network.standing
        return NetworkStatus()

    def search(self, entry: str) -> RunSearch:
        """What the searchers of an entry have heard and answered; nothing where it is new."""
        return self.searches.get(entry, RunSearch())

    def unlogged(self, name: str, history: Iterable[EpochRecord]) -> tuple[EpochRecord, ...]:
        """The epochs of a network's history of which no log tells: whoever has saved them was killed before."""
        return tuple(
            record
            for record in history
            if (name, record.epoch, record.stream_epoch) not in self._logged
        )

    def hear(self, name: str, standing: NetworkStatus) -> None:
        """Another launch, whose log is not read here, has brought a network so far."""
        self._network(name).standing = standing

    def take_up(self, standings: Mapping[str, NetworkStatus], afresh: Container[str] = ()) -> None:
        """What the checkpoints say of networks, when a launch goes on from them.

        No checkpoint knows whether a network is paused or was pruned: that the log has said.

        Args:
            afresh: those that start over, of which nothing counts that was so before.
        """
        for name, standing in standings.items():
            network = self._network(name)
            if name in afresh:
                network.standing = standing
            else:
                network.standing = standing.found_after(network.standing)

    def differing(self, standings: Mapping[str, NetworkStatus]) -> dict[str, e.FoundStanding]:
        """What checkpoints say of networks otherwise than the log; epochs that it lacks are logged, so do not count."""
        found = {}
        for name, now in standings.items():
            before = self._network(name).standing
            outcome = now.outcome or Outcome("")
            says_more = len(before.history) > len(now.history) or before.tested != now.tested
            if before.is_pruned and not now.is_finished:
                known = Outcome("")
            else:
                known = before.outcome or Outcome("")
            if says_more or (known.reason, known.is_failure) != (
                outcome.reason,
                outcome.is_failure,
            ):
                found[name] = e.FoundStanding(
                    len(now.history), outcome.reason, outcome.is_failure, now.tested
                )
        return found

    # ---- apply ----

    def apply(self, t_s: float, event: e.Event | Broken, log: object = None) -> None:
        """Take in what has happened.

        Args:
            t_s: when, in seconds of the run.
            log: in which it stands, where several launches work at a time; any key.
        """
        if isinstance(event, e.Started):
            self._start(t_s, event, log)
            return
        launch = self._running.get(log)
        if isinstance(event, e.EpochEnded):
            self._end_epoch(t_s, event, launch)
        else:
            if launch is None or not self._apply_to_launch(t_s, event, launch):
                self._apply_to_networks(t_s, event)
            if isinstance(event, Change):
                network = self._network(event.network)
                network.standing = after(network.standing, event)
        if launch is not None:
            launch.ended_s = max(launch.ended_s, t_s)
            launch.has_begun |= not isinstance(event, _AT_FIRST)

    def _apply_to_launch(self, t_s: float, event: e.Event | Broken, launch: RunLaunch) -> bool:
        """Take in what happens to a launch and its groups; returns whether it is nothing else."""
        match event:
            case Broken():
                self._break(launch)
            case (
                e.RatesGiven() | e.Profiled() | e.RatesEstimated() | e.RateMeasured() | e.RateOff()
            ):
                self._hear_rates(event, launch)
            case e.Planned():
                launch.plans += 1
                launch.scheduling_s += event.scheduling_s
            case e.RoundStarted():
                launch.rounds = event.round
            case e.GroupStarted():
                self._train(t_s, event.network, launch, event.devices)
            case e.GroupChanged():
                self._change(t_s, event, launch)
            case e.GroupStopped():
                network = self._network(event.network)
                launch.checkpointing_s += event.checkpoint_s * _gpus(network)
                launch.stops.append((event, network.standing.outcome))
                self._let_go(t_s, event.network)
            case e.FirstStep():
                group = self._network(event.network).group
                launch.first_step = t_s, event, launch.began_s if group is None else group.began_s
            case e.RankLost() if event.device is not None:
                launch.lost.add(event.device)
            case e.NodesLeft():
                launch.lost.update(event.devices)
            case e.StreamStarted():
                launch.stream = event
                if event.kept:
                    launch.supply = None
                else:
                    launch.supply = e.SupplyFound(
                        event.supply_samples_per_s, event.demand_samples_per_s
                    )
            case e.SupplyFound():
                launch.supply = event
            case _:
                return False
        return True

    def _apply_to_networks(self, t_s: float, event: e.Event | Broken) -> None:
        match event:
            case e.SharingLearned():
                self.sharing = event.speedups
            case e.CacheChosen():
                self.cache = event
            case e.NetworkFailed() | e.NetworkRetried() | e.GroupStarted() | e.GroupFailed():
                self._let_go(t_s, event.network)
            case e.NetworkAdded():
                self._add(event)
            case e.NetworkJudged():
                self.judged.setdefault(event.verdict, {})[event.network] = event
            case e.Searched():
                self._search(event.entry).hear(event)
                self.told |= {event.network: event.come_to} if event.come_to else {}
            case e.SearcherBegan():
                self._begin_searcher(event)
            case e.EarlierRead():
                self._search(event.entry).tell(event)
            case e.Commanded():
                self._command(event)
            case e.DataChanged():
                self.data_changes.append(event)
                for name, epochs in event.epochs.items():
                    self._network(name).standing = accepting(self.standing(name), epochs, (DATA,))

    # ---- launches ----

    def _start(self, t_s: float, start: e.Started, log: object) -> None:
        """A launch begins; those before it are over, whether they have said so or not, unless it works beside them."""
        for other, before in self._running.items():
            if other == log or not start.beside:
                self._break(before)
        launch = self._running[log] = RunLaunch(start, t_s, t_s, _before=self.launch)
        self.launches.append(launch)
        for name in start.finished:
            standing = self._network(name).standing
            if standing.outcome is None:  # it found that out by itself
                self._network(name).standing = replace(
                    standing, is_paused=False, outcome=FOUND_DONE
                )
        self.take_up(
            {
                name: NetworkStatus(
                    until(self._network(name).standing.history, found.epochs),
                    found.outcome,
                    found.tested,
                )
                for name, found in start.found.items()
            }
        )

    def _break(self, launch: RunLaunch) -> None:
        """A launch is over, and its groups are gone."""
        if launch.groups:
            launch._killed = dict.fromkeys(launch.groups, len(self.records))
        for name in list(launch.groups):
            self._let_go(launch.ended_s, name)

    def _hear_rates(
        self,
        event: e.RatesGiven | e.Profiled | e.RatesEstimated | e.RateMeasured | e.RateOff,
        launch: RunLaunch,
    ) -> None:
        match event:
            case e.RateOff():
                launch.corrected += event.corrected
            case e.RateMeasured():
                if self._spec is None:
                    network = None
                else:
                    network = self._spec.by_name.get(event.network)
                if (
                    self._spec and network and event.rate > 0
                ):  # to build and trace it is what forming its group takes
                    batches = self._spec.profile.batches * network.global_batch(event.gpus)
                    launch.building.append(max(0.0, event.seconds - batches / event.rate))
            case e.RatesEstimated(seen=0):
                pass  # they only say how networks compare
            case _:
                launch.rates |= event.rates
                launch.profiling_s += event.seconds if isinstance(event, e.Profiled) else 0.0

    # ---- groups ----

    def _train(self, t_s: float, name: str, launch: RunLaunch, devices: tuple[int, ...]) -> None:
        """A group is told to train a network."""
        self._let_go(t_s, name)
        network = self._network(name)
        network.group = launch.groups[name] = RunGroup(launch, devices, t_s, _latest_s=t_s)
        launch._tenants.update(map(launch.gpu, devices))
        self.records.append(Record(t_s, "group", name, devices))

    def _change(self, t_s: float, changed: e.GroupChanged, launch: RunLaunch) -> None:
        network = self._network(changed.network)
        group = network.group = launch.groups[changed.network] = network.group or RunGroup(
            launch, (), t_s
        )
        launch._tenants.subtract(map(launch.gpu, group.devices))
        launch._tenants.update(map(launch.gpu, changed.devices))
        group.devices, group._latest, group._latest_s = changed.devices, e.GroupChanged, t_s
        launch.regrouping_s += changed.seconds * _gpus(network)
        self.regrouped.append(changed.seconds)
        self.records.append(Record(t_s, "group", changed.network, changed.devices))

    def _let_go(self, t_s: float, name: str) -> None:
        """A network has no group any more."""
        network = self._network(name)
        group = network.group
        if group is not None:
            group.launch._tenants.subtract(map(group.launch.gpu, group.devices))
            network.group = None
            del group.launch.groups[name]
            self.records.append(Record(t_s, "stopped", name))

    # ---- epochs ----

    def _end_epoch(self, t_s: float, ended: e.EpochEnded, launch: RunLaunch | None) -> None:
        name = ended.network
        record = ended.record
        network = self._network(ended.network)
        self.missed += ended.missed
        self._logged.add((name, record.epoch, record.stream_epoch))
        is_news = record.epoch > network.epochs
        # One that was taken up from a checkpoint may be logged late.
        if not (launch and network.group is None and _is_known(network.standing, record)):
            network.standing = after(network.standing, ended)
        network.parameters = ended.parameters or network.parameters
        group = network.group
        if launch is None:
            self.epochs.append(RunEpoch(t_s, name, record))
            return
        if group is None:
            if (
                not launch.has_begun
            ):  # a launch that was killed had saved it, and did not come to log it
                t_s = self._log_late(name, launch)
            self.epochs.append(RunEpoch(t_s, name, record))
        else:
            self.epochs.append(
                RunEpoch(t_s, name, record, group._latest, t_s - record.seconds - group._latest_s)
            )
            self.records.append(Record(t_s, "epoch", name))
            launch.checkpointing_s += ended.blocked_s * _gpus(network)
            group._latest, group._latest_s = e.EpochEnded, t_s
        if is_news:
            self._time(t_s, ended, launch, group)

    def _log_late(self, name: str, launch: RunLaunch) -> float:
        """When an epoch ended that only the launch after has logged: at the end of the one before."""
        before = launch._before
        if before is None:
            return launch.began_s
        place = before._killed.get(name)
        if place is not None:
            self.records.insert(place, Record(before.ended_s, "epoch", name))
        return before.ended_s

    def _time(
        self, t_s: float, ended: e.EpochEnded, launch: RunLaunch, group: RunGroup | None
    ) -> None:
        """What an epoch says of how long others will take; the first of a group traces and compiles."""
        name = ended.network
        record = ended.record
        is_first = group is not None and group.ended_s is None
        if group is not None:
            group.ended_s = t_s
        if group is not None and is_first:
            group.first_s = t_s - group.began_s
            if name in launch.rates:  # until it is known better
                samples_per_s = rate(Network(name, launch.rates[name]), record.gpus)
                epoch_s = launch.start.time_scale * record.samples / samples_per_s
                launch.building.append(max(0.0, group.first_s - epoch_s))
            return
        if group is not None and group.first_s is not None:
            launch.forming[name].append(max(0.0, group.first_s - record.seconds))
            group.first_s = None
        if record.samples:
            launch.timed[name].append(record)

    # ---- networks ----

    def _meet(
        self, name: str, monitor: str | None, max_epochs: int, number: int | None = None
    ) -> RunNetwork:
        network = RunNetwork(len(self.networks) if number is None else number, max_epochs, monitor)
        return self.networks.setdefault(name, network)

    def _network(self, name: str) -> RunNetwork:
        """A network; one that nobody has told of before may have been taken from the spec since."""
        found = self.networks.get(name)
        return found or self._meet(name, None, self._converge.max_epochs)

    def _search(self, entry: str) -> RunSearch:
        return self.searches.setdefault(entry, RunSearch())

    def _begin_searcher(self, began: e.SearcherBegan) -> None:
        """What was told of other objectives says nothing of those that count now."""
        search = self._search(began.entry)
        before = search.settings
        search.begin(began)
        if before is not None and before.get("objectives") != began.settings.get("objectives"):
            of_entry = {name for name, added in self.added.items() if added.entry == began.entry}
            self.told = {name: told for name, told in self.told.items() if name not in of_entry}

    def _add(self, added: e.NetworkAdded) -> None:
        self.added[added.network] = added
        entry = self._entries.get(added.entry)
        if entry is None:
            given = self.given.get(added.network, {}).get("train") or {}
        else:
            given = entry.train_overrides
        own = {"monitor": self._converge.monitor, **(given.get("stopping") or {})}
        network = self._meet(
            added.network, own["monitor"], added.max_epochs, added.number if added.entry else None
        )
        network.monitor = own["monitor"]
        network.max_epochs = added.max_epochs
        if added.wrong:
            network.standing = replace(
                network.standing, outcome=Outcome(added.wrong, is_failure=True)
            )

    def _command(self, command: e.Commanded) -> None:
        self.commands.append(command)
        if command.do == "add":
            self.given |= dict.fromkeys(command.networks, command.given)
            for name in command.networks:
                self._network(name)


def is_whole(standing: NetworkStatus) -> bool:
    """Whether all epochs of a network are known, from the first on."""
    return [record.epoch for record in standing.history] == list(
        range(1, len(standing.history) + 1)
    )


def _is_known(standing: NetworkStatus, record: EpochRecord) -> bool:
    return any(
        record.stream_epoch == known.stream_epoch
        for known in standing.history[record.epoch - 1 : record.epoch]
    )


def _gpus(network: RunNetwork) -> float:
    """How many GPUs a network has."""
    if network.group is None:
        return 0.0
    return network.group.launch.share(network.group.devices)
