"""The devices of a launch and their trainers (pure).

Every device is idle, in a group, recruited by one, measuring, or returning, until its trainer
reports that it is ready for work. There may be thousands, and the free ones are read after each
message, so the sets are maintained incrementally.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from fleet.comm.messages import Ready
from fleet.comm.roles import Roles
from fleet.control.effects import Outbox
from fleet.control.group import name_ranks
from fleet.control.history import InvalidTransition
from fleet.control.measurement import MeasurementTask
from fleet.domain.events import TrainersReady


class DevicePool:
    """The devices of a launch, in sets by their state.

    Args:
        roles: roles of all ranks.
        outbox: collects effects.

    Attributes:
        cluster: the devices that can be used.
        removed_ranks: ranks that died, were abandoned, or were released.
        unresponsive_ranks: the abandoned ones among them.
        alive: devices whose trainers are alive.
        free: devices that can be assigned; a device may be idle before its group is known to have
            ended.
        returning: devices without a group whose trainers have not yet reported that they are ready.
        not_ready: devices whose trainers have not reported at all yet.
        idle: devices whose trainers wait for work.
        in_groups: devices assigned to groups, with recruits.
        measuring: devices that measure a rate together -> their task.
    """

    def __init__(self, roles: Roles, outbox: Outbox) -> None:
        self._roles = roles
        self._outbox = outbox
        self.cluster = roles.cluster
        self.removed_ranks = set[int]()
        self.unresponsive_ranks = set[int]()
        self.alive = set(self.cluster.devices)
        self.returning = set(self.alive)
        self.not_ready = set(self.alive)
        self.free = set[int]()
        self.idle = set[int]()
        self.in_groups = set[int]()
        self.measuring: dict[tuple[int, ...], MeasurementTask] = {}
        self._vacated = set[int]()
        self._are_awaited = True  # until all trainers have reported

    # ---- trainers ----

    def ranks(self, devices: Iterable[int]) -> tuple[int, ...]:
        """Return the ranks of some devices."""
        return tuple(self._roles.rank_of[device] for device in devices)

    def mark_ready(self, ready: Ready) -> None:
        """Record that a trainer waits for work.

        Raises:
            InvalidTransition: the rank is no trainer, or was idle already.
        """
        device = self._roles.device_of.get(ready.rank)
        if device is not None:
            self.not_ready.discard(device)
        self.check_all_ready()
        if ready.rank in self.removed_ranks:
            return  # its last message
        if device is None or device in self.idle:
            raise InvalidTransition(f"rank {ready.rank} is idle already, or no trainer: {ready}")
        self.idle.add(device)
        self._reindex([device])

    def check_all_ready(self) -> None:
        """Log when all trainers that are alive have reported."""
        if self._are_awaited and self.alive and not self.not_ready:
            self._are_awaited = False
            self._outbox.log(TrainersReady())

    def describe_deaths(self, devices: Iterable[int]) -> str:
        """Return which ranks of a group's devices died; empty if a whole node died."""
        ranks = [rank for rank in self.ranks(devices) if rank in self.removed_ranks]
        node_of = self._roles.node_of
        alive_nodes = {node for rank, node in enumerate(node_of) if rank not in self.removed_ranks}
        if not ranks or not alive_nodes.issuperset(node_of[rank] for rank in ranks):
            return ""
        return f"{name_ranks(ranks)} died"

    # ---- states ----

    @property
    def free_whole(self) -> frozenset[int]:
        """Free devices of which no two share a GPU: one slot of each unused GPU."""
        if self.cluster.slots == 1:
            return frozenset(self.free)
        busy = {
            self.cluster.gpu(device) for device in self.cluster.devices if device not in self.free
        }
        slots = {self.cluster.gpu(device): device for device in sorted(self.free, reverse=True)}
        return frozenset(device for gpu, device in slots.items() if gpu not in busy)

    @property
    def busy(self) -> AbstractSet[int]:
        """The devices that may be in use now."""
        return (self.alive - self.idle) | self.in_groups

    def are_idle(self, devices: Collection[int]) -> bool:
        """Return True if the trainers of these devices that are alive all wait for work."""
        living = self.alive.intersection(devices)
        return self.idle >= living and self.in_groups.isdisjoint(living)

    def assign(self, devices: Collection[int]) -> None:
        """Assign devices to a group."""
        self.idle.difference_update(devices)
        self.in_groups.update(devices)
        self._reindex(devices)

    def release(self, devices: Collection[int]) -> None:
        """Release devices from a group."""
        self.in_groups.difference_update(devices)
        self._reindex(devices)

    def start_measuring(self, devices: tuple[int, ...], task: MeasurementTask) -> None:
        """Assign devices to a measurement."""
        self.idle.difference_update(devices)
        self.measuring[devices] = task
        self._reindex(devices)

    def end_measuring(self, task: MeasurementTask) -> bool:
        """Release the devices of a measurement; return False if it was not running."""
        for devices, running in self.measuring.items():
            if running == task:
                del self.measuring[devices]
                self._reindex(devices)
                return True
        return False

    def is_measuring(self, device: int) -> bool:
        """Return True if a device takes part in a measurement."""
        return any(device in devices for devices in self.measuring)

    def exclude(self, devices: Collection[int]) -> None:
        """Give devices no more work, although their trainers are alive."""
        self.cluster = self.cluster.without(list(devices))
        self._vacated |= self.alive.intersection(devices)
        self._reindex(devices)

    def remove(self, devices: Sequence[int]) -> list[MeasurementTask]:
        """Remove devices whose trainers are dead or unresponsive; return what they measured."""
        self.cluster = self.cluster.without(list(devices))
        removed = set(devices)
        tasks = [task for group, task in self.measuring.items() if not removed.isdisjoint(group)]
        for task in tasks:
            self.end_measuring(task)
        for state in (self.alive, self.idle, self.not_ready, self._vacated):
            state.difference_update(devices)
        self._reindex(devices)
        return tasks

    def abandon(self, devices: Sequence[int]) -> tuple[int, ...]:
        """Remove devices whose trainers do not answer; return their ranks."""
        ranks = self.ranks(devices)
        self.removed_ranks.update(ranks)
        self.unresponsive_ranks.update(ranks)
        self.remove(devices)
        return ranks

    def _reindex(self, devices: Iterable[int]) -> None:
        for device in devices:
            is_idle = device in self.idle
            is_taken = device in self.in_groups
            is_free = is_idle and not is_taken and device not in self._vacated
            is_away = not (is_idle or is_taken or self.is_measuring(device))
            returns = is_away and device in self.alive
            (self.free.add if is_free else self.free.discard)(device)
            (self.returning.add if returns else self.returning.discard)(device)
