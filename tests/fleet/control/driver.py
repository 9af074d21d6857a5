"""An ensemble, and what it wants to be done: for tests that say word for word what it hears."""

from collections import defaultdict
from dataclasses import replace

from fleet.comm.messages import EpochDone, Joined, Ready, Tag
from fleet.comm.roles import assign
from fleet.control import effects as do
from fleet.control.controller import Controller
from fleet.control.launch_state import LaunchConfig, PolicyAnswer, PriorRates
from fleet.control.measurement import RateMeasurement
from fleet.control.rates import traits_of
from fleet.domain.network import NetworkStatus, StepRate
from fleet.domain.run import RunState
from fleet.search.controller import make_controller
from fleet.stream.layout import Layout
from preprocess.sample import ImageSpec
from scheduler.base import Member, Network, RateTable, Round
from scheduler.ensemble.online import OnlineRates
from tests.fleet.histories import record, spec


def no_search(content):
    """The mind of a spec of which no searcher asks for anything, and that prunes nothing."""
    return make_controller(content, replace(content, networks=()), {}, 0, judges=False)


def layout(slots, is_ring=False):
    """A stream of epochs of six chunks, of which a window holds some."""
    return Layout(
        ImageSpec((4, 4, 1), "uint8"),
        samples=60,
        chunk=10,
        slots=slots,
        lookahead=1,
        readers=4,
        is_ring=is_ring,
    )


def traits(network):
    """What tells how fast a network may be."""
    return traits_of(network, network.name, (4, 4, 1), 2)


def speeds(setup, rates=None, learns=False, prior=None):
    """Where a launch has its rates from: a table, or training, or measurements, beside what is prior."""
    roles, networks = setup.roles, setup.spec.networks
    prior, gpus, on_each = prior or {}, roles.cluster.whole_gpus, roles.physical_gpus_per_node
    online = (
        OnlineRates(
            list(map(traits, networks)),
            setup.samples,
            on_each,
            gpus,
            prior,
            roles.slots,
            idle_slots=roles.idle_slots,
        )
        if learns
        else None
    )
    survey = RateMeasurement(
        networks,
        {network.name: network.name for network in networks},
        setup.spec.profile,
        gpus,
        on_each,
        prior,
    )
    return PriorRates(survey, rates, online)


class ControllerDriver:
    """An ensemble of networks a, b, ... on trainers that are devices 0, 1, ... and ranks 1, 2, ...

    Args:
        wanted: what the policy wants: network -> devices, or a function of the progress that says so. Networks that
            have finished, or rest, are left out.
        gpus: network -> its least and most GPUs.
        trainers: how many, all on one node.
        stream: the layout; then rank 0 is a preprocessor.
        measures: whether rates are not known, and measured.
        learns: whether rates are learned from training, beside what is known: network -> {GPUs: samples/s}.
        parts: of the spec.
        slots: of each GPU; then the first half of the trainers has the first slots of two.
        roles: of all ranks, where they are not on one node.
        tried: the networks and numbers of GPUs whose rates each answer only tries.
        setup: what else is not as it mostly is.
    """

    def __init__(
        self,
        plan,
        networks="ab",
        trainers=4,
        stream=None,
        measures=False,
        standings=None,
        gpus=None,
        parts=None,
        learns=None,
        slots=1,
        roles=None,
        probes=frozenset(),
        **setup,
    ):
        self.plan, self.probes = plan, probes
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
        self.tables = []  # that the policy was told
        self.progress = []  # the progress that the policy was told of
        self.now = 0.0
        self.effects, self.mail, self.events, self.run = (
            [],
            defaultdict(list),
            [],
            RunState(content),
        )
        self.restored = standings or {}
        self.run.restore(self.restored)
        self.ensemble = self.make()
        self.hear(None)

    @property
    def standings(self):
        return self.run.statuses

    def make(self):
        origin = speeds(self.setup, self.rates, self.learns is not None, self.learns)
        return Controller(self.setup, self.restored, origin, self.ask, self.mind())

    def mind(self):
        return no_search(self.setup.spec)

    def ask(self, rates, progress, cluster, minimum):
        self.progress.append(progress)
        self.tables.append(rates)
        plan = self.plan(progress) if callable(self.plan) else self.plan
        return PolicyAnswer(
            Round(
                tuple(
                    Member(name, tuple(devices))
                    for name, devices in plan.items()
                    if name not in progress.finished
                )
            ),
            probes=self.probes,
        )

    def hear(self, *words, after=0.0):
        """Hear some words, the first after some seconds; returns what is to be done about all of them."""
        self.now += after
        self.effects = [effect for word in words for effect in self.ensemble.handle(self.now, word)]
        for effect in self.effects:
            if isinstance(effect, do.SendMessage):
                self.mail[effect.rank if effect.tag is Tag.TRAINER else "preprocessor"].append(
                    effect.message
                )
            elif isinstance(effect, do.LogEvent):
                self.events.append(effect.event)
                self.run.apply(self.now, effect.event)
        return self.effects

    def ready(self, *ranks):
        """Some trainers say that they wait for work; all, where none is named."""
        return self.hear(*(Ready(rank) for rank in ranks or self.setup.roles.trainers))

    def begin(self, *ranks):
        """Trainers are ready, and the groups that start then meet; what was told so far is read."""
        self.ready(*ranks)
        self.hear(*(Joined(event.network) for event in self.of("GroupStarted")))
        self.read()
        return self

    def read(self):
        """What each rank was told since this was called last."""
        mail, self.mail = dict(self.mail), defaultdict(list)
        return mail

    def of(self, kind):
        """The events of a kind."""
        return [event for event in self.events if type(event).__name__ == kind]

    def end_epoch(self, network, stream_epoch=None, final="", rate=StepRate(), gpus=1):
        """A network ends an epoch, and shows how fast its steps are."""
        number = len(self.standings.get(network, NetworkStatus()).history) + 1
        done = record(
            number, stream_epoch=number - 1 if stream_epoch is None else stream_epoch, gpus=gpus
        )
        return self.hear(EpochDone(network, done, 0.25, final, rate=rate))
