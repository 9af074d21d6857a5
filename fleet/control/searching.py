"""Connects the search controller with networks and devices (pure).

A :class:`fleet.search.controller.SearchController` decides which networks are proposed, paused,
pruned and resumed. This module passes it what happens to networks, and carries out its decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from fleet.control.effects import (
    NetworkAdmitted,
    NetworkCommand,
    SearcherAnswered,
    SearcherCallFailed,
)
from fleet.control.launch_state import LaunchState
from fleet.control.rates import Rates
from fleet.domain.events import NetworkFailed, NetworkVerdict, ReplayDiffered
from fleet.domain.network import EpochRecord
from fleet.search.controller import SearchController
from fleet.search.decisions import AddNetwork, CallSearcher, Decision
from fleet.search.searcher import TrialOutcome
from scheduler.ensemble.indexed import IndexedValues


class Searches:
    """The searches of a launch.

    Args:
        controller: the search controller, restored from the log.
        launch: the state of the launch.
        rates: rates of the networks.

    Attributes:
        controller: the search controller.
        idle_since_s: when nothing was left to train; infinity while something is.
    """

    def __init__(
        self,
        controller: SearchController,
        launch: LaunchState,
        rates: Rates,
    ) -> None:
        self.controller = controller
        self._launch = launch
        self._networks = launch.networks
        controller.sampling.rate_of = rates.single_gpu_rate
        keep_open = launch.config.spec.document.keep_open
        self._open_for = keep_open or 0.0
        self.idle_since_s = float("inf")
        controller.is_open = keep_open is not None
        self._has_input = True  # whether any input has come since the last decision
        self._in_validation: set[str] = set()  # networks that are being validated
        self._epochs_to_rung = IndexedValues()
        self._survivors = set[str]()
        self._version = 0  # of the run, when rungs were last updated

    # ---- queries ----

    @property
    def is_over(self) -> bool:
        """Whether no more networks can come, once all have ended."""
        return self.controller.is_over and not self._in_validation

    @property
    def closes_s(self) -> float:
        """When the run stops waiting for more networks; infinity if it does not wait."""
        if self.controller.is_open:
            return self.idle_since_s + self._open_for
        return float("inf")

    def rungs(self) -> tuple[Mapping[str, float], AbstractSet[str]]:
        """Return the state of rungs for the policy, if there are any; views.

        Returns:
            The epochs of each network to its next rung or its end; and the networks that have
            passed a rung and are neither ended nor paused.
        """
        next_rung = self.controller.next_rung
        if self.controller.pruner.expected(1) is None:
            return self._epochs_to_rung, self._survivors
        changed = self._launch.run.changes.since(self._version)
        self._version = self._launch.run.changes.version
        for name in changed & self._networks.specs.keys():
            max_epochs = self._networks.specs[name].train.stopping.max_epochs
            done = len(self._networks.history(name))
            self._epochs_to_rung[name] = max(
                1, min(max_epochs, next_rung(name, done) or max_epochs) - done
            )
            survives = done >= (next_rung(name, 0) or max_epochs) and not (
                self._networks.is_over(name) or self._networks.is_paused(name)
            )
            (self._survivors.add if survives else self._survivors.discard)(name)
        return self._epochs_to_rung, self._survivors

    # ---- inputs ----

    def end_epoch(self, name: str, record: EpochRecord, is_done: bool) -> None:
        """Record a finished epoch of a network, perhaps its last."""
        self.controller.end_epoch(name, record, is_done)
        if is_done:
            self.end_network(name, TrialOutcome.FINISHED)
        self._has_input = True

    def restore(self, name: str) -> None:
        """Record the epochs of a checkpoint, some of which may be new."""
        history = self._networks.history(name)
        for record in history:
            self.end_epoch(name, record, self._networks.is_final(name) and record is history[-1])

    def end_network(self, name: str, end: TrialOutcome) -> None:
        """Record that a network has finished or failed."""
        self.controller.end_network(name, end)
        self._has_input = True

    def fail(self, name: str, reason: str, detail: str = "", may_pass: bool = False) -> None:
        """Record that a network has failed; it is not tried again in this launch.

        Args:
            name: name of the network.
            reason: one line.
            detail: the traceback, if there is one.
            may_pass: whether the error is transient, so that the next launch tries again.
        """
        self._launch.outbox.log(NetworkFailed(name, reason, detail, may_pass))
        self.end_network(name, TrialOutcome.FAILED)

    def fail_after_deaths(self, name: str) -> None:
        """Fail a network if too many ranks have died while training it."""
        reason, deaths = self._launch.changes.check_deaths(name)
        if reason:
            self._launch.outbox.log(NetworkFailed(name, reason, deaths=deaths))
            self.end_network(name, TrialOutcome.FAILED)

    def handle_answer(self, answer: SearcherAnswered | SearcherCallFailed) -> None:
        """Handle the answer of a searcher, or its failure."""
        self._has_input = True
        if isinstance(answer, SearcherCallFailed):
            self.controller.fail_searcher(answer.entry, answer.reason)
            return
        if answer.difference:
            self._launch.outbox.log(ReplayDiffered(answer.entry, answer.difference))
        self.controller.handle_answer(answer.entry, answer.call, answer.answer)

    def handle_admitted(self, admitted: NetworkAdmitted) -> None:
        """Add a network that has been validated."""
        name = admitted.network.name
        self._has_input = True
        self._in_validation.discard(name)
        self._launch.changes.add(admitted)
        self.controller.admit(
            name,
            admitted.network.train.stopping,
            admitted.network.stem if admitted.network.repeat is not None else "",
        )
        if admitted.added.wrong:
            self.fail(name, admitted.added.wrong)

    def handle_command(self, ruled: NetworkCommand) -> None:
        """Handle a command to pause, stop or resume a network."""
        self._has_input = True
        self.controller.apply_command(ruled.network, ruled.verdict)

    # ---- decide ----

    def close(self) -> bool:
        """Stop waiting for more networks once it is time, and judge paused networks.

        Returns:
            Whether some networks are resumed.
        """
        now_s = self._launch.now_s
        self.idle_since_s = min(self.idle_since_s, now_s)
        if now_s < self.closes_s or not self.controller.is_open:
            return False
        self.controller.is_open = False
        self._has_input = True
        return self.decide()

    def decide(self) -> bool:
        """Carry out the decisions of searches; return True if the plan may change."""
        is_waiting = self.controller.verdicts.unreported or self.controller.trials.awaited
        if not self._has_input and not is_waiting:
            return False
        self._has_input = False
        training = self._launch.groups.names
        busy = training | self._networks.waiting.awaiting_checkpoint
        decided = self.controller.decide(training, busy)
        are_news = [self._follow(decision) for decision in decided]
        return any(are_news)

    def _follow(self, decision: Decision) -> bool:
        match decision:
            case CallSearcher():
                self._launch.outbox.add(decision)
            case AddNetwork(network):
                if network not in self._networks.specs:  # otherwise an earlier launch added it
                    self._in_validation.add(network)
                    self._launch.outbox.add(decision)
            case event:
                self._launch.outbox.log(event)
        return isinstance(decision, NetworkVerdict)
