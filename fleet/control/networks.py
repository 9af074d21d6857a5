"""What becomes of the networks of a run: how far each is, and which cannot be given devices just now (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from fleet.comm import messages as m
from fleet.control.effects import (
    CheckpointRead,
    KeepDeath,
    Leased,
    Outbox,
    ReadCheckpoint,
    SaveParameterCount,
)
from fleet.control.history import InvalidTransition
from fleet.domain import events
from fleet.domain.network import Death, EpochRecord, NetworkStatus, TestResult, reason_of_deaths
from fleet.domain.network_status import Change, after
from fleet.errors import ExitStatus
from fleet.spec import NetworkSpec
from scheduler.ensemble.indexed import IndexedSet

_REST_S = 5.0  # before a network is tried again; twice as long each time


class Networks:
    """The networks, by name.

    A network that failed for a reason that may pass rests for a while; one whose group has lost a rank has fallen until
    its checkpoint is read; one that another launch may be training is elsewhere until its lease is taken. None of them
    is given devices meanwhile.

    Args:
        standings: how far earlier launches have brought them.
        retries: how often each is tried again in this launch.
        outbox: takes what is to be done.
        elsewhere: the networks that other launches may be training.
        alone: the networks that need GPUs of their own.
        deaths: of ranks that trained a network in earlier launches. Such a network gets no devices as long as any other
            is left here: it may take the whole launch with it once more.
        max_deaths: how many of them make a network a failed one.
    """

    def __init__(
        self,
        networks: Iterable[NetworkSpec],
        standings: Mapping[str, NetworkStatus],
        retries: int,
        outbox: Outbox,
        elsewhere: Iterable[str] = (),
        alone: Iterable[str] = (),
        deaths: Mapping[str, Sequence[Death]] | None = None,
        max_deaths: int = 2,
    ) -> None:
        self.specs = {network.name: network for network in networks}
        self._standings = {name: standings.get(name, NetworkStatus()) for name in self.specs}
        self._over = {
            name for name, standing in self._standings.items() if standing.outcome is not None
        }
        self._paused = {name for name, standing in self._standings.items() if standing.is_paused}
        self._epochs = {
            name: float(len(one.history)) for name, one in self._standings.items() if one.history
        }
        self._retries = retries
        self._outbox = outbox
        self._failures: Counter[str] = Counter()  # of each network, for reasons that may pass
        self._resting: dict[str, float] = {}  # network -> when it is tried again, in seconds
        self._fallen: set[str] = set()
        self._built: dict[
            str, int
        ] = {}  # network -> its parameters, until its next epoch says them
        self._elsewhere = set(elsewhere)
        # Kept from one change to the next: policies are asked at each epoch's end, and there may be thousands.
        self._unavailable = IndexedSet([*self._over, *self._paused, *self._elsewhere])
        self._moved = set(
            self.specs
        )  # those that have been taken in, or may have other epochs, since that was asked
        self.alone = set(alone)  # those that ran out of memory beside others
        self._deaths = {name: list(died) for name, died in (deaths or {}).items() if died}
        self._max_deaths = max_deaths
        self._struck_by: dict[str, str] = {}  # fallen network -> how a rank of it died
        self._holds_none = False
        self._held = set[str]()  # of those with which ranks died, while others are left
        self.hold_back()

    # ---- how far they are ----

    def history(self, name: str) -> tuple[EpochRecord, ...]:
        """The finished epochs of a network."""
        return self._standings[name].history

    def is_over(self, name: str) -> bool:
        """Whether a network is done, was pruned, or has failed."""
        return name in self._over

    def is_final(self, name: str) -> bool:
        """Whether a network is over, and is exported when its group lets go."""
        return self._standings[name].is_final

    @property
    def are_over(self) -> bool:
        """Whether all networks are."""
        return len(self._over) == len(self.specs)

    def is_paused(self, name: str) -> bool:
        """Whether a network gets no devices until it is let go on."""
        return name in self._paused

    @property
    def has_left(self) -> bool:
        """Whether any network would train if it had devices."""
        return len(self.specs) > len(self._over) + len(self._paused)

    @property
    def left(self) -> list[str]:
        """The networks that would train if they had devices, in order of their names."""
        return sorted(self.specs.keys() - self._over - self._paused)

    @property
    def away(self) -> frozenset[str]:
        """The networks that are not to be had just now."""
        return frozenset(self._resting) | self._fallen | self._elsewhere

    @property
    def unavailable(self) -> AbstractSet[str]:
        """The networks that are over, paused or away, and so get no devices; a view."""
        return self._unavailable

    def _sort(self, name: str) -> None:
        """Have a network among those that are unavailable if it is."""
        gone = any(
            name in names
            for names in (
                self._over,
                self._paused,
                self._resting,
                self._fallen,
                self._elsewhere,
                self._held,
            )
        )
        (self._unavailable.add if gone else self._unavailable.discard)(name)

    @property
    def fallen(self) -> AbstractSet[str]:
        """The networks whose checkpoints are still being read; a view."""
        return self._fallen

    @property
    def epochs_done(self) -> Mapping[str, float]:
        """The finished epochs of the networks that have begun; a view."""
        return self._epochs

    def moved(self) -> set[str]:
        """The networks whose finished epochs may be others than when this was asked last; at first all."""
        moved = self._moved
        self._moved = set()
        return moved

    @property
    def status(self) -> ExitStatus:
        """How a launch ends that ends now."""
        outcomes = [standing.outcome for standing in self._standings.values()]
        if None in outcomes:
            return ExitStatus.RESUMABLE
        has_failed = any(outcome is not None and outcome.is_failure for outcome in outcomes)
        if has_failed:
            return ExitStatus.NETWORK_FAILED
        return ExitStatus.OK

    # ---- what happens to them ----

    def add(self, network: NetworkSpec) -> None:
        """A network has come to the run."""
        self.specs[network.name] = network
        self._standings[network.name] = NetworkStatus()
        self._moved.add(network.name)
        self.hold_back()

    def judge(self, judged: events.NetworkJudged) -> None:
        """A network is paused or dropped before it is done, or goes on."""
        self._note(judged)

    def build(self, name: str, parameters: int) -> None:
        """A network that was built has so many parameters."""
        self._built[name] = parameters
        self._outbox.add(SaveParameterCount(name, parameters))

    def end_epoch(self, done: m.EpochDone) -> None:
        """A network has finished an epoch, and perhaps its training; one that was dropped meanwhile ends with it."""
        self._deaths.pop(done.network, None)
        self._note(
            events.EpochEnded(
                done.network,
                done.record,
                done.blocked_s,
                done.missed,
                self._built.pop(done.network, 0),
            )
        )
        if done.final:
            self.finish(done.network, done.final)

    def finish(self, name: str, reason: str) -> None:
        """A network is done."""
        self._note(events.NetworkFinished(name, reason, epochs=len(self.history(name))))

    def test(self, name: str, tested: TestResult, seconds: float) -> None:
        """A network that is done was judged on the test data."""
        self._note(
            events.NetworkTested(
                name, tested.loss, tested.accuracy, tested.samples, seconds, tested.metrics
            )
        )

    def fail(
        self, name: str, reason: str, detail: str = "", may_pass: bool = False, deaths: int = 0
    ) -> None:
        """A network has failed, and is not tried again in this launch."""
        self._note(events.NetworkFailed(name, reason, detail, may_pass, deaths))

    # ---- ranks that die with them ----

    def die(self, name: str, how: str, is_sure: bool = True) -> None:
        """A rank has died, or does not come back, which trains a network: that is trained last from now on.

        Args:
            how: in words.
            is_sure: whether the network is to blame.
        """
        death = Death(how, len(self.history(name)), is_sure)
        self._deaths.setdefault(name, []).append(death)
        self._outbox.add(KeepDeath(name, death))
        self.hold_back()

    def has_died_of(self, name: str) -> tuple[str, int]:
        """Why a network has failed because of ranks that died, and how many they are; nothing where it has not."""
        deaths = self._deaths.get(name, ())
        if self.is_over(name):
            return "", 0
        return reason_of_deaths(deaths, self._max_deaths), len(deaths)

    def hold_back(self) -> None:
        """Find out anew which networks wait until no other is left."""
        before = self._held
        if not self._deaths and not before:
            return
        gone = self._over | self._paused | self._elsewhere | self._deaths.keys()
        is_last = self._holds_none or self.specs.keys() <= gone
        self._held = set() if is_last else set(self._deaths)
        for name in before ^ self._held:
            self._sort(name)

    def hold_none_back(self) -> bool:
        """The others that are left cannot train here, so none waits for them; returns whether any did."""
        self._holds_none = True
        has_held = bool(self._held)
        self.hold_back()
        return has_held

    def may_retry(self, failed: m.Failed | m.Measured) -> bool:
        """Whether a network may be tried again after it has failed; then that is counted."""
        name = failed.network
        if not failed.may_pass or self._failures[name] >= self._retries:
            return False
        self._failures[name] += 1
        self._note(events.NetworkRetried(name, failed.reason, self._failures[name], self._retries))
        return True

    def is_isolated(self, failed: m.Failed, slots: int) -> bool:
        """Whether a network has run out of memory beside others; then it is tried again on GPUs of its own, once.

        Args:
            slots: of each GPU.
        """
        if not failed.out_of_memory or slots == 1 or failed.network in self.alone:
            return False
        self.alone.add(failed.network)
        self._note(
            events.NetworkRetried(
                failed.network,
                failed.reason,
                self._failures[failed.network],
                self._retries,
                alone=True,
            )
        )
        return True

    def fall_back(self, fallen: m.FellBack) -> None:
        """A network's newest checkpoint is damaged: it goes on from the one before, or starts over."""
        self._note(
            events.NetworkFellBack(
                fallen.network, fallen.damage, len(fallen.history), fallen.position
            )
        )

    def _note(self, change: Change) -> None:
        """Have something logged that happens to a network: what follows for it holds at once."""
        self._outbox.note(change)
        self._stand(change.network, after(self._standings[change.network], change))

    def _stand(self, name: str, standing: NetworkStatus) -> None:
        self._standings[name] = standing
        for names, belongs in (
            (self._over, standing.outcome is not None),
            (self._paused, standing.is_paused),
        ):
            (names.add if belongs else names.discard)(name)
        self._sort(name)
        self.hold_back()
        self._moved.add(name)
        self._epochs.pop(name, None)
        if standing.history:
            self._epochs[name] = float(len(standing.history))

    def lease(self, leased: Leased) -> None:
        """A network is here now."""
        self._elsewhere.discard(leased.network)
        if leased.deaths:
            self._deaths[leased.network] = list(leased.deaths)
        self._stand(leased.network, leased.standing)
        for record in leased.unlogged:
            self._outbox.note(events.EpochEnded(leased.network, record))
        self._outbox.note(
            events.NetworkTaken(
                leased.network,
                leased.generation,
                len(leased.standing.history),
                leased.position,
                leased.took_over,
            )
        )
        outcome = leased.standing.outcome
        history = leased.standing.history
        if outcome is not None and leased.is_news:
            self._outbox.note(
                events.NetworkFailed(leased.network, outcome.reason, deaths=outcome.deaths)
                if outcome.is_failure
                else events.NetworkFinished(leased.network, outcome.reason, len(history))
            )

    # ---- those that are away ----

    def rest(self, name: str) -> None:
        """Try a network again in a while."""
        self._resting[name] = self._outbox.now_s + _REST_S * 2 ** (self._failures[name] - 1)
        self._sort(name)

    @property
    def wakes_s(self) -> float:
        """When the next network has rested; infinity where none rests."""
        return min(self._resting.values(), default=float("inf"))

    def wake(self, now_s: float) -> bool:
        """Let go on what has rested; returns whether anything has."""
        rested = [name for name, until in self._resting.items() if now_s >= until]
        for name in rested:
            del self._resting[name]
            self._sort(name)
        return bool(rested)

    def strike(self, name: str, how: str = "") -> None:
        """The group of a network has lost a rank, and has let go: only its checkpoint says how far it is.

        Args:
            how: it was lost, in words; nothing where the network is not to blame.
        """
        self._struck_by[name] = how
        self._fallen.add(name)
        self._sort(name)
        self._outbox.add(ReadCheckpoint(name))

    def take_up(self, read: CheckpointRead) -> None:
        """A network goes back to its last checkpoint.

        Raises:
            InvalidTransition: nobody asked for it.
        """
        name = read.network
        history = read.standing.history
        if name not in self._fallen:
            raise InvalidTransition(f"nobody has asked how far {name} is, and yet there is {read}")
        self._fallen.remove(name)
        had = {(record.epoch, record.stream_epoch) for record in self.history(name)}
        was_over = self.is_final(name)
        found = read.standing.found_after(self._standings[name])
        for record in history:
            if (record.epoch, record.stream_epoch) not in had:  # saved, and then the master died
                self._note(events.EpochEnded(name, record))
        self._note(
            events.GroupFailed(
                name,
                epochs=len(history),
                position=read.position,
                reason=found.outcome.reason if found.outcome and found.is_final else "",
                again=was_over and found.outcome is None,
            )
        )
        how = self._struck_by.pop(name, "")
        if how and not self.is_over(name):
            self.die(name, how)
