"""Compute the moves from the running groups to the groups of the next round.

A :class:`scheduler.base.Round` says which assignment should hold now; :func:`plan_moves` says which
changes are possible at this moment. Both the live coordinator and the simulator carry rounds out
this way, so these rules hold in both:

- A group gives up devices, or stops, between two epochs and never within one.
- A group adds devices at any step, as soon as they are free and, if they have to build the network
  first, have built it.
- A group starts as soon as all its devices are free.
- A group that cannot change toward its target, or would keep too few devices, stops and restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from scheduler.base import Round


class Stance(Enum):
    """The state of a group with respect to changes of its devices."""

    INSIDE = auto()  # an epoch: it can take devices in
    BETWEEN = auto()  # between two epochs: it can also release devices, and stop
    BUSY = auto()  # starting, stopping, changing, or dying: nothing can be asked of it


@dataclass(frozen=True)
class GroupHolding:
    """The devices of a network's group, and which changes are possible.

    Attributes:
        devices: its devices, the master's first.
        stance: whether it is within an epoch, between epochs or busy.
        min_devices: the fewest devices on which it can continue.
        can_change: whether its devices can change without a checkpoint and a restart.
        grows_inside: whether it can add devices within an epoch.
        recruits: devices that are about to join -> whether they have built the network; None if
            joining needs no time, so that any free device can join.
    """

    devices: tuple[int, ...]
    stance: Stance
    min_devices: int = 1
    can_change: bool = True
    grows_inside: bool = True
    recruits: Mapping[int, bool] | None = None

    def devices_to_keep(self, target: Iterable[int]) -> tuple[int, ...]:
        """Return the devices that it keeps on the way to the target; empty if it must restart."""
        targets = set(target)
        common = tuple(device for device in self.devices if device in targets)
        can_go_on = self.can_change and len(common) >= self.min_devices
        if can_go_on or targets == set(self.devices):
            return common
        return ()

    def are_ready(self, devices: Iterable[int], free: set[int]) -> bool:
        """Return True if new devices can join the group now."""
        if self.recruits is None:
            return free.issuperset(devices)
        return all(self.recruits.get(device, False) for device in devices)


@dataclass(frozen=True)
class Move:
    """An action of a network's group on some devices."""

    name: str
    devices: tuple[int, ...] = ()


class Start(Move):
    """Start a group on devices that are all free."""


class Recruit(Move):
    """Let free devices build the network, so that they can join its group."""


class Dismiss(Move):
    """Free devices that were about to join a group."""


class Grow(Move):
    """Continue on these devices: first the kept devices, then the new ones."""


class Shrink(Move):
    """Continue on these devices and free the others."""


class Stop(Move):
    """Save the network and free all devices."""


def plan_moves(
    groups: Mapping[str, GroupHolding],
    target: Round,
    free: Iterable[int],
    frees_at_once: bool = False,
) -> tuple[Move, ...]:
    """Return the moves that are possible now and lead toward the target round.

    Args:
        groups: network -> its group, of all that run.
        target: the planned round; no device is in two of its groups.
        free: devices without a group that are not recruited.
        frees_at_once: whether the devices of a shrinking group are free immediately; otherwise the
            caller passes them as free in a later call.

    Returns:
        The moves in an order in which they can be carried out. No device is used by two of them.

    >>> from scheduler.base import Member
    >>> held = {"a": GroupHolding((0, 1), Stance.BETWEEN), "b": GroupHolding((2,), Stance.INSIDE)}
    >>> wanted = Round((Member("b", (2, 3)), Member("c", (1,))))
    >>> plan_moves(held, wanted, free={3})
    (Stop(name='a', devices=()), Grow(name='b', devices=(2, 3)))
    >>> plan_moves({"b": GroupHolding((2, 3), Stance.INSIDE)}, wanted, free={0, 1})
    (Start(name='c', devices=(1,)),)
    """
    targets = {member.name: member.devices for member in target.members}
    free_devices = set(free)
    moves: list[Move] = []
    changing: set[str] = set()
    for name, holding in groups.items():
        if holding.stance is Stance.BUSY:
            continue
        moves += _dismiss(name, holding, targets.get(name, ()))
        if holding.stance is Stance.BETWEEN and (
            move := _release_devices(name, holding, targets.get(name, ()), free_devices)
        ):
            moves.append(move)
            changing.add(name)
            if frees_at_once and isinstance(move, Shrink):
                free_devices |= set(holding.devices) - set(move.devices)
    for name, devices in targets.items():
        group = groups.get(name)
        if group is None:
            moves += [Start(name, devices)] if free_devices.issuperset(devices) else []
        elif group.stance is not Stance.BUSY and name not in changing:
            moves += _add_devices(name, group, devices, free_devices)
    return tuple(moves)


def _dismiss(name: str, holding: GroupHolding, target: tuple[int, ...]) -> Iterator[Move]:
    devices = tuple(device for device in holding.recruits or () if device not in target)
    if devices:
        yield Dismiss(name, devices)


def _release_devices(
    name: str, holding: GroupHolding, target: tuple[int, ...], free: set[int]
) -> Move | None:
    """Return the move by which a group between epochs gives up devices that it should not have."""
    common = holding.devices_to_keep(target)
    if len(common) == len(holding.devices):
        return None
    if not common:
        return Stop(name)
    new = tuple(device for device in target if device not in common)
    # One step if the new devices have built the network. Devices that are merely free take another
    # step.
    if new and holding.recruits is not None and holding.are_ready(new, free):
        return Grow(name, (*common, *new))
    return Shrink(name, common)


def _add_devices(
    name: str, holding: GroupHolding, target: tuple[int, ...], free: set[int]
) -> Iterator[Move]:
    """Yield the moves by which a group gets devices that it should have."""
    common = holding.devices_to_keep(target)
    new = tuple(device for device in target if device not in holding.devices)
    if not common or not new:
        return
    if holding.recruits is not None:
        recruited = tuple(
            device for device in new if device in free and device not in holding.recruits
        )
        if recruited:
            yield Recruit(name, recruited)
    is_allowed = holding.grows_inside or holding.stance is Stance.BETWEEN
    if is_allowed and len(common) == len(holding.devices) and holding.are_ready(new, free):
        yield Grow(name, (*holding.devices, *new))
