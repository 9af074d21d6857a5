"""All training groups of a launch, by the networks that they train (pure).

There may be thousands, so the groups that wait for orders, and the groups that have changed, are
maintained incrementally.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from fleet.comm.messages import Built
from fleet.control.devices import DevicePool
from fleet.control.effects import RanksDied
from fleet.control.group import Phase, TrainingGroup
from fleet.control.history import InvalidTransition


class Groups:
    """The groups, by the names of their networks.

    Args:
        devices: the devices of the launch.

    Attributes:
        joining: network -> first epoch of ranks that have not registered with the stream yet.
    """

    def __init__(self, devices: DevicePool) -> None:
        self._devices = devices
        self._groups: dict[str, TrainingGroup] = {}
        self._awaiting_orders: dict[str, TrainingGroup] = {}
        self._changed = set[str]()  # networks whose groups have changed since the last query
        self.joining: dict[str, int] = {}

    def __iter__(self) -> Iterator[TrainingGroup]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, name: str) -> TrainingGroup:
        return self._groups[name]

    def get(self, name: str) -> TrainingGroup | None:
        """Return the group of a network, if there is one."""
        return self._groups.get(name)

    @property
    def names(self) -> AbstractSet[str]:
        """The networks that have a group; a view."""
        return self._groups.keys()

    @property
    def awaiting_orders(self) -> list[TrainingGroup]:
        """The groups that wait for orders, in the order in which they were started."""
        return sorted(self._awaiting_orders.values(), key=lambda group: group.number)

    @property
    def are_stopping(self) -> bool:
        """Whether all groups have been ordered to stop."""
        return all(group.phase is Phase.STOPPING for group in self._groups.values())

    @property
    def joining_epochs(self) -> Iterator[int]:
        """The first epochs of ranks that have not registered with the stream yet."""
        return (
            epoch
            for name, epoch in self.joining.items()
            if self._groups[name].phase is not Phase.FAILED
        )

    @property
    def failed_groups(self) -> list[TrainingGroup]:
        """The groups that have lost a rank, and whose other ranks are all idle."""
        if not self._devices.removed_ranks:
            return []
        idle = self._devices.idle
        alive = self._devices.alive
        return [
            group
            for group in self
            if group.phase is Phase.FAILED and idle >= alive.intersection(group.devices)
        ]

    def take_changed(self) -> set[str]:
        """Return the networks whose groups may have changed since the last call."""
        changed = self._changed
        self._changed = set()
        return changed

    # ---- changes ----

    def add(self, group: TrainingGroup) -> None:
        """Add a group of free devices."""
        self._devices.assign(group.devices)
        self._groups[group.name] = group
        self.joining[group.name] = group.next_epoch
        self._changed.add(group.name)

    def advance(self, group: TrainingGroup, step: Any) -> None:
        """Advance a group to its next phase; see :meth:`TrainingGroup.advance`."""
        group.advance(step)
        if group.is_awaiting_orders:
            self._awaiting_orders[group.name] = group
        else:
            self._awaiting_orders.pop(group.name, None)

    def add_recruits(self, group: TrainingGroup, devices: Sequence[int]) -> None:
        """Assign free devices that will join a group."""
        self._devices.assign(devices)
        group.recruits.update(dict.fromkeys(devices, False))
        self._changed.add(group.name)

    def drop_recruits(self, group: TrainingGroup, devices: Collection[int]) -> None:
        """Release those of some devices that were to join a group."""
        for device in group.recruits.keys() & set(devices):
            del group.recruits[device]
            self._devices.release([device])
        self._changed.add(group.name)

    def set_devices(self, group: TrainingGroup, reads_stream_from: dict[int, int]) -> None:
        """Change the devices of a group: recruits join it, and others are released.

        Args:
            group: the group.
            reads_stream_from: device, the master's first -> first epoch that it reads from the
                stream.
        """
        group.previous_devices = group.devices
        group.devices = tuple(reads_stream_from)
        group.reads_stream_from = reads_stream_from
        for device in reads_stream_from.keys() & group.recruits.keys():
            del group.recruits[device]
        self._devices.release(
            [device for device in group.previous_devices if device not in reads_stream_from]
        )
        self._changed.add(group.name)

    def mark_built(self, device: int, built: Built) -> None:
        """Record that a recruit, or a whole group, has built its network.

        Raises:
            InvalidTransition: the rank builds nothing.
        """
        group = self.get(built.network)
        if group is not None and group.recruits.get(device) is False:
            group.recruits[device] = True
            return
        is_building = (group is not None and device in group.devices) or self._devices.is_measuring(
            device
        )
        # A returning device may not know yet that it was dismissed.
        if (
            not is_building
            and device not in self._devices.returning
            and built.rank not in self._devices.removed_ranks
        ):
            raise InvalidTransition(f"rank {built.rank} builds nothing: {built}")

    def fail_device(self, device: int, died: RanksDied) -> None:
        """Let the group of a device whose trainer has died fail."""
        for group in self:
            self.drop_recruits(group, [device])
            if device in group.devices:
                self.advance(group, died)

    def remove(self, name: str) -> None:
        """Remove a group without recruits."""
        group = self._groups.pop(name)
        self._awaiting_orders.pop(name, None)
        self.joining.pop(name, None)
        self._changed.add(name)
        self._devices.release(group.devices)
