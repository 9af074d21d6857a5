"""The groups of a simulated ensemble, and the samples that they have."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, IntEnum, auto
from functools import partial

from scheduler.base import Cluster, GroupShape, Network
from scheduler.ensemble.moves import GroupHolding, Stance
from scheduler.ensemble.pace import Ring, Stream
from scheduler.simulation.kernel import Event, Simulator


class Kind(IntEnum):
    """The kinds of events at one moment, in this order."""

    SHARD = auto()
    STOPPED = auto()
    READY = auto()
    TRAINED = auto()
    LOOK = auto()
    DECIDE = auto()


class State(Enum):
    """What a group does."""

    WAITING = auto()
    FORMING = auto()  # holds devices, trains soon
    TRAINING = auto()
    STOPPING = auto()  # holds devices, writes a checkpoint
    FINISHED = auto()


class SimulatedGroup:
    """A network and, while it has devices, its group."""

    def __init__(self, network: Network, row: int) -> None:
        self.name = network.name
        self.row = row
        self.last_epoch = network.epochs or 0
        self.min_gpus = network.min_gpus
        self.state = State.WAITING
        self.devices: tuple[int, ...] = ()
        self.epoch = 0
        self.position = 0.0  # samples into the epoch
        self.batch: int | None = None  # of its epoch, where the policy has chosen one
        self.rate = 0.0  # samples/s on its devices, beside the others there
        self.networks_per_gpu = 1  # how many networks, itself among them, are on its GPUs
        self.pace = 0.0  # samples/s, at most the rate
        self.ready_s = 0.0  # when it began to train on its devices
        self.since = 0.0  # the moment of the position
        self.next: Event | None = None  # the end of the samples it has, or its being ready
        self.stream = 0  # which of several
        self.supplied = 0.0  # how far into the epoch it has samples
        self.needed: set[int] = set()  # shards of the ring that this epoch still lacks
        self.stint_start = 0.0
        self.stint_epochs = 0.0

    def epochs_done(self, samples: int) -> float:
        """Return its epochs, with fractions, of so many samples each."""
        return self.epoch + self.position / samples

    def shape(self, cluster: Cluster) -> GroupShape:
        """Return how many GPUs it has, and how they lie."""
        return GroupShape.of(self.devices, cluster)

    def holding(self) -> GroupHolding:
        """Return its devices and their possible changes; building takes no simulated time."""
        if self.state is not State.TRAINING:
            stance = Stance.BUSY
        elif self.position:
            stance = Stance.INSIDE
        else:
            stance = Stance.BETWEEN
        return GroupHolding(self.devices, stance, self.min_gpus)


class Production:
    """The samples that groups have: whole epochs, or the shards of a ring as they are produced.

    Args:
        stream: the stream, perhaps a ring.
        samples: samples per epoch.
        sim: the clock.
        training: returns the groups that train.
        go_on: is called after each shard.
    """

    def __init__(
        self,
        stream: Stream,
        samples: int,
        sim: Simulator,
        training: Callable[[], list[SimulatedGroup]],
        go_on: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._samples = samples
        self._sim = sim
        self._training = training
        self._go_on = go_on
        # The shards in the ring.
        self._window: deque[int] = deque(maxlen=stream.ring.window_shards if stream.ring else 1)
        self._next_shard: Event | None = None
        self._shards = 0  # produced so far

    def supply(self, group: SimulatedGroup) -> None:
        """Give a group samples: the whole epoch, or with a ring the oldest missing shard."""
        ring = self._stream.ring
        if ring is None:
            group.supplied = self._samples
            return
        if group.position == 0:
            group.needed = set(range(ring.shards))
        shard = next((shard for shard in self._window if shard in group.needed), None)
        if shard is not None:
            group.needed.remove(shard)
            group.supplied = self._samples * (1 - len(group.needed) / ring.shards)
        if self._next_shard is None:
            self._produce_next(ring)

    def _produce_next(self, ring: Ring) -> None:
        """Produce the next shard of the ring while any group trains."""
        self._next_shard = None
        fastest = max((group.rate for group in self._training()), default=0.0)
        if fastest > 0:
            rate = min(self._stream.rate, ring.surplus * fastest)
            self._next_shard = self._sim.after(
                self._samples / ring.shards / rate, Kind.SHARD, partial(self._end_shard, ring)
            )

    def _end_shard(self, ring: Ring) -> None:
        self._window.append(self._shards % ring.shards)
        self._shards += 1
        self._produce_next(ring)
        self._go_on()
