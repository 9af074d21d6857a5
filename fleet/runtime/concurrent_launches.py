"""One of several launches that share a run: its leases, and the progress of the others.

:class:`fleet.control.lease_requests.LeaseRequests` decides which leases to request, and
:class:`fleet.storage.network_leases.NetworkLeases` acquires them in a thread. This module connects
the two, between two steps of the coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress

from fleet.comm.messages import Join, Message, Start
from fleet.control.effects import EndRequested, LeaseGranted
from fleet.control.lease_requests import LeaseRequests, LeaveRun, ReleaseLease, RequestLeases
from fleet.domain.events import EpochEnded, LaunchStarted
from fleet.domain.network import EpochRecord, NetworkStatus
from fleet.domain.run import FINISHED_UNLOGGED, RunState, has_full_history
from fleet.storage.event_log import DatedEvent, RunTail, read_run_state
from fleet.storage.network_leases import NetworkLeases, find_held_lease
from fleet.storage.paths import RunPaths
from fleet.storage.results import Results, restore_network

# Other logs are read after this time, and after this many times the duration of the last read.
_READ_EVERY_S = 1.0
_READ_SHARE = 200


class ConcurrentLaunches:
    """The networks that this launch holds, and the logs of other launches.

    Args:
        leases: acquires and releases the leases of networks.
        claims: decides which leases to request.
        results: the run's results.
        tail: reads the logs from a moment before the results were recovered.

    Attributes:
        leases: the leases of networks.
        has_others: whether other launches were active when this one started.
    """

    def __init__(
        self,
        paths: RunPaths,
        leases: NetworkLeases,
        claims: LeaseRequests,
        results: Results,
        tail: RunTail,
    ) -> None:
        self.leases = leases
        self._paths = paths
        self._claims = claims
        self._results = results
        self._tail = tail
        self._next_read_s = 0.0
        self._run = RunState()
        self.has_others = find_held_lease(paths) is not None

    def poll(
        self, now_s: float, training: Collection[str], ends: bool
    ) -> list[LeaseGranted | EndRequested]:
        """Check the leases and the networks that are held.

        Args:
            now_s: the time by the coordinator's clock.
            training: the networks that have a group.
            ends: whether the launch is about to end.

        Returns:
            Inputs for the controller.
        """
        began = time.monotonic()
        if began >= self._next_read_s:
            self.read_other_logs()
            now = time.monotonic()
            self._next_read_s = now + max(_READ_EVERY_S, _READ_SHARE * (now - began))
        inputs: list[LeaseGranted | EndRequested] = []
        for name in self.leases.pop_acquired():
            leased = self._read(name)
            inputs.append(leased)
            self._claims.add_lease(
                name, len(leased.status.history), leased.status.outcome is not None
            )
        for name in self._claims.leased - set(training):
            if self._results.network_status(name).outcome is not None:
                self._claims.end_lease(name)
        if ends:
            self._claims.end()
        paused = [
            name for name in self._claims.leased if self._results.network_status(name).is_paused
        ]
        for effect in self._claims.decide(now_s, paused):
            match effect:
                case RequestLeases(names, max_leases):
                    self.leases.request(names, max_leases)
                case ReleaseLease(network):
                    self.leases.release(network)
                case LeaveRun(reason):
                    inputs.append(EndRequested(reason))
        return inputs

    def read_other_logs(self) -> None:
        """Read the progress of networks held by other launches from their logs."""
        with suppress(OSError):  # a file server that does not answer; read again later
            for name, status in self._find_changes(self._tail.poll()):
                if name in self._claims.leased or name not in self._results.networks:
                    continue
                # It may have been saved but not logged.
                if not has_full_history(status) or status.outcome == FINISHED_UNLOGGED:
                    restored, _ = restore_network(self._results, self._results.networks[name])
                    status = restored.with_logged_pruning(status)
                self._results.update_from_launch(name, status)

    def _find_changes(self, events: list[DatedEvent]) -> list[tuple[str, NetworkStatus]]:
        """Return the networks that events have changed, with their new status."""
        names: set[str] = set()
        for _, event, *_ in events:
            network = getattr(event, "network", None)
            if isinstance(event, LaunchStarted):
                names.update(event.finished)
            elif network is not None:
                names.add(network)
        before = {name: self._results.network_status(name) for name in names}
        self._run.restore(before)
        for at, event, _, log in sorted(events, key=lambda dated: dated.at):
            self._run.apply(at, event, log)
        return [
            (name, after)
            for name in names
            if (after := self._run.networks[name].status) != before[name]
        ]

    def with_fence(self, message: Message) -> Message:
        """Return a message with the fence of its network."""
        if isinstance(message, Start | Join):
            return message._replace(fence=self.leases.lease_of(message.network.name).fence)
        return message

    def refresh(self) -> None:
        """Refresh the status of networks that are not held here."""
        for network in self._results.spec.networks:
            if network.name not in self._claims.leased:
                self._results.update_from_launch(
                    network.name,
                    restore_network(self._results, network)[0].with_logged_pruning(
                        self._results.network_status(network.name)
                    ),
                )
        self.read_other_logs()  # again, because restoring many networks takes a while

    def _read(self, name: str) -> LeaseGranted:
        """Read the status of a network whose lease was just acquired."""
        self.read_other_logs()  # another launch may just have logged its end or its pruning
        before = self._results.network_status(name)
        lease = self.leases.lease_of(name)
        assert lease.fence is not None
        self._results.deaths.collect_for(name)
        status, state = restore_network(self._results, self._results.spec.by_name[name])
        # A launch that was killed may have saved epochs without logging them.
        if not lease.took_over:
            unlogged: tuple[EpochRecord, ...] = ()
        else:
            unlogged = read_run_state(self._paths, (EpochEnded,)).find_unlogged(
                name, status.history
            )
        return LeaseGranted(
            name,
            status.with_logged_pruning(before),
            lease.fence.generation,
            0 if state is None else state.position,
            lease.took_over,
            unlogged,
            before.outcome is None,
            tuple(self._results.deaths.deaths_of(name, len(status.history))),
        )
