"""The searchers of a run: their calls and budgets, and which gets another trial (pure)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fleet.domain.events import SearcherFailed
from fleet.domain.network import EpochRecord
from fleet.domain.objectives import objective_values, violations_of
from fleet.domain.remaining_work import ExpectedTrials
from fleet.domain.run import RunState
from fleet.search.calls import AddPriorTrial, Call, Resume, Tell, as_event
from fleet.search.decisions import AddNetwork, CallSearcher, Decision
from fleet.search.entries import Entry
from fleet.search.searcher import TrialOutcome, Verdict
from fleet.search.session import AnswerEffect, SearcherSession
from fleet.search.trials import Trial, Trials
from fleet.spec import Stopping
from fleet.spec.enumeration import size_of


class Sampling:
    """The searchers of a run.

    Args:
        run: the state of the run.
        entries: the entries with searchers.
        trials: the networks of the run.
        decided: the list to which decisions are added.
        trainers: number of trainers.
        obeys: whether answers of searchers to reports have an effect.
        stopping: network -> its stopping rule, if it was admitted by an earlier launch.

    Attributes:
        entries: entry by name.
        sessions: entry -> the session of its searcher.
        training: entry -> number of its networks that have a group.
        is_calling: whether a searcher has yet to answer.
        rate_of: returns the samples/s of a network on one GPU; None if unknown.
    """

    def __init__(
        self,
        run: RunState,
        entries: Iterable[Entry],
        trials: Trials,
        decided: list[Decision],
        trainers: int,
        obeys: bool,
        stopping: Mapping[str, Stopping],
    ) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self.sessions = {
            name: SearcherSession(entry, entry.resumes and obeys)
            for name, entry in self.entries.items()
        }
        self.training: Mapping[str, int] = {}
        self.is_calling = False
        self.rate_of: Callable[[str], float | None] = lambda name: None
        self._run = run
        self._trials = trials
        self._decided = decided
        self._trainers = trainers
        self._obeys = obeys
        self._stopping = stopping
        # entry -> epochs that its networks have trained, and their GPU-seconds
        self._epochs = Counter[str]()
        self._gpu_s = defaultdict[str, float](float)

    # ---- budgets ----

    def is_spent(self, entry: str) -> bool:
        """Return True if the budget of an entry is spent."""
        budget = self.entries[entry].settings.budget
        return budget is not None and (
            (budget.epochs is not None and self._epochs[entry] >= budget.epochs)
            or (budget.gpu_hours is not None and self._gpu_s[entry] >= 3600 * budget.gpu_hours)
        )

    def wants(self, entry: str) -> bool:
        """Return True if one more network of an entry should be alive."""
        setting = self.entries[entry].settings.max_concurrent
        if setting == "auto":
            max_alive = max(self._trainers, self.training.get(entry, 0) + 2)
        else:
            max_alive = setting
        return not self.is_spent(entry) and len(self._trials.alive[entry]) < max_alive

    def expected_trials(self, entry: str) -> ExpectedTrials:
        """Return the trials that an entry may still propose, with their epochs."""
        settings = self.entries[entry].settings
        session = self.sessions[entry]
        networks = 0.0
        epochs = 0.0
        if not (session.is_closed or self.is_spent(entry)):
            networks = min(settings.limit, size_of(self.entries[entry].space)) - session.number
            budget = settings.budget
            trained = self._epochs[entry]
            epochs = math.inf
            if budget is not None and budget.epochs is not None:
                epochs = budget.epochs - trained
            if budget is not None and budget.gpu_hours is not None and self._gpu_s[entry]:
                epochs = min(epochs, (3600 * budget.gpu_hours / self._gpu_s[entry] - 1) * trained)
        return ExpectedTrials(
            max(0, networks),
            epochs,
            math.inf if settings.max_concurrent == "auto" else settings.max_concurrent,
            {
                trial.name: None if trial.is_alive else trial.epochs
                for trial in self._trials.values()
                if trial.entry == entry
            },
        )

    # ---- reports ----

    def report(self, trial: Trial, record: EpochRecord) -> None:
        """Report an epoch of a network to its searcher, if it has one."""
        if trial.entry:
            self._epochs[trial.entry] += 1
            self._gpu_s[trial.entry] += record.gpus * record.seconds
            value = record.value(trial.stopping.metric)
            self.sessions[trial.entry].report(trial.number, record.epoch, value)

    def tell(self, trial: Trial, outcome: TrialOutcome) -> None:
        """Tell the searcher of a network, if it has one, how it has ended."""
        if trial.entry:
            self.sessions[trial.entry].tell(trial.number, outcome)

    def is_awaited(self, trial: Trial) -> bool:
        """Return True if the searcher of a network has yet to answer about it."""
        return bool(trial.entry) and self.sessions[trial.entry].awaits(trial.number)

    def verdict_on(self, trial: Trial) -> Verdict:
        """Return the verdict of a searcher on the newest epoch of a network."""
        if not (trial.entry and self._obeys):
            return Verdict.GO_ON
        verdicts = self.sessions[trial.entry].verdicts
        return verdicts.get((trial.number, trial.epochs), Verdict.GO_ON)

    # ---- calls ----

    @property
    def has_failed(self) -> bool:
        """Whether a searcher has failed and is not called again."""
        return any(session.failure for session in self.sessions.values())

    @property
    def is_idle(self) -> bool:
        """Whether no searcher is called, and none is to be called."""
        return not self.is_calling and all(
            session.next_call(self.wants(name)) is None for name, session in self.sessions.items()
        )

    def consult(self) -> None:
        """Make the next call, unless one is being made; reports come before asks."""
        if self.is_calling:
            return
        for may_want in (False, True):
            for name, session in self.sessions.items():
                call = session.next_call(may_want and self.wants(name))
                if call is None:
                    continue
                if isinstance(call, Tell | AddPriorTrial) and call.outcome and call.number >= 0:
                    call = self._with_values(self.entries[name], call)
                self.is_calling = True
                self._decided.append(CallSearcher(name, call))
                return

    def _with_values(self, entry: Entry, call: Tell | AddPriorTrial) -> Tell | AddPriorTrial:
        """Add the values of the objectives, and the violations of constraints, to a call."""
        trial = self._trials[entry.network_name(call.number)]
        names = [name for name, _ in entry.objectives]
        constraints = entry.constraints
        if len(names) == 1 and not constraints:
            return replace(call, value=trial.value)
        facts = self._facts(trial)
        best = trial.best.record
        value: float | tuple[float, ...] | None = trial.value
        if len(names) > 1:
            value = objective_values(names, best, facts)
        return replace(call, value=value, violations=violations_of(constraints, best, facts))

    def _facts(self, trial: Trial) -> dict[str, float | None]:
        """Return values of a network that do not depend on its epochs' metrics."""
        history = self._run.status_of(trial.name).history
        rates = [epoch.samples / (epoch.seconds * epoch.gpus) for epoch in history if epoch.seconds]
        return {
            "parameters": self._run.parameters.get(trial.name),
            "rate": self.rate_of(trial.name) or max(rates, default=0.0) or None,
            "epochs": len(history),
            "seconds": sum(epoch.seconds for epoch in history),
        }

    def handle_answer(self, entry: str, call: Call, answer: Any) -> tuple[AnswerEffect, str]:
        """Log an answer; return what follows, and the network that it is about.

        Raises:
            InvalidAnswer: the searcher must not be called again.
        """
        self.is_calling = False
        session = self.sessions[entry]
        follows = session.handle_answer(call, answer)
        about = answer if isinstance(call, Resume) else call.number
        network = self.entries[entry].network_name(about) if about in session.proposals else ""
        wrong = follows.wrong if isinstance(follows, AddNetwork) else ""
        self._decided.append(as_event(entry, call, answer, network, wrong))
        if isinstance(follows, AddNetwork):
            self.add(follows)
        return follows, network

    def add(self, proposal: AddNetwork) -> Trial:
        """Add a network that was proposed."""
        name = proposal.network
        stopping = self._stopping.get(name, self.entries[proposal.entry].stopping)
        trial = Trial(name, proposal.entry, proposal.number, stopping)
        self._trials.index(trial)
        self._decided.append(proposal)
        return trial

    def fail(self, entry: str, reason: str) -> None:
        """Stop calling a searcher."""
        self.is_calling = False
        if not self.sessions[entry].failure:
            self.sessions[entry].fail(reason)
            self._decided.append(SearcherFailed(entry, reason))
