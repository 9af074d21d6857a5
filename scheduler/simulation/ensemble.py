"""Simulate an ensemble on a cluster: the makespan of a policy.

The simulation calls the same policy functions as the live runtime, at the same moments (the start;
a group ends an epoch, finishes or stops), and carries out their answers by the same moves
(:mod:`scheduler.ensemble.moves`). It runs on the project's event kernel.

Every GPU-second of a run is one of: training, waiting (free, or held back by another group),
checkpointing, regrouping. If k networks share a GPU, each has a k-th.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from launch.errors import InputError
from scheduler.base import Cluster, Member, Options, Progress, RateTable, Round
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.elastic import epoch_rate, with_best_batches
from scheduler.ensemble.moves import Grow, Move, Shrink, Start, Stop, plan_moves
from scheduler.ensemble.pace import Stream
from scheduler.ensemble.planning import plan
from scheduler.ensemble.policies import Policy
from scheduler.ensemble.probing import find_probes_of_plan, try_spans
from scheduler.ensemble.rates import curves, rate
from scheduler.ensemble.sharing import share, speedup
from scheduler.ensemble.waterfill import lower_bound
from scheduler.simulation.groups import Kind, Production, SimulatedGroup, State
from scheduler.simulation.kernel import Simulator
from scheduler.simulation.learning import Learner, Learning


@dataclass(frozen=True)
class Share:
    """A network's part in a round."""

    name: str
    gpus: int
    devices: tuple[int, ...]
    epochs: float


@dataclass(frozen=True)
class SimulatedRound:
    """The time between two changes of the assignment; a group that only ends is no change."""

    start_s: float
    end_s: float
    members: tuple[Share, ...]


@dataclass(frozen=True)
class Stint:
    """A period in which a network trained on fixed devices."""

    name: str
    devices: tuple[int, ...]
    start_s: float
    end_s: float
    epochs: float


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation.

    Args:
        policy: its name.
        makespan_s: until the last network finished.
        lower_bound_s: lower bound of any schedule
            (:func:`scheduler.ensemble.waterfill.lower_bound`).
        waiting_s_per_gpu: average time for which a GPU neither trained nor moved groups.
        scheduling_s: time spent deciding, in all.
        checkpoint_s: time in which any group wrote a checkpoint.
        regroup_s_per_gpu: average time that a GPU waited for its group to form.
        replans: number of new plans caused by online rates.
        rounds: the rounds, in order of time.
        stints: the stints of all networks, in order of their start.
    """

    policy: str
    makespan_s: float
    lower_bound_s: float
    waiting_s_per_gpu: float
    scheduling_s: float
    checkpoint_s: float
    regroup_s_per_gpu: float
    replans: int
    rounds: tuple[SimulatedRound, ...]
    stints: tuple[Stint, ...]

    @property
    def first_signal_s(self) -> float:
        """The time at which every network has ended its first epoch."""
        done: defaultdict[str, float] = defaultdict(float)
        latest = 0.0
        for stint in self.stints:
            before = done[stint.name]
            done[stint.name] = done[stint.name] + stint.epochs
            if before < 1 <= done[stint.name] + 1e-9:
                latest = max(
                    latest,
                    stint.start_s + (stint.end_s - stint.start_s) * (1 - before) / stint.epochs,
                )
        return latest


def simulate(
    rates: RateTable,
    cluster: Cluster,
    policy: Policy,
    options: Options,
    costs: Costs | None = None,
    stream: Stream | None = None,
    policy_rates: RateTable | None = None,
    learning: Learning | None = None,
    arrivals: Mapping[str, float] | None = None,
) -> Simulated:
    """Simulate the training of an ensemble.

    Args:
        rates: the true rates, with the epochs after which each network converges, and the true
            sharing curve.
        cluster: on which it trains.
        policy: the policy that decides.
        options: the options of the policy.
        costs: the costs of moves; the policy's by default.
        stream: the coupling of the networks' paces; the policy's by default.
        policy_rates: the rates that the policy sees, if they are not the true ones.
        learning: how the policy learns rates during the run, instead of knowing any before.
        arrivals: network -> seconds after which it arrives, if that is not at the start.

    Returns:
        What happened.

    Raises:
        InputError: a network has no epochs or does not fit on the cluster, or the policy never
            starts one.
    """
    gpus = cluster.whole_gpus
    stream = policy.stream if stream is None else stream
    if policy.sets_batch:
        rates = with_best_batches(rates, gpus)
        policy_rates = None if policy_rates is None else with_best_batches(policy_rates, gpus)
    # No GPU does more work than with the best number of networks on it.
    bound = lower_bound(rates, gpus) / max(
        speedup(rates.sharing, count) for count in range(1, cluster.slots + 1)
    )
    policy_rates = replace(policy_rates or rates, supply=stream.supply)
    return _Run(
        rates,
        cluster,
        policy,
        options,
        policy.costs if costs is None else costs,
        stream,
        policy_rates,
        None if learning is None else Learner(rates, gpus, learning, cluster.slots),
        arrivals or {},
    ).run(bound)


class _Run:
    """The executor: groups on devices, in simulated time."""

    def __init__(
        self,
        rates: RateTable,
        cluster: Cluster,
        policy: Policy,
        options: Options,
        costs: Costs,
        stream: Stream,
        policy_rates: RateTable,
        learner: Learner | None,
        arrivals: Mapping[str, float],
    ) -> None:
        self.sim = Simulator()
        self.rates = rates
        self.cluster = cluster
        self.policy = policy
        self.options = options
        self.costs = costs
        self.stream = stream
        # A policy must not know when networks will converge.
        self.policy_rates = replace(
            policy_rates, models=tuple(replace(n, epochs=None) for n in policy_rates.models)
        )
        self.learner = learner
        self.arrivals = arrivals
        self.samples = rates.samples_per_epoch
        self.rate_of = curves(rates, cluster.whole_gpus).rate
        self.groups = {
            network.name: SimulatedGroup(network, row) for row, network in enumerate(rates.models)
        }
        self.free = set(cluster.devices)
        self.target = Round()
        self.production = Production(stream, self.samples, self.sim, self._training, self._go_on)
        self.book = _RunRecord(self.samples)

    def run(self, bound: float) -> Simulated:
        self.sim.after(self.costs.profile_s, Kind.DECIDE, self._decide)
        for moment in sorted(set(self.arrivals.values())):
            self.sim.at(max(moment, self.costs.profile_s), Kind.LOOK, self._decide_soon)
        self.sim.run()
        waiting = [
            group.name for group in self.groups.values() if group.state is not State.FINISHED
        ]
        if waiting:
            raise InputError(f"the policy {self.policy.name} never starts {', '.join(waiting)}")
        return self.book.close(
            self.policy.name,
            self.sim.now,
            bound,
            self.cluster.whole_gpus,
            self.costs.profile_s,
            self.learner.replans if self.learner is not None else 0,
        )

    # Deciding

    def _decide_soon(self) -> None:
        """Decide once, after everything else at this moment."""
        self.sim.soon(Kind.DECIDE, self._decide)

    def _decide(self) -> None:
        self._advance_all()
        policy_rates = self.policy_rates
        progress = self._progress()
        if self.learner is not None:
            policy_rates = replace(self.learner.table(), supply=policy_rates.supply)
            progress = replace(
                progress,
                rates_changed=self.learner.rates.has_news,
                guessed=frozenset() if self.stream.count else self.learner.rates.guessed,
            )
        if self.arrivals:
            policy_rates = replace(
                policy_rates,
                models=tuple(
                    network
                    for network in policy_rates.models
                    if self.arrivals.get(network.name, 0.0) <= self.sim.now
                ),
            )
        target = plan(self.policy, policy_rates, progress, self.cluster, self.options)
        if self.learner is not None:
            target, spread = try_spans(
                self.policy,
                policy_rates,
                self.learner.rates.is_span_untried,
                progress,
                self.cluster,
                target,
            )
            probes = find_probes_of_plan(
                self.policy,
                policy_rates,
                self.learner.rates.lower_rates,
                progress,
                self.cluster,
                self.options,
                target,
            )
            self.learner.record_plan(target != self.target, probes | spread)
        self.target = target
        self._carry_out()

    def _observe(self) -> None:
        """Record the rates of groups that have trained for long enough."""
        if self.learner is not None:
            for group in self._training():
                if self.sim.now >= group.ready_s + self.learner.after_s:
                    self.learner.observe(
                        group.name, group.shape(self.cluster), group.networks_per_gpu
                    )

    def _check_idle_devices(self) -> None:
        """Decide again if idle devices could be used by groups that were just measured."""
        self._observe()
        if (
            self.learner is not None
            and self.learner.rates.may_grow
            and self.target.gpus < self.cluster.gpus
        ):
            self._decide_soon()

    def _go_on(self) -> None:
        """Let groups train on samples that have been produced."""
        self._advance_all()
        self._set_paces()

    def _progress(self) -> Progress:
        groups = self.groups.values()
        return Progress(
            running=tuple(Member(group.name, group.devices) for group in groups if group.devices),
            epochs_done={
                group.name: done for group in groups if (done := group.epochs_done(self.samples))
            },
            finished=frozenset(group.name for group in groups if group.state is State.FINISHED),
            target=self.target,
        )

    # Carrying out

    def _carry_out(self) -> None:
        self._take_batches()
        changed = False
        for move in self._moves():
            group = self.groups[move.name]
            if isinstance(move, Stop):
                self._stop(group)
            elif isinstance(move, Start | Grow | Shrink):
                self._form(group, move.devices)
                changed = True
        self._take_batches()  # on the devices that groups have now
        if changed:
            self.book.scheduling_s += self.costs.scheduling_s
            self.book.change(self.sim.now, self.groups.values())
        self._update_sharing()
        self._set_paces()

    def _update_sharing(self) -> None:
        """Set the rate of each group beside the others on its GPUs."""
        if self.cluster.slots == 1:
            return
        groups = [group for group in self.groups.values() if group.devices]
        networks_on = Counter(
            self.cluster.gpu(device) for group in groups for device in group.devices
        )
        for group in groups:
            group.networks_per_gpu = max(
                networks_on[self.cluster.gpu(device)] for device in group.devices
            )
            group.rate = self._rate(group)

    def _rate(self, group: SimulatedGroup) -> float:
        gpus = len(group.devices)
        network = self.rates.models[group.row]
        if network.spread_rates:
            alone = rate(network, gpus, group.shape(self.cluster).span)
        elif group.batch is None:
            alone = float(self.rate_of[group.row, gpus - 1])
        else:
            alone = epoch_rate(network, self.rates.comm_s, gpus, group.batch, self.samples)
        # Including the time between epochs.
        paid = 1 / (1 / alone + self.costs.epoch_s / self.samples)
        return paid * share(self.rates.sharing, group.networks_per_gpu)

    def _take_batches(self) -> None:
        """Let each group that is before an epoch use the batch of the target round."""
        for member in self.target.members:
            group = self.groups.get(member.name)
            if group is None:  # a custom policy may name any
                continue
            batches = self.rates.models[group.row].batches
            batch = member.batch_on(len(group.devices) or member.gpus, batches[0] if batches else 1)
            if group.position == 0 and group.batch != batch:
                group.batch = batch
                if group.devices:
                    group.rate = self._rate(group)

    def _moves(self) -> tuple[Move, ...]:
        """Return the moves toward the target, of all groups that differ from it."""
        target = {member.name: member for member in self.target.members}
        changing = [
            group
            for group in self.groups.values()
            if group.state is not State.FINISHED
            and group.devices != (target[group.name].devices if group.name in target else ())
        ]
        names = {group.name for group in changing}
        return plan_moves(
            {group.name: group.holding() for group in changing if group.devices},
            Round(tuple(member for member in self.target.members if member.name in names)),
            self.free,
            frees_at_once=True,
        )

    def _stop(self, group: SimulatedGroup) -> None:
        self._end_stint(group)
        group.state = State.STOPPING
        group.pace = 0.0
        self.book.checkpoint(
            self.sim.now,
            self.sim.now + self.costs.checkpoint_s,
            len(group.devices) / group.networks_per_gpu,
        )
        self._next(group, self.costs.checkpoint_s, Kind.STOPPED, self._stopped)

    def _form(self, group: SimulatedGroup, devices: tuple[int, ...]) -> None:
        """Form a group of exactly these devices."""
        if group.state is State.TRAINING:
            self._end_stint(group)
        self.free |= set(group.devices)
        self.free -= set(devices)
        group.devices = devices
        group.state = State.FORMING
        group.pace = 0.0
        self._update_sharing()
        group.rate = self._rate(group)
        delay = self.costs.regroup_s + self.costs.scheduling_s
        self.book.regroup_gpu_s += delay * len(devices) / group.networks_per_gpu
        group.stint_start = self.sim.now
        self._next(group, delay, Kind.READY, self._ready)

    # What happens to a group

    def _ready(self, group: SimulatedGroup) -> None:
        group.state = State.TRAINING
        group.since = self.sim.now
        group.next = None
        group.ready_s = self.sim.now
        if self.learner is not None and not self.learner.has_seen(
            group.name, group.shape(self.cluster)
        ):
            self.sim.after(self.learner.after_s, Kind.LOOK, self._check_idle_devices)
        group.stint_epochs = group.epochs_done(self.samples)
        self._advance_all()
        self._carry_out()

    def _trained(self, group: SimulatedGroup) -> None:
        """End the samples that a group had."""
        self._advance(group)
        group.position = group.supplied
        group.pace = 0.0
        group.next = None
        if group.supplied < self.samples:
            self._set_paces()
            return
        group.epoch = group.epoch + 1
        group.position = 0.0
        group.supplied = 0.0
        self._observe()
        if self.learner is not None:
            self.learner.observe(group.name, group.shape(self.cluster), group.networks_per_gpu)
        if group.epoch >= group.last_epoch:
            self._end_stint(group)
            self._release(group, State.FINISHED)
        self._decide_soon()

    def _stopped(self, group: SimulatedGroup) -> None:
        self._release(group, State.WAITING)
        self._decide_soon()

    def _release(self, group: SimulatedGroup, state: State) -> None:
        self.free |= set(group.devices)
        group.devices = ()
        group.state = state
        group.pace = 0.0
        group.next = None

    def _end_stint(self, group: SimulatedGroup) -> None:
        self.book.stints.append(
            Stint(
                group.name,
                group.devices,
                group.stint_start,
                self.sim.now,
                group.epochs_done(self.samples) - group.stint_epochs,
            )
        )

    # Time

    def _training(self) -> list[SimulatedGroup]:
        return [group for group in self.groups.values() if group.state is State.TRAINING]

    def _advance_all(self) -> None:
        for group in self._training():
            self._advance(group)

    def _advance(self, group: SimulatedGroup) -> None:
        """Update the position to the current time."""
        elapsed = self.sim.now - group.since
        group.position += group.pace * elapsed
        self.book.busy_gpu_s += (
            len(group.devices) / group.networks_per_gpu * elapsed * group.pace / group.rate
        )
        group.since = self.sim.now

    def _set_paces(self) -> None:
        """Let every group train on the samples that it has or can get."""
        training = self._training()
        rates = [group.rate for group in training]
        best = self.stream.split(rates, [len(group.devices) for group in training])
        for group, stream in zip(training, best, strict=True):
            if group.position == 0 or self.stream.change_at_any_step:
                group.stream = stream
            if group.next is None and group.position >= group.supplied:
                self.production.supply(group)
        paces = self.stream.paces(rates, [group.stream for group in training])
        for group, pace in zip(training, paces, strict=True):
            # A group may have been made to grow at the very end of its epoch: that end is still to
            # come.
            can_go_on = group.position < group.supplied or group.position >= self.samples
            if can_go_on and (pace != group.pace or group.next is None):
                group.pace = pace
                remaining = max(0.0, group.supplied - group.position)
                self._next(group, remaining / pace, Kind.TRAINED, self._trained)

    def _next(
        self,
        group: SimulatedGroup,
        delay: float,
        kind: Kind,
        action: Callable[[SimulatedGroup], None],
    ) -> None:
        if group.next is not None:
            group.next.cancel()
        group.next = self.sim.after(delay, kind, partial(action, group))


class _RunRecord:
    """The record of a run."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.busy_gpu_s = self.regroup_gpu_s = self.checkpoint_gpu_s = 0.0
        self.scheduling_s = self.checkpoint_s = 0.0
        self.stints: list[Stint] = []
        self._checkpoint_until = 0.0
        self._rounds: list[SimulatedRound] = []
        self._round_start = 0.0
        self._round: list[
            tuple[SimulatedGroup, tuple[int, ...], float]
        ] = []  # group, devices, epochs before

    def checkpoint(self, start: float, end: float, gpus: float) -> None:
        self.checkpoint_gpu_s += gpus * (end - start)
        self.checkpoint_s += max(0.0, end - max(start, self._checkpoint_until))
        self._checkpoint_until = max(self._checkpoint_until, end)

    def change(self, now: float, groups: Iterable[SimulatedGroup]) -> None:
        """Begin a new round with the groups that have devices now."""
        self._end_round(now)
        self._round_start = now
        self._round = [
            (group, group.devices, group.epochs_done(self.samples))
            for group in groups
            if group.state in (State.FORMING, State.TRAINING)
        ]

    def _end_round(self, now: float) -> None:
        if self._round and now > self._round_start:
            members = tuple(
                Share(group.name, len(devices), devices, group.epochs_done(self.samples) - before)
                for group, devices, before in self._round
            )
            self._rounds.append(SimulatedRound(self._round_start, now, members))

    def close(
        self, policy: str, now: float, bound: float, gpus: int, profile_s: float, replans: int
    ) -> Simulated:
        self._end_round(now)
        used = self.busy_gpu_s + self.regroup_gpu_s + self.checkpoint_gpu_s
        waiting_s = now - profile_s - used / gpus
        if abs(waiting_s) < 1e-9 * now:  # what rounding leaves, and that may be less than nothing
            waiting_s = 0.0
        return Simulated(
            policy,
            now,
            bound,
            waiting_s_per_gpu=waiting_s,
            scheduling_s=self.scheduling_s,
            checkpoint_s=self.checkpoint_s,
            regroup_s_per_gpu=self.regroup_gpu_s / gpus,
            replans=replans,
            rounds=tuple(self._rounds),
            stints=tuple(sorted(self.stints, key=lambda stint: (stint.start_s, stint.devices))),
        )
