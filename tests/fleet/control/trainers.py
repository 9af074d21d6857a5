"""A model of all ranks except the coordinator, which answer a controller like trainers do.

Every rank has an inbox and an outbox. In each step one thing happens, drawn with a seed: a rank
takes an order, a group acts, a message is delivered, or a rank dies. So messages arrive in any
order that MPI allows. Real trainers are in :mod:`fleet.runtime.training`; here nothing is trained.
"""

import json
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from random import Random

from fleet.comm import messages as m
from fleet.control import effects as do
from fleet.control.controller import Controller
from fleet.control.networks import Networks
from fleet.domain.events import LaunchInterrupted, event_from_json
from fleet.domain.json_record import to_json
from fleet.domain.network import NetworkStatus, Outcome, StepRate
from fleet.domain.run import RunState
from fleet.errors import ExitStatus, UserError
from scheduler.base import Options, StepTime
from scheduler.ensemble.planning import plan
from tests.fleet.histories import record
from tests.fleet.logs import START

MAX_STEPS = 20_000


class Stuck(AssertionError):
    """All ranks wait for messages that never come."""


@dataclass
class Behavior:
    """The behavior of a network in training.

    Attributes:
        epochs: number of epochs after which it has converged.
        failures: its failures, at random times while it trains: True for each transient one.
    """

    epochs: int = 2
    failures: list[bool] = field(default_factory=list)


@dataclass(eq=False)
class GroupModel:
    """The ranks of a group.

    Attributes:
        ranks: the ranks, the master first.
        epoch: epoch of the stream that it trains on.
        state: builds, trains, waits (for orders), regroups or measures.
        present: ranks that have arrived.
        has_met: whether all ranks have arrived.
        is_inside: whether it waits inside an epoch.
        cannot_build: whether one of its ranks could not build the network.
        has_failed: whether one of its ranks has died.
        batches: batches to measure.
    """

    network: str
    ranks: tuple
    epoch: int = -1
    state: str = "builds"
    present: set = field(default_factory=set)
    has_met: bool = False
    is_inside: bool = False
    cannot_build: bool = False
    has_failed: bool = False
    batches: tuple = ()

    @property
    def master(self):
        return self.ranks[0]


def begin_run(setup, histories):
    """Return the state of a run at the beginning of a launch.

    Args:
        setup: the configuration of the launch.
        histories: network -> the epochs that earlier launches have saved.
    """
    run = RunState(setup.spec)
    run.restore({name: NetworkStatus(tuple(history)) for name, history in histories.items()})
    start = replace(
        START,
        devices=tuple(sorted(setup.roles.rank_of)),
        gpus_per_node=setup.roles.gpus_per_node,
        slots=setup.roles.slots,
    )
    run.apply(0.0, start)
    return run


def check_every_event(controller):
    """Compare the index of networks with a new one of the same state, after every event."""
    launch = controller.launch
    log = launch.outbox.log

    def log_and_check(event):
        log(event)
        check_index(launch)

    launch.outbox.log = log_and_check
    return controller


def check_index(launch):
    """Check that all that the controller knows of networks and devices follows from its state."""
    networks = launch.networks
    again = Networks(launch.run, networks.specs.values(), networks.waiting)
    for query in (
        "unavailable",
        "epochs_done",
        "trainable",
        "available",
        "are_over",
        "status",
        "held_back",
    ):
        assert getattr(networks, query) == getattr(again, query), query
    for name, run_group in launch.run.launch.groups.items():
        group = launch.groups.get(name)  # none if it has failed, which is logged a moment later
        if group is not None:
            assert run_group.devices in (group.devices, group.previous_devices)


class Ranks:
    """A model of all ranks, and the controller that they talk to.

    Args:
        make: returns a new controller.
        setup: the configuration of the launch.
        seed: for all random choices.
        behaviors: network -> its behavior.
        histories: network -> the epochs that earlier launches have saved.
        deaths: number of ranks that die, at random times.
        end_request_step: the step at which the launch must end; None for never.
        slow: maximum seconds between two steps; too few for a rank to seem unresponsive.
        node_requests: step -> (number of requested nodes, seconds until they should be free).
        policy: answers the questions of the controller.
        options: options of the policy.
        delays_answers: whether other inputs may be handled between a question and its answer.
    """

    def __init__(
        self,
        make,
        setup,
        seed,
        behaviors,
        histories=None,
        deaths=0,
        end_request_step=None,
        slow=0.1,
        node_requests=None,
        policy=None,
        options=Options(),
        delays_answers=False,
    ):
        self.controller: Controller | None = make()
        if self.controller is not None:
            check_every_event(self.controller)
        self.make = make
        self.setup = setup
        self.random = Random(seed)
        self.behaviors = {
            name: Behavior(fate.epochs, list(fate.failures)) for name, fate in behaviors.items()
        }
        self.trained = {name: list((histories or {}).get(name, ())) for name in behaviors}
        self.half_done = {}  # network -> its epoch when it was saved
        self.mail = defaultdict(deque)
        self.outgoing = defaultdict(deque)
        self.group_of = dict.fromkeys(setup.roles.trainers)  # rank -> its group, or None
        self.recruit = {}  # rank -> (network, whether it has built it)
        self.meeting = {}  # number -> the group that is forming
        self.waiting = set()  # idle ranks whose Ready was handled
        self.exited = set()
        self.dead = set()
        self.unreported_deaths = set()
        self.producing = ()  # preprocessors
        self.reports_left = 6  # of preprocessors
        self.reading = []
        self.events = []
        self.run_state = begin_run(setup, self.trained)
        self.owner = {}  # rank -> the network that the controller assigned it to
        self.promised = set()  # recruits among them
        self.inputs = []  # (seconds, input, effects)
        self.now = 0.0
        self.steps = 0
        self.status = None
        self.deaths = deaths
        self.end_request_step = end_request_step
        self.slow = slow
        self.node_requests = dict(node_requests or {})
        self.released_ranks = set()  # ranks that get no more work
        self.policy = policy
        self.options = options
        self.delays_answers = delays_answers
        self.answers = deque()  # of the policy

    # ---- a launch ----

    def run(self):
        """Run the launch to its end, and return its exit status."""
        for rank in self.setup.roles.trainers:
            self.send(rank, m.Ready(rank))
        for rank in self.setup.roles.preprocessors:
            self.send(rank, m.Throughput(rank, self.random.choice([10.0, 100.0])))
        self.handle(None)
        while self.status is None or self.group_of.keys() - self.exited - self.dead:
            self.step()
        if self.controller is not None:
            self.check_log()
        return self.status

    def check_log(self):
        """Check that the log of the launch leads to the state that its controller has."""
        live = self.controller.launch.run
        assert repr(self.run_state.statuses) == repr(live.statuses)
        assert repr(self.run_state.records) == repr(live.records)

    def step(self):
        self.steps += 1
        assert self.steps < MAX_STEPS, "the launch does not end"
        self.now += self.random.uniform(0, self.slow)
        if self.steps == self.end_request_step:
            self.handle(do.EndRequested("SIGTERM came"))
        if self.status is None and self.steps in self.node_requests:
            self.ask_nodes(*self.node_requests[self.steps])
        actions = [*self.possible_inputs(), *self.possible_actions()]
        alive = sorted(set(range(1, len(self.setup.roles.node_of))) - self.dead)
        if self.deaths and alive and self.random.random() < 0.04:
            self.die(self.random.choice(alive))
        elif actions:
            self.random.choice(actions)()
        else:  # only time can help
            self.let_time_pass()

    def let_time_pass(self):
        before = len(self.inputs)
        self.now += 1000.0
        self.handle(None)
        if not any(effects for *_, effects in self.inputs[before:]):
            raise Stuck(self.locate())

    def ask_nodes(self, count, within_s):
        """Request nodes; the launch may refuse."""
        try:
            offer = self.controller.node_release.offer(count, within_s, self.now)
        except UserError:
            return
        roles = self.setup.roles
        assert len(set(offer.nodes)) == count
        assert roles.node_of[0] not in offer.nodes
        self.released_ranks |= {
            rank for rank, node in enumerate(roles.node_of) if node in offer.nodes
        }
        self.handle(do.NodesRequested(f"command {self.steps}", offer))

    def locate(self):
        return "\n".join(
            [
                f"at {self.now:.1f} s",
                *(
                    f"rank {rank}: {group or self.recruit.get(rank)}, inbox {list(self.mail[rank])}"
                    for rank, group in self.group_of.items()
                ),
            ]
        )

    # ---- inputs ----

    def send(self, rank, message):
        self.outgoing[rank].append(message)

    def possible_inputs(self):
        """Yield the next inputs: each rank's first message, checkpoints, and at last deaths."""
        for rank in sorted(self.outgoing):
            if self.outgoing[rank]:
                yield lambda rank=rank: self.handle(self.outgoing[rank].popleft())
        if self.unreported_deaths and not any(self.outgoing.values()):
            yield self.report_deaths
        if self.answers:
            yield lambda: self.decide(self.answers.popleft())
        for network in self.reading:
            yield lambda network=network: self.read(network)

    def report_deaths(self):
        died = tuple(sorted(self.unreported_deaths))
        self.unreported_deaths = set()
        self.handle(do.RanksDied(died))

    def handle(self, message):
        self.note_input(message)
        self.decide(message)
        while self.answers and not self.delays_answers:
            self.decide(self.answers.popleft())

    def decide(self, message):
        effects = self.controller.handle(self.now, message)
        self.inputs.append((self.now, message, effects))
        for effect in effects:
            self.carry_out(effect)

    def note_input(self, message):
        if isinstance(message, m.Ready) and message.rank not in self.dead:
            assert message.rank not in self.waiting
            self.waiting.add(message.rank)
        if isinstance(message, m.Stopped | m.Failed):
            self.disown(message.network)

    # ---- effects ----

    def carry_out(self, effect):
        assert self.status is None
        if isinstance(effect, do.SendMessage):
            self.receive(effect.rank, effect.tag, effect.message)
        elif isinstance(effect, do.LogEvent):
            self.events.append(effect.event)
            self.run_state.apply(
                effect.t_s, event_from_json(json.loads(json.dumps(to_json(effect.event))))
            )
        elif isinstance(effect, do.ReadCheckpoint):
            self.disown(effect.network)
            self.reading.append(effect.network)
        elif isinstance(effect, do.AskPolicy):
            assert not self.answers
            answer = plan(self.policy, effect.rates, effect.progress, effect.cluster, self.options)
            self.answers.append(do.PolicyAnswered(answer))
        elif isinstance(effect, do.AbortLaunch):
            raise effect.error
        elif isinstance(effect, do.EndLaunch):
            self.status = effect.status

    def receive(self, rank, tag, message):
        if tag is m.Tag.PREPROCESSOR:
            assert isinstance(message, m.Produce | m.Exit | m.LeaveLaunch)
            if isinstance(message, m.LeaveLaunch):
                self.leave(rank)
            else:
                self.producing = message.turns if isinstance(message, m.Produce) else ()
            return
        assert tag is m.Tag.TRAINER
        has_ended = any(isinstance(event, LaunchInterrupted) for event in self.events)
        assert not (
            has_ended and isinstance(message, m.Start | m.Join | m.Measure | m.Continue | m.Regroup)
        ), message
        if isinstance(message, m.Start | m.Join | m.Measure):
            assert rank in self.waiting | self.dead, f"busy rank {rank} receives {message}"
            assert rank not in self.released_ranks, f"released rank {rank} receives {message}"
            self.waiting.discard(rank)
        if isinstance(message, m.Start | m.Join):
            assert rank not in self.owner, f"rank {rank} of {self.owner[rank]} receives {message}"
            self.owner[rank] = message.network.name
        if isinstance(message, m.Join):
            self.promised.add(rank)
        elif rank in self.promised and isinstance(message, m.Regroup | m.Stop):
            self.promised.remove(rank)
            if isinstance(message, m.Stop):
                del self.owner[rank]
        elif isinstance(message, m.Regroup):
            self.disown(self.owner[rank], keep=message.ranks)
        if rank not in self.dead:
            self.mail[rank].append(message)

    def disown(self, network, keep=()):
        """Free the ranks of a group, except kept ranks and recruits."""
        self.owner = {
            rank: second
            for rank, second in self.owner.items()
            if second != network or rank in self.promised or rank in keep
        }

    # ---- actions ----

    def possible_actions(self):
        """Yield what ranks can do next."""
        if self.reports_left:
            for rank in sorted(set(self.producing) - self.dead):
                yield lambda rank=rank: self.prepare(rank)
        for rank in self.group_of:
            if rank in self.dead | self.exited:
                continue
            group, recruit = self.group_of[rank], self.recruit.get(rank)
            if recruit is not None and not recruit[1]:
                yield lambda rank=rank: self.build(rank)
            elif recruit is not None or group is None:
                if self.mail[rank]:
                    yield lambda rank=rank: self.take_order(rank)
            elif group.has_failed:
                yield lambda rank=rank: self.free(rank)
                if group.has_met and group.master == rank and group.state in ("builds", "trains"):
                    yield from self.group_actions(group)  # before the death is noticed
            elif group.has_met and group.master == rank:
                yield from self.group_actions(group)

    def prepare(self, rank):
        """Let a preprocessor report its recent work."""
        self.reports_left -= 1
        self.send(rank, m.Prepared(rank, self.random.choice([1, 10, 100]), 1.0))

    def take_order(self, rank):
        """Let an idle rank or a recruit take its next order."""
        order = self.mail[rank].popleft()
        if isinstance(order, m.Exit):
            assert rank not in self.recruit
            self.exited.add(rank)
        elif isinstance(order, m.LeaveLaunch):
            assert rank in self.waiting
            assert rank not in self.owner
            self.leave(rank)
        elif isinstance(order, m.Start):
            self.arrive(
                rank,
                order.group,
                GroupModel(order.network.name, order.ranks, epoch=order.stream_epoch),
            )
        elif isinstance(order, m.Measure):
            self.arrive(
                rank,
                order.group,
                GroupModel(
                    order.network.name, order.ranks, state="measures", batches=order.batches
                ),
            )
        elif isinstance(order, m.Join):
            self.recruit[rank] = (order.network.name, False)
        elif isinstance(order, m.Regroup):
            self.join(rank, order)
        elif rank in self.recruit:
            assert order == m.Stop(final=False)
            del self.recruit[rank]
            self.send(rank, m.Ready(rank))
        else:
            assert isinstance(order, m.Pause) or self.dead, f"idle rank {rank} receives {order}"

    def leave(self, rank):
        """Let a released rank end; the controller will see its death."""
        assert self.setup.outlives
        assert rank in self.released_ranks
        self.dead.add(rank)
        self.unreported_deaths.add(rank)

    def build(self, rank):
        network, _ = self.recruit[rank]
        self.recruit[rank] = (network, True)
        self.send(rank, m.Built(network, rank))

    def arrive(self, rank, number, group):
        """Let a rank arrive where its group meets."""
        group = self.meeting.setdefault(number, group)
        assert rank in group.ranks
        group.present.add(rank)
        self.group_of[rank] = group
        group.has_failed |= bool(self.dead & set(group.ranks))
        if group.present == set(group.ranks):
            del self.meeting[number]
            group.has_met = True
            if group.state == "builds":
                self.send(group.master, m.Joined(group.network))

    def join(self, rank, order):
        """Let a recruit join the group of its network."""
        network, has_built = self.recruit.pop(rank)
        assert has_built
        group = self.next_group(network, order)
        group.cannot_build |= (
            self.behaviors[network].failures[:1] == [False] and self.random.random() < 0.3
        )
        self.arrive(rank, order.group, group)

    def next_group(self, network, order):
        return self.meeting.setdefault(
            order.group, GroupModel(network, order.ranks, state="regroups")
        )

    def free(self, *ranks):
        for rank in ranks:
            self.group_of[rank] = None
            self.send(rank, m.Ready(rank))

    # ---- groups ----

    def group_actions(self, group):
        """Yield what the master of a group can do next."""
        if group.state == "measures":
            yield lambda: self.finish_measurement(group)
        elif group.state == "builds":
            yield lambda: self.finish_build(group)
        elif group.state == "regroups":
            yield lambda: self.finish_regrouping(group)
        elif group.state == "trains":
            yield lambda: self.train(group)
        elif self.mail[group.master]:
            yield lambda: self.follow(group)

    def finish_measurement(self, group):
        fails, gpus = self.draw_failure(group), len(group.ranks)
        rate, reason = (0.0, "it failed") if fails is not None else (10.0 * gpus, "")
        timed = ()
        if fails is None:
            timed = tuple(
                StepTime(batch, 0.1 + batch / gpus / 100 + 0.05 * (gpus > 1))
                for batch in group.batches
            )
        self.send(
            group.master,
            m.Measured(
                group.network, gpus, StepRate(rate), 1.0, reason, bool(fails), timed, 250_000
            ),
        )
        self.free(*group.ranks)

    def draw_failure(self, group, probability=0.2):
        """Return whether a failure that happens now is transient; None if there is no failure."""
        failures = self.behaviors[group.network].failures
        # a failure needs all ranks
        if not failures or group.has_failed or self.random.random() > probability:
            return None
        return failures.pop(0)

    def fail(self, group, may_pass):
        self.send(group.master, m.Failed(group.network, "it failed", "", may_pass))
        self.free(*group.ranks)

    def finish_build(self, group):
        """Finish or fail building, and load the last checkpoint."""
        name = group.network
        if (may_pass := self.draw_failure(group)) is not None:
            self.fail(group, may_pass)
            return
        if self.trained[name] and self.random.random() < 0.1:  # the newest checkpoint is damaged
            self.trained[name] = self.trained[name][
                : self.random.randrange(len(self.trained[name]))
            ]
            self.half_done.pop(name, None)
            self.send(group.master, m.FellBack(name, "torn", tuple(self.trained[name]), 0))
        if len(self.trained[name]) >= self.behaviors[name].epochs and name not in self.half_done:
            self.send(group.master, m.Converged(name, "converged before"))
            group.state = "waits"
            group.is_inside = False
            return
        group.epoch = self.half_done.pop(name, group.epoch)
        group.state = "trains"

    def train(self, group):
        """Train a step, which may end the epoch."""
        name, chance = group.network, self.random.random()
        if (may_pass := self.draw_failure(group, 0.1)) is not None:
            self.fail(group, may_pass)
        elif chance < 0.3:
            self.send(group.master, m.Pace(name, 10, 1.0, self.step_rate()))
        elif self.mail[group.master] and chance < 0.6:
            assert isinstance(self.mail[group.master].popleft(), m.Pause)
            self.send(group.master, m.Paused(name, group.epoch))
            group.state = "waits"
            group.is_inside = True
        elif chance > 0.8:
            history = self.trained[name]
            history.append(
                self.epoch_of(
                    name, len(history) + 1, stream_epoch=group.epoch, gpus=len(group.ranks)
                )
            )
            final = f"{len(history)} epochs" if len(history) >= self.behaviors[name].epochs else ""
            self.send(
                group.master, m.EpochDone(name, history[-1], 0.0, final, rate=self.step_rate())
            )
            group.state = "waits"
            group.is_inside = False

    def epoch_of(self, name, epoch, **more):
        """Return the record of an epoch."""
        return record(epoch, **more)

    def step_rate(self):
        """Return a random step rate; unknown in half of the cases."""
        return self.random.choice(
            [
                StepRate(),
                StepRate(),
                StepRate(self.random.choice([1.0, 10.0, 50.0]), 0.1, self.random.choice([10, 200])),
            ]
        )

    def follow(self, group):
        """Let the master of a waiting group take its next order."""
        order = self.mail[group.master].popleft()
        if isinstance(order, m.Pause):
            return  # void
        if isinstance(order, m.Stop):
            self.stop_group(group, order)
            return
        assert isinstance(order, m.Continue | m.Regroup), f"{group} receives {order}"
        epoch = group.epoch if group.is_inside else order.stream_epoch
        if isinstance(order, m.Continue):
            group.state = "trains"
            group.epoch = epoch
            return
        assert set(order.ranks[: order.stay_count]) <= set(group.ranks)
        assert not set(order.ranks[order.stay_count :]) & set(group.ranks)
        new = self.next_group(group.network, order)
        new.epoch = epoch
        for rank in group.ranks:
            if rank in order.ranks:
                self.arrive(rank, order.group, new)
            else:
                self.free(rank)

    def finish_regrouping(self, group):
        if group.cannot_build:
            self.behaviors[group.network].failures.pop(0)
            self.fail(group, may_pass=False)
            return
        self.send(group.master, m.Regrouped(group.network, 7, 0.1))
        group.state = "trains"

    def stop_group(self, group, order):
        may_pass = self.draw_failure(group) if order.final else None
        if may_pass is not None:
            self.fail(group, may_pass)
            return
        if group.is_inside:
            self.half_done[group.network] = group.epoch
        self.send(group.master, m.Stopped(group.network, 0.0))
        self.free(*group.ranks)

    # ---- deaths ----

    def die(self, rank):
        """Kill a rank: its groups fail, but its messages arrive."""
        self.deaths -= 1
        self.dead.add(rank)
        self.unreported_deaths.add(rank)
        self.waiting.discard(rank)
        self.mail[rank].clear()
        self.recruit.pop(rank, None)
        for group in {
            id(group): group for group in (*self.group_of.values(), *self.meeting.values()) if group
        }.values():
            group.has_failed |= rank in group.ranks
        if rank in self.group_of:
            self.group_of[rank] = None

    def read(self, network):
        """Read the checkpoint of a failed network, which may lack its last epoch."""
        self.reading.remove(network)
        self.handle(do.CheckpointRead(network, self.saved(network), 0))

    def saved(self, network):
        self.half_done.pop(network, None)
        history = self.trained[network]
        if history and self.random.random() < 0.5:
            history.pop()
        is_done = len(history) >= self.behaviors[network].epochs
        return NetworkStatus(tuple(history), Outcome("done") if is_done else None)

    # ---- checks ----

    @property
    def statuses(self):
        return self.run_state.statuses

    def repeat(self):
        """Check that another controller with the same inputs has the same effects."""
        again = self.make()
        for now, message, effects in self.inputs:
            assert again.handle(now, message) == effects
        return again

    def check_histories(self):
        """Check that epochs are consecutive, and no stream epoch is consumed twice."""
        for status in self.statuses.values():
            assert [subject.epoch for subject in status.history] == list(
                range(1, len(status.history) + 1)
            )
            assert len({subject.stream_epoch for subject in status.history}) == len(status.history)

    def outcomes(self):
        """Return the outcomes of ended networks."""
        return {
            name: status.outcome
            for name, status in self.statuses.items()
            if status.outcome is not None
        }

    def check_end(self):
        """Check a launch without end requests and deaths: all networks have ended."""
        over = self.outcomes()
        assert set(over) == set(self.behaviors)
        for name, outcome in over.items():
            assert (
                outcome.is_failure
                or len(self.statuses[name].history) >= self.behaviors[name].epochs
            )
        failed = any(outcome.is_failure for outcome in over.values())
        assert self.status is (ExitStatus.NETWORK_FAILED if failed else ExitStatus.OK)
