"""What a launch spent on anything but training ([FLEET] Table 4), summed up from its events.

The coordinator feeds it while the launch goes on, and prints from it; :mod:`fleet.monitor.account` feeds it from the
log. So the last line of a run and its report agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fleet.domain.events import (
    Ended,
    EpochEnded,
    Event,
    GroupChanged,
    GroupStarted,
    GroupStopped,
    GroupStruck,
    NetworkFailed,
    NetworkRetried,
    Planned,
    Profiled,
    RoundStarted,
    Started,
)
from fleet.units import counted, format_duration
from scheduler.base import Cluster


class Overheads:
    """Sums of one launch.

    Attributes:
        rounds: that have begun.
        profiling_s, scheduling_s: seconds for which all devices waited for rates, and for the policy.
        checkpointing_s: GPU-seconds for which checkpoints blocked training.
        regrouping_s: GPU-seconds for which groups stood still to change their devices.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.rounds = 0
        self.profiling_s = self.scheduling_s = self.checkpointing_s = self.regrouping_s = 0.0
        self._cluster = Cluster((), 1)
        self._devices: dict[str, tuple[int, ...]] = {}  # of the networks that train
        self._tenants = Counter[int]()  # GPU -> how many of them
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Count an event in; they come in the order in which they happen."""
        match event:
            case Started():
                self._cluster = event.cluster
            case Profiled():
                self.profiling_s += event.seconds
            case Planned():
                self.scheduling_s += event.scheduling_s
            case RoundStarted():
                self.rounds = event.round
            case GroupStarted():
                self._train(event.network, event.devices)
            case GroupChanged():
                self._train(event.network, event.devices)
                self.regrouping_s += event.seconds * self._gpus(event.network)
            case EpochEnded():
                self.checkpointing_s += event.blocked_s * self._gpus(event.network)
            case GroupStopped():
                self.checkpointing_s += event.checkpoint_s * self._gpus(event.network)
                self._train(event.network, ())
            case NetworkFailed() | NetworkRetried() | GroupStruck():
                self._train(event.network, ())

    def _train(self, network: str, devices: tuple[int, ...]) -> None:
        """A network has these devices from now on."""
        self._tenants.subtract(map(self._cluster.gpu, self._devices.pop(network, ())))
        self._tenants.update(map(self._cluster.gpu, devices))
        self._devices[network] = devices

    def _gpus(self, network: str) -> float:
        """How many GPUs a network has; those that share one have equal parts of it."""
        return sum(1 / self._tenants[self._cluster.gpu(device)] for device in self._devices.get(network, ()))

    def ended(self, status: int, seconds: float) -> Ended:
        """The event that ends the launch.

        Args:
            status: how it ended (:class:`fleet.errors.ExitStatus`).
            seconds: since it began.
        """
        return Ended(status, seconds, self.rounds, self.profiling_s, self.scheduling_s, self.checkpointing_s,
                     self.regrouping_s)

    def summary(self, seconds: float) -> str:
        """How long the launch took, and the shares of what is not training.

        Args:
            seconds: since it began.
        """
        total = max(seconds, 1e-9)
        gpu_seconds = total * max(self._cluster.whole_gpus, 1)
        return (f"{format_duration(total)} in {counted(self.rounds, 'round')}; "
                f"profiling {self.profiling_s / total:.1%}, scheduling {self.scheduling_s / total:.3%}, "
                f"checkpointing {self.checkpointing_s / gpu_seconds:.2%}, "
                f"regrouping {self.regrouping_s / gpu_seconds:.2%} of it")
