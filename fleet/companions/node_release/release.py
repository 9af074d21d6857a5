"""Release nodes while a launch goes on (pure).

A request names a number of nodes and a time. :meth:`PlannedRelease.offer` chooses the nodes, and
asks the eviction planner ([COSIM]) what each group on them does: save, or give up its training
since its last checkpoint if there is no time to save. :meth:`PlannedRelease.decide` stops these
groups at their next step. Their networks continue elsewhere, under a policy that no longer has
these nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.comm import messages as m
from fleet.control.effects import NodeOffer, NodesRequested
from fleet.control.group import Phase, TrainingGroup
from fleet.control.launch_state import LaunchState
from fleet.control.node_release import NodeRelease
from fleet.domain.events import CommandReceived, NodesReleased
from fleet.errors import UserError
from launch.errors import InputError, pluralize
from scheduler.eviction.plan import Action, RunningJob, groups_to_stop

# minimum loss of training: a group that has just saved should save again if there is time
_MIN_LOSS_S = 1e-3
LONGEST_S = 1e7  # longest time to release nodes
_WRITE_S = 5.0  # assumed duration of a checkpoint before one was measured


@dataclass(frozen=True)
class _Request:
    command: NodesRequested
    devices: frozenset[int]
    began_s: float


class PlannedRelease(NodeRelease):
    """The pending requests for nodes."""

    def __init__(self, launch: LaunchState) -> None:
        super().__init__(launch)
        self._config = launch.config
        self._devices = launch.devices
        self._groups = launch.groups
        self._orders = launch.orders
        self._networks = launch.networks
        self._outbox = launch.outbox
        self._requests: list[_Request] = []
        self._released_count = 0
        self._actions: dict[str, Action] = {}  # of leaving groups
        self._paused: set[str] = set()  # leaving groups that were asked to pause
        self._saved_s: dict[str, float] = {}  # network -> when its last checkpoint was written
        self._writes_s: dict[str, float] = {}  # network -> duration of its last checkpoint
        self._step_s: dict[str, float] = {}  # network -> duration of a step

    # ---- observations ----

    def record_save(self, network: str) -> None:
        """Record that all training of a network is on disk now."""
        self._saved_s[network] = self._outbox.now_s

    def record_pace(self, pace: m.Pace) -> None:
        """Record the step time of a group."""
        group = self._groups[pace.network]
        if pace.samples_per_s > 0:
            self._step_s[pace.network] = (
                group.network.largest_batch(len(group.devices)) / pace.samples_per_s
            )

    def record_stop(self, stopped: m.Stopped) -> None:
        """Record the duration of a group's last checkpoint."""
        self._writes_s[stopped.network] = stopped.checkpoint_s

    # ---- offers ----

    def choose(
        self, command: str, content: Mapping[str, Any], now_s: float
    ) -> tuple[CommandReceived, NodesRequested]:
        """Choose the nodes that a command requests; see :meth:`NodeRelease.choose`."""
        nodes, within_s = parse_request(content)
        offer = self.offer(nodes, within_s, now_s)
        options = {
            "nodes": list(offer.nodes),
            "hosts": list(offer.hosts),
            "within_s": content["within_s"],
            "ways": dict(offer.actions),
        }
        event = CommandReceived(command, "yield", tuple(offer.actions), options)
        return event, NodesRequested(command, offer)

    def offer(self, count: int, within_s: float, now_s: float) -> NodeOffer:
        """Choose the nodes whose release loses the least, one after another; change nothing.

        Args:
            count: number of nodes.
            within_s: seconds until they should be free.
            now_s: the time.

        Raises:
            UserError: the launch cannot release so many.
        """
        roles = self._config.roles
        cluster = self._devices.cluster
        first = roles.node_of[0]
        releasable = sorted(
            {cluster.node(device) for device in cluster.devices} - {first}, reverse=True
        )
        if not 1 <= count <= len(releasable):
            raise UserError(
                f"{pluralize(count, 'node')} cannot be released: this launch can release "
                f"{len(releasable)}, because the node of the coordinator stays to the end"
            )
        chosen: list[int] = []
        actions: Mapping[str, Action] = {}
        for _ in range(count):
            plans = {
                node: self._plan_actions((*chosen, node), within_s, now_s)
                for node in releasable
                if node not in chosen
            }
            node = min(plans, key=lambda node: self._cost(plans[node], now_s))
            chosen = [*chosen, node]
            actions = plans[node]
        self._check_remaining(chosen)
        return NodeOffer(tuple(chosen), tuple(map(self._host, chosen)), actions)

    def _check_remaining(self, nodes: Iterable[int]) -> None:
        """Check that the rest of the launch suffices for all remaining networks.

        Raises:
            UserError: it does not.
        """
        gpus = self._devices.cluster.without(self._devices_of(nodes)).gpus
        for name in self._networks.trainable:
            min_gpus = self._networks.specs[name].min_gpus
            if min_gpus > gpus:
                raise UserError(
                    f"{name} needs {pluralize(min_gpus, self._config.roles.unit)}, but only {gpus} "
                    "would be left"
                )
        if not gpus:
            raise UserError(f"no {self._config.roles.unit} would be left")

    def _plan_actions(
        self, nodes: Iterable[int], within_s: float, now_s: float
    ) -> Mapping[str, Action]:
        """Return what the groups on some nodes do to leave them in time."""
        jobs = [
            self._job(group, now_s)
            for group in self._groups
            if not self._devices_of(nodes).isdisjoint(group.devices)
        ]
        if not jobs:
            return {}
        try:
            return groups_to_stop(jobs, sum(job.nodes for job in jobs), within_s)
        except InputError as error:  # the request is refused; the run goes on
            raise UserError(str(error)) from None

    def _job(self, group: TrainingGroup, now_s: float) -> RunningJob:
        """Return a group in the form that the eviction planner uses."""
        name = group.name
        every = self._config.spec.checkpoint.every
        since_s = max(_MIN_LOSS_S, now_s - self._saved_s.get(name, now_s))
        loss = len(group.devices) * min(since_s, since_s if every is None else every)
        writes_s = self._writes_s.get(name, max(self._writes_s.values(), default=_WRITE_S))
        return RunningJob(
            name, len(group.devices), loss, app_time=self._step_s.get(name, 0.0) + writes_s
        )

    def _cost(self, actions: Mapping[str, Action], now_s: float) -> tuple[float, int]:
        """Return the loss of a plan in GPU-seconds, and the number of groups that it stops."""
        losses = (
            self._job(self._groups[name], now_s).loss
            for name, action in actions.items()
            if action == "kill"
        )
        return float(sum(losses)), len(actions)

    # ---- releases ----

    def begin_release(self, request: NodesRequested) -> None:
        """Begin to release nodes: start no more groups there, and stop the running ones."""
        devices = frozenset(self._devices_of(request.offer.nodes))
        self._devices.exclude(devices)
        self._requests.append(_Request(request, devices, self._outbox.now_s))
        self._actions.update(request.offer.actions)

    @property
    def leaving_groups(self) -> frozenset[str]:
        """The networks whose groups leave."""
        return frozenset(group.name for group in self._find_node_release())

    @property
    def has_released(self) -> bool:
        """Whether any node was released, or is about to be."""
        return bool(self._requests or self._released_count)

    def decide(self) -> None:
        """Stop groups on released nodes once they wait for orders; release free nodes."""
        self._paused &= self.leaving_groups
        for group in self._find_node_release():
            if group.is_awaiting_orders:
                saves = self._actions.pop(group.name, "app") != "kill"
                self._paused.discard(group.name)
                self._orders.stop(group, self._networks.is_final(group.name), saves)
            elif group.phase in (Phase.TRAINING, Phase.PAUSING) and group.name not in self._paused:
                self._paused.add(group.name)
                self._orders.pause(group, run_ends=True)

        for request in [
            pending for pending in self._requests if self._devices.are_idle(pending.devices)
        ]:
            self._requests.remove(request)
            self._released_count += 1
            command = request.command
            self._end(command.offer.nodes)
            self._outbox.log(
                NodesReleased(
                    command.command,
                    command.offer.nodes,
                    command.offer.hosts,
                    tuple(sorted(request.devices)),
                    self._outbox.now_s - request.began_s,
                    has_ended=self._config.outlives,
                )
            )

    def _end(self, nodes: Iterable[int]) -> None:
        """End the ranks of some nodes if ranks may die; otherwise they wait for the end."""
        if not self._config.outlives:
            return
        roles = self._config.roles
        released = set(nodes)
        ranks = {
            rank for rank, node in enumerate(roles.node_of) if node in released
        } - self._devices.removed_ranks
        self._devices.removed_ranks.update(ranks)  # their deaths are expected
        for tag, of_role in (
            (m.Tag.TRAINER, roles.trainers),
            (m.Tag.PREPROCESSOR, roles.preprocessors),
        ):
            self._outbox.send(sorted(ranks.intersection(of_role)), tag, m.LeaveLaunch())

    # ---- helpers ----

    def _find_node_release(self) -> list[TrainingGroup]:
        leaving = {device for request in self._requests for device in request.devices}
        if leaving:
            return [group for group in self._groups if not leaving.isdisjoint(group.devices)]
        return []

    def _devices_of(self, nodes: Iterable[int]) -> set[int]:
        cluster = self._devices.cluster
        members = set(nodes)
        return {
            device
            for device in self._config.roles.device_of.values()
            if cluster.node(device) in members
        }

    def _host(self, node: int) -> str:
        if node < len(self._config.hosts):
            return self._config.hosts[node]
        return f"node {node}"


def parse_request(content: Mapping[str, Any]) -> tuple[int, float]:
    """Parse the number of nodes to release, and the time to do so in seconds.

    Args:
        content: the content of a command ``yield``.

    Raises:
        UserError: a value is missing or invalid.
    """
    nodes = content.get("nodes")
    within_s = content.get("within_s")
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
        raise UserError(f"nodes is {nodes!r}; it must be a positive integer")
    if (
        not isinstance(within_s, int | float)
        or isinstance(within_s, bool)
        or not 0 < within_s < LONGEST_S
    ):
        raise UserError(
            f"within_s is {within_s!r}; it must be a number of seconds above 0 and below "
            f"{LONGEST_S:.0e}"
        )
    return nodes, float(within_s)
