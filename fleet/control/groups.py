"""All training groups of a launch: their devices, and the orders that they are given (pure).

There may be thousands: which of them wait for orders, and which are not as the policy wants them, is kept from one
change to the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from fleet.comm import messages as m
from fleet.comm.roles import Roles
from fleet.control.devices import Devices
from fleet.control.effects import Outbox, RanksDied
from fleet.control.group import Phase, TrainingGroup, name_ranks
from fleet.control.history import InvalidTransition
from fleet.control.measurement import MeasurementTask
from fleet.control.stream_grants import Production
from fleet.domain.events import RanksReady
from fleet.spec import NetworkSpec
from scheduler.base import Member, Round
from scheduler.ensemble.moves import Move, Stop, plan_moves


class Groups:
    """The groups, by the names of their networks.

    Args:
        outlives: whether ranks may die and the others go on.
        production: of the stream that they read.
        outbox: takes what is to be done.

    Attributes:
        cluster: the devices that can be used.
        lost: ranks that have died, are given up, or have been let go.
        deaf: those of them that are given up: they do not listen.
    """

    def __init__(
        self, roles: Roles, outlives: bool, production: Production, outbox: Outbox
    ) -> None:
        self._roles = roles
        self._outlives = outlives
        self._production = production
        self._outbox = outbox
        self.cluster = roles.cluster
        self.lost: set[int] = set()
        self.deaf: set[int] = set()
        self._devices = Devices(self.cluster.devices)
        # whether any trainer has, and until all have
        self._has_come = False
        self._are_awaited = True
        self._groups: dict[str, TrainingGroup] = {}
        self._standing: dict[str, TrainingGroup] = {}  # those that wait for orders
        self._joining: dict[str, TrainingGroup] = {}
        self._measuring: dict[tuple[int, ...], MeasurementTask] = {}
        self._number = 0  # of the latest group of ranks
        self._wanted = Round()
        self._members = dict[str, tuple[int, Member]]()
        self._unlike: set[str] = set()  # networks whose groups are not as wanted

    def __iter__(self) -> Iterator[TrainingGroup]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, name: str) -> TrainingGroup:
        return self._groups[name]

    def get(self, name: str) -> TrainingGroup | None:
        """The group of a network, if there is one."""
        return self._groups.get(name)

    @property
    def wanted(self) -> Round:
        """What the policy wants to run, with the batches of the epochs that groups begin."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: Round) -> None:
        before = self._members
        self._wanted = wanted
        self._members = {
            member.name: (place, member) for place, member in enumerate(wanted.members)
        }
        for name in (*before, *self._members):
            self._compare(name)

    def _compare(self, name: str) -> None:
        """Find out anew whether the group of a network is as wanted."""
        group = self._groups.get(name)
        member = self._members.get(name)
        is_as_wanted = group is member is None or (
            group is not None
            and member is not None
            and not group.recruits
            and group.devices == member[1].devices
        )
        (self._unlike.discard if is_as_wanted else self._unlike.add)(name)

    def advance(self, group: TrainingGroup, step: Any) -> None:
        """Have a group go over to the phase that follows; see :meth:`fleet.control.group.TrainingGroup.advance`."""
        group.advance(step)
        if group.stands_still:
            self._standing[group.name] = group
        else:
            self._standing.pop(group.name, None)

    # ---- devices ----

    @property
    def free_whole(self) -> frozenset[int]:
        """Free devices of which no two share a GPU: one slot of each GPU that nobody uses."""
        free = self._devices.free
        if self.cluster.slots == 1:
            return frozenset(free)
        busy = {self.cluster.gpu(device) for device in self.cluster.devices if device not in free}
        slots = {self.cluster.gpu(device): device for device in sorted(free, reverse=True)}
        return frozenset(device for gpu, device in slots.items() if gpu not in busy)

    @property
    def are_returning(self) -> bool:
        """Whether devices are in no group whose trainers have not said yet that they wait for work."""
        return bool(self._devices.returning)

    @property
    def names(self) -> AbstractSet[str]:
        """The networks that have a group; a view."""
        return self._groups.keys()

    @property
    def are_all_idle(self) -> bool:
        """Whether every trainer waits for work."""
        return not self._groups and self._devices.idle >= self._devices.alive

    def ready(self, ready: m.Ready) -> None:
        """A trainer waits for work.

        Raises:
            InvalidTransition: it is none, or has waited all the time.
        """
        device = self._roles.device_of.get(ready.rank)
        if device is not None:
            self._has_come = True
            self._devices.absent.discard(device)
        self.see_who_is_there()
        if ready.rank in self.lost:
            return  # its last word
        if device is None or device in self._devices.idle:
            raise InvalidTransition(
                f"rank {ready.rank} has nothing to do, and yet there is {ready}"
            )
        self._devices.rest(device)

    def see_who_is_there(self) -> None:
        """Tell when all trainers that are alive have come."""
        if self._are_awaited and self._has_come and not self._devices.absent:
            self._are_awaited = False
            self._outbox.note(RanksReady())

    def built(self, built: m.Built) -> None:
        """A recruit has built the network, or all of a group have.

        Raises:
            InvalidTransition: the rank builds nothing.
        """
        group = self.get(built.network)
        device = self._roles.device_of[built.rank]
        if group is not None and group.recruits.get(device) is False:
            group.recruits[device] = True
            return
        does = (group is not None and device in group.devices) or device in self._devices.measuring
        # Those that return may not know yet that they are no recruits any more.
        if not does and device not in self._devices.returning and built.rank not in self.lost:
            raise InvalidTransition(f"rank {built.rank} builds nothing, and yet there is {built}")

    def lose(self, rank: int, died: RanksDied) -> list[MeasurementTask]:
        """A trainer has died; returns what it measured."""
        device = self._roles.device_of[rank]
        self._devices.lose([device])
        self.cluster = self.cluster.without([device])
        for group in self:
            self._drop(group, [device])
            if device in group.devices:
                self.advance(group, died)
        stopped = [devices for devices in self._measuring if device in devices]
        for devices in stopped:
            self._devices.have_measured(devices)
        return [self._measuring.pop(devices) for devices in stopped]

    def _drop(self, group: TrainingGroup, devices: Collection[int]) -> None:
        """Some devices will not join a group."""
        for device in group.recruits.keys() & set(devices):
            del group.recruits[device]
            self._devices.leave([device])
        self._compare(group.name)

    def give_up(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        """Devices that build a network do not answer, and never will; returns their ranks."""
        ranks = self._ranks(devices)
        self.lost.update(ranks)
        self.deaf.update(ranks)
        self.cluster = self.cluster.without(devices)
        self._devices.lose(devices)
        for group in self:
            if set(devices) & set(group.devices):
                self.remove(group.name)
            else:
                self._drop(group, devices)
        if self._measuring.pop(devices, None) is not None:
            self._devices.have_measured(devices)
        return ranks

    def vacate(self, devices: Collection[int]) -> None:
        """Give some devices no more work, though their trainers live."""
        self._devices.vacate(devices)
        self.cluster = self.cluster.without(list(devices))

    def have_let_go(self, devices: Collection[int]) -> bool:
        """Whether the trainers of some devices all wait for work, as far as they live."""
        return self._devices.have_let_go(devices)

    # ---- measuring ----

    def measure(self, network: NetworkSpec, gpus: int, batches: tuple[int, ...]) -> tuple[int, ...]:
        """Have a network measured on some of the free devices, close together; returns which.

        Args:
            batches: with which, where the policy will choose them.
        """
        devices = _close_together(sorted(self.free_whole), gpus, self.cluster.gpus_per_node)
        self._devices.measure(devices)
        self._measuring[devices] = MeasurementTask(network.name, gpus)
        ranks = self._ranks(devices)
        self._tell(devices, m.Measure(network, ranks, self._next_number(), batches))
        return devices

    def measured(self, measured: m.Measured) -> MeasurementTask | None:
        """A measurement is over; returns which, or None where it was given up: one of its ranks has died.

        Raises:
            InvalidTransition: there was none.
        """
        task = MeasurementTask(measured.network, measured.gpus)
        for devices, other in self._measuring.items():
            if other == task:
                del self._measuring[devices]
                self._devices.have_measured(devices)
                return task
        if self.lost:
            return None
        raise InvalidTransition(f"nobody measures that, and yet there is {measured}")

    # ---- orders ----

    def start(self, network: NetworkSpec, devices: tuple[int, ...], epoch: int) -> None:
        """Train a network on free devices.

        Args:
            epoch: the number of the first one that it may train on.
        """
        ranks = self._ranks(devices)
        number = self._next_number()
        group = TrainingGroup(
            network,
            devices,
            epoch,
            dict.fromkeys(devices, epoch),
            joins=epoch,
            number=number,
            heard_s=self._outbox.now_s,
        )
        self._devices.take(devices)
        self._groups[group.name] = self._joining[group.name] = group
        self._compare(group.name)
        self._tell(
            devices,
            m.Start(
                network,
                ranks,
                number,
                self._production.stream_epoch(epoch),
                batch=self._batch(network, devices, epoch),
            ),
        )

    def recruit(self, group: TrainingGroup, devices: Sequence[int]) -> None:
        """Have free devices build the network, so that they can join its group."""
        self._devices.take(devices)
        for device in devices:
            group.recruits[device] = False
            self._tell([device], m.Join(group.network, self._next_number()))
        self._compare(group.name)

    def dismiss(self, group: TrainingGroup, devices: Sequence[int]) -> None:
        """Let devices go that were to join a group."""
        self._drop(group, devices)
        self._tell(devices, m.Stop(final=False))

    def pause(self, group: TrainingGroup, run_ends: bool) -> None:
        """Have a group stand still as soon as it can.

        Args:
            ends: whether the launch does.
        """
        self._order(group, m.Pause(run_ends))

    def go_on(self, group: TrainingGroup) -> None:
        """Have a group that stands still train on."""
        self._order(
            group,
            m.Continue(
                self._production.stream_epoch(group.next_epoch),
                self._batch(group.network, group.devices, group.next_epoch),
            ),
        )

    def regroup(self, group: TrainingGroup, devices: tuple[int, ...]) -> None:
        """Have a group that stands still go on with these devices, its own first."""
        stay = tuple(device for device in devices if device in group.devices)
        fresh = self._production.fresh if self._production.is_in_step else 0
        order = m.Regroup(
            self._ranks(devices),
            len(stay),
            self._next_number(),
            self._production.stream_epoch(group.next_epoch),
            reads_stream_from=fresh,
            batch=self._batch(group.network, devices, group.next_epoch),
        )
        self._order(group, order)
        reads_stream_from = {device: group.reads_stream_from[device] for device in stay}
        for device in devices[len(stay) :]:
            reads_stream_from[device] = self._first_read(device, group, stay, fresh)
            self._tell([device], order._replace(reads_stream_from=reads_stream_from[device]))
            del group.recruits[device]
        group.before = group.devices
        group.devices = devices
        group.reads_stream_from = reads_stream_from
        group.joins = fresh if len(devices) > len(stay) else None
        self._joining[group.name] = group
        self._devices.leave([device for device in group.before if device not in devices])
        self._compare(group.name)

    def have_met(self, group: TrainingGroup) -> None:
        """The ranks of a group have told the stream from which epoch on they read."""
        group.joins = None
        self._joining.pop(group.name, None)

    def _first_read(
        self, device: int, group: TrainingGroup, stay: Sequence[int], fresh: int
    ) -> int:
        """The epoch from which on a newcomer reads the stream."""
        if not self._production.is_in_step:
            return 0
        # What those that stay will read next is protected on their nodes.
        node = self.cluster.node(device)
        held = [group.reads_stream_from[mate] for mate in stay if self.cluster.node(mate) == node]
        return max(group.reads_next, min(held, default=fresh))

    def stop(self, group: TrainingGroup, is_final: bool, saves: bool = True) -> None:
        """Have a group that stands still save and let go, and its recruits as well.

        Args:
            is_final: whether there is nothing left to train.
            saves: otherwise it gives up what it has trained since its last checkpoint.
        """
        self.dismiss(group, tuple(group.recruits))
        self._order(group, m.Stop(is_final, saves))

    def remove(self, name: str) -> None:
        """A group is no more; its recruits are let go."""
        group = self._groups.pop(name)
        self._standing.pop(name, None)
        self._joining.pop(name, None)
        self.dismiss(group, tuple(group.recruits))
        self._devices.leave(group.devices)

    def _order(
        self, group: TrainingGroup, order: m.Pause | m.Continue | m.Regroup | m.Stop
    ) -> None:
        """Tell a group's master, and go over to the phase that follows."""
        self.advance(group, order)
        self._tell(group.devices[:1], order)

    # ---- what there is to know of them ----

    @property
    def standing(self) -> list[TrainingGroup]:
        """The groups that wait for orders, in the order in which they were started."""
        return sorted(self._standing.values(), key=lambda group: group.number)

    @property
    def are_stopping(self) -> bool:
        """Whether all groups have been told to let go."""
        return all(group.phase is Phase.STOPPING for group in self._groups.values())

    @property
    def joining(self) -> Iterator[int]:
        """The epochs from which on ranks will read the stream that have not told it so yet."""
        return (
            group.joins
            for group in self._joining.values()
            if group.joins is not None and group.phase is not Phase.STRUCK
        )

    @property
    def struck(self) -> list[TrainingGroup]:
        """The groups that have lost a rank, and whose other ranks have all let go."""
        if not self.lost:
            return []
        idle = self._devices.idle
        alive = self._devices.alive
        return [
            group
            for group in self
            if group.phase is Phase.STRUCK and idle >= alive.intersection(group.devices)
        ]

    def how_died(self, group: TrainingGroup) -> str:
        """Which ranks of a group have died, in words; nothing where a whole node has, for that is no network's doing."""
        ranks = [rank for rank in self._ranks(group.devices) if rank in self.lost]
        node_of = self._roles.node_of
        nodes = {node_of[rank] for rank in ranks}
        has_whole_node = any(
            all(rank in self.lost for rank, node in enumerate(node_of) if node == gone)
            for gone in nodes
        )
        if not ranks or has_whole_node:
            return ""
        who = name_ranks(ranks)
        return f"{who} died"

    @property
    def held_back(self) -> set[str]:
        """The groups between two epochs that get no orders yet, because others have not come as far.

        In lockstep all end an epoch nearly together. They are answered together: the first would otherwise go on into
        another epoch when the last of them, a moment later, ends the round.
        """
        if not self._production.is_lockstep:
            return set()
        waiting = {group.name: group.next_epoch for group in self if group.phase is Phase.WAITING}
        ahead = max(waiting.values(), default=0)
        are_behind = any(
            group.next_epoch < ahead
            for group in self
            if group.name not in waiting and group.phase not in (Phase.STOPPING, Phase.STRUCK)
        )
        if are_behind:
            return set(waiting)
        return set()

    def running(self, leaving: Collection[str]) -> tuple[Member, ...]:
        """The groups that a policy can count on.

        Args:
            leaving: those that stop, whatever the policy says.
        """
        return tuple(
            group.member
            for group in self
            if group.phase is not Phase.STRUCK and group.name not in leaving
        )

    def moves(
        self, held_back: Collection[str], leaving: Collection[str], alone: Collection[str]
    ) -> tuple[Move, ...]:
        """The moves that bring groups nearer to what is wanted; see :func:`scheduler.ensemble.moves.plan_moves`.

        Args:
            held_back: the groups that get no orders yet.
            leaving: those that stop, whatever the policy says.
            alone: the networks that share no GPU with others.
        """
        if not self._unlike:
            return ()
        # Of those that are busy no move can be made.
        names = {
            name
            for name in self._unlike
            if (group := self._groups.get(name)) is None or not group.is_busy
        }
        groups = sorted(
            (self._groups[name] for name in names & self.names), key=lambda group: group.number
        )
        grows_inside = self._production.changes_inside
        # Where ranks may die, one could while it leaves, and those that are new would wait for the others.
        apart = {
            group.name: group.holding(
                can_change=not self._outlives,
                grows_inside=grows_inside,
                is_answered=group.name not in held_back,
                is_leaving=group.name in leaving,
            )
            for group in groups
        }
        others = sorted(self._members[name] for name in names & self._members.keys())
        found = plan_moves(apart, Round(tuple(member for _, member in others)), self._devices.free)
        if alone:
            return tuple(move for move in found if self._is_clear(move, alone))
        return found

    def _is_clear(self, move: Move, alone: Collection[str]) -> bool:
        """Whether no network that needs GPUs of its own comes to share one by a move: it may end at once beside others.

        A plan that gives it a GPU has others leave that, but they do so at the end of their epochs.
        """
        if isinstance(move, Stop):
            return True
        group = self.get(move.name)
        own = set() if group is None else {*group.devices, *group.recruits}
        new = {self.cluster.gpu(device) for device in set(move.devices) - own}
        if move.name in alone:
            others = self._devices.busy()
        else:
            others = {
                device
                for other in self
                if other.name in alone
                for device in (*other.devices, *other.recruits)
            }
        return new.isdisjoint(self.cluster.gpu(device) for device in others - own)

    # ---- small things ----

    def _batch(self, network: NetworkSpec, devices: Sequence[int], epoch: int) -> int | None:
        """The batch of an epoch that a network begins on some devices."""
        _, wanted = self._members.get(network.name, (0, None))
        if wanted is None:
            chosen = None
        else:
            chosen = wanted.batch_on(len(devices), network.train.batch.bounds[0])
        return self._production.batch(epoch, chosen)

    def _tell(self, devices: Sequence[int], message: m.Message) -> None:
        self._outbox.tell(self._ranks(devices), m.Tag.TRAINER, message)

    def _ranks(self, devices: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._roles.rank_of[device] for device in devices)

    def _next_number(self) -> int:
        self._number += 1
        return self._number


def _close_together(devices: Sequence[int], count: int, gpus_per_node: int) -> tuple[int, ...]:
    """Some of the devices, on as few nodes as can be.

    >>> _close_together([1, 4, 5, 6], 2, gpus_per_node=4)
    (4, 5)
    """
    runs = [tuple(devices[start : start + count]) for start in range(len(devices) - count + 1)]
    return min(runs, key=lambda run: len({device // gpus_per_node for device in run}))
