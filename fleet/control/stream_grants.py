"""How far the stream is granted to groups, and what preprocessors are told of that (pure).

Networks that share a strict stream train in step: all consume the epochs of one stream, and a group starts at one that
nobody has been granted yet. Everywhere else (in a ring, from kept samples, from samples that each trainer prepares
itself) each network counts its own epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from fleet.comm.messages import NO_LIMIT, Prepared, Produce, Throughput
from fleet.control.history import InvalidTransition
from fleet.domain.events import StreamStarted
from fleet.domain.network import EpochRecord
from fleet.stream.layout import Layout
from scheduler.base import RateTable
from scheduler.ensemble.rates import preprocessors_needed

_SURELY = 1.25  # times as fast without a preprocessor, before it is left out: what they say varies


@dataclass(frozen=True)
class _Recently:
    """What a preprocessor did of late.

    Attributes:
        samples: that it prepared.
        busy_s: how long that took.
        beside_s: in which it did something else, with samples to prepare.
    """

    samples: float = 0.0
    busy_s: float = 0.0
    beside_s: float = 0.0

    def then(self, said: Prepared) -> _Recently:
        """With what it did next: what was before counts half as much."""
        return _Recently(
            self.samples / 2 + said.samples,
            self.busy_s / 2 + said.busy_s,
            self.beside_s / 2 + said.beside_s,
        )

    @property
    def prepared(self) -> float:
        """Samples/s while it prepares some."""
        return self.samples / self.busy_s

    @property
    def delivered(self) -> float:
        """Samples/s in all."""
        return self.samples / (self.busy_s + self.beside_s)


class Production:
    """The stream's epochs, and who produces them.

    Args:
        layout: of the stream; None where every trainer prepares its own samples, or finishes those that are kept.
        preprocessors: their ranks, in the order in which they take turns; none where trainers prepare their own.
        first: the first epoch of the stream in this launch.
        replayed: the stream epochs to train on, one after another, where one network is trained again.
        batches: with which it was trained on them; 0 for its own.
    """

    def __init__(
        self,
        layout: Layout | None,
        preprocessors: Sequence[int],
        first: int = 0,
        replayed: Sequence[int] = (),
        batches: Sequence[int] = (),
    ) -> None:
        self._layout = layout
        self._preprocessors = tuple(preprocessors)
        self._first = first
        self._replayed = tuple(replayed)
        self._batches = tuple(batches)
        self._granted = first - 1  # the latest epoch that any group may train on
        self._throughput: dict[int, float] = {}  # rank of a preprocessor -> samples/s
        self._prepared: dict[int, _Recently] = {}  # likewise
        self._are_known = (
            False  # whether all preprocessors have said how fast they are; it stays so
        )
        self._order: Produce | None = None  # what preprocessors were told last
        self.turns: tuple[int, ...] = ()  # the ranks that produce, once it has begun
        self._since = 0  # from which chunk on they do

    # ---- the kind of stream ----

    @property
    def is_in_step(self) -> bool:
        """Whether networks consume the epochs of one stream; otherwise each counts its own."""
        return self._layout is not None and not self._layout.is_ring

    @property
    def is_lockstep(self) -> bool:
        """Whether networks are also held together within an epoch: the window does not hold a whole one."""
        return (
            self._layout is not None
            and self.is_in_step
            and self._layout.slots < self._layout.chunks
        )

    @property
    def changes_inside(self) -> bool:
        """Whether a group can take ranks in within an epoch: in a ring, its path is only known to those who began."""
        return self._layout is None or not self._layout.is_ring

    @property
    def pace(self) -> str:
        """How groups depend on each other's pace, as :func:`fleet.units.parse_stream` reads it."""
        if self._layout is None or self._layout.slots >= self._layout.chunks:
            return "free"
        if self._layout.is_ring:
            return f"ring:{self._layout.slots / self._layout.chunks:.2%}"
        return "lockstep"

    # ---- epochs ----

    @property
    def fresh(self) -> int:
        """The first epoch that nobody has been granted, so that it has been left behind on no node."""
        return self._granted + 1

    def next_epoch(self, history: Sequence[EpochRecord]) -> int:
        """The number of the epoch that a network starts with."""
        if self.is_in_step:
            return self.fresh
        if self._replayed:
            return len(history)
        return 1 + max((record.stream_epoch for record in history), default=-1)

    def epoch_after(self, granted: int, history: Sequence[EpochRecord]) -> int:
        """What a network may train on after the last epoch of its history.

        Args:
            granted: the epoch that it had been granted; it may have finished an older one, of an earlier launch.
        """
        if self.is_in_step:
            return granted + (history[-1].stream_epoch == granted)
        return self.next_epoch(history)

    def stream_epoch(self, number: int) -> int:
        """The stream epoch behind a number: itself, or the one that a replay repeats."""
        if number < len(self._replayed):
            return self._replayed[number]
        return number

    def batch(self, number: int, chosen: int | None) -> int | None:
        """The batch of an epoch: what the policy has chosen, or what a replay repeats."""
        if number < len(self._batches):
            return self._batches[number]
        return chosen

    def grant(self, epoch: int) -> None:
        """A group may train on an epoch from now on."""
        self._granted = max(self._granted, epoch)

    # ---- producing ----

    def hear(self, said: Throughput) -> None:
        """A preprocessor says how fast it prepares samples.

        Raises:
            InvalidTransition: it is none, or has said so before.
        """
        if said.rank not in self._preprocessors or said.rank in self._throughput:
            raise InvalidTransition(
                f"{said.rank} is no preprocessor of which nothing is known, and yet there is {said}"
            )
        self._throughput[said.rank] = said.samples_per_s

    def hear_prepared(self, said: Prepared) -> StreamStarted | None:
        """A preprocessor says how fast it was of late; what it has said before counts half as much each time.

        The slowest is left out where the others are faster without it, as rank 0 where it has many to coordinate: from
        the first chunk on that nobody may have begun. In a ring nobody knows which one that is.

        Returns:
            Who produces from now on, where that has changed.

        Raises:
            InvalidTransition: it does not produce.
        """
        if said.rank not in self.turns and said.rank not in self._prepared:
            raise InvalidTransition(f"{said.rank} does not produce, and yet there is {said}")
        self._prepared[said.rank] = self._prepared.get(said.rank, _Recently()).then(said)
        if self.is_in_step and self._order is not None and self._prepared.keys() >= set(self.turns):
            *others, slowest = sorted(self.turns, key=self._speed, reverse=True)
            if others and _SURELY * len(self.turns) * self._speed(slowest) < len(
                others
            ) * self._speed(others[-1]):
                self.turns = tuple(rank for rank in self.turns if rank != slowest)
                self._since = self._order.limit
                return replace(
                    self._begun, preprocessors=len(others), supply_samples_per_s=self.supply(set())
                )
        return None

    def _speed(self, rank: int) -> float:
        return self._prepared[rank].delivered

    def supply(self, lost: set[int]) -> float:
        """Samples/s that each network is given at most, by what is known now; infinity where no stream is between.

        Preprocessors take turns with chunks of equal size, so the slowest of them sets the pace of all.

        Args:
            lost: the ranks that have died. As soon as a preprocessor has, trainers prepare their samples themselves.
        """
        ranks = self.turns or self._preprocessors
        if self._layout is None or not ranks or lost.intersection(self._preprocessors):
            return float("inf")
        if self._prepared.keys() >= set(ranks):
            return len(ranks) * min(self._prepared[rank].prepared for rank in ranks)
        return sum(self._throughput[rank] for rank in ranks)

    def is_known(self, lost: set[int]) -> bool:
        """Whether all preprocessors that are alive have said how fast they are.

        Args:
            lost: the ranks that have died.
        """
        self._are_known = (
            self._are_known or set(self._preprocessors) <= lost | self._throughput.keys()
        )
        return self._are_known

    def begin(
        self, rates: RateTable | None, time_scale: float, chooses: bool, policy: str
    ) -> StreamStarted:
        """Choose the preprocessors that are needed: the least whose throughput meets what trainers can take.

        Samples are shared, so the demand is that of the fastest network alone, not the sum of all. Samples that are
        kept are prepared once, as fast as can be.

        Args:
            rates: None as long as nobody knows them: then none is left out.
            time_scale: seconds that a second of training takes.
            chooses: whether some may be left out.
            policy: its name, for the log.
        """
        if rates:
            demand = max((rate for network in rates.models for rate in network.rates), default=0.0)
        else:
            demand = 0.0
        demand /= time_scale
        reached = list(accumulate(self._throughput.get(rank, 0.0) for rank in self._preprocessors))
        needed = len(self._preprocessors)
        if chooses and demand and self._layout is not None:
            needed = preprocessors_needed(reached, demand)
        self.turns = self._preprocessors[:needed]
        supply = reached[needed - 1]
        self._begun = StreamStarted(
            needed,
            len(self._preprocessors),
            policy,
            pace="shared" if self.is_in_step else "own",
            kept=self._layout is None,
            supply_samples_per_s=supply,
            demand_samples_per_s=demand,
            bottleneck="" if not demand else "input" if supply < demand else "training",
        )
        return self._begun

    def order(self, joining: Iterable[int]) -> Produce | None:
        """What preprocessors should be told now; None where they have been, or none has begun.

        One epoch more than was granted is allowed, so that nobody waits at an epoch's start; the layout's lookahead
        keeps it to what is needed soon.

        Args:
            joining: the epochs from which on ranks will read that have not told the stream so yet.
        """
        if not self.turns:
            return None
        chunks = self._layout.chunks if self._layout is not None else 0
        limit = hold = NO_LIMIT
        if self.is_in_step:
            limit = (self._granted + 2) * chunks
            hold = min([*joining, self._granted + 1]) * chunks
        order = Produce(
            limit, hold, first=self._first * chunks, turns=self.turns, since=self._since
        )
        if order == self._order:
            return None
        self._order = order
        return order
