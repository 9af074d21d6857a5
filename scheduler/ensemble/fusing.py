"""Give networks that a process can train as one the slots of one process.

Some consecutive slots of a GPU belong to one process (:attr:`scheduler.base.Cluster.fused`), which
trains equal networks as one program. Others would only take turns there. So each process is for
networks of one kind (:attr:`scheduler.base.Progress.fuse_keys`): that of the networks that train
there, or else the kind of which most wait. A network without a kind has a process of its own.
Policies know nothing of this: kinds without a process appear as finished to them, and their answer
is moved to slots of the right processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from scheduler.base import Cluster, Member, Progress, RateTable

# GPU, and number of the process on it.
Process: TypeAlias = tuple[int, int]


def process_of(cluster: Cluster, device: int) -> Process:
    """Return the process of a slot.

    >>> cluster = Cluster((0, 1, 2, 3), 4, slots=4, fused=2)
    >>> [process_of(cluster, device) for device in cluster.devices]
    [(0, 0), (0, 0), (0, 1), (0, 1)]
    """
    gpus = cluster.gpus_per_node // cluster.slots
    slot = device % cluster.gpus_per_node // gpus
    return cluster.gpu(device), slot // cluster.fused


@dataclass
class ProcessPlan:
    """The kind of networks that each process trains.

    Args:
        rates: has all networks, in order.
        progress: which of them run, and which have finished.
        cluster: the cluster with all slots.
        count: number of networks that should share a GPU.
    """

    rates: RateTable
    progress: Progress
    cluster: Cluster
    count: int
    _kinds: dict[Process, str] = field(init=False)

    def __post_init__(self) -> None:
        self._kinds = {}
        running = [
            member
            for member in (*self.progress.running, *self.progress.target.members)
            if member.name not in self.progress.finished
        ]
        for member in running:
            for device in member.devices:
                process = process_of(self.cluster, device)
                self._kinds.setdefault(process, self._kind(member.name))
        placed = Counter(self._kinds.values())
        waiting = Counter(self._kind(name) for name in self.unfinished)
        for process in dict.fromkeys(
            process_of(self.cluster, device) for device in self.cluster.devices
        ):
            if process in self._kinds or not waiting:
                continue
            kind = max(waiting, key=lambda kind: waiting[kind] / (1 + placed[kind]))
            if waiting[kind] <= placed[kind] * self._width:
                continue
            self._kinds[process] = kind
            placed[kind] += 1

    @property
    def unfinished(self) -> list[str]:
        """The networks that have not finished, in order."""
        return [
            network.name
            for network in self.rates.models
            if network.name not in self.progress.finished
        ]

    @property
    def _width(self) -> int:
        return min(self.cluster.fused, self.count)

    def _kind(self, name: str) -> str:
        """Return the kind of a network; without one, its own name."""
        return self.progress.fuse_keys.get(name) or f"alone {name}"

    @property
    def waiting(self) -> frozenset[str]:
        """The networks of kinds without a process."""
        kinds = set(self._kinds.values())
        return frozenset(name for name in self.unfinished if self._kind(name) not in kinds)

    def assign(self, members: Sequence[Member], extra: Collection[str]) -> tuple[Member, ...]:
        """Move groups to slots of their kind; those without one have to wait.

        Args:
            members: groups; those of several devices keep them.
            extra: networks that get slots that remain, in this order.
        """
        busy: set[int] = set()
        used: Counter[int] = Counter()  # GPU -> its networks
        result: dict[str, Member] = {}
        new: list[Member] = []
        current = {
            member.name: member.devices
            for member in (*self.progress.target.members, *self.progress.running)
        }
        alone = {kind for kind in self._kinds.values() if kind.startswith("alone ")}
        for member in members:
            if len(member.devices) > 1:
                result[member.name] = member
                busy.update(member.devices)
                used.update(map(self.cluster.gpu, member.devices))
        for member in members:
            devices = current.get(member.name, ())
            if member.name in result:
                continue
            if len(devices) == 1 and self._fits(member.name, devices[0], busy):
                self._take(devices[0], busy, used)
                result[member.name] = replace(member, devices=devices)
            else:
                new.append(member)
        chosen = {member.name for member in members}
        new += [
            Member(name, ())
            for name in extra
            if name not in chosen and self._kind(name) not in alone
        ]
        for member in new:
            device = self._free_device(member.name, busy, used)
            if device is not None:
                self._take(device, busy, used)
                result[member.name] = replace(member, devices=(device,))
        return tuple(result.values())

    def _take(self, device: int, busy: set[int], used: Counter[int]) -> None:
        busy.add(device)
        used[self.cluster.gpu(device)] += 1

    def _fits(self, name: str, device: int, busy: Collection[int]) -> bool:
        process = process_of(self.cluster, device)
        if device in busy or device not in self.cluster.devices:
            return False
        return self._kinds.get(process) == self._kind(name)

    def _free_device(self, name: str, busy: Collection[int], used: Counter[int]) -> int | None:
        """Return a slot for a network: where fewest networks train."""
        able = [
            device
            for device in self.cluster.devices
            if self._fits(name, device, busy) and used[self.cluster.gpu(device)] < self.count
        ]
        if not able:
            return None
        return min(able, key=lambda device: (used[self.cluster.gpu(device)], device))
