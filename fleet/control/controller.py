"""The mind of the coordinator: it is told what happens, and says what is to be done (pure).

:class:`Ensemble` hands what is heard to those whom it concerns (:mod:`fleet.control.handlers`), and then has each
decide: who leaves (:mod:`fleet.control.node_release`), what searches want (:mod:`fleet.control.searching`), what is
measured (:mod:`fleet.control.rates`), who trains where (:mod:`fleet.control.placement`), and whether the launch ends
(:mod:`fleet.control.shutdown`). They share the parts of a launch (:mod:`fleet.control.launch_state`). None of them knows MPI,
a clock or a disk: :meth:`Ensemble.handle` is given the time and what was heard, and returns effects, which the
coordinator carries out (:mod:`fleet.runtime.coordinator`). What is heard alone decides, so a run can be repeated from
what it has heard, and tried a thousand times in a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from fleet.comm import messages as m
from fleet.control import effects as e
from fleet.control.handlers import MessageHandlers
from fleet.control.history import History, InvalidTransition
from fleet.control.launch_state import Ask, LaunchConfig, LaunchState, PriorRates
from fleet.control.node_release import NodeRelease
from fleet.control.placement import Placement
from fleet.control.rates import make_rates
from fleet.control.searching import Searching
from fleet.control.shutdown import Ending
from fleet.domain.network import NetworkStatus
from fleet.domain.remaining_work import RemainingWork
from fleet.errors import ExitStatus
from fleet.search.controller import Decision, SearchController


class Controller:
    """The networks of a run, the groups that train them, and what is to be done next.

    Args:
        standings: how far earlier launches of this run have brought the networks.
        speeds: what is known of how fast they are.
        ask: the policy.
        mind: of the searches of the run, and of the rule by which networks are pruned; nobody else uses it.
        begun: what has followed from the log of earlier launches for the mind.
    """

    def __init__(
        self,
        setup: LaunchConfig,
        standings: Mapping[str, NetworkStatus],
        speeds: PriorRates,
        ask: Ask,
        mind: SearchController,
        begun: Sequence[Decision] = (),
    ) -> None:
        self._launch = launch = LaunchState.of(setup, standings)
        self._outbox = launch.outbox
        self._groups = launch.groups
        self._networks = launch.networks
        self._rates = make_rates(speeds, launch)
        self._leaving = NodeRelease(launch)
        self._searching = Searching(mind, begun, launch, self._rates)
        self._ending = Ending(launch, self._rates, self._searching)
        self._placement = Placement(
            launch, self._rates, self._searching, self._leaving, self._ending, ask
        )
        self._hearing = MessageHandlers(
            launch, self._rates, self._searching, self._leaving, self._ending
        )
        self._history = History()
        self._wakes_s = float("-inf")
        self._undecided = 0  # what has been heard since it decided

    @property
    def status(self) -> ExitStatus | None:
        """How the launch ends, once it does; then nothing more is heard."""
        return self._ending.status

    @property
    def pace(self) -> str:
        """How groups depend on each other's pace, as :func:`fleet.units.parse_stream` reads it."""
        return self._launch.production.pace

    @property
    def training(self) -> AbstractSet[str]:
        """The networks that have a group; a view."""
        return self._groups.names

    @property
    def outlook(self) -> RemainingWork:
        """What searches may yet bring."""
        return self._searching.mind.outlook

    def offer(self, nodes: int, within_s: float, now_s: float) -> e.NodeOffer:
        """See :meth:`fleet.control.node_release.NodeRelease.offer`; :class:`fleet.control.effects.NodesRequested` has it done.

        Raises:
            UserError: the launch cannot do without so many.
        """
        return self._leaving.offer(nodes, within_s, now_s)

    @property
    def patience(self) -> int:
        """How many messages may be heard before it decides, where so many wait.

        To decide takes a time that grows with the devices; a group waits for its orders as long as these messages take.
        """
        devices = self._groups.cluster.gpus
        if devices >= _MANY:
            return max(_FEWEST, devices // 8)
        return 1

    def handle(
        self, now_s: float, heard: e.Heard | None = None, more_wait: bool = False
    ) -> list[e.Effect]:
        """Hear of something, or only of the time, and decide.

        Args:
            now_s: seconds of a clock that does not go back.
            heard: a message, or what else has happened.
            more_wait: whether more is about to be heard, so that it may decide after that.

        Returns:
            What is to be done, in this order.

        Raises:
            ProtocolViolation: that cannot be.
        """
        is_late = now_s >= self._wakes_s
        if self.status is not None or (heard is None and not is_late and not self._undecided):
            return []
        self._outbox.now_s = now_s
        # Of the many that tell of a group's pace, only few have any effect here.
        matters = (
            not isinstance(heard, m.Pace)
            or heard.rate.rate > 0
            or self._launch.startup.is_awaited(heard.network)
        )
        try:
            if heard is not None:
                is_news = self._hearing.hear(heard)
                self._undecided += matters or is_news > self._placement.has_news
                self._placement.has_news |= is_news
            if is_late or (self._undecided and not (more_wait and self._undecided < self.patience)):
                self._undecided = 0
                self._decide()
        except InvalidTransition as error:
            self._history.add(now_s, heard, self._outbox.take())
            raise self._history.error(str(error)) from error
        effects = self._outbox.take()
        if matters:
            self._history.add(now_s, heard, effects)
        return effects

    # ---- decide ----

    def _decide(self) -> None:
        ending = self._ending
        ends_s = self._ending.since_s
        for building in self._launch.buildings.deaf(self._outbox.now_s, ends_s):
            ending.give_up_on(building)
        for group in self._groups.struck:
            self._groups.remove(group.name)
            self._networks.strike(group.name, self._groups.how_died(group))
            self._placement.has_news = True  # it gets no devices before its checkpoint is read
        if not ending.has_begun:
            self._leaving.decide()
            self._placement.has_news |= self._searching.decide()
            self._rates.measure(self._searching.fail)
            if self._rates.table is not None and self._launch.production.is_known(
                self._groups.lost
            ):
                self._train()
        if ending.has_begun:
            ending.give_up_silent()
            ending.wind_up()
        if ending.has_begun:
            rested_s = float("inf")
        else:
            rested_s = min(self._networks.wakes_s, self._searching.closes_s)
        self._wakes_s = min(
            rested_s, self._launch.buildings.wakes_s(ending.since_s), ending.wakes_s
        )

    def _train(self) -> None:
        """Bring what runs nearer to what should run, or end."""
        if self._networks.has_left or self._groups or not self._searching.is_over:
            self._searching.idle_since_s = None
        else:
            self._placement.has_news |= self._searching.close()
            if self._networks.are_over and not self._searching.mind.is_open:
                self._ending.finish()
            if not self._networks.has_left:
                return
        self._placement.decide()


_MANY = 16  # with fewer devices each message is followed by a decision
_FEWEST = 8  # messages that may be heard first with more
