"""How far the stream is granted to groups, and the orders of preprocessors (pure).

Networks that share a strict stream train in step: all consume the same stream epochs, and a group
starts at one that has not been granted yet. In all other cases (a ring, stored samples, or samples
that each trainer prepares itself) each network counts its own epochs.
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

_SURELY = 1.25  # speedup without a preprocessor from which it is left out; reports vary


@dataclass(frozen=True)
class _RecentWork:
    """The recent work of a preprocessor.

    Attributes:
        samples: samples that it prepared.
        busy_s: seconds that this took.
        beside_s: seconds of other work while there were samples to prepare.
    """

    samples: float = 0.0
    busy_s: float = 0.0
    beside_s: float = 0.0

    def merge(self, prepared: Prepared) -> _RecentWork:
        """Return the work after another report; earlier work counts half."""
        return _RecentWork(
            self.samples / 2 + prepared.samples,
            self.busy_s / 2 + prepared.busy_s,
            self.beside_s / 2 + prepared.beside_s,
        )

    @property
    def prepared(self) -> float:
        """Samples/s while it prepares samples."""
        return self.samples / self.busy_s

    @property
    def delivered(self) -> float:
        """Samples/s over all its time."""
        return self.samples / (self.busy_s + self.beside_s)


class StreamGrants:
    """The epochs of the stream, their grants, and the preprocessors that produce them.

    Args:
        layout: layout of the stream; None if trainers prepare their own samples, or augment stored
            ones.
        preprocessors: their ranks in the order of their turns; empty if trainers prepare samples.
        first: the first epoch of the stream in this launch.
        replayed: the stream epochs of a replay of one network, in order.
        batches: the batches of these epochs; 0 for the network's own.
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
        self._prepared: dict[int, _RecentWork] = {}  # likewise
        self._are_known = False  # whether all preprocessors have reported their rates
        self._order: Produce | None = None  # the last order of preprocessors
        self.producers: tuple[int, ...] = ()  # the ranks that produce, once it has begun
        self._since = 0  # first chunk that they produce

    # ---- the kind of stream ----

    @property
    def is_in_step(self) -> bool:
        """Whether networks consume the epochs of one stream; otherwise each counts its own."""
        return self._layout is not None and not self._layout.is_ring

    @property
    def is_lockstep(self) -> bool:
        """Whether networks advance together inside an epoch: the window is smaller than it."""
        return (
            self._layout is not None
            and self.is_in_step
            and self._layout.slots < self._layout.chunks
        )

    @property
    def changes_inside(self) -> bool:
        """Whether a group can add ranks inside an epoch; in a ring new ones lack the path."""
        return self._layout is None or not self._layout.is_ring

    @property
    def pace(self) -> str:
        """How groups depend on each other's pace; see :func:`fleet.units.parse_stream`."""
        if self._layout is None or self._layout.slots >= self._layout.chunks:
            return "free"
        if self._layout.is_ring:
            return f"ring:{self._layout.slots / self._layout.chunks:.2%}"
        return "lockstep"

    # ---- epochs ----

    @property
    def first_ungranted(self) -> int:
        """The first epoch that has not been granted, so that no node has dropped any of it."""
        return self._granted + 1

    def next_epoch(self, history: Sequence[EpochRecord]) -> int:
        """Return the number of the epoch with which a network starts."""
        if self.is_in_step:
            return self.first_ungranted
        if self._replayed:
            return len(history)
        return 1 + max((record.stream_epoch for record in history), default=-1)

    def epoch_after(self, granted: int, history: Sequence[EpochRecord]) -> int:
        """Return the number of the epoch after the last one of a history.

        Args:
            granted: the epoch that was granted; the last one may be an older epoch of an earlier
                launch.
            history: the finished epochs.
        """
        if self.is_in_step:
            return granted + (history[-1].stream_epoch == granted)
        return self.next_epoch(history)

    def stream_epoch(self, number: int) -> int:
        """Return the stream epoch of a number: itself, or the epoch that a replay repeats."""
        if number < len(self._replayed):
            return self._replayed[number]
        return number

    def batch(self, number: int, chosen: int | None) -> int | None:
        """Return the batch of an epoch: the policy's choice, or the batch that a replay repeats."""
        if number < len(self._batches):
            return self._batches[number]
        return chosen

    def grant(self, epoch: int) -> None:
        """Grant an epoch to groups."""
        self._granted = max(self._granted, epoch)

    # ---- producing ----

    def record_throughput(self, throughput: Throughput) -> None:
        """Record the rate of a preprocessor.

        Raises:
            InvalidTransition: the rank is no preprocessor, or has reported before.
        """
        if throughput.rank not in self._preprocessors or throughput.rank in self._throughput:
            raise InvalidTransition(
                f"{throughput.rank} is no preprocessor, or has reported already: {throughput}"
            )
        self._throughput[throughput.rank] = throughput.samples_per_s

    def record_prepared(self, prepared: Prepared) -> StreamStarted | None:
        """Record the recent work of a preprocessor; earlier reports count half each time.

        The slowest preprocessor is dropped if the others are faster without it, such as rank 0 when
        it coordinates many. It is dropped from the first chunk that no preprocessor may have begun;
        in a ring that chunk is unknown, so none is dropped.

        Returns:
            The new set of producers, if it has changed.

        Raises:
            InvalidTransition: the rank does not produce.
        """
        if prepared.rank not in self.producers and prepared.rank not in self._prepared:
            raise InvalidTransition(f"{prepared.rank} does not produce: {prepared}")
        self._prepared[prepared.rank] = self._prepared.get(prepared.rank, _RecentWork()).merge(
            prepared
        )
        if (
            self.is_in_step
            and self._order is not None
            and self._prepared.keys() >= set(self.producers)
        ):
            *faster, slowest = sorted(self.producers, key=self._speed, reverse=True)
            if faster and _SURELY * len(self.producers) * self._speed(slowest) < len(
                faster
            ) * self._speed(faster[-1]):
                self.producers = tuple(rank for rank in self.producers if rank != slowest)
                self._since = self._order.limit
                return replace(
                    self._started,
                    preprocessors=len(faster),
                    supply_samples_per_s=self.supply(set()),
                )
        return None

    def _speed(self, rank: int) -> float:
        return self._prepared[rank].delivered

    def supply(self, removed_ranks: set[int]) -> float:
        """Return the samples/s that each network gets at most; infinity without a stream.

        Preprocessors produce chunks of equal size in turn, so the slowest sets the pace.

        Args:
            removed_ranks: ranks that have died. After the death of a preprocessor, trainers prepare
                samples.
        """
        ranks = self.producers or self._preprocessors
        if self._layout is None or not ranks or removed_ranks.intersection(self._preprocessors):
            return float("inf")
        if self._prepared.keys() >= set(ranks):
            return len(ranks) * min(self._prepared[rank].prepared for rank in ranks)
        return sum(self._throughput[rank] for rank in ranks)

    def has_throughputs(self, removed_ranks: set[int]) -> bool:
        """Return True if all preprocessors that are alive have reported their rates.

        Args:
            removed_ranks: ranks that have died.
        """
        self._are_known = (
            self._are_known or set(self._preprocessors) <= removed_ranks | self._throughput.keys()
        )
        return self._are_known

    def choose_producers(
        self, rates: RateTable | None, time_scale: float, chooses: bool, policy: str
    ) -> StreamStarted:
        """Choose the fewest preprocessors whose throughput meets the demand of trainers.

        Samples are shared, so the demand is that of the fastest network, not the sum of all.
        Samples that are stored are prepared once, as fast as possible.

        Args:
            rates: None while unknown: then all produce.
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
        self.producers = self._preprocessors[:needed]
        supply = reached[needed - 1]
        if not demand:
            bottleneck = ""
        else:
            bottleneck = "input" if supply < demand else "training"
        self._started = StreamStarted(
            needed,
            len(self._preprocessors),
            policy,
            pace="shared" if self.is_in_step else "own",
            kept=self._layout is None,
            supply_samples_per_s=supply,
            demand_samples_per_s=demand,
            bottleneck=bottleneck,
        )
        return self._started

    def next_order(self, joining: Iterable[int]) -> Produce | None:
        """Return the next order for preprocessors; None if it has not changed.

        It allows one epoch more than was granted, so that no group waits at the start of an epoch;
        the lookahead of the layout limits it to what is needed soon.

        Args:
            joining: first epochs of ranks that have not registered with the stream yet.
        """
        if not self.producers:
            return None
        chunks = self._layout.chunks if self._layout is not None else 0
        limit = hold = NO_LIMIT
        if self.is_in_step:
            limit = (self._granted + 2) * chunks
            hold = min([*joining, self._granted + 1]) * chunks
        order = Produce(
            limit, hold, first=self._first * chunks, turns=self.producers, since=self._since
        )
        if order == self._order:
            return None
        self._order = order
        return order
