"""The state of a run, as it follows from its events (pure).

:class:`RunState` is the only place that applies events to networks, groups, rates and searches.
The coordinator's estimates, the live view, the report and the table of results read it. It uses no
MPI, clock or disk, so a resumed run and the log of one that has ended are read in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.domain import events as e
from fleet.domain.network import DATA, EpochRecord, NetworkStatus, Outcome
from fleet.domain.network_status import Change, accept_changes, apply_change, truncate_history
from fleet.domain.run_launch import RunGroup, RunLaunch
from fleet.spec import Spec, Stopping
from fleet.spec.schema import ModelEntry
from scheduler.base import Record

# Events of a launch before it logs the epochs that the previous one had saved.
_FIRST_EVENTS = (e.RatesLoaded, e.CachedRatesUsed, e.SharingLearned, e.EpochEnded)

FINISHED_UNLOGGED = Outcome("a launch has found it done")  # no log has the reason


@dataclass(frozen=True)
class LaunchKilled:
    """A launch was killed; its log cannot say so."""


@dataclass
class RunNetwork:
    """A network of the run.

    Attributes:
        number: within its entry if a search proposed it, otherwise among all of the run.
        max_epochs: its maximum number of epochs.
        monitor: the monitored value, if its spec names one.
        status: how far it has trained.
        group: the group that trains it.
    """

    number: int
    max_epochs: int
    monitor: str | None = None
    status: NetworkStatus = field(default_factory=NetworkStatus)
    group: RunGroup | None = None

    @property
    def epochs(self) -> int:
        """The number of trained epochs; its history may lack epochs that no log has."""
        if self.status.history:
            return self.status.history[-1].epoch
        return 0


@dataclass
class RunSearch:
    """The calls and answers of the searchers of an entry, in order.

    Attributes:
        settings: the latest settings; None if the log does not have them.
        asks: all calls of ``ask``.
        calls: all calls of the current searcher.
        earlier: run -> its results that the current searcher was given.
        read: all earlier runs that any searcher was given.
    """

    settings: Mapping[str, Any] | None = None
    asks: list[e.SearcherCalled] = field(default_factory=list)
    calls: list[e.SearcherCalled] = field(default_factory=list)
    earlier: dict[str, e.EarlierRunRead] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    def add_call(self, call: e.SearcherCalled) -> None:
        """Add a call that a searcher has answered."""
        self.calls.append(call)
        if call.call == "ask":
            self.asks.append(call)

    def start_searcher(self, began: e.SearcherStarted) -> None:
        """Begin a search, or continue it with other settings, perhaps with another searcher."""
        self.settings = began.settings
        if began.is_another:
            self.calls = []
            self.earlier = {}

    def add_earlier_run(self, read: e.EarlierRunRead) -> None:
        """Note that the searcher was given the results of an earlier run."""
        self.earlier[read.source] = read
        self.read.add(read.source)


@dataclass(frozen=True)
class RunEpoch:
    """The end of an epoch.

    Attributes:
        t_s: seconds of the run.
        previous_event: type of the previous event of the group; None without a group.
        gap_s: seconds from that event to the beginning of the epoch.
    """

    t_s: float
    network: str
    record: EpochRecord
    previous_event: type | None = None
    gap_s: float = 0.0


class NetworkChangeCounter:
    """Counts the changes of networks, so that readers know what is new to them.

    A change is of a network's limits, status, number of parameters, or values of objectives.
    """

    def __init__(self) -> None:
        self._names: list[str] = []  # the network of each change, in order
        self._versions: dict[str, int] = {}

    @property
    def version(self) -> int:
        """The number of all changes."""
        return len(self._names)

    def version_of(self, name: str) -> int:
        """Return the number of all changes up to the newest one of a network."""
        return self._versions.get(name, 0)

    def add(self, name: str) -> None:
        """Count a change of a network."""
        self._names.append(name)
        self._versions[name] = len(self._names)

    def since(self, version: int) -> set[str]:
        """Return the networks that have changed since a version."""
        return set(self._names[version:])


class RunState:
    """The state of a run; see the module.

    Args:
        spec: spec of the run: its networks, and defaults of networks added later; most is in the
            log.

    Attributes:
        networks: networks by name; grows.
        changes: the changes of networks.
        parameters: network -> number of parameters, if known.
        joules: network -> energy that its training has used, where it is counted.
        launches: launches in the order in which they began.
        epochs: all ended epochs, with repeated ones.
        records: which network had which devices, and when epochs ended.
        regrouped: seconds that each change of a group took.
        sharing: speedups of 1, 2, ... networks that share a GPU.
        cache: how decoded samples are stored.
        added: networks that were added while the run went on.
        added_entries: network that a command added -> its entry.
        commands: commands that were accepted.
        searches: entry -> calls and answers of its searchers.
        objective_values: network -> its values as reported to the searcher, with several
            objectives.
        violations: network -> its violation of each constraint, as reported to the searcher.
        verdicts: verdict -> network -> the newest event with it.
        data_changes: changes of the data with which networks continued.
        missed: chunks of a ring that a group could not take.
        leases: networks that launches with ``--share-run`` acquired, and generations of the leases.
    """

    def __init__(self, spec: Spec | None = None) -> None:
        self._spec: Spec | None = None
        self._stopping = Stopping()
        self._entries: Mapping[str, ModelEntry] = {}
        self.networks: dict[str, RunNetwork] = {}
        self.changes = NetworkChangeCounter()
        self.parameters: dict[str, int] = {}
        self.joules: dict[str, float] = {}
        self.launches: list[RunLaunch] = []
        self.epochs: list[RunEpoch] = []
        self.records: list[Record] = []
        self.regrouped: list[float] = []
        self.sharing: tuple[float, ...] = (1.0,)
        self.cache: e.CacheChosen | None = None
        self.added: dict[str, e.NetworkAdded] = {}
        self.added_entries: dict[str, Mapping[str, Any]] = {}
        self.commands: list[e.CommandReceived] = []
        self.searches: defaultdict[str, RunSearch] = defaultdict(RunSearch)
        self.objective_values: dict[str, tuple[float, ...]] = {}
        self.violations: dict[str, tuple[float, ...]] = {}
        self.verdicts: defaultdict[str, dict[str, e.NetworkVerdict]] = defaultdict(dict)
        self.data_changes: list[e.DataChanged] = []
        self.warnings: dict[str, None] = {}  # in order
        self.missed = 0
        self._logged: set[tuple[str, int, int]] = set()  # network, epoch, and epoch of the stream
        self.leases: set[tuple[str, int]] = set()
        self._running: dict[object, RunLaunch] = {}  # log -> its newest launch
        if spec is not None:
            self.adopt(spec)

    def adopt(self, spec: Spec) -> None:
        """Take the networks of a spec as they are from now on; they come before all others.

        Args:
            spec: a later form of the run's spec: with added networks, or resolved with the data.
        """
        self._spec = spec
        self._stopping = spec.document.train.stopping
        self._entries = {entry.stem: entry for entry in spec.searches.values()}
        networks = {}
        for network in spec.networks:
            stopping = network.train.stopping
            run_network = self._network(network.name)
            if network.name not in self.added:
                run_network.monitor = stopping.monitor
                run_network.max_epochs = stopping.max_epochs
            networks[network.name] = run_network
            self.changes.add(network.name)
        self.networks = networks | self.networks

    @property
    def launch(self) -> RunLaunch | None:
        """The newest launch."""
        if self.launches:
            return self.launches[-1]
        return None

    @property
    def refused(self) -> set[str]:
        """The networks that were added and cannot be trained."""
        return {name for name, added in self.added.items() if added.wrong}

    @property
    def statuses(self) -> dict[str, NetworkStatus]:
        """The status of each network."""
        return {name: network.status for name, network in self.networks.items()}

    def status_of(self, name: str) -> NetworkStatus:
        """Return the status of a network; an unknown one has not begun."""
        if network := self.networks.get(name):
            return network.status
        return NetworkStatus()

    def search(self, entry: str) -> RunSearch:
        """Return the calls and answers of an entry; empty if it is new."""
        return self.searches.get(entry, RunSearch())

    def find_unlogged(self, name: str, history: Iterable[EpochRecord]) -> tuple[EpochRecord, ...]:
        """Return the epochs of a history that no log has, because their launch was killed.

        Args:
            name: name of the network.
            history: its finished epochs.
        """
        return tuple(
            record
            for record in history
            if (name, record.epoch, record.stream_epoch) not in self._logged
        )

    def set_status(self, name: str, status: NetworkStatus) -> None:
        """Set the status of a network by a checkpoint, or by the log of another launch."""
        network = self._network(name)
        if status is not network.status:
            network.status = status
            self.changes.add(name)

    def set_parameters(self, name: str, parameters: int) -> None:
        """Set the number of parameters of a network."""
        if self.parameters.get(name) != parameters:
            self.parameters[name] = parameters
            self.changes.add(name)

    def restore(self, statuses: Mapping[str, NetworkStatus], afresh: Container[str] = ()) -> None:
        """Set the statuses of networks from the checkpoints with which a launch begins.

        Checkpoints do not store whether a network is paused or pruned; these flags come from the
        log.

        Args:
            statuses: the statuses by the checkpoints.
            afresh: networks that start over; nothing from before counts for them.
        """
        for name, status in statuses.items():
            if name not in afresh:
                status = status.merged_with_log(self._network(name).status)
            self.set_status(name, status)

    def record_pace(self, name: str, samples: int, samples_per_s: float) -> None:
        """Record the progress of a network in its current epoch, which no event has.

        Args:
            name: name of the network.
            samples: samples of the epoch that it has consumed.
            samples_per_s: its current rate.
        """
        network = self.networks.get(name)
        if network is not None and network.group is not None:
            network.group.samples = samples
            network.group.samples_per_s = samples_per_s

    # ---- apply ----

    def apply(self, t_s: float, event: e.Event | LaunchKilled, log: object = None) -> None:
        """Apply an event.

        Args:
            t_s: its time, in seconds of the run.
            event: what happened.
            log: key of the log that has it, if several launches work at a time.
        """
        if isinstance(event, e.LaunchStarted):
            self._start(t_s, event, log)
            return
        launch = self._running.get(log)
        if isinstance(event, e.EpochEnded):
            self._end_epoch(t_s, event, launch)
        else:
            if launch is None or not self._apply_to_launch(t_s, event, launch):
                self._apply_to_networks(t_s, event)
            if isinstance(event, Change):
                self.set_status(event.network, apply_change(self.status_of(event.network), event))
        if launch is not None:
            launch.ended_s = max(launch.ended_s, t_s)
            launch.has_begun |= not isinstance(event, _FIRST_EVENTS)

    def _apply_to_launch(
        self, t_s: float, event: e.Event | LaunchKilled, launch: RunLaunch
    ) -> bool:
        """Apply an event to a launch and its groups; return True if it concerns nothing else."""
        match event:
            case LaunchKilled():
                self._break(launch)
            case (
                e.RatesLoaded()
                | e.ProfilingFinished()
                | e.RatesEstimated()
                | e.RateMeasured()
                | e.RateMismatch()
            ):
                launch.apply_rates(event, self._spec)
            case e.PlanChanged():
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
                launch.stops.append((event, network.status.outcome))
                self._end_group(t_s, event.network)
            case e.FirstStep():
                group = self._network(event.network).group
                launch.first_step = t_s, event, launch.began_s if group is None else group.began_s
            case e.RankDied() if event.device is not None:
                launch.removed_devices.add(event.device)
            case e.NodesReleased():
                launch.removed_devices.update(event.devices)
            case e.StreamStarted():
                launch.stream = event
                if event.kept:
                    launch.supply = None
                else:
                    launch.supply = e.SupplyChanged(
                        event.supply_samples_per_s, event.demand_samples_per_s
                    )
            case e.SupplyChanged():
                launch.supply = event
            case e.TimeLeftEstimated():
                launch.time_left = t_s, event
            case e.LaunchEnded():
                launch.has_ended = True
            case _:
                return False
        return True

    def _apply_to_networks(self, t_s: float, event: e.Event | LaunchKilled) -> None:
        match event:
            case e.SharingLearned():
                self.sharing = event.speedups
            case e.CacheChosen():
                self.cache = event
            case e.EnergyUsed():
                self.joules[event.network] = self.joules.get(event.network, 0.0) + event.joules
                self.changes.add(event.network)
            case e.NetworkLeased():
                self.leases.add((event.network, event.generation))
            case e.RunWarned():
                self.warnings[event.warning] = None
            case e.NetworkFailed() | e.NetworkRetried() | e.GroupStarted() | e.GroupFailed():
                self._end_group(t_s, event.network)
            case e.NetworkAdded():
                self._add(event)
            case e.NetworkVerdict():
                self.verdicts[event.verdict][event.network] = event
            case e.SearcherCalled():
                self.searches[event.entry].add_call(event)
                if event.objective_values:
                    self.objective_values[event.network] = event.objective_values
                    self.changes.add(event.network)
                if event.is_end_of_network and event.violations:
                    self.violations[event.network] = event.violations
                    self.changes.add(event.network)
            case e.SearcherStarted():
                self._begin_searcher(event)
            case e.EarlierRunRead():
                self.searches[event.entry].add_earlier_run(event)
            case e.CommandReceived():
                self.commands.append(event)
                for name in event.networks if event.do == "add" else ():
                    self.added_entries[name] = event.given
                    self._network(name)
            case e.DataChanged():
                self.data_changes.append(event)
                for name, epochs in event.epochs.items():
                    self.set_status(name, accept_changes(self.status_of(name), epochs, (DATA,)))

    # ---- launches ----

    def _start(self, t_s: float, start: e.LaunchStarted, log: object) -> None:
        """Begin a launch, and end those before it unless they work beside it."""
        for key, before in self._running.items():
            if key == log or not start.beside:
                self._break(before)
        launch = self._running[log] = RunLaunch(start, t_s, t_s, _before=self.launch)
        self.launches.append(launch)
        for name in start.finished:
            status = self.status_of(name)
            if status.outcome is None:  # the launch found that out itself
                self.set_status(name, replace(status, is_paused=False, outcome=FINISHED_UNLOGGED))
        self.restore(
            {
                name: NetworkStatus(
                    truncate_history(self._network(name).status.history, difference.epochs),
                    difference.outcome,
                    difference.tested,
                )
                for name, difference in start.found.items()
            }
        )

    def _break(self, launch: RunLaunch) -> None:
        """End a launch and its groups."""
        if launch.groups:
            launch._killed = dict.fromkeys(launch.groups, len(self.records))
        for name in list(launch.groups):
            self._end_group(launch.ended_s, name)

    # ---- groups ----

    def _train(self, t_s: float, name: str, launch: RunLaunch, devices: tuple[int, ...]) -> None:
        """Begin a group."""
        self._end_group(t_s, name)
        network = self._network(name)
        network.group = launch.groups[name] = RunGroup(launch, devices, t_s, _latest_s=t_s)
        launch._networks_on_gpu.update(map(launch.gpu, devices))
        self.records.append(Record(t_s, "group", name, devices))

    def _change(self, t_s: float, changed: e.GroupChanged, launch: RunLaunch) -> None:
        network = self._network(changed.network)
        group = network.group = launch.groups[changed.network] = network.group or RunGroup(
            launch, (), t_s
        )
        launch._networks_on_gpu.subtract(map(launch.gpu, group.devices))
        launch._networks_on_gpu.update(map(launch.gpu, changed.devices))
        group.devices, group._latest, group._latest_s = changed.devices, e.GroupChanged, t_s
        launch.regrouping_s += changed.seconds * _gpus(network)
        self.regrouped.append(changed.seconds)
        self.records.append(Record(t_s, "group", changed.network, changed.devices))

    def _end_group(self, t_s: float, name: str) -> None:
        """End the group of a network, if there is one."""
        network = self._network(name)
        group = network.group
        if group is not None:
            group.launch._networks_on_gpu.subtract(map(group.launch.gpu, group.devices))
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
        if network.group is not None:
            network.group.samples_per_s = None  # first, so that no view counts the epoch twice
        if launch and network.group is None:  # an epoch of a restored checkpoint is logged late
            self.set_status(name, _with_late_epoch(network.status, ended))
        else:
            self.set_status(name, apply_change(network.status, ended))
        if ended.parameters:
            self.set_parameters(name, ended.parameters)
        group = network.group
        if launch is None:
            self.epochs.append(RunEpoch(t_s, name, record))
            return
        if group is None:
            if not launch.has_begun:  # a killed launch had saved it without logging it
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
            launch.time_epoch(t_s, name, record, group)

    def _log_late(self, name: str, launch: RunLaunch) -> float:
        """Return the time of an epoch that only the next launch logged."""
        before = launch._before
        if before is None:
            return launch.began_s
        index = before._killed.get(name)
        if index is not None:
            self.records.insert(index, Record(before.ended_s, "epoch", name))
        return before.ended_s

    # ---- networks ----

    def _network(self, name: str, number: int | None = None) -> RunNetwork:
        """Return a network; an unknown one is new, or may have been removed from the spec."""
        network = self.networks.get(name)
        if network is None:
            number = len(self.networks) if number is None else number
            network = self.networks[name] = RunNetwork(number, self._stopping.max_epochs)
            self.changes.add(name)
        return network

    def _begin_searcher(self, began: e.SearcherStarted) -> None:
        """Begin a searcher; values of other objectives and constraints are forgotten."""
        search = self.searches[began.entry]
        before = search.settings
        search.start_searcher(began)
        for key, values in (
            ("objectives", self.objective_values),
            ("constraints", self.violations),
        ):
            if before is not None and before.get(key) != began.settings.get(key):
                for name, added in self.added.items():
                    if added.entry == began.entry:
                        values.pop(name, None)

    def _add(self, added: e.NetworkAdded) -> None:
        self.added[added.network] = added
        entry = self._entries.get(added.entry)
        if entry is None:
            settings = self.added_entries.get(added.network, {}).get("train") or {}
        else:
            settings = entry.train_overrides
        stopping = {"monitor": self._stopping.monitor, **(settings.get("stopping") or {})}
        network = self._network(added.network, added.number if added.entry else None)
        network.monitor = stopping["monitor"]
        network.max_epochs = added.max_epochs
        self.changes.add(added.network)
        if added.wrong:
            failed = replace(network.status, outcome=Outcome(added.wrong, is_failure=True))
            self.set_status(added.network, failed)


def has_full_history(status: NetworkStatus) -> bool:
    """Return True if all epochs of a network are known, from the first on."""
    return [record.epoch for record in status.history] == list(range(1, len(status.history) + 1))


def _with_late_epoch(status: NetworkStatus, ended: e.EpochEnded) -> NetworkStatus:
    """Return a status after an epoch of which no launch had logged the end.

    Launches that share a run may have logged later ones.
    """
    record = ended.record
    later = [logged for logged in status.history if logged.epoch > record.epoch]
    stream_epochs = [
        logged.stream_epoch for logged in status.history if logged.epoch == record.epoch
    ]
    if record.stream_epoch in stream_epochs:
        return status
    if stream_epochs or not later:
        return apply_change(status, ended)
    earlier = truncate_history(status.history, record.epoch)
    return status.with_history((*earlier, record, *later))


def _gpus(network: RunNetwork) -> float:
    """Return the number of GPUs of a network."""
    if network.group is None:
        return 0.0
    return network.group.launch.share(network.group.devices)
