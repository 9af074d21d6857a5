"""What searches and their rule decide, as far as networks and devices are concerned (pure).

A :class:`fleet.search.mind.Mind` decides which network is asked for, paused, dropped and let go on. Here it is told
what happens to networks, and what it decides is done: searchers are called, networks added, and those that are paused
or dropped get no devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from fleet.comm.messages import EpochDone
from fleet.domain.events import ReplayDiffered
from fleet.domain.network import EpochRecord
from fleet.ensemble import effects
from fleet.ensemble.effects import Admitted, Consulted, ConsultFailed, Outbox, Ruled
from fleet.ensemble.networks import Networks
from fleet.search.mind import Add, Consult, Decision, Mind, Note, Rule
from fleet.search.searcher import End, Verdict
from scheduler.ensemble.crowd import Values


class Searching:
    """See the module.

    Args:
        mind: that has taken up what earlier launches have logged.
        begun: what followed from that.
        open_for: how many seconds the run waits for further networks when nothing is left to train.
        outbox: takes what is to be done.

    Attributes:
        idle_since_s: when nothing was left to train any more; None while something is.
    """

    def __init__(self, mind: Mind, begun: Iterable[Decision], open_for: float | None, networks: Networks,
                 outbox: Outbox) -> None:
        self._mind, self._open_for, self._networks, self._outbox = mind, open_for, networks, outbox
        self.idle_since_s: float | None = None
        mind.is_open = open_for is not None
        self._decided = list(begun)
        self._has_heard = True  # something from which decisions may follow
        self._coming: set[str] = set()  # networks that are being looked at
        self._ahead = Values()
        for name in mind.pruned:
            if not networks.is_over(name):
                networks.prune(name)
        for name in mind.paused:
            networks.hold(name, is_paused=True)

    # ---- what is known ----

    @property
    def awaited(self) -> frozenset[str]:
        """The networks whose groups must wait for a searcher's answer."""
        return self._mind.awaited

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow any more, once all networks are over."""
        return self._mind.is_over and not self._coming

    @property
    def is_open(self) -> bool:
        """Whether networks may come that no searcher has asked for."""
        return self._mind.is_open

    @property
    def closes_s(self) -> float:
        """When the run waits for further networks no longer; infinity where it does not wait."""
        if self.idle_since_s is None or not self.is_open or self._open_for is None:
            return float("inf")
        return self.idle_since_s + self._open_for

    def idle(self, now_s: float) -> bool:
        """Nothing is left to train: once the run waits no longer, what is paused is judged by those that there are.

        Returns:
            Whether some go on.
        """
        self.idle_since_s = now_s if self.idle_since_s is None else self.idle_since_s
        if now_s < self.closes_s or not self.is_open:
            return False
        self._mind.is_open, self._has_heard = False, True
        return self.decide(())

    @property
    def has_failed(self) -> bool:
        """Whether there is a searcher that is not called again."""
        return self._mind.has_failed

    @property
    def ahead(self) -> Mapping[str, float]:
        """The epochs that each network has before it to its next rung, or its end; empty where there are no rungs."""
        if not self._mind.has_rungs:
            return {}
        for name in self._networks.moved():
            most, done = self._networks.specs[name].train.converge.max_epochs, len(self._networks.history(name))
            self._ahead[name] = max(1, min(most, self._mind.next_rung(name, done) or most) - done)
        return self._ahead

    # ---- heard ----

    def epoch_ended(self, done: EpochDone) -> None:
        """A network has ended an epoch."""
        self._end_epoch(done.network, done.record, is_done=bool(done.final))

    def _end_epoch(self, name: str, record: EpochRecord, is_done: bool) -> None:
        self._mind.epoch_ended(name, record, is_done)
        if is_done:
            self.over(name, End.FINISHED)
        self._has_heard = True

    def read(self, name: str) -> None:
        """A network is as far as its checkpoint says; some of its epochs may not have been heard of."""
        history = self._networks.history(name)
        for record in history:
            self._end_epoch(name, record, self._networks.is_final(name) and record is history[-1])

    def over(self, name: str, end: End) -> None:
        """A network has finished or failed."""
        self._mind.network_over(name, end)
        self._has_heard = True

    def answered(self, answer: Consulted | ConsultFailed) -> None:
        """A searcher has answered, or has failed."""
        self._has_heard = True
        if isinstance(answer, ConsultFailed):
            self._mind.searcher_failed(answer.entry, answer.reason)
            return
        if answer.difference:
            self._outbox.note(ReplayDiffered(answer.entry, answer.difference))
        self._mind.answered(answer.entry, answer.call, answer.answer)

    def admitted(self, admitted: Admitted) -> None:
        """A network has come."""
        name, wrong = admitted.network.name, admitted.added.wrong
        self._has_heard = True
        self._coming.discard(name)
        self._networks.add(admitted.network)
        self._outbox.note(admitted.added)
        if not admitted.added.entry:
            self._mind.add(name)
        if wrong:
            self._networks.fail(name, wrong)
            self.over(name, End.FAILED)

    def ruled(self, ruled: Ruled) -> None:
        """Somebody outside wants a network to pause, to stop, or to go on."""
        self._has_heard = True
        self._mind.rule(ruled.network, ruled.verdict)

    # ---- decide ----

    def decide(self, training: Iterable[str]) -> bool:
        """Do what follows from all that was heard; returns whether the policy might answer otherwise now.

        Args:
            training: the networks that have a group.
        """
        if not self._has_heard and not self._mind.has_untold:
            return False
        self._has_heard = False
        decided, self._decided = self._decided, []
        groups = frozenset(training)
        decided += self._mind.decide(Counter(map(self._mind.entry, groups)), groups | self._networks.fallen)
        has_news = False
        for decision in decided:
            has_news |= self._follow(decision)
        return has_news

    def _follow(self, decision: Decision) -> bool:
        match decision:
            case Note(event):
                self._outbox.note(event)
            case Consult(entry, call):
                self._outbox.add(effects.Consult(entry, call))
            case Add(network) if network not in self._networks.specs:  # otherwise an earlier launch has added it
                self._coming.add(network)
                self._outbox.add(effects.Admit(decision))
            case Rule(network, Verdict.STOP):
                self._networks.prune(network)
                return True
            case Rule(network, verdict):
                self._networks.hold(network, is_paused=verdict is Verdict.PAUSE)
                return True
        return False
