"""The networks of a launch: which have ended, wait or can train (pure).

:class:`Networks` is an index over the state of the run, which has their statuses
(:class:`fleet.domain.run.RunState`), and over :class:`WaitingNetworks`, which has what no event
tells. It follows both when it is asked, so a new index of the same state answers the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from fleet.domain.network import Death, EpochRecord
from fleet.domain.run import RunState
from fleet.errors import ExitStatus
from fleet.spec import NetworkSpec
from scheduler.ensemble.indexed import IndexedSet


@dataclass
class WaitingNetworks:
    """Networks that get no devices for now, for reasons that no event tells.

    Attributes:
        retry_at_s: network -> when it is tried again after a transient failure, in seconds.
        awaiting_checkpoint: networks whose checkpoints are being read, because their groups lost a
            rank.
        unleased: networks that other launches may train; for this launch they have not ended.
        deaths: network -> deaths of ranks that trained it. Such a network gets no devices while
            others are left to train, because it may end the whole launch again.
        releases_held: whether networks with deaths get devices, because no other can train.
    """

    retry_at_s: dict[str, float] = field(default_factory=dict)
    awaiting_checkpoint: set[str] = field(default_factory=set)
    unleased: set[str] = field(default_factory=set)
    deaths: dict[str, list[Death]] = field(default_factory=dict)
    releases_held: bool = False


class Networks:
    """The networks, by name; see the module.

    Args:
        run: the state of the run.
        networks: networks of the spec.
        waiting: networks that wait.

    Attributes:
        specs: the networks by name; grows.
        waiting: networks that wait.
    """

    def __init__(
        self, run: RunState, networks: Iterable[NetworkSpec], waiting: WaitingNetworks
    ) -> None:
        self.specs = {network.name: network for network in networks}
        self.waiting = waiting
        self._run = run
        self._version = 0  # of the run, when it was last followed
        self._over: set[str] = set()
        self._paused: set[str] = set()
        self._epochs: dict[str, float] = {}
        self._unleased: set[str] = set()
        self._blocked: set[str] = set()  # of the waiting networks, those with a lease
        # Maintained incrementally: policies read it after each epoch of thousands of networks.
        self._unavailable = IndexedSet()

    # ---- one network ----

    def history(self, name: str) -> tuple[EpochRecord, ...]:
        """Return the finished epochs of a network."""
        return self._run.status_of(name).history

    def is_over(self, name: str) -> bool:
        """Return True if a network has finished, was pruned, or has failed."""
        return self._run.status_of(name).outcome is not None and name not in self.waiting.unleased

    def is_final(self, name: str) -> bool:
        """Return True if a network has ended and is exported when its group stops."""
        return self._run.status_of(name).is_final

    def is_paused(self, name: str) -> bool:
        """Return True if a network gets no devices until it is resumed."""
        return self._run.status_of(name).is_paused

    # ---- all networks ----

    @property
    def are_over(self) -> bool:
        """Whether all networks have ended."""
        self._follow()
        return len(self._over) == len(self.specs)

    @property
    def has_trainable(self) -> bool:
        """Whether any network would train if it had devices."""
        self._follow()
        return len(self.specs) > len(self._over) + len(self._paused)

    @property
    def trainable(self) -> list[str]:
        """The networks that would train if they had devices, now or later, sorted by name."""
        self._follow()
        return sorted(self.specs.keys() - self._over - self._paused)

    @property
    def available(self) -> list[str]:
        """The trainable networks that wait for nothing but devices, sorted by name."""
        return sorted(self.specs.keys() - self.unavailable)

    @property
    def may_become_available(self) -> bool:
        """Whether networks may get devices later, although nothing trains now.

        A launch that shares its run holds leases of no more networks than it can train. While it
        can train none of them, it gets no others.
        """
        waiting = self.waiting
        if waiting.retry_at_s or waiting.awaiting_checkpoint:
            return True
        return bool(waiting.unleased) and not self.available

    @property
    def unavailable(self) -> AbstractSet[str]:
        """The networks that get no devices: ended, paused or waiting; a view."""
        self._follow()
        return self._unavailable

    @property
    def held_back(self) -> set[str]:
        """The networks with deaths, as long as others are left to train."""
        self._follow()
        return self._find_held_back()

    @property
    def epochs_done(self) -> Mapping[str, float]:
        """The numbers of finished epochs of networks that have begun; a view."""
        self._follow()
        return self._epochs

    @property
    def status(self) -> ExitStatus:
        """The exit status of a launch that ends now."""
        if not self.are_over:
            return ExitStatus.RESUMABLE
        outcomes = [self._run.status_of(name).outcome for name in self.specs]
        if any(outcome is not None and outcome.is_failure for outcome in outcomes):
            return ExitStatus.NETWORK_FAILED
        return ExitStatus.OK

    # ---- the index ----

    def _follow(self) -> None:
        """Follow the changes of the run and of the waiting networks since the last call."""
        waiting = self.waiting
        changed = self._run.changes.since(self._version)
        self._version = self._run.changes.version
        if len(waiting.unleased) != len(self._unleased):  # it only shrinks
            changed |= waiting.unleased ^ self._unleased
            self._unleased = set(waiting.unleased)
        for name in changed:
            if name in self.specs:
                self._index(name)
        blocked = self._find_held_back().union(waiting.retry_at_s, waiting.awaiting_checkpoint)
        for name in changed | (blocked ^ self._blocked):
            if name in self.specs:
                is_blocked = any(
                    name in names for names in (self._over, self._paused, self._unleased, blocked)
                )
                (self._unavailable.add if is_blocked else self._unavailable.discard)(name)
        self._blocked = blocked

    def _index(self, name: str) -> None:
        status = self._run.status_of(name)
        is_leased = name not in self._unleased
        for names, belongs in (
            (self._over, is_leased and status.outcome is not None),
            (self._paused, is_leased and status.is_paused and status.outcome is None),
        ):
            (names.add if belongs else names.discard)(name)
        if status.history:
            self._epochs[name] = float(len(status.history))
        else:
            self._epochs.pop(name, None)

    def _find_held_back(self) -> set[str]:
        waiting = self.waiting
        if waiting.releases_held or not waiting.deaths:
            return set()
        unheld = self.specs.keys() - self._over - self._paused - self._unleased
        if unheld <= waiting.deaths.keys():
            return set()
        return set(waiting.deaths)
