"""All training groups of a launch: their devices, and the orders that they are given (pure).

Every device is in one place: idle, in a group, recruited by one, measuring, or on its way back from there, which ends
when its trainer says that it waits for work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fleet.comm import messages as m
from fleet.comm.roles import Roles
from fleet.domain.events import RanksReady
from fleet.ensemble.effects import Outbox, RanksDied
from fleet.ensemble.group import Group, Phase
from fleet.ensemble.history import Impossible
from fleet.ensemble.production import Production
from fleet.ensemble.survey import Task
from fleet.spec import NetworkSpec
from scheduler.base import Member, Round
from scheduler.ensemble.moves import Move, Stop, moves


class Groups:
    """The groups, by the names of their networks.

    Args:
        outlives: whether ranks may die and the others go on.
        production: of the stream that they read.
        outbox: takes what is to be done.

    Attributes:
        wanted: what the policy wants to run, with the batches of the epochs that groups begin.
        lost: ranks that have died, are given up, or have been let go.
        deaf: those of them that are given up: they do not listen.
    """

    def __init__(self, roles: Roles, outlives: bool, production: Production, outbox: Outbox) -> None:
        self._roles, self._outlives, self._production, self._outbox = roles, outlives, production, outbox
        self.cluster = roles.cluster  # the devices that are alive
        self.wanted = Round()
        self.lost: set[int] = set()
        self.deaf: set[int] = set()
        self._arrived: set[int] = set()  # devices whose trainers have said that they are there
        self._are_awaited = True  # until all have
        self._vacated: set[int] = set()  # devices that take no work any more, though they are alive
        self._idle: set[int] = set()
        self._groups: dict[str, Group] = {}
        self._measuring: dict[tuple[int, ...], Task] = {}
        self._number = 0  # of the latest group of ranks

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, name: str) -> Group:
        return self._groups[name]

    def get(self, name: str) -> Group | None:
        """The group of a network, if there is one."""
        return self._groups.get(name)

    # ---- devices ----

    @property
    def free(self) -> frozenset[int]:
        """The devices that can be given work; one of a group may be idle before the group is known to be no more."""
        return frozenset(self._idle - self._taken() - self._vacated)

    @property
    def free_whole(self) -> frozenset[int]:
        """Free devices of which no two share a GPU: one slot of each GPU that nobody uses."""
        busy = {self.cluster.gpu(device) for device in self.cluster.devices if device not in self.free}
        slots = {self.cluster.gpu(device): device for device in sorted(self.free, reverse=True)}
        return frozenset(device for gpu, device in slots.items() if self.cluster.slots == 1 or gpu not in busy)

    @property
    def returning(self) -> set[int]:
        """The devices of no group whose trainers have not said yet that they wait for work."""
        measuring = {device for devices in self._measuring for device in devices}
        return self._alive - self._idle - self._taken() - measuring

    @property
    def names(self) -> frozenset[str]:
        """The networks that have a group."""
        return frozenset(self._groups)

    @property
    def are_all_idle(self) -> bool:
        """Whether every trainer waits for work."""
        return not self._groups and self._idle >= self._alive

    @property
    def _alive(self) -> set[int]:
        return {*self.cluster.devices, *self._vacated}

    def _taken(self) -> set[int]:
        return {device for group in self for device in (*group.devices, *group.recruits)}

    def ready(self, ready: m.Ready) -> None:
        """A trainer waits for work.

        Raises:
            Impossible: it is none, or has waited all the time.
        """
        device = self._roles.device_of.get(ready.rank)
        if device is not None:
            self._arrived.add(device)
        self.see_who_is_there()
        if ready.rank in self.lost:
            return  # its last word
        if device is None or device in self._idle:
            raise Impossible(f"rank {ready.rank} has nothing to do, and yet there is {ready}")
        self._idle.add(device)

    def see_who_is_there(self) -> None:
        """Tell when all trainers that are alive have come."""
        if self._are_awaited and self._arrived and self._arrived.issuperset(self.cluster.devices):
            self._are_awaited = False
            self._outbox.note(RanksReady())

    def built(self, built: m.Built) -> None:
        """A recruit has built the network, or all of a group have.

        Raises:
            Impossible: the rank builds nothing.
        """
        group, device = self.get(built.network), self._roles.device_of[built.rank]
        if group is not None and group.recruits.get(device) is False:
            group.recruits[device] = True
            return
        does = (group is not None and device in group.devices) or any(device in one for one in self._measuring)
        # Those that return may not know yet that they are no recruits any more.
        if not does and device not in self.returning and built.rank not in self.lost:
            raise Impossible(f"rank {built.rank} builds nothing, and yet there is {built}")

    def lose(self, rank: int, died: RanksDied) -> list[Task]:
        """A trainer has died; returns what it measured."""
        device = self._roles.device_of[rank]
        self._idle.discard(device)
        self._vacated.discard(device)
        self.cluster = self.cluster.without([device])
        for group in self:
            group.recruits.pop(device, None)
            if device in group.devices:
                group.advance(died)
        return [self._measuring.pop(devices) for devices in list(self._measuring) if device in devices]

    def give_up(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        """Devices that build a network do not answer, and never will; returns their ranks."""
        ranks = self._ranks(devices)
        self.lost.update(ranks)
        self.deaf.update(ranks)
        self.cluster = self.cluster.without(devices)
        self._vacated.difference_update(devices)
        for group in self:
            if set(devices) & set(group.devices):
                self.remove(group.name)
            for device in set(devices) & set(group.recruits):
                del group.recruits[device]
        self._measuring.pop(devices, None)
        return ranks

    def vacate(self, devices: Collection[int]) -> None:
        """Give some devices no more work, though their trainers live."""
        self._vacated |= self._alive.intersection(devices)
        self.cluster = self.cluster.without(list(devices))

    def have_let_go(self, devices: Collection[int]) -> bool:
        """Whether the trainers of some devices all wait for work, as far as they live."""
        return self._idle - self._taken() >= self._alive.intersection(devices)

    def let_go(self, ranks: Collection[int]) -> None:
        """Some ranks are about to end, and are not missed."""
        self.lost.update(ranks)

    # ---- measuring ----

    def measure(self, network: NetworkSpec, gpus: int, batches: tuple[int, ...]) -> tuple[int, ...]:
        """Have a network measured on some of the free devices, close together; returns which.

        Args:
            batches: with which, where the policy will choose them.
        """
        devices = _close_together(sorted(self.free_whole), gpus, self.cluster.gpus_per_node)
        self._idle -= set(devices)
        self._measuring[devices] = Task(network.name, gpus)
        ranks = self._ranks(devices)
        self._tell(devices, m.Measure(network, ranks, self._next_number(), batches))
        return devices

    def measured(self, measured: m.Measured) -> Task | None:
        """A measurement is over; returns which, or None where it was given up: one of its ranks has died.

        Raises:
            Impossible: there was none.
        """
        task = Task(measured.network, measured.gpus)
        for devices, other in self._measuring.items():
            if other == task:
                del self._measuring[devices]
                return task
        if self.lost:
            return None
        raise Impossible(f"nobody measures that, and yet there is {measured}")

    # ---- orders ----

    def start(self, network: NetworkSpec, devices: tuple[int, ...], epoch: int) -> None:
        """Train a network on free devices.

        Args:
            epoch: the number of the first one that it may train on.
        """
        self._idle -= set(devices)
        self._groups[network.name] = Group(network, devices, epoch, dict.fromkeys(devices, epoch), joins=epoch)
        ranks = self._ranks(devices)
        self._tell(devices, m.Start(network, ranks, self._next_number(), self._production.stream_epoch(epoch),
                                    batch=self._batch(network, devices, epoch)))

    def recruit(self, group: Group, devices: Sequence[int]) -> None:
        """Have free devices build the network, so that they can join its group."""
        for device in devices:
            self._idle.remove(device)
            group.recruits[device] = False
            self._tell([device], m.Join(group.network, self._next_number()))

    def dismiss(self, group: Group, devices: Sequence[int]) -> None:
        """Let devices go that were to join a group."""
        for device in devices:
            del group.recruits[device]
        self._tell(devices, m.Stop(final=False))

    def pause(self, group: Group, ends: bool) -> None:
        """Have a group stand still as soon as it can.

        Args:
            ends: whether the launch does.
        """
        self._order(group, m.Pause(ends))

    def go_on(self, group: Group) -> None:
        """Have a group that stands still train on."""
        self._order(group, m.GoOn(self._production.stream_epoch(group.next_epoch),
                                  self._batch(group.network, group.devices, group.next_epoch)))

    def regroup(self, group: Group, devices: tuple[int, ...]) -> None:
        """Have a group that stands still go on with these devices, its own first."""
        stay = tuple(device for device in devices if device in group.devices)
        fresh = self._production.fresh if self._production.is_in_step else 0
        order = m.Regroup(self._ranks(devices), len(stay), self._next_number(),
                          self._production.stream_epoch(group.next_epoch), reads_from=fresh,
                          batch=self._batch(group.network, devices, group.next_epoch))
        self._order(group, order)
        reads_from = {device: group.reads_from[device] for device in stay}
        for device in devices[len(stay):]:
            reads_from[device] = self._first_read(device, group, stay, fresh)
            self._tell([device], order._replace(reads_from=reads_from[device]))
            del group.recruits[device]
        group.before, group.devices, group.reads_from = group.devices, devices, reads_from
        group.joins = fresh if len(devices) > len(stay) else None

    def _first_read(self, device: int, group: Group, stay: Sequence[int], fresh: int) -> int:
        """The epoch from which on a newcomer reads the stream."""
        if not self._production.is_in_step:
            return 0
        # What those that stay will read next is protected on their nodes.
        node = self.cluster.node(device)
        held = [group.reads_from[mate] for mate in stay if self.cluster.node(mate) == node]
        return max(group.reads_next, min(held, default=fresh))

    def stop(self, group: Group, is_final: bool, saves: bool = True) -> None:
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
        self.dismiss(group, tuple(group.recruits))

    def _order(self, group: Group, order: m.Pause | m.GoOn | m.Regroup | m.Stop) -> None:
        """Tell a group's master, and go over to the phase that follows."""
        group.advance(order)
        self._tell(group.devices[:1], order)

    # ---- what there is to know of them ----

    @property
    def joining(self) -> list[int]:
        """The epochs from which on ranks will read the stream that have not told it so yet."""
        return [group.joins for group in self if group.joins is not None and group.phase is not Phase.STRUCK]

    @property
    def struck(self) -> list[Group]:
        """The groups that have lost a rank, and whose other ranks have all let go."""
        return [group for group in self if group.phase is Phase.STRUCK
                and self._idle.issuperset(self._alive.intersection(group.devices))]

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
            group.next_epoch < ahead for group in self
            if group.name not in waiting and group.phase not in (Phase.STOPPING, Phase.STRUCK))
        return set(waiting) if are_behind else set()

    def running(self, leaving: Collection[str]) -> tuple[Member, ...]:
        """The groups that a policy can count on.

        Args:
            leaving: those that stop, whatever the policy says.
        """
        return tuple(group.member for group in self if group.phase is not Phase.STRUCK and group.name not in leaving)

    def moves(self, held_back: Collection[str], leaving: Collection[str], alone: Collection[str]) -> tuple[Move, ...]:
        """The moves that bring groups nearer to what is wanted; see :func:`scheduler.ensemble.moves.moves`.

        Args:
            held_back: the groups that get no orders yet.
            leaving: those that stop, whatever the policy says.
            alone: the networks that share no GPU with others.
        """
        devices = {member.name: member.devices for member in self.wanted.members}
        as_wanted = {group.name for group in self if not group.recruits and group.devices == devices.get(group.name)}
        # Where ranks may die, one could while it leaves, and those that are new would wait for the others.
        apart = {group.name: group.holding(can_change=not self._outlives,
                                           grows_inside=self._production.changes_inside,
                                           is_answered=group.name not in held_back,
                                           is_leaving=group.name in leaving)
                 for group in self if group.name not in as_wanted}
        others = tuple(member for member in self.wanted.members if member.name not in as_wanted)
        found = moves(apart, Round(others), self.free)
        return tuple(move for move in found if self._is_clear(move, alone)) if alone else found

    def _is_clear(self, move: Move, alone: Collection[str]) -> bool:
        """Whether no network that needs GPUs of its own comes to share one by a move: it may end at once beside others.

        A plan that gives it a GPU has others leave that, but they do so at the end of their epochs.
        """
        if isinstance(move, Stop):
            return True
        group = self.get(move.name)
        own = set() if group is None else {*group.devices, *group.recruits}
        new = {self.cluster.gpu(device) for device in set(move.devices) - own}
        others = (self._alive - self._idle) | self._taken() if move.name in alone else {
            device for other in self if other.name in alone for device in (*other.devices, *other.recruits)}
        return new.isdisjoint(self.cluster.gpu(device) for device in others - own)

    # ---- small things ----

    def _batch(self, network: NetworkSpec, devices: Sequence[int], epoch: int) -> int | None:
        """The batch of an epoch that a network begins on some devices."""
        wanted = next((member for member in self.wanted.members if member.name == network.name), None)
        chosen = None if wanted is None else wanted.batch_on(len(devices), network.train.batch.bounds[0])
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
    runs = [tuple(devices[start:start + count]) for start in range(len(devices) - count + 1)]
    return min(runs, key=lambda run: len({device // gpus_per_node for device in run}))
