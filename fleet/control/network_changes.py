"""Log what happens to networks, and record which of them wait (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.comm import messages as m
from fleet.control.effects import (
    CheckpointRead,
    LeaseGranted,
    NetworkAdmitted,
    Outbox,
    ReadCheckpoint,
    SaveDeath,
)
from fleet.control.history import InvalidTransition
from fleet.control.networks import Networks
from fleet.domain import events
from fleet.domain.network import Death, EpochRecord, death_failure_reason


class NetworkChanges:
    """Changes the networks of a launch.

    Args:
        networks: the networks.
        outbox: collects effects.
        max_deaths: number of deaths of ranks after which a network has failed.
    """

    def __init__(self, networks: Networks, outbox: Outbox, max_deaths: int = 2) -> None:
        self._networks = networks
        self._waiting = networks.waiting
        self._outbox = outbox
        self._max_deaths = max_deaths
        # network -> its parameters, until its next epoch reports them
        self._parameters: dict[str, int] = {}
        self._rank_deaths: dict[str, str] = {}  # network awaiting its checkpoint -> how a rank died

    # ---- training ----

    def add(self, admitted: NetworkAdmitted) -> None:
        """Add a network that has been validated."""
        self._networks.specs[admitted.network.name] = admitted.network
        self._outbox.log(admitted.added)

    def set_parameters(self, name: str, parameters: int) -> None:
        """Record the number of parameters of a network that was built."""
        self._parameters[name] = parameters
        self._outbox.run.set_parameters(name, parameters)

    def end_epoch(self, done: m.EpochDone) -> None:
        """Record a finished epoch, and perhaps the end of training."""
        self._waiting.deaths.pop(done.network, None)
        self._outbox.log(
            events.EpochEnded(
                done.network,
                done.record,
                done.blocked_s,
                done.missed,
                self._parameters.pop(done.network, 0),
            )
        )
        if done.final:
            self.finish(done.network, done.final)

    def finish(self, name: str, reason: str) -> None:
        """Record that a network has finished."""
        epochs = len(self._networks.history(name))
        self._outbox.log(events.NetworkFinished(name, reason, epochs))

    # ---- deaths of ranks ----

    def record_death(self, name: str, how: str, is_sure: bool = True) -> None:
        """Record the death of a rank that trained a network: it is trained last from now on.

        Args:
            name: name of the network.
            how: a description.
            is_sure: whether the network is to blame.
        """
        death = Death(how, len(self._networks.history(name)), is_sure)
        self._waiting.deaths.setdefault(name, []).append(death)
        self._outbox.add(SaveDeath(name, death))

    def check_deaths(self, name: str) -> tuple[str, int]:
        """Return why deaths have failed a network, and their number; empty if they have not."""
        if self._networks.is_over(name):
            return "", 0
        deaths = self._waiting.deaths.get(name, ())
        return death_failure_reason(deaths, self._max_deaths), len(deaths)

    def release_held(self) -> bool:
        """Let networks with deaths train, because no other can; return True if there were any."""
        has_held = bool(self._networks.held_back)
        self._waiting.releases_held = True
        return has_held

    # ---- checkpoints and leases ----

    def await_checkpoint(self, name: str, how: str = "") -> None:
        """Read the checkpoint of a network whose group lost a rank, to learn its status.

        Args:
            name: name of the network.
            how: description of the death; empty if the network is not to blame.
        """
        self._rank_deaths[name] = how
        self._waiting.awaiting_checkpoint.add(name)
        self._outbox.add(ReadCheckpoint(name))

    def restore(self, read: CheckpointRead) -> None:
        """Restore a network from its last checkpoint.

        Raises:
            InvalidTransition: its checkpoint was not requested.
        """
        name = read.network
        history = read.status.history
        if name not in self._waiting.awaiting_checkpoint:
            raise InvalidTransition(f"the checkpoint of {name} was not requested: {read}")
        self._waiting.awaiting_checkpoint.remove(name)
        before = self._outbox.run.status_of(name)
        restored = read.status.merged_with_log(before)
        known_epochs = {(record.epoch, record.stream_epoch) for record in before.history}
        self._log_epochs(  # saved before the master died
            name,
            [
                record
                for record in history
                if (record.epoch, record.stream_epoch) not in known_epochs
            ],
        )
        self._outbox.log(
            events.GroupFailed(
                name,
                epochs=len(history),
                position=read.position,
                reason=restored.outcome.reason if restored.outcome and restored.is_final else "",
                again=before.is_final and restored.outcome is None,
            )
        )
        how = self._rank_deaths.pop(name, "")
        if how and not self._networks.is_over(name):
            self.record_death(name, how)

    def add_lease(self, leased: LeaseGranted) -> None:
        """Record that this launch has acquired the lease of a network."""
        name = leased.network
        status = leased.status
        self._waiting.unleased.discard(name)
        if leased.deaths:
            self._waiting.deaths[name] = list(leased.deaths)
        self._outbox.run.set_status(name, status)
        self._log_epochs(name, leased.unlogged)
        self._outbox.log(
            events.NetworkLeased(
                name, leased.generation, len(status.history), leased.position, leased.took_over
            )
        )
        outcome = status.outcome
        if outcome is None or not leased.is_news:
            return
        if outcome.is_failure:
            self._outbox.log(events.NetworkFailed(name, outcome.reason, deaths=outcome.deaths))
        else:
            self.finish(name, outcome.reason)

    def _log_epochs(self, name: str, records: Iterable[EpochRecord]) -> None:
        for record in records:
            self._outbox.log(events.EpochEnded(name, record))
