"""One of several launches that share a run: its leases, and the progress of the others.

:class:`~fleet.companions.shared_run.lease_requests.LeaseRequests` decides which leases to request,
and :class:`~fleet.companions.shared_run.network_leases.NetworkLeases` acquires them in a thread.
This module connects the two, between two steps of the coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Self

from fleet.companions.shared_run.lease_requests import LeaseRequests
from fleet.companions.shared_run.network_leases import NetworkLeases
from fleet.control.effects import EndRequested, LeaseGranted
from fleet.domain.events import LaunchStarted
from fleet.domain.network import NetworkStatus
from fleet.domain.run import FINISHED_UNLOGGED, has_full_history
from fleet.errors import StorageError, UserError
from fleet.runtime.resume import Resumed
from fleet.runtime.run_sharing import RunSharing
from fleet.runtime.startup.folder import (
    abandoned_on_error,
    check_folder,
    take_folder,
    writing_into,
)
from fleet.runtime.startup.launch import PreparedLaunch
from fleet.runtime.startup.past import Past
from fleet.spec import Spec
from fleet.storage.checkpoint import complete_history
from fleet.storage.event_log import DatedEvent
from fleet.storage.fencing import fence_out, newest_written_generation
from fleet.storage.files import SharedWriteThrottle
from fleet.storage.lease import Fence, Lease
from fleet.storage.network_leases import find_held_lease, read_holders
from fleet.storage.paths import RunPaths
from fleet.storage.recovery import restore_network

# How long to wait while another launch starts, which reads all checkpoints and may decode samples.
_ENTER_TIMEOUT_S = 300.0
_RETRY_S = 1.0
# Other logs are read after this time, and after this many times the duration of the last read.
_READ_EVERY_S = 1.0
_READ_SHARE = 200


class SharedRun(RunSharing):
    """The networks that this launch holds, and the logs of other launches.

    Args:
        paths: files of the run.
        leases: acquires and releases the leases of networks.
        claims: decides which leases to request.
        resumed: what earlier launches have left.
        past: the logs, read at a moment before that was recovered.

    Attributes:
        leases: the leases of networks.
        has_others: whether other launches were active when this one started.
    """

    def __init__(
        self,
        paths: RunPaths,
        leases: NetworkLeases,
        claims: LeaseRequests,
        resumed: Resumed,
        past: Past,
    ) -> None:
        self.leases = leases
        self._paths = paths
        self._claims = claims
        self._results = resumed.results
        self._tail = past.tail
        self._next_read_s = 0.0
        self._run = past.run
        self._sync_log: Callable[[], None] = lambda: None
        self.has_others = find_held_lease(paths) is not None
        self.elsewhere = frozenset(claims.epochs)

    @classmethod
    def join(
        cls,
        launch: PreparedLaunch,
        lease: Lease | None,
        resumed: Resumed,
    ) -> Self:
        """Join the launches of a run; see :meth:`RunSharing.join`."""
        assert lease is not None
        results = resumed.results
        statuses = {name: results.run.status_of(name) for name in results.networks}
        # A network that has ended is requested only to log its epochs, or to write its table.
        epochs = {
            name: len(status.history)
            for name, status in statuses.items()
            if status.outcome is None or name in resumed.unlogged or name in resumed.stale_tables
        }
        largest = max((network.min_gpus for network in launch.spec.networks), default=1)
        max_leases = max(1, len(launch.roles.trainers) // largest)
        claims = LeaseRequests(epochs, max_leases, launch.request.idle_timeout)
        leases = NetworkLeases(launch.paths, lease)
        return cls(launch.paths, leases, claims, resumed, launch.past)

    @staticmethod
    def check_spec(spec: Spec, option: str) -> None:
        """Refuse to share a run that several launches cannot share.

        Raises:
            UserError: the spec has searches or keep_open, which need a launch of their own.
        """
        if spec.searches:
            raise UserError(
                f"{option}: a search cannot be shared by several launches; run one launch at a "
                "time, for example with fleet submit --chain"
            )
        if spec.document.keep_open is not None:
            raise UserError(
                f"{option}: keep_open waits for added networks, which launches that share a run do "
                "not accept; remove keep_open"
            )

    @staticmethod
    def enter_folder(paths: RunPaths, fresh: bool, lease: Lease | None) -> None:
        """Enter a run's folder together with other launches; see :mod:`network_leases`.

        Raises:
            UserError: FLEET did not create the folder, or a launch that does not share is using it.
        """
        if lease is None:
            take_folder(paths, fresh, lease)
            return
        check_folder(paths)
        with writing_into(paths):
            until = time.monotonic() + _ENTER_TIMEOUT_S
            while True:
                try:
                    lease.take(paths.lease, floor=newest_written_generation(paths))
                    break
                except UserError:
                    if time.monotonic() >= until:
                        raise
                    time.sleep(_RETRY_S)
            # The previous launch may not have shared the run.
            with abandoned_on_error(lease):
                if lease.took_over and not read_holders(paths):
                    fence_out(paths)

    def start(self, sync_log: Callable[[], None]) -> None:
        """Begin to request leases; writes of the results are slowed down, and checked."""
        self._sync_log = sync_log
        self._results.check = self.leases.check
        self._results.pacing = SharedWriteThrottle(self._paths.results)
        self.leases.start()

    def poll(
        self, now_s: float, training: Collection[str], ends: bool
    ) -> list[LeaseGranted | EndRequested]:
        """Check the leases and the networks that are held; see :meth:`RunSharing.poll`."""
        began = time.monotonic()
        if began >= self._next_read_s:
            self.read_other_logs()
            now = time.monotonic()
            self._next_read_s = now + max(_READ_EVERY_S, _READ_SHARE * (now - began))
        # First, so that a network that had ended is released once its epochs are logged.
        for name in self._claims.leased - set(training):
            if self._results.run.status_of(name).outcome is not None:
                self._release(name)
        inputs: list[LeaseGranted | EndRequested] = []
        for name in self.leases.pop_acquired():
            leased = self._read(name)
            inputs.append(leased)
            self._claims.add_lease(name, len(leased.status.history))
        paused = [
            name for name in self._claims.leased if self._results.run.status_of(name).is_paused
        ]
        request = self._claims.decide(now_s, paused, ends)
        self.leases.request(request.names, request.max_leases)
        if request.leave_reason:
            inputs.append(EndRequested(request.leave_reason))
        return inputs

    def _release(self, name: str) -> None:
        """Release a network that has ended, with all its lines on the disk."""
        self._sync_log()
        self._claims.end_lease(name)
        self.leases.release(name)

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
                self._results.run.set_status(name, status)
                parameters = self._run.parameters.get(name)
                if parameters is not None:
                    self._results.run.set_parameters(name, parameters)

    def _find_changes(self, events: list[DatedEvent]) -> list[tuple[str, NetworkStatus]]:
        """Return the networks that events have changed, with their new status."""
        names: set[str] = set()
        for _, event, *_ in events:
            network = getattr(event, "network", None)
            if isinstance(event, LaunchStarted):
                names.update(event.finished)
            elif network is not None:
                names.add(network)
        before = {name: self._results.run.status_of(name) for name in names}
        self._run.restore(before)
        for at, event, _, log in sorted(events, key=lambda dated: dated.at):
            self._run.apply(at, event, log)
        return [
            (name, after)
            for name in names
            if (after := self._run.networks[name].status) != before[name]
        ]

    def fence_of(self, network: str) -> Fence | None:
        """Return the fence of a network that is held."""
        return self.leases.lease_of(network).fence

    def check(self) -> None:
        """Check that all networks are still held; see :meth:`NetworkLeases.check`."""
        self.leases.check()

    def close(self, may_write: bool = False) -> None:
        """Release all networks, and refresh the status of the others; see :class:`RunSharing`."""
        try:
            self._sync_log()
        except StorageError:  # another launch logs what this one could not
            may_write = True
        self.leases.close(may_write)
        self.refresh()

    def refresh(self) -> None:
        """Refresh the status of networks that are not held here."""
        for network in self._results.spec.networks:
            if network.name not in self._claims.leased:
                self._results.run.set_status(
                    network.name,
                    restore_network(self._results, network)[0].with_logged_pruning(
                        self._results.run.status_of(network.name)
                    ),
                )
        self.read_other_logs()  # again, because restoring many networks takes a while

    def _read(self, name: str) -> LeaseGranted:
        """Read the status of a network whose lease was just acquired."""
        self.read_other_logs()  # another launch may just have logged its end or its pruning
        before = self._results.run.status_of(name)
        lease = self.leases.lease_of(name)
        self._results.deaths.collect(name)
        status, state = restore_network(self._results, self._results.spec.by_name[name])
        complete_history(self._paths.history(name), status.history, lease.fence)
        # A launch that was killed may have saved epochs without logging them. If the last holder
        # has released the network, its log is on the disk, but may not be visible from here yet.
        generation = lease.fence.generation
        if lease.took_over or generation == 1 or (name, generation - 1) in self._run.leases:
            unlogged = self._run.find_unlogged(name, status.history)
        else:
            unlogged = ()
        return LeaseGranted(
            name,
            status.with_logged_pruning(before),
            generation,
            0 if state is None else state.position,
            lease.took_over,
            unlogged,
            before.outcome is None,
            tuple(self._results.deaths.deaths_of(name, len(status.history))),
        )
