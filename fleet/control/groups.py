"""All training groups of a launch: their devices and orders (pure).

There may be thousands, so the sets of groups that wait for orders, and of groups that differ from
the plan, are maintained incrementally.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from fleet.comm import messages as m
from fleet.comm.roles import Roles
from fleet.control.devices import DevicePool
from fleet.control.effects import Outbox, RanksDied
from fleet.control.group import Phase, TrainingGroup, name_ranks
from fleet.control.history import InvalidTransition
from fleet.control.measurement import MeasurementTask
from fleet.control.stream_grants import StreamGrants
from fleet.domain.events import TrainersReady
from fleet.spec import NetworkSpec
from scheduler.base import Member, Round
from scheduler.ensemble.moves import Move, Stop, plan_moves


class Groups:
    """The groups, by the names of their networks.

    Args:
        roles: roles of all ranks.
        outlives: whether ranks may die while the others continue.
        grants: grants of the stream that they read.
        outbox: collects effects.

    Attributes:
        cluster: the devices that can be used.
        removed_ranks: ranks that died, were abandoned, or were released.
        unresponsive_ranks: the abandoned ones among them.
    """

    def __init__(self, roles: Roles, outlives: bool, grants: StreamGrants, outbox: Outbox) -> None:
        self._roles = roles
        self._outlives = outlives
        self._grants = grants
        self._outbox = outbox
        self.cluster = roles.cluster
        self.removed_ranks: set[int] = set()
        self.unresponsive_ranks: set[int] = set()
        self._devices = DevicePool(self.cluster.devices)
        # whether any trainer has reported, and whether all have
        self._has_ready_trainer = False
        self._are_awaited = True
        self._groups: dict[str, TrainingGroup] = {}
        self._awaiting_orders: dict[str, TrainingGroup] = {}  # groups that wait for orders
        self._joining: dict[str, TrainingGroup] = {}
        self._measuring: dict[tuple[int, ...], MeasurementTask] = {}
        self._number = 0  # of the latest group of ranks
        self._plan = Round()
        self._members = dict[str, tuple[int, Member]]()
        self._off_plan: set[str] = set()  # networks whose groups differ from the plan

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
    def plan(self) -> Round:
        """The plan of the policy, with the batches of the epochs that groups begin."""
        return self._plan

    @plan.setter
    def plan(self, plan: Round) -> None:
        before = self._members
        self._plan = plan
        self._members = {member.name: (index, member) for index, member in enumerate(plan.members)}
        for name in (*before, *self._members):
            self._compare(name)

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

    def advance(self, group: TrainingGroup, step: Any) -> None:
        """Advance a group to its next phase; see :meth:`TrainingGroup.advance`."""
        group.advance(step)
        if group.is_awaiting_orders:
            self._awaiting_orders[group.name] = group
        else:
            self._awaiting_orders.pop(group.name, None)

    # ---- devices ----

    @property
    def free_whole(self) -> frozenset[int]:
        """Free devices of which no two share a GPU: one slot of each unused GPU."""
        free = self._devices.free
        if self.cluster.slots == 1:
            return frozenset(free)
        busy = {self.cluster.gpu(device) for device in self.cluster.devices if device not in free}
        slots = {self.cluster.gpu(device): device for device in sorted(free, reverse=True)}
        return frozenset(device for gpu, device in slots.items() if gpu not in busy)

    @property
    def has_returning_devices(self) -> bool:
        """Whether trainers without a group have not yet reported that they are ready."""
        return bool(self._devices.returning)

    @property
    def names(self) -> AbstractSet[str]:
        """The networks that have a group; a view."""
        return self._groups.keys()

    @property
    def are_all_idle(self) -> bool:
        """Whether every trainer waits for work."""
        return not self._groups and self._devices.idle >= self._devices.alive

    def mark_ready(self, ready: m.Ready) -> None:
        """Record that a trainer waits for work.

        Raises:
            InvalidTransition: the rank is no trainer, or was idle already.
        """
        device = self._roles.device_of.get(ready.rank)
        if device is not None:
            self._has_ready_trainer = True
            self._devices.not_ready.discard(device)
        self.check_all_ready()
        if ready.rank in self.removed_ranks:
            return  # its last message
        if device is None or device in self._devices.idle:
            raise InvalidTransition(f"rank {ready.rank} is idle already, or no trainer: {ready}")
        self._devices.set_idle(device)

    def check_all_ready(self) -> None:
        """Log when all trainers that are alive have reported."""
        if self._are_awaited and self._has_ready_trainer and not self._devices.not_ready:
            self._are_awaited = False
            self._outbox.log(TrainersReady())

    def mark_built(self, built: m.Built) -> None:
        """Record that a recruit, or a whole group, has built its network.

        Raises:
            InvalidTransition: the rank builds nothing.
        """
        group = self.get(built.network)
        device = self._roles.device_of[built.rank]
        if group is not None and group.recruits.get(device) is False:
            group.recruits[device] = True
            return
        is_building = (
            group is not None and device in group.devices
        ) or device in self._devices.measuring
        # A returning device may not know yet that it was dismissed.
        if (
            not is_building
            and device not in self._devices.returning
            and built.rank not in self.removed_ranks
        ):
            raise InvalidTransition(f"rank {built.rank} builds nothing: {built}")

    def remove_rank(self, rank: int, died: RanksDied) -> list[MeasurementTask]:
        """Remove a trainer that has died; return the measurements that it took part in."""
        device = self._roles.device_of[rank]
        self._devices.remove([device])
        self.cluster = self.cluster.without([device])
        for group in self:
            self._drop(group, [device])
            if device in group.devices:
                self.advance(group, died)
        stopped = [devices for devices in self._measuring if device in devices]
        for devices in stopped:
            self._devices.end_measuring(devices)
        return [self._measuring.pop(devices) for devices in stopped]

    def _drop(self, group: TrainingGroup, devices: Collection[int]) -> None:
        """Drop devices from the recruits of a group."""
        for device in group.recruits.keys() & set(devices):
            del group.recruits[device]
            self._devices.release([device])
        self._compare(group.name)

    def abandon(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        """Abandon devices that do not answer; return their ranks."""
        ranks = self._ranks(devices)
        self.removed_ranks.update(ranks)
        self.unresponsive_ranks.update(ranks)
        self.cluster = self.cluster.without(devices)
        self._devices.remove(devices)
        for group in self:
            if set(devices) & set(group.devices):
                self.remove(group.name)
            else:
                self._drop(group, devices)
        if self._measuring.pop(devices, None) is not None:
            self._devices.end_measuring(devices)
        return ranks

    def exclude(self, devices: Collection[int]) -> None:
        """Give devices no more work, although their trainers are alive."""
        self._devices.exclude(devices)
        self.cluster = self.cluster.without(list(devices))

    def are_idle(self, devices: Collection[int]) -> bool:
        """Return True if the trainers of these devices that are alive all wait for work."""
        return self._devices.are_idle(devices)

    # ---- measuring ----

    def start_measurement(
        self, network: NetworkSpec, gpus: int, batches: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Measure a network on free devices that are close together; return these devices.

        Args:
            network: the network.
            gpus: number of devices.
            batches: global batches to measure, if the policy chooses the batch.
        """
        devices = _close_together(sorted(self.free_whole), gpus, self.cluster.gpus_per_node)
        self._devices.start_measuring(devices)
        self._measuring[devices] = MeasurementTask(network.name, gpus)
        ranks = self._ranks(devices)
        self._send(devices, m.Measure(network, ranks, self._next_number(), batches))
        return devices

    def end_measurement(self, measured: m.Measured) -> MeasurementTask | None:
        """End a measurement and return its task; None if it was abandoned after a death.

        Raises:
            InvalidTransition: this measurement was not running.
        """
        task = MeasurementTask(measured.network, measured.gpus)
        for devices, running in self._measuring.items():
            if running == task:
                del self._measuring[devices]
                self._devices.end_measuring(devices)
                return task
        if self.removed_ranks:
            return None
        raise InvalidTransition(f"this measurement is not running: {measured}")

    # ---- orders ----

    def start(self, network: NetworkSpec, devices: tuple[int, ...], epoch: int) -> None:
        """Train a network on free devices.

        Args:
            network: the network.
            devices: the master's first.
            epoch: number of the first epoch that it may train on.
        """
        ranks = self._ranks(devices)
        number = self._next_number()
        group = TrainingGroup(
            network,
            devices,
            epoch,
            dict.fromkeys(devices, epoch),
            joins_at=epoch,
            number=number,
            last_message_s=self._outbox.now_s,
        )
        self._devices.assign(devices)
        self._groups[group.name] = self._joining[group.name] = group
        self._compare(group.name)
        self._send(
            devices,
            m.Start(
                network,
                ranks,
                number,
                self._grants.stream_epoch(epoch),
                batch=self._batch(network, devices, epoch),
            ),
        )

    def recruit(self, group: TrainingGroup, devices: Sequence[int]) -> None:
        """Let free devices build the network, so that they can join its group."""
        self._devices.assign(devices)
        for device in devices:
            group.recruits[device] = False
            self._send([device], m.Join(group.network, self._next_number()))
        self._compare(group.name)

    def dismiss(self, group: TrainingGroup, devices: Sequence[int]) -> None:
        """Dismiss recruits of a group."""
        self._drop(group, devices)
        self._send(devices, m.Stop(final=False))

    def pause(self, group: TrainingGroup, run_ends: bool) -> None:
        """Pause a group as soon as possible.

        Args:
            group: the group.
            run_ends: whether the launch is about to end.
        """
        self._order(group, m.Pause(run_ends))

    def resume(self, group: TrainingGroup) -> None:
        """Let a waiting group continue to train."""
        self._order(
            group,
            m.Continue(
                self._grants.stream_epoch(group.next_epoch),
                self._batch(group.network, group.devices, group.next_epoch),
            ),
        )

    def regroup(self, group: TrainingGroup, devices: tuple[int, ...]) -> None:
        """Let a waiting group continue with these devices, listed with the current ones first."""
        stay = tuple(device for device in devices if device in group.devices)
        fresh = self._grants.first_ungranted if self._grants.is_in_step else 0
        order = m.Regroup(
            self._ranks(devices),
            len(stay),
            self._next_number(),
            self._grants.stream_epoch(group.next_epoch),
            reads_stream_from=fresh,
            batch=self._batch(group.network, devices, group.next_epoch),
        )
        self._order(group, order)
        reads_stream_from = {device: group.reads_stream_from[device] for device in stay}
        for device in devices[len(stay) :]:
            reads_stream_from[device] = self._first_read(device, group, stay, fresh)
            self._send([device], order._replace(reads_stream_from=reads_stream_from[device]))
            del group.recruits[device]
        group.previous_devices = group.devices
        group.devices = devices
        group.reads_stream_from = reads_stream_from
        group.joins_at = fresh if len(devices) > len(stay) else None
        self._joining[group.name] = group
        self._devices.release(
            [device for device in group.previous_devices if device not in devices]
        )
        self._compare(group.name)

    def end_join(self, group: TrainingGroup) -> None:
        """Record that the ranks of a group have registered with the stream."""
        group.joins_at = None
        self._joining.pop(group.name, None)

    def _first_read(
        self, device: int, group: TrainingGroup, stay: Sequence[int], fresh: int
    ) -> int:
        """Return the first epoch that a new device reads from the stream."""
        if not self._grants.is_in_step:
            return 0
        # The next reads of ranks that stay are protected on their nodes.
        node = self.cluster.node(device)
        epochs = [group.reads_stream_from[mate] for mate in stay if self.cluster.node(mate) == node]
        return max(group.next_read_epoch, min(epochs, default=fresh))

    def stop(self, group: TrainingGroup, is_final: bool, saves: bool = True) -> None:
        """Let a waiting group save and stop, and dismiss its recruits.

        Args:
            group: the group.
            is_final: whether there is nothing left to train.
            saves: whether it saves; otherwise it gives up its training since its last checkpoint.
        """
        self.dismiss(group, tuple(group.recruits))
        self._order(group, m.Stop(is_final, saves))

    def remove(self, name: str) -> None:
        """Remove a group and dismiss its recruits."""
        group = self._groups.pop(name)
        self._awaiting_orders.pop(name, None)
        self._joining.pop(name, None)
        self.dismiss(group, tuple(group.recruits))
        self._devices.release(group.devices)

    def _order(
        self, group: TrainingGroup, order: m.Pause | m.Continue | m.Regroup | m.Stop
    ) -> None:
        """Send an order to a group's master, and advance to the phase that follows."""
        self.advance(group, order)
        self._send(group.devices[:1], order)

    # ---- queries ----

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
            group.joins_at
            for group in self._joining.values()
            if group.joins_at is not None and group.phase is not Phase.FAILED
        )

    @property
    def failed_groups(self) -> list[TrainingGroup]:
        """The groups that have lost a rank, and whose other ranks are all idle."""
        if not self.removed_ranks:
            return []
        idle = self._devices.idle
        alive = self._devices.alive
        return [
            group
            for group in self
            if group.phase is Phase.FAILED and idle >= alive.intersection(group.devices)
        ]

    def describe_deaths(self, group: TrainingGroup) -> str:
        """Return which ranks of a group died; empty if a whole node died."""
        ranks = [rank for rank in self._ranks(group.devices) if rank in self.removed_ranks]
        node_of = self._roles.node_of
        nodes = {node_of[rank] for rank in ranks}
        has_whole_node = any(
            all(
                rank in self.removed_ranks for rank, node in enumerate(node_of) if node == dead_node
            )
            for dead_node in nodes
        )
        if not ranks or has_whole_node:
            return ""
        names = name_ranks(ranks)
        return f"{names} died"

    @property
    def held_back(self) -> set[str]:
        """The groups between two epochs that get no orders yet, because others are behind.

        In lockstep all groups end an epoch at nearly the same time, and get orders together.
        Otherwise the first would begin another epoch just before the last one ends the round.
        """
        if not self._grants.is_lockstep:
            return set()
        waiting = {group.name: group.next_epoch for group in self if group.phase is Phase.WAITING}
        ahead = max(waiting.values(), default=0)
        are_behind = any(
            group.next_epoch < ahead
            for group in self
            if group.name not in waiting and group.phase not in (Phase.STOPPING, Phase.FAILED)
        )
        if are_behind:
            return set(waiting)
        return set()

    def running_members(self, leaving: Collection[str]) -> tuple[Member, ...]:
        """Return the groups that a policy can count on.

        Args:
            leaving: networks whose groups stop, whatever the plan.
        """
        return tuple(
            group.member
            for group in self
            if group.phase is not Phase.FAILED and group.name not in leaving
        )

    def plan_moves(
        self, held_back: Collection[str], leaving: Collection[str], alone: Collection[str]
    ) -> tuple[Move, ...]:
        """Return the moves towards the plan; see :func:`scheduler.ensemble.moves.moves`.

        Args:
            held_back: networks whose groups get no orders yet.
            leaving: networks whose groups stop, whatever the plan.
            alone: networks that share no GPU with others.
        """
        if not self._off_plan:
            return ()
        # Busy groups cannot move.
        names = {
            name
            for name in self._off_plan
            if (group := self._groups.get(name)) is None or not group.is_busy
        }
        groups = sorted(
            (self._groups[name] for name in names & self.names), key=lambda group: group.number
        )
        grows_inside = self._grants.changes_inside
        # A rank that may die could do so while it leaves, and new ranks would wait for it.
        holdings = {
            group.name: group.holding(
                can_change=not self._outlives,
                grows_inside=grows_inside,
                is_answered=group.name not in held_back,
                is_node_release=group.name in leaving,
            )
            for group in groups
        }
        members = sorted(self._members[name] for name in names & self._members.keys())
        possible = plan_moves(
            holdings, Round(tuple(member for _, member in members)), self._devices.free
        )
        if alone:
            return tuple(move for move in possible if self._is_clear(move, alone))
        return possible

    def _is_clear(self, move: Move, alone: Collection[str]) -> bool:
        """Return True if the move puts no exclusive network on a shared GPU.

        A plan that gives it a GPU makes others leave that GPU, but only at the end of their epochs.
        """
        if isinstance(move, Stop):
            return True
        group = self.get(move.name)
        current = set() if group is None else {*group.devices, *group.recruits}
        new = {self.cluster.gpu(device) for device in set(move.devices) - current}
        if move.name in alone:
            blocked = self._devices.busy()
        else:
            blocked = {
                device
                for exclusive in self
                if exclusive.name in alone
                for device in (*exclusive.devices, *exclusive.recruits)
            }
        return new.isdisjoint(self.cluster.gpu(device) for device in blocked - current)

    # ---- helpers ----

    def _batch(self, network: NetworkSpec, devices: Sequence[int], epoch: int) -> int | None:
        """Return the batch of an epoch that a network begins on some devices."""
        _, member = self._members.get(network.name, (0, None))
        if member is None:
            chosen = None
        else:
            chosen = member.batch_on(len(devices), network.train.batch.bounds[0])
        return self._grants.batch(epoch, chosen)

    def _send(self, devices: Sequence[int], message: m.Message) -> None:
        self._outbox.send(self._ranks(devices), m.Tag.TRAINER, message)

    def _ranks(self, devices: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._roles.rank_of[device] for device in devices)

    def _next_number(self) -> int:
        self._number += 1
        return self._number


def _close_together(devices: Sequence[int], count: int, gpus_per_node: int) -> tuple[int, ...]:
    """Return ``count`` of the devices, on as few nodes as possible.

    >>> _close_together([1, 4, 5, 6], 2, gpus_per_node=4)
    (4, 5)
    """
    runs = [tuple(devices[start : start + count]) for start in range(len(devices) - count + 1)]
    return min(runs, key=lambda run: len({device // gpus_per_node for device in run}))
