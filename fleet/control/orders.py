"""Orders to trainers: what groups train, on which devices, and when they pause or stop (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.comm import messages as m
from fleet.control.devices import DevicePool
from fleet.control.effects import Outbox
from fleet.control.group import TrainingGroup
from fleet.control.groups import Groups
from fleet.control.measurement import MeasurementTask
from fleet.control.plan_target import PlanTarget
from fleet.control.stream_grants import StreamGrants
from fleet.spec import NetworkSpec


class Orders:
    """The orders of a launch.

    Args:
        devices: the devices of the launch.
        groups: the groups of the launch.
        target: the plan of the policy.
        grants: grants of the stream that groups read.
        outbox: collects effects.
    """

    def __init__(
        self,
        devices: DevicePool,
        groups: Groups,
        target: PlanTarget,
        grants: StreamGrants,
        outbox: Outbox,
    ) -> None:
        self._devices = devices
        self._groups = groups
        self._target = target
        self._grants = grants
        self._outbox = outbox
        self._number = 0  # of the latest group of ranks

    def measure(
        self, network: NetworkSpec, task: MeasurementTask, batches: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Measure a network on free devices that are close together; return these devices.

        Args:
            network: the network.
            task: its measurement.
            batches: global batches to measure, if the policy chooses the batch.
        """
        devices = _close_together(
            sorted(self._devices.free_whole), task.gpus, self._devices.cluster.gpus_per_node
        )
        self._devices.start_measuring(devices, task)
        ranks = self._devices.ranks(devices)
        self._send(devices, m.Measure(network, ranks, self._next_number(), batches))
        return devices

    # ---- orders to groups ----

    def start(self, network: NetworkSpec, devices: tuple[int, ...], epoch: int) -> None:
        """Train a network on free devices.

        Args:
            network: the network.
            devices: the master's first.
            epoch: number of the first epoch that it may train on.
        """
        number = self._next_number()
        self._groups.add(
            TrainingGroup(
                network,
                devices,
                epoch,
                dict.fromkeys(devices, epoch),
                number=number,
                last_message_s=self._outbox.now_s,
            )
        )
        order = m.Start(
            network,
            self._devices.ranks(devices),
            number,
            self._grants.stream_epoch(epoch),
            batch=self._batch(network, devices, epoch),
        )
        self._send(devices, order)

    def recruit(self, group: TrainingGroup, devices: Sequence[int]) -> None:
        """Let free devices build the network, so that they can join its group."""
        self._groups.add_recruits(group, devices)
        for device in devices:
            self._send([device], m.Join(group.network, self._next_number()))

    def dismiss(self, group: TrainingGroup, devices: Sequence[int]) -> None:
        """Dismiss recruits of a group."""
        self._groups.drop_recruits(group, devices)
        self._send(devices, m.Stop(final=False))

    def disband(self, group: TrainingGroup) -> None:
        """Remove a group that has ended, and dismiss its recruits."""
        self.dismiss(group, tuple(group.recruits))
        self._groups.remove(group.name)

    def pause(self, group: TrainingGroup, run_ends: bool) -> None:
        """Pause a group as soon as possible.

        Args:
            group: the group.
            run_ends: whether the launch is about to end.
        """
        self._order(group, m.Pause(run_ends))

    def resume(self, group: TrainingGroup) -> None:
        """Let a waiting group continue to train."""
        order = m.Continue(
            self._grants.stream_epoch(group.next_epoch),
            self._batch(group.network, group.devices, group.next_epoch),
        )
        self._order(group, order)

    def regroup(self, group: TrainingGroup, devices: tuple[int, ...]) -> None:
        """Let a waiting group continue with these devices, listed with the current ones first."""
        stay = tuple(device for device in devices if device in group.devices)
        fresh = self._grants.first_ungranted if self._grants.is_in_step else 0
        order = m.Regroup(
            self._devices.ranks(devices),
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
        self._groups.set_devices(group, reads_stream_from)
        if len(devices) > len(stay):
            self._groups.joining[group.name] = fresh
        else:
            self._groups.joining.pop(group.name, None)

    def stop(self, group: TrainingGroup, is_final: bool, saves: bool = True) -> None:
        """Let a waiting group save and stop, and dismiss its recruits.

        Args:
            group: the group.
            is_final: whether there is nothing left to train.
            saves: whether it saves; otherwise it gives up its training since its last checkpoint.
        """
        self.dismiss(group, tuple(group.recruits))
        self._order(group, m.Stop(is_final, saves))

    # ---- helpers ----

    def _order(
        self, group: TrainingGroup, order: m.Pause | m.Continue | m.Regroup | m.Stop
    ) -> None:
        """Send an order to a group's master, and advance to the phase that follows."""
        self._groups.advance(group, order)
        self._send(group.devices[:1], order)

    def _first_read(
        self, device: int, group: TrainingGroup, stay: Sequence[int], fresh: int
    ) -> int:
        """Return the first epoch that a new device reads from the stream."""
        if not self._grants.is_in_step:
            return 0
        # The next reads of ranks that stay are protected on their nodes.
        node = self._devices.cluster.node
        epochs = [group.reads_stream_from[mate] for mate in stay if node(mate) == node(device)]
        return max(group.next_read_epoch, min(epochs, default=fresh))

    def _batch(self, network: NetworkSpec, devices: Sequence[int], epoch: int) -> int | None:
        """Return the batch of an epoch that a network begins on some devices."""
        return self._grants.batch(epoch, self._target.batch(network, len(devices)))

    def _send(self, devices: Sequence[int], message: m.Message) -> None:
        self._outbox.send(self._devices.ranks(devices), m.Tag.TRAINER, message)

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
