"""The networks of a run: their status, and which cannot be given devices now (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from fleet.comm import messages as m
from fleet.control.effects import (
    CheckpointRead,
    LeaseGranted,
    Outbox,
    ReadCheckpoint,
    SaveDeath,
    SaveParameterCount,
)
from fleet.control.history import InvalidTransition
from fleet.domain import events
from fleet.domain.network import (
    Death,
    EpochRecord,
    EvaluationResult,
    NetworkStatus,
    death_failure_reason,
)
from fleet.domain.network_status import Change, apply_change
from fleet.errors import ExitStatus
from fleet.spec import NetworkSpec
from scheduler.ensemble.indexed import IndexedSet

_BACKOFF_S = 5.0  # before the first retry; doubles each time


class Networks:
    """The networks, by name.

    A network gets no devices while it waits for a retry after a transient failure, while its
    checkpoint is being read because its group lost a rank, or while another launch may hold its
    lease.

    Args:
        networks: networks of the spec.
        statuses: the status of each network after earlier launches.
        retries: maximum retries of each network in this launch.
        outbox: collects effects.
        elsewhere: networks that other launches may train.
        alone: networks that need GPUs of their own.
        deaths: deaths of ranks that trained a network in earlier launches. Such a network gets no
            devices while others are left to train, because it may end the whole launch again.
        max_deaths: number of deaths after which a network has failed.
    """

    def __init__(
        self,
        networks: Iterable[NetworkSpec],
        statuses: Mapping[str, NetworkStatus],
        retries: int,
        outbox: Outbox,
        elsewhere: Iterable[str] = (),
        alone: Iterable[str] = (),
        deaths: Mapping[str, Sequence[Death]] | None = None,
        max_deaths: int = 2,
    ) -> None:
        self.specs = {network.name: network for network in networks}
        self._statuses = {name: statuses.get(name, NetworkStatus()) for name in self.specs}
        self._over = {name for name, status in self._statuses.items() if status.outcome is not None}
        self._paused = {name for name, status in self._statuses.items() if status.is_paused}
        self._epochs = {
            name: float(len(status.history))
            for name, status in self._statuses.items()
            if status.history
        }
        self._retries = retries
        self._outbox = outbox
        self._failures: Counter[str] = Counter()  # network -> its transient failures
        self._retry_at_s: dict[str, float] = {}  # network -> when it is tried again, in seconds
        self._awaiting_checkpoint: set[str] = set()
        # network -> its parameters, until its next epoch reports them
        self._parameters: dict[str, int] = {}
        self._unleased = set(elsewhere)
        # Maintained incrementally: policies read it after each epoch of thousands of networks.
        self._unavailable = IndexedSet([*self._over, *self._paused, *self._unleased])
        self._changed = set(self.specs)  # networks that were added or changed since the last query
        self.alone = set(alone)  # networks that ran out of memory on shared GPUs
        self._deaths = {name: list(died) for name, died in (deaths or {}).items() if died}
        self._max_deaths = max_deaths
        self._rank_deaths: dict[str, str] = {}  # network awaiting its checkpoint -> how a rank died
        self._releases_held = False
        self._held_back = set[str]()  # networks with deaths, while others are left to train
        self.update_held()

    # ---- status ----

    def history(self, name: str) -> tuple[EpochRecord, ...]:
        """Return the finished epochs of a network."""
        return self._statuses[name].history

    def is_over(self, name: str) -> bool:
        """Return True if a network has finished, was pruned, or has failed."""
        return name in self._over

    def is_final(self, name: str) -> bool:
        """Return True if a network has ended and is exported when its group stops."""
        return self._statuses[name].is_final

    @property
    def are_over(self) -> bool:
        """Whether all networks have ended."""
        return len(self._over) == len(self.specs)

    def is_paused(self, name: str) -> bool:
        """Return True if a network gets no devices until it is resumed."""
        return name in self._paused

    @property
    def has_trainable(self) -> bool:
        """Whether any network would train if it had devices."""
        return len(self.specs) > len(self._over) + len(self._paused)

    @property
    def trainable(self) -> list[str]:
        """The networks that would train if they had devices, sorted by name."""
        return sorted(self.specs.keys() - self._over - self._paused)

    @property
    def temporarily_unavailable(self) -> frozenset[str]:
        """The networks that cannot train now, but may later."""
        return frozenset(self._retry_at_s) | self._awaiting_checkpoint | self._unleased

    @property
    def unavailable(self) -> AbstractSet[str]:
        """The networks that get no devices: ended, paused or temporarily unavailable; a view."""
        return self._unavailable

    def _reindex(self, name: str) -> None:
        """Update whether a network is unavailable."""
        is_unavailable = any(
            name in names
            for names in (
                self._over,
                self._paused,
                self._retry_at_s,
                self._awaiting_checkpoint,
                self._unleased,
                self._held_back,
            )
        )
        (self._unavailable.add if is_unavailable else self._unavailable.discard)(name)

    @property
    def awaiting_checkpoint(self) -> AbstractSet[str]:
        """The networks whose checkpoints are being read; a view."""
        return self._awaiting_checkpoint

    @property
    def epochs_done(self) -> Mapping[str, float]:
        """The numbers of finished epochs of networks that have begun; a view."""
        return self._epochs

    def take_changed(self) -> set[str]:
        """Return the networks whose epochs may have changed since the last call; at first all."""
        moved = self._changed
        self._changed = set()
        return moved

    @property
    def status(self) -> ExitStatus:
        """The exit status of a launch that ends now."""
        outcomes = [status.outcome for status in self._statuses.values()]
        if None in outcomes:
            return ExitStatus.RESUMABLE
        has_failed = any(outcome is not None and outcome.is_failure for outcome in outcomes)
        if has_failed:
            return ExitStatus.NETWORK_FAILED
        return ExitStatus.OK

    # ---- changes ----

    def add(self, network: NetworkSpec) -> None:
        """Add a network."""
        self.specs[network.name] = network
        self._statuses[network.name] = NetworkStatus()
        self._changed.add(network.name)
        self.update_held()

    def apply_verdict(self, judged: events.NetworkVerdict) -> None:
        """Pause, prune or resume a network."""
        self._log(judged)

    def set_parameters(self, name: str, parameters: int) -> None:
        """Record the number of parameters of a network that was built."""
        self._parameters[name] = parameters
        self._outbox.add(SaveParameterCount(name, parameters))

    def end_epoch(self, done: m.EpochDone) -> None:
        """Record a finished epoch, and perhaps the end of training."""
        self._deaths.pop(done.network, None)
        self._log(
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
        self._log(events.NetworkFinished(name, reason, epochs=len(self.history(name))))

    def record_test(self, name: str, tested: EvaluationResult, seconds: float) -> None:
        """Record the result of a finished network on the test data."""
        self._log(
            events.NetworkTested(
                name, tested.loss, tested.accuracy, tested.samples, seconds, tested.metrics
            )
        )

    def fail(
        self, name: str, reason: str, detail: str = "", may_pass: bool = False, deaths: int = 0
    ) -> None:
        """Record that a network has failed; it is not tried again in this launch.

        Args:
            name: name of the network.
            reason: one line.
            detail: the traceback, if there is one.
            may_pass: whether the error is transient, so that the next launch tries again.
            deaths: ranks that died while they trained it, if it failed because of them.
        """
        self._log(events.NetworkFailed(name, reason, detail, may_pass, deaths))

    # ---- deaths of ranks ----

    def record_death(self, name: str, how: str, is_sure: bool = True) -> None:
        """Record the death of a rank that trained a network: it is trained last from now on.

        Args:
            name: name of the network.
            how: a description.
            is_sure: whether the network is to blame.
        """
        death = Death(how, len(self.history(name)), is_sure)
        self._deaths.setdefault(name, []).append(death)
        self._outbox.add(SaveDeath(name, death))
        self.update_held()

    def check_deaths(self, name: str) -> tuple[str, int]:
        """Return why deaths have failed a network, and their number; empty if they have not."""
        deaths = self._deaths.get(name, ())
        if self.is_over(name):
            return "", 0
        return death_failure_reason(deaths, self._max_deaths), len(deaths)

    def update_held(self) -> None:
        """Update which networks wait until no others are left to train."""
        before = self._held_back
        if not self._deaths and not before:
            return
        unavailable = self._over | self._paused | self._unleased | self._deaths.keys()
        is_last = self._releases_held or self.specs.keys() <= unavailable
        self._held_back = set() if is_last else set(self._deaths)
        for name in before ^ self._held_back:
            self._reindex(name)

    def release_held(self) -> bool:
        """Let held networks train, because no other can; return True if there were any."""
        self._releases_held = True
        has_held = bool(self._held_back)
        self.update_held()
        return has_held

    def try_retry(self, failed: m.Failed | m.Measured) -> bool:
        """Count a retry after a transient failure; return False if none is left."""
        name = failed.network
        if not failed.may_pass or self._failures[name] >= self._retries:
            return False
        self._failures[name] += 1
        self._log(events.NetworkRetried(name, failed.reason, self._failures[name], self._retries))
        return True

    def try_isolate(self, failed: m.Failed, slots: int) -> bool:
        """Retry a network that ran out of memory on a shared GPU once, on GPUs of its own.

        Args:
            failed: its failure.
            slots: slots of each GPU.

        Returns:
            Whether it is tried again.
        """
        if not failed.out_of_memory or slots == 1 or failed.network in self.alone:
            return False
        self.alone.add(failed.network)
        self._log(
            events.NetworkRetried(
                failed.network,
                failed.reason,
                self._failures[failed.network],
                self._retries,
                alone=True,
            )
        )
        return True

    def fall_back(self, fallback: m.FellBack) -> None:
        """Record that a network falls back from a damaged checkpoint, or starts over."""
        self._log(
            events.NetworkRolledBack(
                fallback.network, fallback.damage, len(fallback.history), fallback.position
            )
        )

    def _log(self, change: Change) -> None:
        """Log an event of a network, and apply it."""
        self._outbox.log(change)
        self._set_status(change.network, apply_change(self._statuses[change.network], change))

    def _set_status(self, name: str, status: NetworkStatus) -> None:
        self._statuses[name] = status
        for names, belongs in (
            (self._over, status.outcome is not None),
            (self._paused, status.is_paused),
        ):
            (names.add if belongs else names.discard)(name)
        self._reindex(name)
        self.update_held()
        self._changed.add(name)
        self._epochs.pop(name, None)
        if status.history:
            self._epochs[name] = float(len(status.history))

    def add_lease(self, leased: LeaseGranted) -> None:
        """Record that this launch has acquired the lease of a network."""
        self._unleased.discard(leased.network)
        if leased.deaths:
            self._deaths[leased.network] = list(leased.deaths)
        self._set_status(leased.network, leased.status)
        for record in leased.unlogged:
            self._outbox.log(events.EpochEnded(leased.network, record))
        self._outbox.log(
            events.NetworkLeased(
                leased.network,
                leased.generation,
                len(leased.status.history),
                leased.position,
                leased.took_over,
            )
        )
        outcome = leased.status.outcome
        history = leased.status.history
        if outcome is None or not leased.is_news:
            return
        event: events.NetworkFailed | events.NetworkFinished
        if outcome.is_failure:
            event = events.NetworkFailed(leased.network, outcome.reason, deaths=outcome.deaths)
        else:
            event = events.NetworkFinished(leased.network, outcome.reason, len(history))
        self._outbox.log(event)

    # ---- temporarily unavailable networks ----

    def schedule_retry(self, name: str) -> None:
        """Schedule the next retry of a network."""
        self._retry_at_s[name] = self._outbox.now_s + _BACKOFF_S * 2 ** (self._failures[name] - 1)
        self._reindex(name)

    @property
    def next_retry_s(self) -> float:
        """When the next retry is due; infinity if there is none."""
        return min(self._retry_at_s.values(), default=float("inf"))

    def end_backoffs(self, now_s: float) -> bool:
        """Make networks available whose retry is due; return True if there were any."""
        due = [name for name, until in self._retry_at_s.items() if now_s >= until]
        for name in due:
            del self._retry_at_s[name]
            self._reindex(name)
        return bool(due)

    def await_checkpoint(self, name: str, how: str = "") -> None:
        """Read the checkpoint of a network whose group lost a rank, to learn its status.

        Args:
            name: name of the network.
            how: description of the death; empty if the network is not to blame.
        """
        self._rank_deaths[name] = how
        self._awaiting_checkpoint.add(name)
        self._reindex(name)
        self._outbox.add(ReadCheckpoint(name))

    def restore(self, read: CheckpointRead) -> None:
        """Restore a network from its last checkpoint.

        Raises:
            InvalidTransition: its checkpoint was not requested.
        """
        name = read.network
        history = read.status.history
        if name not in self._awaiting_checkpoint:
            raise InvalidTransition(f"the checkpoint of {name} was not requested: {read}")
        self._awaiting_checkpoint.remove(name)
        known_epochs = {(record.epoch, record.stream_epoch) for record in self.history(name)}
        was_over = self.is_final(name)
        restored = read.status.merged_with_log(self._statuses[name])
        for record in history:
            # saved before the master died
            if (record.epoch, record.stream_epoch) not in known_epochs:
                self._log(events.EpochEnded(name, record))
        self._log(
            events.GroupFailed(
                name,
                epochs=len(history),
                position=read.position,
                reason=restored.outcome.reason if restored.outcome and restored.is_final else "",
                again=was_over and restored.outcome is None,
            )
        )
        how = self._rank_deaths.pop(name, "")
        if how and not self.is_over(name):
            self.record_death(name, how)
