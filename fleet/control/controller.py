"""The controller of a launch: a pure state machine that turns messages into effects.

:class:`Controller` passes each input to the message handlers (:mod:`fleet.control.handlers`), and
then lets each part decide: which nodes are released (:mod:`fleet.control.node_release`), what
searches do (:mod:`fleet.control.searching`), what is measured (:mod:`fleet.control.rates`), what
trains where (:mod:`fleet.control.placement`), and whether the launch ends
(:mod:`fleet.control.shutdown`). They share the state of a launch
(:mod:`fleet.control.launch_state`).
None of them uses MPI, a clock or a disk: :meth:`Controller.handle` takes the time and an input, and
returns effects, which the coordinator carries out (:mod:`fleet.runtime.coordinator`). Inputs alone
decide, so a run can be repeated from its inputs, and tested a thousand times in a second.
"""

from __future__ import annotations

from fleet.comm import messages as m
from fleet.control import effects as e
from fleet.control.handlers import MessageHandlers
from fleet.control.history import History, InvalidTransition
from fleet.control.launch_state import LaunchConfig, LaunchState, PriorRates
from fleet.control.node_release import NodeRelease
from fleet.control.placement import Placement
from fleet.control.rates import make_rates
from fleet.control.searching import Searches
from fleet.control.shutdown import Shutdown
from fleet.domain.events import Event
from fleet.domain.run import RunState
from fleet.errors import ExitStatus
from fleet.search.controller import SearchController


class Controller:
    """The networks of a run, the groups that train them, and the next effects.

    Args:
        config: the configuration of the launch.
        run: the state of the run after earlier launches; the controller applies all events to it.
        prior_rates: rates that are known beforehand.
        search: the search controller, restored from the log; used by nothing else.
        make_node_release: makes the part that releases nodes.

    Attributes:
        launch: the state of the launch.
        node_release: the part that releases nodes.
    """

    def __init__(
        self,
        config: LaunchConfig,
        run: RunState,
        prior_rates: PriorRates,
        search: SearchController,
        make_node_release: type[NodeRelease] = NodeRelease,
    ) -> None:
        self.launch = launch = LaunchState.create(config, run)
        self._outbox = launch.outbox
        self._groups = launch.groups
        self._networks = launch.networks
        self._rates = make_rates(prior_rates, launch)
        self.node_release = make_node_release(launch)
        self._searches = Searches(search, launch, self._rates)
        self._shutdown = Shutdown(launch, self._rates, self._searches)
        self._placement = Placement(
            launch, self._rates, self._searches, self.node_release, self._shutdown
        )
        self._handlers = MessageHandlers(
            launch, self._rates, self._searches, self.node_release, self._shutdown
        )
        self._history = History()
        self._wakes_s = float("-inf")
        self._undecided = 0  # inputs since the last decision

    @property
    def status(self) -> ExitStatus | None:
        """The exit status of the launch; None until it has ended, after which input is ignored."""
        return self._shutdown.status

    @property
    def max_undecided(self) -> int:
        """The number of messages that may be handled before a decision, if so many are pending.

        A decision takes time that grows with the devices; groups wait for orders while messages are
        handled.
        """
        devices = self.launch.devices.cluster.gpus
        if devices >= _MANY_DEVICES:
            return max(_MIN_UNDECIDED, devices // 8)
        return 1

    def handle(
        self, now_s: float, message: e.Input | None = None, more_pending: bool = False
    ) -> list[e.Effect]:
        """Process one input, or a clock tick, and return the effects.

        Args:
            now_s: seconds of a monotonic clock.
            message: a message or another input; None for a clock tick.
            more_pending: whether more inputs are pending, so that the decision may wait.

        Returns:
            The effects, in order.

        Raises:
            ProtocolViolation: the input is impossible in the current state.
        """
        is_due = now_s >= self._wakes_s
        if self.status is not None or (message is None and not is_due and not self._undecided):
            return []
        self._outbox.now_s = now_s
        # Only few of the many pace reports have any effect here.
        is_relevant = (
            not isinstance(message, m.Pace)
            or message.rate.rate > 0
            or self.launch.startup.is_awaited(message.network)
        )
        try:
            if isinstance(message, e.PolicyAnswered):
                self._placement.record_answer(message)
                is_due = True
            elif message is not None:
                is_news = self._handlers.handle(message)
                self._undecided += is_relevant or is_news > self._placement.has_news
                self._placement.has_news |= is_news or (is_relevant and self._placement.is_waiting)
            if self._undecided and not (more_pending and self._undecided < self.max_undecided):
                is_due = True
            if is_due and not self._placement.is_waiting:
                self._undecided = 0
                self._decide()
        except InvalidTransition as error:
            self._history.add(now_s, message, self._outbox.drain())
            raise self._history.make_error(str(error)) from error
        effects = self._outbox.drain()
        if is_relevant:
            self._history.add(now_s, message, effects)
        return effects

    def log(self, now_s: float, event: Event) -> list[e.Effect]:
        """Log an event that no decision made, and return the effects.

        Args:
            now_s: seconds on the clock of :meth:`handle`.
            event: what happened.
        """
        self._outbox.now_s = now_s
        self._outbox.log(event)
        return self._outbox.drain()

    # ---- decide ----

    def _decide(self) -> None:
        shutdown = self._shutdown
        for build in self.launch.builds.find_overdue(self._outbox.now_s, shutdown.began_s):
            shutdown.abandon_build(build)
        for group in self._groups.failed_groups:
            self.launch.orders.disband(group)
            deaths = self.launch.devices.describe_deaths(group.devices)
            self.launch.changes.await_checkpoint(group.name, deaths)
            self._placement.has_news = True  # it gets no devices before its checkpoint is read
        if not shutdown.has_begun:
            self.node_release.decide()
            self._placement.has_news |= self._searches.decide()
            self._rates.measure(self._searches.fail)
            if self._rates.table is not None and self.launch.grants.has_throughputs(
                self.launch.devices.removed_ranks
            ):
                self._train()
        if shutdown.has_begun:
            shutdown.abandon_silent_groups()
            shutdown.wind_up()
            next_retry_s = float("inf")
        else:
            next_retry_s = min(self.launch.retries.next_s, self._searches.closes_s)
        self._wakes_s = min(
            next_retry_s, self.launch.builds.next_deadline_s(shutdown.began_s), shutdown.deadline_s
        )

    def _train(self) -> None:
        """Move running groups closer to the plan, or end the launch."""
        if self._networks.has_trainable or self._groups or not self._searches.is_over:
            self._searches.idle_since_s = float("inf")
        else:
            self._placement.has_news |= self._searches.close()
            # A network that has ended by the log may have lost its last checkpoint.
            awaits_checkpoint = self._networks.waiting.awaiting_checkpoint
            is_open = self._searches.controller.is_open
            if self._networks.are_over and not awaits_checkpoint and not is_open:
                self._shutdown.finish()
            if not self._networks.has_trainable:
                return
        self._placement.decide()


_MANY_DEVICES = 16  # with fewer devices, a decision follows each message
_MIN_UNDECIDED = 8  # messages before a decision, with more devices
