"""A model of all ranks but the coordinator: they answer an ensemble as trainers do, in any order that MPI allows.

Every rank has a mailbox of what it was told, and a line of what it has said and nobody has heard. One step is one
thing: a rank takes an order, a group does something, a word is heard, a rank dies. Which one, a seed decides. What
trainers do is in :mod:`fleet.runtime.training`; here it takes no time, and nothing is trained.
"""

import json
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from random import Random

from fleet.comm import messages as m
from fleet.control import effects as do
from fleet.control.controller import Controller
from fleet.domain.events import LaunchInterrupted, event_from_json
from fleet.domain.json_record import to_json
from fleet.domain.network import NetworkStatus, Outcome, StepRate
from fleet.domain.run import RunState
from fleet.errors import ExitStatus, UserError
from scheduler.base import StepTime
from tests.fleet.histories import record
from tests.fleet.logs import START

MOST_STEPS = 20_000


class Stuck(AssertionError):
    """Somebody waits for ever."""


@dataclass
class Fate:
    """What will become of a network.

    Attributes:
        epochs: after which it has converged.
        failures: whether each of its failures to come may pass; they come at some time while it trains.
    """

    epochs: int = 2
    failures: list[bool] = field(default_factory=list)


@dataclass(eq=False)
class Team:
    """Some ranks that meet, and are then a group.

    Attributes:
        ranks: the master first.
        here: those that have come.
        is_new: whether it has not met yet.
        epoch: of the stream, that it trains on.
        state: builds, trains, stands (waits for orders), measures.
        is_inside: whether it stands inside an epoch.
        cannot: whether a rank of it could not build the network.
    """

    network: str
    ranks: tuple
    epoch: int = -1
    state: str = "builds"
    present: set = field(default_factory=set)
    has_met: bool = False
    is_inside: bool = False
    cannot: bool = False
    is_struck: bool = False
    batches: tuple = ()

    @property
    def master(self):
        return self.ranks[0]


class Ranks:
    """The ranks, and the ensemble that they answer.

    Args:
        make: a new ensemble.
        fates: network -> what will become of it.
        histories: network -> the epochs that earlier launches have saved.
        deaths: so many ranks die, at some time.
        asked_at: the step at which the launch is asked to end; None for never.
        yields_at: step -> (nodes that somebody wants then, within so many seconds).
        slow: seconds that pass from one step to the next, at most; so few that no rank is taken for deaf.
    """

    def __init__(
        self,
        make,
        setup,
        seed,
        fates,
        histories=None,
        deaths=0,
        asked_at=None,
        slow=0.1,
        yields_at=None,
    ):
        self.ensemble: Controller = make()
        self.make, self.setup, self.random = make, setup, Random(seed)
        self.fates = {name: Fate(fate.epochs, list(fate.failures)) for name, fate in fates.items()}
        self.trained = {name: list((histories or {}).get(name, ())) for name in fates}
        self.half_done = {}  # network -> the epoch that it was in when it was saved
        self.mail, self.outgoing = defaultdict(deque), defaultdict(deque)
        self.team = dict.fromkeys(setup.roles.trainers)  # rank -> where it is, or None
        self.recruit = {}  # rank -> (network, whether it has built it)
        self.meeting = {}  # number -> the team that meets
        self.waiting = set()  # ranks whose Ready was heard, and that have nothing to do
        self.exited, self.dead, self.unheard = set(), set(), set()
        self.producing, self.unsaid = (
            (),
            6,
        )  # who prepares samples, and how often one may still say how fast
        self.reading = []
        self.events = []
        self.run_state = RunState(setup.spec)
        self.run_state.restore(
            {name: NetworkStatus(tuple(trained)) for name, trained in self.trained.items()}
        )
        self.run_state.apply(
            0.0,
            replace(
                START,
                devices=tuple(sorted(setup.roles.rank_of)),
                gpus_per_node=setup.roles.gpus_per_node,
                slots=setup.roles.slots,
            ),
        )
        self.owner = {}  # rank -> the network that the ensemble has given it to
        self.promised = set()  # of them, those that are to join a group
        self.inputs = []  # (seconds, what, effects)
        self.now, self.steps, self.status = 0.0, 0, None
        self.deaths, self.asked_at, self.slow, self.yields_at = (
            deaths,
            asked_at,
            slow,
            dict(yields_at or {}),
        )
        self.given_back = set()  # ranks that get no work any more

    # ---- a launch ----

    def run(self):
        """From the first step to the last; returns the status."""
        for rank in self.setup.roles.trainers:
            self.say(rank, m.Ready(rank))
        for rank in self.setup.roles.preprocessors:
            self.say(rank, m.Throughput(rank, self.random.choice([10.0, 100.0])))
        self.hear(None)
        while self.status is None or self.team.keys() - self.exited - self.dead:
            self.step()
        return self.status

    def step(self):
        self.steps += 1
        assert self.steps < MOST_STEPS, "this goes on for ever"
        self.now += self.random.uniform(0, self.slow)
        if self.steps == self.asked_at:
            self.hear(do.EndRequested("SIGTERM came"))
        if self.status is None and self.steps in self.yields_at:
            self.ask_nodes(*self.yields_at[self.steps])
        actions = [*self.words(), *self.deeds()]
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
        self.hear(None)
        if not any(effects for *_, effects in self.inputs[before:]):
            raise Stuck(self.locate())

    def ask_nodes(self, count, within_s):
        """Somebody wants nodes back; the launch may not be able to do without them."""
        try:
            offer = self.ensemble.offer_nodes(count, within_s, self.now)
        except UserError:
            return
        roles = self.setup.roles
        assert len(set(offer.nodes)) == count
        assert roles.node_of[0] not in offer.nodes
        self.given_back |= {rank for rank, node in enumerate(roles.node_of) if node in offer.nodes}
        self.hear(do.NodesRequested(f"command {self.steps}", offer))

    def locate(self):
        return "\n".join(
            [
                f"at {self.now:.1f} s",
                *(
                    f"rank {rank}: {team or self.recruit.get(rank)}, is told "
                    f"{list(self.mail[rank])}"
                    for rank, team in self.team.items()
                ),
            ]
        )

    # ---- words ----

    def say(self, rank, message):
        self.outgoing[rank].append(message)

    def words(self):
        """What can be heard next: the first word of each rank; of deaths when all is said; of checkpoints."""
        for rank in sorted(self.outgoing):
            if self.outgoing[rank]:
                yield lambda rank=rank: self.hear(self.outgoing[rank].popleft())
        if self.unheard and not any(self.outgoing.values()):
            yield self.hear_of_deaths
        for network in self.reading:
            yield lambda network=network: self.read(network)

    def hear_of_deaths(self):
        died, self.unheard = tuple(sorted(self.unheard)), set()
        self.hear(do.RanksDied(died))

    def hear(self, word):
        self.about_to_hear(word)
        effects = self.ensemble.handle(self.now, word)
        self.inputs.append((self.now, word, effects))
        for effect in effects:
            self.carry_out(effect)

    def about_to_hear(self, word):
        if isinstance(word, m.Ready) and word.rank not in self.dead:
            assert word.rank not in self.waiting
            self.waiting.add(word.rank)
        if isinstance(word, m.Stopped | m.Failed):
            self.disown(word.network)

    # ---- what the ensemble wants ----

    def carry_out(self, effect):
        assert self.status is None
        if isinstance(effect, do.SendMessage):
            self.receive(effect.rank, effect.tag, effect.message)
        elif isinstance(effect, do.LogEvent):
            self.events.append(effect.event)
            self.run_state.apply(
                self.now, event_from_json(json.loads(json.dumps(to_json(effect.event))))
            )
        elif isinstance(effect, do.ReadCheckpoint):
            self.disown(effect.network)
            self.reading.append(effect.network)
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
            assert rank in self.waiting | self.dead, f"rank {rank} is busy, and is told {message}"
            assert rank not in self.given_back, f"rank {rank} was given back, and is told {message}"
            self.waiting.discard(rank)
        if isinstance(message, m.Start | m.Join):
            assert rank not in self.owner, (
                f"rank {rank} is of {self.owner[rank]}, and is told {message}"
            )
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
        """The ranks of a group are free, but for those that are kept, and those that are to join it."""
        self.owner = {
            rank: second
            for rank, second in self.owner.items()
            if second != network or rank in self.promised or rank in keep
        }

    # ---- deeds ----

    def deeds(self):
        """What ranks can do next."""
        if self.unsaid:
            for rank in sorted(set(self.producing) - self.dead):
                yield lambda rank=rank: self.prepare(rank)
        for rank in self.team:
            if rank in self.dead | self.exited:
                continue
            team, recruit = self.team[rank], self.recruit.get(rank)
            if recruit is not None and not recruit[1]:
                yield lambda rank=rank: self.build(rank)
            elif recruit is not None or team is None:
                if self.mail[rank]:
                    yield lambda rank=rank: self.take(rank)
            elif team.is_struck:
                yield lambda rank=rank: self.free(rank)
                if team.has_met and team.master == rank and team.state in ("builds", "trains"):
                    yield from self.of_group(team)  # nobody there has noticed
            elif team.has_met and team.master == rank:
                yield from self.of_group(team)

    def prepare(self, rank):
        """A preprocessor says how fast it was of late."""
        self.unsaid -= 1
        self.say(rank, m.Prepared(rank, self.random.choice([1, 10, 100]), 1.0))

    def take(self, rank):
        """A rank that has nothing to do, or is a recruit, takes its next order."""
        order = self.mail[rank].popleft()
        if isinstance(order, m.Exit):
            assert rank not in self.recruit
            self.exited.add(rank)
        elif isinstance(order, m.LeaveLaunch):
            assert rank in self.waiting
            assert rank not in self.owner
            self.leave(rank)
        elif isinstance(order, m.Start):
            self.come(
                rank, order.group, Team(order.network.name, order.ranks, epoch=order.stream_epoch)
            )
        elif isinstance(order, m.Measure):
            self.come(
                rank,
                order.group,
                Team(order.network.name, order.ranks, state="measures", batches=order.batches),
            )
        elif isinstance(order, m.Join):
            self.recruit[rank] = (order.network.name, False)
        elif isinstance(order, m.Regroup):
            self.join(rank, order)
        elif rank in self.recruit:
            assert order == m.Stop(final=False)
            del self.recruit[rank]
            self.say(rank, m.Ready(rank))
        else:
            assert isinstance(order, m.Pause) or self.dead, (
                f"{order} comes when nobody waits for it"
            )

    def leave(self, rank):
        """A rank that was let go ends; the others hear of it as of a death."""
        assert self.setup.outlives
        assert rank in self.given_back
        self.dead.add(rank)
        self.unheard.add(rank)

    def build(self, rank):
        network, _ = self.recruit[rank]
        self.recruit[rank] = (network, True)
        self.say(rank, m.Built(network, rank))

    def come(self, rank, number, team):
        """A rank comes to where its group meets."""
        team = self.meeting.setdefault(number, team)
        assert rank in team.ranks
        team.present.add(rank)
        self.team[rank] = team
        team.is_struck |= bool(self.dead & set(team.ranks))
        if team.present == set(team.ranks):
            del self.meeting[number]
            team.has_met = True
            if team.state == "builds":
                self.say(team.master, m.Joined(team.network))

    def join(self, rank, order):
        """A recruit goes over to the group of its network."""
        network, has_built = self.recruit.pop(rank)
        assert has_built
        team = self.regrouped(network, order)
        team.cannot |= self.fates[network].failures[:1] == [False] and self.random.random() < 0.3
        self.come(rank, order.group, team)

    def regrouped(self, network, order):
        return self.meeting.setdefault(order.group, Team(network, order.ranks, state="regroups"))

    def free(self, *ranks):
        for rank in ranks:
            self.team[rank] = None
            self.say(rank, m.Ready(rank))

    # ---- groups ----

    def of_group(self, team):
        """What a group can do next, by its master."""
        if team.state == "measures":
            yield lambda: self.measured(team)
        elif team.state == "builds":
            yield lambda: self.built(team)
        elif team.state == "regroups":
            yield lambda: self.goes_on(team)
        elif team.state == "trains":
            yield lambda: self.train(team)
        elif self.mail[team.master]:
            yield lambda: self.follow(team)

    def measured(self, team):
        fails, gpus = self.fails(team), len(team.ranks)
        rate, reason = (0.0, "it failed") if fails is not None else (10.0 * gpus, "")
        timed = (
            ()
            if fails is not None
            else tuple(
                StepTime(batch, 0.1 + batch / gpus / 100 + 0.05 * (gpus > 1))
                for batch in team.batches
            )
        )
        self.say(
            team.master,
            m.Measured(
                team.network, gpus, StepRate(rate), 1.0, reason, bool(fails), timed, 250_000
            ),
        )
        self.free(*team.ranks)

    def fails(self, team, probability=0.2):
        """Whether a failure comes now, and then whether it may pass; None where none does."""
        failures = self.fates[team.network].failures
        if (
            not failures or team.is_struck or self.random.random() > probability
        ):  # to fail, all ranks have to meet
            return None
        return failures.pop(0)

    def fail(self, team, may_pass):
        self.say(team.master, m.Failed(team.network, "it failed", "", may_pass))
        self.free(*team.ranks)

    def built(self, team):
        """A group has built the network, or has failed to, and takes up the last checkpoint."""
        name = team.network
        if (may_pass := self.fails(team)) is not None:
            self.fail(team, may_pass)
            return
        if self.trained[name] and self.random.random() < 0.1:  # the newest checkpoint is damaged
            self.trained[name] = self.trained[name][
                : self.random.randrange(len(self.trained[name]))
            ]
            self.half_done.pop(name, None)
            self.say(team.master, m.FellBack(name, "torn", tuple(self.trained[name]), 0))
        if len(self.trained[name]) >= self.fates[name].epochs and name not in self.half_done:
            self.say(team.master, m.Converged(name, "converged before"))
            team.state, team.is_inside = "stands", False
            return
        team.epoch = self.half_done.pop(name, team.epoch)
        team.state = "trains"

    def train(self, team):
        """A step of training, the last of an epoch or not."""
        name, chance = team.network, self.random.random()
        if (may_pass := self.fails(team, 0.1)) is not None:
            self.fail(team, may_pass)
        elif chance < 0.3:
            self.say(team.master, m.Pace(name, 10, 1.0, self.step_rate()))
        elif self.mail[team.master] and chance < 0.6:
            assert isinstance(self.mail[team.master].popleft(), m.Pause)
            self.say(team.master, m.Paused(name, team.epoch))
            team.state, team.is_inside = "stands", True
        elif chance > 0.8:
            history = self.trained[name]
            history.append(
                self.epoch_of(name, len(history) + 1, stream_epoch=team.epoch, gpus=len(team.ranks))
            )
            final = f"{len(history)} epochs" if len(history) >= self.fates[name].epochs else ""
            self.say(team.master, m.EpochDone(name, history[-1], 0.0, final, rate=self.step_rate()))
            team.state, team.is_inside = "stands", False

    def epoch_of(self, name, epoch, **more):
        """How an epoch went; here all are alike."""
        return record(epoch, **more)

    def step_rate(self):
        """How fast a group's steps are, if anybody can tell: this differs each time."""
        return self.random.choice(
            [
                StepRate(),
                StepRate(),
                StepRate(self.random.choice([1.0, 10.0, 50.0]), 0.1, self.random.choice([10, 200])),
            ]
        )

    def follow(self, team):
        """The master of a group that stands still takes its next order."""
        order = self.mail[team.master].popleft()
        if isinstance(order, m.Pause):
            return  # it comes too late
        if isinstance(order, m.Stop):
            self.let_go(team, order)
            return
        assert isinstance(order, m.Continue | m.Regroup), f"{team} is told {order}"
        epoch = team.epoch if team.is_inside else order.stream_epoch
        if isinstance(order, m.Continue):
            team.state, team.epoch = "trains", epoch
            return
        assert set(order.ranks[: order.stay_count]) <= set(team.ranks)
        assert not set(order.ranks[order.stay_count :]) & set(team.ranks)
        new = self.regrouped(team.network, order)
        new.epoch = epoch
        for rank in team.ranks:
            if rank in order.ranks:
                self.come(rank, order.group, new)
            else:
                self.free(rank)

    def goes_on(self, team):
        if team.cannot:
            self.fates[team.network].failures.pop(0)
            self.fail(team, may_pass=False)
            return
        self.say(team.master, m.Regrouped(team.network, 7, 0.1))
        team.state = "trains"

    def let_go(self, team, order):
        may_pass = self.fails(team) if order.final else None
        if may_pass is not None:
            self.fail(team, may_pass)
            return
        if team.is_inside:
            self.half_done[team.network] = team.epoch
        self.say(team.master, m.Stopped(team.network, 0.0))
        self.free(*team.ranks)

    # ---- deaths ----

    def die(self, rank):
        """A rank dies: those who need it are struck, and what it has said is heard nevertheless."""
        self.deaths -= 1
        self.dead.add(rank)
        self.unheard.add(rank)
        self.waiting.discard(rank)
        self.mail[rank].clear()
        self.recruit.pop(rank, None)
        for team in {
            id(team): team for team in (*self.team.values(), *self.meeting.values()) if team
        }.values():
            team.is_struck |= rank in team.ranks
        if rank in self.team:
            self.team[rank] = None

    def read(self, network):
        """What is on disk of a struck network: all that it has trained, or not the last of it."""
        self.reading.remove(network)
        self.hear(do.CheckpointRead(network, self.saved(network), 0))

    def saved(self, network):
        self.half_done.pop(network, None)
        history = self.trained[network]
        if history and self.random.random() < 0.5:
            history.pop()
        is_done = len(history) >= self.fates[network].epochs
        return NetworkStatus(tuple(history), Outcome("done") if is_done else None)

    # ---- what came of it ----

    @property
    def standings(self):
        return self.run_state.statuses

    def repeat(self):
        """An ensemble that hears the same does the same."""
        again = self.make()
        for now, word, effects in self.inputs:
            assert again.handle(now, word) == effects
        return again

    def check_histories(self):
        """Epochs are counted, and none of the stream is trained on twice."""
        for standing in self.standings.values():
            assert [subject.epoch for subject in standing.history] == list(
                range(1, len(standing.history) + 1)
            )
            assert len({subject.stream_epoch for subject in standing.history}) == len(
                standing.history
            )

    def over(self):
        """The networks that came to their end, and how."""
        return {
            name: standing.outcome
            for name, standing in self.standings.items()
            if standing.outcome is not None
        }

    def check_end(self):
        """What holds of every launch that was not asked to end, and in which nobody died."""
        over = self.over()
        assert set(over) == set(self.fates)
        for name, outcome in over.items():
            assert (
                outcome.is_failure or len(self.standings[name].history) >= self.fates[name].epochs
            )
        failed = any(outcome.is_failure for outcome in over.values())
        assert self.status is (ExitStatus.NETWORK_FAILED if failed else ExitStatus.OK)
