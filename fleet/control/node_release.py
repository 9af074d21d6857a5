"""Nodes that a launch gives back while it goes on: which ones, what their groups do, when they are free (pure).

Somebody wants so many nodes within some time. :meth:`Leaving.offer` chooses them, and asks the planner of evictions
([COSIM]) what each group on them does: save, or give up what it has trained since its last checkpoint, where there is
no time for more. :meth:`Leaving.decide` has these groups stop at their next step. Their networks go on elsewhere, as
the policy says, which does not know the nodes any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.comm import messages as m
from fleet.control.effects import NodeOffer, NodesRequested
from fleet.control.group import Phase, TrainingGroup
from fleet.control.launch_state import LaunchState
from fleet.domain.events import NodesLeft
from fleet.errors import UserError
from fleet.units import pluralize
from scheduler.base import InputError
from scheduler.eviction.plan import Action, RunningJob, groups_to_stop

_LEAST_S = 1e-3  # of training that is lost: a group that has just saved should save nevertheless, if there is time
_WRITE_S = 5.0  # for a checkpoint, as long as no group of the launch has shown what one takes


@dataclass(frozen=True)
class _Request:
    asked: NodesRequested
    devices: frozenset[int]
    began_s: float


class NodeRelease:
    """The requests for nodes of a launch."""

    def __init__(self, launch: LaunchState) -> None:
        self._setup = launch.setup
        self._groups = launch.groups
        self._networks = launch.networks
        self._outbox = launch.outbox
        self._requests: list[_Request] = []
        self._given_back = 0
        self._ways: dict[str, Action] = {}  # of the groups that leave
        self._paused: set[str] = set()  # of them, those that have been asked to stand still
        self._saved_s: dict[str, float] = {}  # network -> when its last checkpoint was written
        self._writes_s: dict[str, float] = {}  # network -> what its last checkpoint took
        self._step_s: dict[str, float] = {}  # network -> what a step takes

    # ---- what groups show ----

    def saved(self, network: str) -> None:
        """All that a network has been trained is on disk just now."""
        self._saved_s[network] = self._outbox.now_s

    def paced(self, pace: m.Pace) -> None:
        """A group shows how long its steps are."""
        group = self._groups[pace.network]
        if pace.samples_per_s > 0:
            self._step_s[pace.network] = (
                group.network.largest_batch(len(group.devices)) / pace.samples_per_s
            )

    def stopped(self, stopped: m.Stopped) -> None:
        """A group shows what its last checkpoint has taken."""
        self._writes_s[stopped.network] = stopped.checkpoint_s

    # ---- what is offered ----

    def offer(self, count: int, within_s: float, now_s: float) -> NodeOffer:
        """The nodes that a launch can do without at the least loss, one after another; it changes nothing.

        Args:
            count: of nodes.
            within_s: seconds until they should be free.

        Raises:
            UserError: it cannot do without so many.
        """
        roles = self._setup.roles
        cluster = self._groups.cluster
        first = roles.node_of[0]
        able = sorted({cluster.node(device) for device in cluster.devices} - {first}, reverse=True)
        if not 1 <= count <= len(able):
            raise UserError(
                f"{pluralize(count, 'node')} cannot be given back: of this launch {len(able)} can, for that "
                "of the coordinator stays to the end"
            )
        chosen: list[int] = []
        ways: Mapping[str, Action] = {}
        for _ in range(count):
            plans = {
                node: self._ways_off((*chosen, node), within_s, now_s)
                for node in able
                if node not in chosen
            }
            node = min(plans, key=lambda node: self._cost(plans[node], now_s))
            chosen = [*chosen, node]
            ways = plans[node]
        self._check_rest(chosen)
        return NodeOffer(tuple(chosen), tuple(map(self._host, chosen)), ways)

    def _check_rest(self, nodes: Iterable[int]) -> None:
        """Look whether the rest of the launch is enough for all networks that are left.

        Raises:
            UserError: it is not.
        """
        rest = self._groups.cluster.without(self._devices(nodes)).gpus
        for name in self._networks.left:
            least = self._networks.specs[name].min_gpus
            if least > rest:
                raise UserError(
                    f"{name} needs {pluralize(least, self._setup.roles.unit)}, and {rest} would be left"
                )
        if not rest:
            raise UserError(f"no {self._setup.roles.unit} would be left")

    def _ways_off(
        self, nodes: Iterable[int], within_s: float, now_s: float
    ) -> Mapping[str, Action]:
        """What the groups on some nodes do so that they are off them in time."""
        jobs = [
            self._job(group, now_s)
            for group in self._groups
            if not self._devices(nodes).isdisjoint(group.devices)
        ]
        if not jobs:
            return {}
        try:
            return groups_to_stop(jobs, sum(job.nodes for job in jobs), within_s)
        except InputError as error:  # what was asked for is refused; the run goes on
            raise UserError(str(error)) from None

    def _job(self, group: TrainingGroup, now_s: float) -> RunningJob:
        """A group as the planner of evictions knows it."""
        name = group.name
        every = self._setup.spec.checkpoint.every
        since_s = max(_LEAST_S, now_s - self._saved_s.get(name, now_s))
        loss = len(group.devices) * min(since_s, since_s if every is None else every)
        writes_s = self._writes_s.get(name, max(self._writes_s.values(), default=_WRITE_S))
        return RunningJob(
            name, len(group.devices), loss, app_time=self._step_s.get(name, 0.0) + writes_s
        )

    def _cost(self, ways: Mapping[str, Action], now_s: float) -> tuple[float, int]:
        """What a plan loses, in GPU-seconds, and how many groups it stops."""
        lost = (
            self._job(self._groups[name], now_s).loss for name, way in ways.items() if way == "kill"
        )
        return float(sum(lost)), len(ways)

    # ---- what is done ----

    def ask(self, asked: NodesRequested) -> None:
        """Give nodes back: no group is started there any more, and those that are there stop."""
        devices = frozenset(self._devices(asked.offer.nodes))
        self._groups.vacate(devices)
        self._requests.append(_Request(asked, devices, self._outbox.now_s))
        self._ways.update(asked.offer.ways)

    @property
    def groups(self) -> frozenset[str]:
        """The networks whose groups leave, wholly."""
        return frozenset(group.name for group in self._leaving())

    @property
    def has_left(self) -> bool:
        """Whether any node was given back, or is about to be."""
        return bool(self._requests or self._given_back)

    def decide(self) -> None:
        """Have groups that leave stop, where they can be told, each once; let nodes go that are free."""
        self._paused &= self.groups
        for group in self._leaving():
            if group.stands_still:
                saves = self._ways.pop(group.name, "app") != "kill"
                self._paused.discard(group.name)
                self._groups.stop(group, self._networks.is_final(group.name), saves)
            elif group.phase in (Phase.TRAINING, Phase.PAUSING) and group.name not in self._paused:
                self._paused.add(group.name)
                self._groups.pause(group, run_ends=True)

        for request in [one for one in self._requests if self._groups.have_let_go(one.devices)]:
            self._requests.remove(request)
            self._given_back += 1
            asked = request.asked
            self._end(asked.offer.nodes)
            self._outbox.note(
                NodesLeft(
                    asked.command,
                    asked.offer.nodes,
                    asked.offer.hosts,
                    tuple(sorted(request.devices)),
                    self._outbox.now_s - request.began_s,
                    has_ended=self._setup.outlives,
                )
            )

    def _end(self, nodes: Iterable[int]) -> None:
        """Have the ranks of some nodes end, where a launch goes on without them; otherwise they wait for its end."""
        if not self._setup.outlives:
            return
        roles = self._setup.roles
        there = set(nodes)
        ranks = {
            rank for rank, node in enumerate(roles.node_of) if node in there
        } - self._groups.lost
        self._groups.lost.update(ranks)  # they are not missed
        for tag, of_role in (
            (m.Tag.TRAINER, roles.trainers),
            (m.Tag.PREPROCESSOR, roles.preprocessors),
        ):
            self._outbox.tell(sorted(ranks.intersection(of_role)), tag, m.LeaveLaunch())

    # ---- small things ----

    def _leaving(self) -> list[TrainingGroup]:
        leaving = {device for request in self._requests for device in request.devices}
        if leaving:
            return [group for group in self._groups if not leaving.isdisjoint(group.devices)]
        return []

    def _devices(self, nodes: Iterable[int]) -> set[int]:
        cluster = self._groups.cluster
        there = set(nodes)
        return {
            device
            for device in self._setup.roles.device_of.values()
            if cluster.node(device) in there
        }

    def _host(self, node: int) -> str:
        if node < len(self._setup.hosts):
            return self._setup.hosts[node]
        return f"node {node}"
