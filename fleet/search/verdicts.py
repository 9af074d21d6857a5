"""Who is pruned, who is paused by whom, and who is resumed (pure).

Verdicts of the pruner, of searchers and of users become events, and each event changes the state in
one place (:meth:`Verdicts.apply`), whether it was logged now or by an earlier launch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from fleet.domain.events import NetworkVerdict
from fleet.domain.events.search import USER
from fleet.domain.network import EpochRecord
from fleet.search.decisions import Decision
from fleet.search.pruning import Pruner
from fleet.search.rungs import natural_key
from fleet.search.sampling import Sampling
from fleet.search.searcher import TrialOutcome, Verdict
from fleet.search.trials import Trial, Trials

SEARCHER = "searcher"
_END = "end"


class Verdicts:
    """The verdicts on the networks of a run.

    Args:
        trials: the networks.
        sampling: their searchers.
        decided: the list to which decisions are added.
        pruner: the pruner, in its initial state.
        rule: its name, for the log.

    Attributes:
        unreported: pruned networks in order, each of which may still end its last epoch.
    """

    def __init__(
        self,
        trials: Trials,
        sampling: Sampling,
        decided: list[Decision],
        pruner: Pruner,
        rule: str,
    ) -> None:
        self._trials = trials
        self._sampling = sampling
        self._decided = decided
        self._pruner = pruner
        self._rule = rule
        self.unreported: dict[str, None] = {}

    # ---- epochs and ends ----

    def add_epoch(self, trial: Trial, record: EpochRecord, is_done: bool) -> bool:
        """Pass an epoch to the pruner and the searcher; return True if it counts."""
        if (trial.has_ended and not is_done) or record.epoch != trial.epochs + 1:
            return False
        trial.best = trial.best.with_epoch(record, trial.stopping)
        score = trial.best.score if math.isfinite(trial.best.score) else -math.inf
        trial.verdict = self._pruner.add(trial.name, record.epoch, score, is_done)
        self._sampling.report(trial, record)
        return True

    def judge(self, trial: Trial) -> None:
        """Wait for the searcher's answer about the newest epoch of a network, or act on it."""
        trial.awaits_answer = self._sampling.is_awaited(trial)
        self._trials.index(trial)
        if trial.awaits_answer:
            return
        answer = self._sampling.verdict_on(trial)
        final = trial.verdict.stricter(answer)
        by = {
            judge
            for judge, verdict in ((self._rule, trial.verdict), (SEARCHER, answer))
            if verdict is final
        }
        if final is not Verdict.GO_ON:
            self._decide(trial, final, by if final is Verdict.STOP else by | trial.paused_by)
        trial.verdict = Verdict.GO_ON

    def end(self, trial: Trial, outcome: TrialOutcome) -> None:
        """Record how a network has ended, and tell its searcher."""
        self._leave(trial, outcome is TrialOutcome.FINISHED)
        self.unreported.pop(trial.name, None)
        self._sampling.tell(trial, outcome)

    def report_pruned(self, busy: Collection[str]) -> None:
        """Report pruned networks, except networks that may be in their last epoch."""
        for name in [name for name in self.unreported if name not in busy]:
            self.end(self._trials[name], TrialOutcome.PRUNED)

    def _leave(self, trial: Trial, is_finished: bool) -> None:
        trial.has_ended = True
        trial.awaits_answer = False
        trial.paused_by = frozenset()
        self._trials.index(trial)
        if is_finished:
            self._pruner.let_go_on(trial.name)
        self._pruner.leave(trial.name)

    # ---- verdicts ----

    def apply(self, event: NetworkVerdict) -> None:
        """Prune, pause or resume a network, as an event says."""
        trial = self._trials[event.network]
        if event.by != (USER,):  # a command is no verdict on an epoch
            trial.verdict = Verdict.GO_ON
        if event.verdict == Verdict.STOP:
            self._leave(trial, is_finished=False)
            self.unreported[trial.name] = None
            return
        trial.paused_by = frozenset(event.by if event.verdict == Verdict.PAUSE else ())
        self._trials.index(trial)
        if self._rule not in trial.paused_by and trial.verdict is not Verdict.PAUSE:
            self._pruner.let_go_on(trial.name)

    def _decide(
        self, trial: Trial, verdict: Verdict, by: Iterable[str], remaining: int = 0
    ) -> None:
        event = NetworkVerdict(
            trial.name, trial.epochs, verdict.value, tuple(sorted(by)), remaining
        )
        self._decided.append(event)
        self.apply(event)

    def stop(self, name: str, by: str, remaining: int = 0) -> None:
        """Prune a network; it is reported to its searcher when it can no longer finish."""
        self._decide(self._trials[name], Verdict.STOP, (by,), remaining)

    def pause(self, name: str, by: str) -> None:
        """Pause a network, unless the same has paused it."""
        trial = self._trials[name]
        if by not in trial.paused_by:
            self._decide(trial, Verdict.PAUSE, trial.paused_by | {by})

    def resume(self, name: str, by: str, remaining: int = 0) -> None:
        """Resume a network that is paused by no other."""
        trial = self._trials[name]
        holders = trial.paused_by - {by}
        if holders != trial.paused_by:
            verdict = Verdict.PAUSE if holders else Verdict.GO_ON
            self._decide(trial, verdict, holders or (by,), remaining)
        elif by == self._rule:
            self._pruner.let_go_on(name)
            if trial.verdict is Verdict.PAUSE:  # the searcher has not judged this epoch yet
                trial.verdict = Verdict.GO_ON

    # ---- paused networks ----

    def promote(self) -> None:
        """Resume networks that the pruner promotes, while their searchers want them."""
        while (name := self._pruner.promotable()) is not None:
            entry = self._trials[name].entry
            if entry and not self._sampling.wants(entry):
                return
            self.resume(name, self._rule)

    def can_settle(self) -> bool:
        """Return True if networks are paused, and nothing that they wait for can come."""
        return bool(self._trials.paused) and not any(
            map(self._may_propose, self._sampling.sessions)
        )

    def _may_propose(self, entry: str) -> bool:
        """Return True if an entry may still propose a network, now or after another report."""
        session = self._sampling.sessions[entry]
        if session.is_closed or self._sampling.is_spent(entry):
            return False
        return (
            session.may_ask
            or bool(self._trials.alive[entry])
            or any(self._trials[name].entry == entry for name in self.unreported)
        )

    def settle(self, resumed: Collection[str] = ()) -> bool:
        """Judge paused networks, for which nothing else can come; return True if any was judged.

        Args:
            resumed: networks that an earlier launch resumed just before it was killed.
        """
        alive = set[str]().union(*self._trials.alive.values()).difference(resumed)
        go_on, stop = self._pruner.settle(alive)
        remaining = len(stop) + len(go_on)
        entries = self._sampling.entries
        are_spent = bool(entries) and all(map(self._sampling.is_spent, entries))
        by = self._rule
        if not alive and not resumed and (not remaining or are_spent):
            # nothing can resume them
            go_on, stop = (), tuple(sorted(self._trials.paused, key=natural_key))
            remaining = len(stop)
            by = _END
        for name in stop:  # first, while no network has been resumed
            remaining -= 1
            self.stop(name, by, remaining)
        for name in go_on:
            remaining -= 1
            self.resume(name, by, remaining)
        return bool(go_on or stop)
