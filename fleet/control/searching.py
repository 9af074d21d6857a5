"""What searches and their rule decide, as far as networks and devices are concerned (pure).

A :class:`fleet.search.controller.SearchController` decides which network is asked for, paused, dropped and let go on. Here it is told
what happens to networks, and what it decides is done: searchers are called, networks added, and those that are paused
or dropped get no devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from fleet.control.effects import Admitted, NetworkCommand, SearcherAnswered, SearcherCallFailed
from fleet.control.launch_state import LaunchState
from fleet.control.rates import Rates
from fleet.domain.events import NetworkJudged, ReplayDiffered
from fleet.domain.network import EpochRecord
from fleet.search.controller import AddNetwork, CallSearcher, Decision, LogEvent, SearchController
from fleet.search.searcher import End
from scheduler.ensemble.indexed import IndexedValues


class Searching:
    """See the module.

    Args:
        begun: what followed from what earlier launches have logged.

    Attributes:
        mind: that has taken that up.
        idle_since_s: when nothing was left to train any more; None while something is.
    """

    def __init__(
        self, mind: SearchController, begun: Iterable[Decision], launch: LaunchState, rates: Rates
    ) -> None:
        self.mind = mind
        self._launch = launch
        self._networks = launch.networks
        mind.rate_of = rates.alone
        self._open_for = launch.setup.spec.document.keep_open
        self.idle_since_s: float | None = None
        mind.is_open = self._open_for is not None
        self._decided = list(begun)
        self._has_heard = True  # something from which decisions may follow
        self._coming: set[str] = set()  # networks that are being looked at
        self._ahead = IndexedValues()
        self._survivors = set[str]()

    # ---- what is known ----

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow any more, once all networks are over."""
        return self.mind.is_over and not self._coming

    @property
    def closes_s(self) -> float:
        """When the run waits for further networks no longer; infinity where it does not wait."""
        if self.idle_since_s is None or not self.mind.is_open or self._open_for is None:
            return float("inf")
        return self.idle_since_s + self._open_for

    def rungs(self) -> tuple[Mapping[str, float], AbstractSet[str]]:
        """What a policy is told of rungs, where there are any; views.

        Returns:
            The epochs that each network has before it to its next rung, or its end; and the networks that have passed
            a rung, and are neither over nor paused.
        """
        for name in self._networks.moved() if self.mind.has_rungs else ():
            most = self._networks.specs[name].train.stopping.max_epochs
            done = len(self._networks.history(name))
            self._ahead[name] = max(1, min(most, self.mind.next_rung(name, done) or most) - done)
            survives = done >= (self.mind.next_rung(name, 0) or most) and not (
                self._networks.is_over(name) or self._networks.is_paused(name)
            )
            (self._survivors.add if survives else self._survivors.discard)(name)
        return self._ahead, self._survivors

    # ---- heard ----

    def epoch_ended(self, name: str, record: EpochRecord, is_done: bool) -> None:
        """A network has ended an epoch, perhaps its last one."""
        self.mind.epoch_ended(name, record, is_done)
        if is_done:
            self.over(name, End.FINISHED)
        self._has_heard = True

    def read(self, name: str) -> None:
        """A network is as far as its checkpoint says; some of its epochs may not have been heard of."""
        history = self._networks.history(name)
        for record in history:
            self.epoch_ended(name, record, self._networks.is_final(name) and record is history[-1])

    def over(self, name: str, end: End) -> None:
        """A network has finished or failed."""
        self.mind.network_over(name, end)
        self._has_heard = True

    def fail(self, name: str, reason: str, detail: str = "", may_pass: bool = False) -> None:
        """A network has failed, and is not tried again in this launch."""
        self._networks.fail(name, reason, detail, may_pass)
        self.over(name, End.FAILED)

    def fail_of_deaths(self, name: str) -> None:
        """A rank was lost that trained a network; after too many the network has failed."""
        reason, deaths = self._networks.has_died_of(name)
        if reason:
            self._networks.fail(name, reason, deaths=deaths)
            self.over(name, End.FAILED)

    def answered(self, answer: SearcherAnswered | SearcherCallFailed) -> None:
        """A searcher has answered, or has failed."""
        self._has_heard = True
        if isinstance(answer, SearcherCallFailed):
            self.mind.searcher_failed(answer.entry, answer.reason)
            return
        if answer.difference:
            self._launch.outbox.note(ReplayDiffered(answer.entry, answer.difference))
        self.mind.answered(answer.entry, answer.call, answer.answer)

    def admitted(self, admitted: Admitted) -> None:
        """A network has come."""
        name = admitted.network.name
        self._has_heard = True
        self._coming.discard(name)
        self._networks.add(admitted.network)
        self._launch.outbox.note(admitted.added)
        if not admitted.added.entry:
            self.mind.add(name, admitted.network.train.stopping)
        if admitted.added.wrong:
            self.fail(name, admitted.added.wrong)

    def ruled(self, ruled: NetworkCommand) -> None:
        """Somebody outside wants a network to pause, to stop, or to go on."""
        self._has_heard = True
        self.mind.rule(ruled.network, ruled.verdict)

    # ---- decide ----

    def close(self) -> bool:
        """Nothing is left to train: once the run waits no longer, what is paused is judged by those that there are.

        Returns:
            Whether some go on.
        """
        now_s = self._launch.now_s
        if self.idle_since_s is None:
            self.idle_since_s = now_s
        else:
            self.idle_since_s = self.idle_since_s
        if now_s < self.closes_s or not self.mind.is_open:
            return False
        self.mind.is_open = False
        self._has_heard = True
        return self.decide()

    def decide(self) -> bool:
        """Do what follows from all that was heard; returns whether the policy might answer otherwise now."""
        if not self._has_heard and not self.mind.has_untold:
            return False
        self._has_heard = False
        decided = self._decided
        self._decided = []
        training = self._launch.groups.names
        counts = Counter(map(self.mind.entry, training)) if self.mind.asks else {}
        decided += self.mind.decide(counts, training | self._networks.fallen)
        are_news = [self._follow(decision) for decision in decided]
        return any(are_news)

    def _follow(self, decision: Decision) -> bool:
        match decision:
            case LogEvent(NetworkJudged() as judged):
                self._networks.judge(judged)
                return True
            case LogEvent() | CallSearcher():
                self._launch.outbox.add(decision)
            case AddNetwork(network) if (
                network not in self._networks.specs
            ):  # otherwise an earlier launch has added it
                self._coming.add(network)
                self._launch.outbox.add(decision)
        return False
