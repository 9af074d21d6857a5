"""The plan of the policy, and the moves of groups towards it (pure).

The networks whose groups differ from the plan are maintained incrementally: there may be thousands.
"""

from __future__ import annotations

from collections.abc import Collection

from fleet.control.devices import DevicePool
from fleet.control.group import TrainingGroup
from fleet.control.groups import Groups
from fleet.spec import NetworkSpec
from scheduler.base import Member, Round
from scheduler.ensemble.moves import Move, Stop, plan_moves


class PlanTarget:
    """The plan that groups move towards.

    Args:
        devices: the devices of the launch.
        groups: the groups of the launch.
        can_change: whether groups can change their devices.
        grows_inside: whether they can add devices inside an epoch.

    Attributes:
        plan: the plan of the policy, with the batches of the epochs that groups begin.
    """

    def __init__(
        self, devices: DevicePool, groups: Groups, can_change: bool, grows_inside: bool
    ) -> None:
        self._devices = devices
        self._groups = groups
        self._can_change = can_change
        self._grows_inside = grows_inside
        self.plan = Round()
        self._members = dict[str, tuple[int, Member]]()
        self._off_plan: set[str] = set()  # networks whose groups differ from the plan

    def adopt(self, plan: Round) -> None:
        """Move towards another plan from now on."""
        before = self._members
        self.plan = plan
        self._members = {member.name: (index, member) for index, member in enumerate(plan.members)}
        for name in (*before, *self._members):
            self._compare(name)

    def batch(self, network: NetworkSpec, gpus: int) -> int | None:
        """Return the batch that the policy has chosen for a network; None if it chooses none."""
        _, member = self._members.get(network.name, (0, None))
        if member is None:
            return None
        return member.batch_on(gpus, network.train.batch.bounds[0])

    def _compare(self, name: str) -> None:
        """Update whether the group of a network matches the plan."""
        group = self._groups.get(name)
        member = self._members.get(name)
        is_as_wanted = group is member is None or (
            group is not None
            and member is not None
            and not group.recruits
            and group.devices == member[1].devices
        )
        (self._off_plan.discard if is_as_wanted else self._off_plan.add)(name)

    def moves(
        self, held_back: Collection[str], leaving: Collection[str], alone: Collection[str]
    ) -> tuple[Move, ...]:
        """Return the moves towards the plan; see :func:`scheduler.ensemble.moves.moves`.

        Args:
            held_back: networks whose groups get no orders yet.
            leaving: networks whose groups stop, whatever the plan.
            alone: networks that share no GPU with others.
        """
        for name in self._groups.take_changed():
            self._compare(name)
        if not self._off_plan:
            return ()
        groups: list[TrainingGroup] = []
        members: list[tuple[int, Member]] = []
        for name in self._off_plan:
            group = self._groups.get(name)
            if group is not None and group.is_busy:
                continue  # it cannot move
            if group is not None:
                groups.append(group)
            if name in self._members:
                members.append(self._members[name])
        holdings = {
            group.name: group.holding(
                self._can_change,
                self._grows_inside,
                is_answered=group.name not in held_back,
                is_node_release=group.name in leaving,
            )
            for group in sorted(groups, key=lambda group: group.number)
        }
        plan = Round(tuple(member for _, member in sorted(members)))
        possible = plan_moves(holdings, plan, self._devices.free)
        if alone:
            return tuple(move for move in possible if self._is_clear(move, alone))
        return possible

    def _is_clear(self, move: Move, alone: Collection[str]) -> bool:
        """Return True if the move puts no exclusive network on a shared GPU.

        A plan that gives it a GPU makes others leave that GPU, but only at the end of their epochs.
        """
        if isinstance(move, Stop):
            return True
        cluster = self._devices.cluster
        group = self._groups.get(move.name)
        current = set() if group is None else {*group.devices, *group.recruits}
        new = {cluster.gpu(device) for device in set(move.devices) - current}
        if move.name in alone:
            blocked = self._devices.busy
        else:
            blocked = {
                device
                for exclusive in self._groups
                if exclusive.name in alone
                for device in (*exclusive.devices, *exclusive.recruits)
            }
        return new.isdisjoint(cluster.gpu(device) for device in blocked - current)
