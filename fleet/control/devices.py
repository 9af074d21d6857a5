"""The state of each device of a launch (pure).

Every device is idle, in a group, recruited by one, measuring, or returning, until its trainer
reports that it is ready for work. There may be thousands, and the free ones are read after each
message, so the sets are maintained incrementally.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet


class DevicePool:
    """The devices of a launch, in sets by their state.

    Args:
        devices: devices of all trainers.

    Attributes:
        alive: devices whose trainers are alive.
        free: devices that can be assigned; a device may be idle before its group is known to have
            ended.
        returning: devices without a group whose trainers have not yet reported that they are ready.
        not_ready: devices whose trainers have not reported at all yet.
        idle: devices whose trainers wait for work.
        in_groups: devices assigned to groups, with recruits.
        measuring: devices that measure rates.
    """

    def __init__(self, devices: Iterable[int]) -> None:
        self.alive = set(devices)
        self.returning = set(self.alive)
        self.not_ready = set(self.alive)
        self.free = set[int]()
        self.idle = set[int]()
        self.in_groups = set[int]()
        self.measuring = set[int]()
        self._vacated: set[int] = set()

    def set_idle(self, device: int) -> None:
        """Record that a trainer waits for work."""
        self.idle.add(device)
        self.not_ready.discard(device)
        self._reindex([device])

    def assign(self, devices: Collection[int]) -> None:
        """Assign devices to a group."""
        self.idle.difference_update(devices)
        self.in_groups.update(devices)
        self._reindex(devices)

    def release(self, devices: Collection[int]) -> None:
        """Release devices from a group."""
        self.in_groups.difference_update(devices)
        self._reindex(devices)

    def start_measuring(self, devices: Collection[int]) -> None:
        """Assign devices to a measurement."""
        self.idle.difference_update(devices)
        self.measuring.update(devices)
        self._reindex(devices)

    def end_measuring(self, devices: Collection[int]) -> None:
        """Release devices from a measurement."""
        self.measuring.difference_update(devices)
        self._reindex(devices)

    def exclude(self, devices: Collection[int]) -> None:
        """Give devices no more work, although their trainers are alive."""
        self._vacated |= self.alive.intersection(devices)
        self.not_ready.difference_update(devices)
        self._reindex(devices)

    def remove(self, devices: Collection[int]) -> None:
        """Remove devices whose trainers are dead or unresponsive."""
        for state in (self.alive, self.idle, self.not_ready, self._vacated):
            state.difference_update(devices)
        self._reindex(devices)

    def are_idle(self, devices: Collection[int]) -> bool:
        """Return True if the trainers of these devices that are alive all wait for work."""
        living = self.alive.intersection(devices)
        return self.idle >= living and self.in_groups.isdisjoint(living)

    def busy(self) -> AbstractSet[int]:
        """Return the devices that may be in use now."""
        return (self.alive - self.idle) | self.in_groups

    def _reindex(self, devices: Iterable[int]) -> None:
        for device in devices:
            is_idle = device in self.idle
            is_taken = device in self.in_groups
            is_free = is_idle and not is_taken and device not in self._vacated
            returns = device in self.alive and not (is_idle or is_taken or device in self.measuring)
            (self.free.add if is_free else self.free.discard)(device)
            (self.returning.add if returns else self.returning.discard)(device)
