"""Who is pruned, who is paused by whom, and who is resumed (pure).

Verdicts of the pruner, of searchers and of users become events, and each event changes the state in
one place (:meth:`Verdicts.apply`), whether it was logged now or by an earlier launch.

The pruner and searchers judge configurations. The repeats of one wait for each other after each
epoch that may be judged, and then continue, pause or stop together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from fleet.domain.events import NetworkVerdict
from fleet.domain.events.search import REPEATS, USER
from fleet.domain.network import EpochRecord
from fleet.search.decisions import Decision
from fleet.search.pruning import Pruner
from fleet.search.rungs import natural_key
from fleet.search.sampling import Sampling
from fleet.search.searcher import TrialOutcome, Verdict
from fleet.search.trials import Configuration, Trial, Trials, mean_of

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

    def end_epoch(self, trial: Trial, record: EpochRecord, is_done: bool) -> None:
        """Record an epoch of a network, and judge it once all repeats have ended it."""
        configuration = self._trials.configuration_of(trial.name)
        before = configuration.epochs
        self.add_epoch(trial, record, is_done)
        self._judge_if_new(configuration, before)
        if configuration.epochs == before and not is_done:
            self.wait(trial)

    def add_epoch(self, trial: Trial, record: EpochRecord, is_done: bool) -> None:
        """Record an epoch of a network, unless it has come before.

        It is passed to the pruner and the searcher once all repeats have ended it.
        """
        if (trial.has_ended and not is_done) or record.epoch != trial.epochs + 1:
            return
        trial.best = trial.best.with_epoch(record, trial.stopping)
        trial.is_done = is_done
        trial.add_epoch(record.value(trial.stopping.metric))
        self._sampling.add_epoch(trial, record)
        self._pass_epochs(self._trials.configuration_of(trial.name))

    def _pass_epochs(self, configuration: Configuration) -> None:
        """Pass epochs that all repeats have ended to the pruner and the searcher."""
        while epochs := configuration.next_epoch():
            configuration.epochs += 1
            score = mean_of([epoch.score for epoch in epochs])
            configuration.verdict = self._pruner.add(
                configuration.name,
                configuration.epochs,
                -math.inf if math.isnan(score) else score,
                configuration.is_done,
            )
            self._sampling.report(configuration, epochs)

    def judge(self, configuration: Configuration) -> None:
        """Wait for the searcher's answer about the newest epoch, or act on it."""
        awaits_answer = self._sampling.is_awaited(configuration) and (
            not configuration.has_repeats or self._may_judge(configuration, configuration.epochs)
        )
        for trial in configuration.trials.values():
            trial.awaits_answer = awaits_answer and not trial.has_ended
            self._trials.index(trial)
        if awaits_answer:
            return
        answer = self._sampling.verdict_on(configuration)
        final = configuration.verdict.stricter(answer)
        by = {
            judge
            for judge, verdict in ((self._rule, configuration.verdict), (SEARCHER, answer))
            if verdict is final
        }
        configuration.verdict = Verdict.GO_ON
        if final is Verdict.GO_ON:
            self.go_on(configuration)
            return
        for trial in _unended(configuration):
            if not trial.is_done:  # its end follows
                self._decide(trial, final, by if final is Verdict.STOP else by | _holders(trial))

    def wait(self, trial: Trial) -> None:
        """Let a network wait for other repeats if its newest epoch may be judged."""
        configuration = self._trials.configuration_of(trial.name)
        trial.awaits_repeats = (
            not trial.has_ended
            and trial.epochs > configuration.epochs
            and REPEATS not in trial.paused_by
            and self._may_judge(configuration, trial.epochs)
        )
        self._trials.index(trial)

    def go_on(self, configuration: Configuration) -> None:
        """Let networks go on that wait for no other repeats any more."""
        for trial in _unended(configuration):
            if REPEATS in trial.paused_by and trial.epochs <= configuration.epochs:
                self.resume(trial.name, REPEATS)
            self.wait(trial)

    def _may_judge(self, configuration: Configuration, epochs: int) -> bool:
        """Return True if a configuration may be paused or pruned after so many epochs."""
        if self._sampling.may_judge(configuration.entry):
            return True
        rung = self._pruner.next_rung(configuration.name, epochs - 1)
        if rung is None:
            return type(self._pruner) is not Pruner
        return rung == epochs

    def pause_waiting(self, training: Collection[str]) -> None:
        """Pause networks that wait for repeats which do not train now, to free their devices."""
        for name in sorted(self._trials.awaited, key=natural_key):
            trial = self._trials[name]
            if not trial.awaits_repeats:
                continue
            lagging = self._trials.configuration_of(name).lagging
            if not all(repeat.name in training for repeat in lagging):
                self._decide(trial, Verdict.PAUSE, trial.paused_by | {REPEATS})

    def end(self, trial: Trial, outcome: TrialOutcome) -> None:
        """Record how a network has ended; once all repeats have, tell their searcher."""
        configuration = self._trials.configuration_of(trial.name)
        trial.outcome = outcome
        trial.is_excluded |= outcome is TrialOutcome.FAILED
        self.unreported.pop(trial.name, None)
        self._leave(trial)
        before = configuration.epochs
        self._pass_epochs(configuration)
        self._judge_if_new(configuration, before)
        if (final := configuration.outcome) is not None:
            configuration.has_ended = True
            if final is TrialOutcome.FINISHED:
                self._pruner.let_go_on(configuration.name)
            self._pruner.leave(configuration.name)
            self._sampling.tell(configuration, final)

    def exclude(self, trial: Trial) -> None:
        """Ignore the values of a failed network from now on."""
        trial.is_excluded = True
        self._pass_epochs(self._trials.configuration_of(trial.name))

    def _judge_if_new(self, configuration: Configuration, before: int) -> None:
        """Judge a configuration that has more epochs than before, unless they are all."""
        if configuration.epochs > before and not configuration.is_done:
            self.judge(configuration)

    def report_pruned(self, busy: Collection[str]) -> None:
        """Report pruned networks, except networks that may be in their last epoch."""
        for name in [name for name in self.unreported if name not in busy]:
            self.end(self._trials[name], TrialOutcome.PRUNED)

    def _leave(self, trial: Trial) -> None:
        trial.has_ended = True
        trial.awaits_answer = False
        trial.awaits_repeats = False
        trial.paused_by = frozenset()
        self._trials.index(trial)

    def begin_again(self, trial: Trial, is_afresh: bool) -> None:
        """Forget that a network was pruned or paused.

        Args:
            trial: the network, which has finished, or starts over.
            is_afresh: whether it starts over.
        """
        configuration = self._trials.configuration_of(trial.name)
        trial.has_ended = False
        self.unreported.pop(trial.name, None)
        if configuration.has_repeats:
            trial.paused_by = frozenset()
            self._trials.index(trial)
            if is_afresh:
                configuration.stopped_by = frozenset()
        else:
            self.apply(NetworkVerdict(trial.name, trial.epochs, Verdict.GO_ON, by=()))

    # ---- verdicts ----

    def apply(self, event: NetworkVerdict) -> None:
        """Prune, pause or resume a network, as an event says."""
        trial = self._trials[event.network]
        configuration = self._trials.configuration_of(event.network)
        judges = frozenset(event.by) - {USER, REPEATS}
        if is_judgment(event):
            configuration.verdict = Verdict.GO_ON
        if event.verdict == Verdict.STOP:
            configuration.stopped_by |= judges
            trial.is_excluded |= not judges and configuration.has_repeats
            self._leave(trial)
            if not _unended(configuration):
                self._pruner.leave(configuration.name)
            self.unreported[trial.name] = None
            self._pass_epochs(configuration)
            return
        is_paused = event.verdict == Verdict.PAUSE
        configuration.stopped_by = frozenset()
        configuration.paused_by = judges if is_paused else frozenset()
        trial.paused_by = frozenset(event.by if is_paused else ())
        trial.awaits_repeats &= not is_paused
        self._trials.index(trial)
        if (
            set(event.by) != {REPEATS}
            and self._rule not in trial.paused_by
            and configuration.verdict is not Verdict.PAUSE
        ):
            self._pruner.let_go_on(configuration.name)

    def complete(self, configuration: Configuration, remaining: int) -> int:
        """Pass a verdict on to the repeats that an earlier launch had not reached.

        Args:
            configuration: the configuration.
            remaining: the number of verdicts of the same moment that remained.

        Returns:
            The number that remains now.
        """
        for trial in _unended(configuration):
            judges = trial.paused_by - {USER, REPEATS}
            released = judges - configuration.paused_by
            if configuration.stopped_by or configuration.paused_by - judges or released:
                remaining = max(0, remaining - 1)
            if configuration.stopped_by:
                self._decide(trial, Verdict.STOP, configuration.stopped_by, remaining)
            elif configuration.paused_by - judges:
                self._decide(trial, Verdict.PAUSE, configuration.paused_by | _holders(trial))
            else:
                for judge in sorted(released):
                    self.resume(trial.name, judge, remaining)
        return remaining

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
        configuration = self._trials.configuration_of(name)
        before = configuration.epochs
        self._decide(self._trials[name], Verdict.STOP, (by,), remaining)
        self._judge_if_new(configuration, before)

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

    def resume_all(self, configuration: Configuration, by: str, remaining: int = 0) -> int:
        """Resume the networks of a configuration that are paused by no other.

        Args:
            configuration: the configuration.
            by: who resumes them.
            remaining: the number of verdicts of this moment, with these.

        Returns:
            The number that remains.
        """
        paused = [trial for trial in _unended(configuration) if by in trial.paused_by]
        for trial in paused:
            remaining = max(0, remaining - 1)
            self.resume(trial.name, by, remaining)
        if not paused and by == self._rule:
            self._pruner.let_go_on(configuration.name)
            if configuration.verdict is Verdict.PAUSE:  # the searcher has not judged this epoch yet
                configuration.verdict = Verdict.GO_ON
        return remaining

    # ---- paused networks ----

    def promote(self) -> None:
        """Resume configurations that the pruner promotes, while their searchers want them."""
        while (name := self._pruner.promotable()) is not None:
            configuration = self._trials.configurations[name]
            if configuration.entry and not self._sampling.wants(configuration.entry):
                return
            self.resume_all(configuration, self._rule)

    def can_settle(self) -> bool:
        """Return True if networks are paused, and nothing that they wait for can come."""
        return bool(self._trials.paused) and not any(
            self._sampling.may_propose(entry, self.unreported) for entry in self._sampling.entries
        )

    def settle(self, resumed: Collection[str] = ()) -> bool:
        """Judge paused networks, for which nothing else can come; return True if any was judged.

        Args:
            resumed: configurations that an earlier launch resumed just before it was killed.
        """
        alive = self._trials.configurations_of(
            set[str]().union(*self._trials.alive.values())
        ).difference(resumed)
        go_on, stop = self._pruner.settle(alive)
        remaining = len(stop) + len(go_on)
        entries = self._sampling.entries
        are_spent = bool(entries) and all(map(self._sampling.is_spent, entries))
        by = self._rule
        configurations = self._trials.configurations
        stopped = [trial for name in stop for trial in _unended(configurations[name])]
        resuming = [configurations[name] for name in go_on]
        if not alive and not resumed and (not remaining or are_spent):
            # nothing can resume them
            resuming = []
            stopped = [self._trials[name] for name in sorted(self._trials.paused, key=natural_key)]
            by = _END
        remaining = len(stopped) + sum(
            by in trial.paused_by for configuration in resuming for trial in _unended(configuration)
        )
        for trial in stopped:  # first, while no network has been resumed
            remaining -= 1
            self.stop(trial.name, by, remaining)
        for configuration in resuming:
            remaining = self.resume_all(configuration, by, remaining)
        return bool(stopped or resuming)


def is_judgment(event: NetworkVerdict) -> bool:
    """Return True unless only users, or waiting for repeats, have led to a verdict."""
    return not event.by or bool(set(event.by) - {USER, REPEATS})


def _unended(configuration: Configuration) -> list[Trial]:
    return [trial for trial in configuration.trials.values() if not trial.has_ended]


def _holders(trial: Trial) -> frozenset[str]:
    """Return who has paused a network, except to wait for repeats."""
    return trial.paused_by - {REPEATS}
