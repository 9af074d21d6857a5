"""Where each device of a launch is (pure).

Every device is in one place: idle, in a group, recruited by one, measuring, or on its way back from there, which ends
when its trainer says that it waits for work. There may be thousands, and each message is followed by a look at those
that are free: they are kept from one change to the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet


class Devices:
    """See the module.

    Args:
        devices: of all trainers.

    Attributes:
        alive: the devices whose trainers live.
        free: those that can be given work; one of a group may be idle before the group is known to be no more.
        returning: those of no group whose trainers have not said yet that they wait for work.
        absent: those whose trainers have not said yet that they are there.
        idle: those whose trainers wait for work.
        taken: by groups, and by those whom they have recruited.
        measuring: those that measure rates.
    """

    def __init__(self, devices: Iterable[int]) -> None:
        self.alive = set(devices)
        self.returning = set(self.alive)
        self.absent = set(self.alive)
        self.free = set[int]()
        self.idle = set[int]()
        self.taken = set[int]()
        self.measuring = set[int]()
        self._vacated: set[int] = set()

    def rest(self, device: int) -> None:
        """A trainer waits for work."""
        self.idle.add(device)
        self.absent.discard(device)
        self._sort([device])

    def take(self, devices: Collection[int]) -> None:
        """A group has them from now on."""
        self.idle.difference_update(devices)
        self.taken.update(devices)
        self._sort(devices)

    def leave(self, devices: Collection[int]) -> None:
        """No group has them any more."""
        self.taken.difference_update(devices)
        self._sort(devices)

    def measure(self, devices: Collection[int]) -> None:
        """They measure from now on."""
        self.idle.difference_update(devices)
        self.measuring.update(devices)
        self._sort(devices)

    def have_measured(self, devices: Collection[int]) -> None:
        """They measure no more."""
        self.measuring.difference_update(devices)
        self._sort(devices)

    def vacate(self, devices: Collection[int]) -> None:
        """They get no more work, though their trainers live."""
        self._vacated |= self.alive.intersection(devices)
        self.absent.difference_update(devices)
        self._sort(devices)

    def lose(self, devices: Collection[int]) -> None:
        """Their trainers are no more, or do not listen."""
        for places in (self.alive, self.idle, self.absent, self._vacated):
            places.difference_update(devices)
        self._sort(devices)

    def have_let_go(self, devices: Collection[int]) -> bool:
        """Whether the trainers of some devices all wait for work, as far as they live."""
        there = self.alive.intersection(devices)
        return self.idle >= there and self.taken.isdisjoint(there)

    def busy(self) -> AbstractSet[int]:
        """Those that may be used at this moment."""
        return (self.alive - self.idle) | self.taken

    def _sort(self, devices: Iterable[int]) -> None:
        for device in devices:
            is_idle = device in self.idle
            is_taken = device in self.taken
            is_free = is_idle and not is_taken and device not in self._vacated
            returns = device in self.alive and not (is_idle or is_taken or device in self.measuring)
            (self.free.add if is_free else self.free.discard)(device)
            (self.returning.add if returns else self.returning.discard)(device)
