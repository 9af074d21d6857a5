"""A driver for tests of the controller: it sends messages and collects effects."""

from collections import defaultdict
from dataclasses import replace

from fleet.comm.messages import EpochDone, Joined, Ready, Tag
from fleet.comm.roles import assign
from fleet.control import effects as do
from fleet.control.controller import Controller
from fleet.control.launch_state import LaunchConfig, PriorRates
from fleet.control.measurement import RateMeasurement
from fleet.control.node_release import NodeRelease
from fleet.control.rates import traits_of
from fleet.domain.network import NetworkStatus, StepRate
from fleet.domain.run import RunState
from fleet.search.controller import make_controller
from fleet.stream.layout import Layout
from preprocess.sample import ArraySpec
from scheduler.base import Member, Network, RateTable, Round
from scheduler.ensemble.online import OnlineRates
from tests.fleet.histories import record, spec


def make_idle_search(content, run):
    """Return the search controller of a spec without searchers and pruner."""
    return make_controller(content, replace(content, networks=()), run, {}, 0, judges=False)


def layout(slots, is_ring=False):
    """Return the layout of a stream with epochs of six chunks."""
    return Layout(
        ArraySpec((4, 4, 1), "uint8"),
        samples=60,
        chunk=10,
        slots=slots,
        lookahead=1,
        readers=4,
        is_ring=is_ring,
    )


def traits(network):
    """Return the features for estimating a network's rate."""
    return traits_of(network, network.name, (4, 4, 1), 2)


def make_prior_rates(setup, rates=None, learns=False, prior=None, unmeasured=()):
    """Return the rates of a launch: from a table, from training, or measured."""
    roles, networks = setup.roles, setup.spec.networks
    prior, gpus, on_each = prior or {}, roles.cluster.whole_gpus, roles.physical_gpus_per_node
    online = None
    if learns:
        online = OnlineRates(
            list(map(traits, networks)),
            setup.samples,
            on_each,
            gpus,
            prior,
            roles.slots,
            idle_slots=roles.idle_slots,
        )
    measurement = RateMeasurement(
        [network for network in networks if network.name not in unmeasured],
        {network.name: network.name for network in networks},
        setup.spec.profile,
        gpus,
        on_each,
        prior,
        unmeasured=[network for network in networks if network.name in unmeasured],
    )
    return PriorRates(measurement, rates, online)


class ControllerDriver:
    """A controller of networks a, b, ... on devices 0, 1, ... (ranks 1, 2, ...).

    Args:
        plan: the plan of the policy: network -> devices, or a function of the progress that returns
            this. Networks that cannot train now are left out.
        networks: names of the networks.
        trainers: number of trainers, on one node.
        stream: layout of the stream; with one, rank 0 is a preprocessor.
        measures: whether rates are measured.
        unmeasured: networks whose rates are not measured here.
        statuses: network -> its status after earlier launches.
        gpus: network -> its minimum and maximum of GPUs.
        parts: further keys of the spec.
        learns: network -> {GPUs: samples/s}, known rates, if others are learned from training.
        slots: slots of each GPU; of two, the first half of the trainers has the first.
        roles: roles of all ranks, if they are on several nodes.
        probes: the networks and numbers of GPUs whose rates the policy only probes.
        setup: further attributes of :class:`fleet.control.launch_state.LaunchConfig`.
    """

    def __init__(
        self,
        plan,
        networks="ab",
        trainers=4,
        stream=None,
        measures=False,
        unmeasured=(),
        statuses=None,
        gpus=None,
        parts=None,
        learns=None,
        slots=1,
        roles=None,
        probes=frozenset(),
        **setup,
    ):
        self.plan = plan
        self.probes = probes
        models = [
            {"family": "softmax", "name": name, "gpus": (gpus or {}).get(name, [1, 4])}
            for name in networks
        ]
        content = spec(*models, **(parts or {}))
        roles = roles or assign(
            (0,) * (trainers + 1),
            1 if stream else None,
            None,
            own_preprocessing=stream is None,
            slots=slots,
        )
        self.setup = LaunchConfig(content, roles, stream, samples=60, **setup)
        table = RateTable(60, trainers, tuple(Network(name, (10.0, 19.0)) for name in networks))
        self.rates = None if measures or learns is not None else table
        self.learns = learns
        self.unmeasured = unmeasured
        self.tables = []  # the tables that the policy received
        self.progress = []  # the progress that the policy received
        self.now = 0.0
        self.effects = []
        self.mail = defaultdict(list)
        self.events = []
        self.restored = statuses or {}
        self.run = self.make_run()
        self.controller = self.make()
        self.handle(None)

    @property
    def statuses(self):
        return self.run.statuses

    make_node_release = NodeRelease

    def make_run(self):
        run = RunState(self.setup.spec)
        run.restore(self.restored)
        return run

    def make(self):
        origin = make_prior_rates(
            self.setup, self.rates, self.learns is not None, self.learns, self.unmeasured
        )
        run = self.make_run()
        return Controller(
            self.setup,
            run,
            origin,
            self.make_search(run),
            make_node_release=self.make_node_release,
        )

    def make_search(self, run):
        return make_idle_search(self.setup.spec, run)

    def ask(self, question):
        """Return the answer of the policy."""
        progress = question.progress
        self.progress.append(progress)
        self.tables.append(question.rates)
        plan = self.plan(progress) if callable(self.plan) else self.plan
        return do.PolicyAnswered(
            Round(
                tuple(
                    Member(name, tuple(devices))
                    for name, devices in plan.items()
                    if name not in progress.finished
                )
            ),
            probes=self.probes,
        )

    def handle(self, *messages, after=0.0):
        """Handle messages, the first after some seconds; return all effects but questions."""
        self.now += after
        self.effects = [effect for message in messages for effect in self.decide(message)]
        for effect in self.effects:
            if isinstance(effect, do.SendMessage):
                self.mail[effect.rank if effect.tag is Tag.TRAINER else "preprocessor"].append(
                    effect.message
                )
            elif isinstance(effect, do.LogEvent):
                self.events.append(effect.event)
                self.run.apply(self.now, effect.event)
        return self.effects

    def decide(self, message, more_pending=False):
        """Handle a message, and the answers of the policy that follow."""
        pending = self.controller.handle(self.now, message, more_pending)
        effects = []
        while pending:
            effect = pending.pop(0)
            if isinstance(effect, do.AskPolicy):
                pending += self.controller.handle(self.now, self.ask(effect))
            else:
                effects.append(effect)
        return effects

    def send_ready(self, *ranks):
        """Report that some trainers, by default all, wait for work."""
        return self.handle(*(Ready(rank) for rank in ranks or self.setup.roles.trainers))

    def begin(self, *ranks):
        """Start the first groups, and drop the messages so far."""
        self.send_ready(*ranks)
        self.handle(*(Joined(event.network) for event in self.events_of("GroupStarted")))
        self.read_mail()
        return self

    def read_mail(self):
        """Return the messages to each rank since the last call."""
        mail = dict(self.mail)
        self.mail = defaultdict(list)
        return mail

    def events_of(self, kind):
        """Return the events of a type."""
        return [event for event in self.events if type(event).__name__ == kind]

    def end_epoch(self, network, stream_epoch=None, final="", rate=StepRate(), gpus=1):
        """End an epoch of a network."""
        number = len(self.statuses.get(network, NetworkStatus()).history) + 1
        done = record(
            number, stream_epoch=number - 1 if stream_epoch is None else stream_epoch, gpus=gpus
        )
        return self.handle(EpochDone(network, done, 0.25, final, rate=rate))
