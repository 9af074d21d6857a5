"""The searchers of a run: their calls and budgets, and which gets another trial (pure)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fleet.domain.events import SearcherFailed
from fleet.domain.events.search import REPEATS
from fleet.domain.network import EpochRecord
from fleet.domain.objectives import objective_values, violations_of
from fleet.domain.remaining_work import ExpectedTrials
from fleet.domain.run import RunState
from fleet.search.calls import AddPriorTrial, Call, Resume, Tell, as_event
from fleet.search.decisions import AddNetwork, CallSearcher, Decision
from fleet.search.entries import Entry
from fleet.search.searcher import TrialOutcome, Verdict
from fleet.search.session import AnswerEffect, SearcherSession
from fleet.search.trials import Configuration, EpochValue, Trial, Trials, mean_of, spread_of
from fleet.spec import Stopping
from fleet.spec.enumeration import size_of
from fleet.spec.naming import network_name
from fleet.units import J_PER_KWH, kilojoules


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
            or (budget.kwh is not None and self._joules(entry) >= J_PER_KWH * budget.kwh)
        )

    def _joules(self, entry: str) -> float:
        """Return the energy that the networks of an entry have used."""
        return sum(
            joules
            for name, joules in self._run.joules.items()
            if name in self._trials and self._trials[name].entry == entry
        )

    def wants(self, entry: str) -> bool:
        """Return True if one more network of an entry should be alive."""
        if self.is_spent(entry):
            return False
        alive = self._trials.alive_configurations(entry)
        setting = self.entries[entry].settings.max_concurrent
        if setting != "auto":
            return len(alive) < setting
        active = sum(
            not trial.has_ended
            for name in alive
            for trial in self._trials.configurations[name].trials.values()
        )
        return active < max(self._trainers, self.training.get(entry, 0) + 2)

    def expected_trials(self, entry: str) -> ExpectedTrials:
        """Return the trials that an entry may still propose, with their epochs."""
        settings = self.entries[entry].settings
        session = self.sessions[entry]
        networks = 0.0
        epochs = 0.0
        if not (session.is_closed or self.is_spent(entry)):
            trials = min(settings.limit, size_of(self.entries[entry].space)) - session.number
            networks = trials * settings.repeats
            budget = settings.budget
            trained = self._epochs[entry]
            epochs = math.inf
            if budget is not None and budget.epochs is not None:
                epochs = budget.epochs - trained
            if budget is not None and budget.gpu_hours is not None and self._gpu_s[entry]:
                epochs = min(epochs, (3600 * budget.gpu_hours / self._gpu_s[entry] - 1) * trained)
            if budget is not None and budget.kwh is not None and (used := self._joules(entry)):
                epochs = min(epochs, (J_PER_KWH * budget.kwh / used - 1) * trained)
        return ExpectedTrials(
            max(0, networks),
            epochs,
            math.inf
            if settings.max_concurrent == "auto"
            else settings.max_concurrent * settings.repeats,
            {
                trial.name: trial.epochs if trial.has_ended or trial.paused_by - {REPEATS} else None
                for trial in self._trials.values()
                if trial.entry == entry
            },
        )

    def may_propose(self, entry: str, unreported: Iterable[str]) -> bool:
        """Return True if an entry may still propose a network, now or after another report.

        Args:
            entry: name of the entry.
            unreported: networks that will be reported to their searchers.
        """
        session = self.sessions[entry]
        if session.is_closed or self.is_spent(entry):
            return False
        return (
            session.may_ask
            or bool(self._trials.alive[entry])
            or any(self._trials[name].entry == entry for name in unreported)
        )

    # ---- reports ----

    def add_epoch(self, trial: Trial, record: EpochRecord) -> None:
        """Count an epoch of a network against the budget of its entry."""
        if trial.entry:
            self._epochs[trial.entry] += 1
            self._gpu_s[trial.entry] += record.gpus * record.seconds

    def report(self, configuration: Configuration, epochs: Sequence[EpochValue]) -> None:
        """Report the newest epoch of a configuration to its searcher, if it has one.

        Args:
            configuration: the configuration.
            epochs: this epoch of each of its networks that counts.
        """
        if configuration.entry:
            values = [epoch.value for epoch in epochs]
            self.sessions[configuration.entry].report(
                configuration.number, configuration.epochs, mean_of(values), spread_of(values)
            )

    def tell(self, configuration: Configuration, outcome: TrialOutcome) -> None:
        """Tell the searcher of a configuration, if it has one, how it has ended."""
        if configuration.entry:
            self.sessions[configuration.entry].tell(configuration.number, outcome)

    def is_awaited(self, configuration: Configuration) -> bool:
        """Return True if the searcher of a configuration has yet to answer about it."""
        entry = configuration.entry
        return bool(entry) and self.sessions[entry].awaits(configuration.number)

    def verdict_on(self, configuration: Configuration) -> Verdict:
        """Return the verdict of a searcher on the newest epoch of a configuration."""
        if not (configuration.entry and self._obeys):
            return Verdict.GO_ON
        verdicts = self.sessions[configuration.entry].verdicts
        return verdicts.get((configuration.number, configuration.epochs), Verdict.GO_ON)

    def may_judge(self, entry: str) -> bool:
        """Return True if the searcher of an entry may pause or prune networks."""
        if not (entry and self._obeys) or self.sessions[entry].failure:
            return False
        return self.entries[entry].judges

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
        """Add the values of the objectives, and the violations of constraints, to a call.

        Of repeats they are means.
        """
        configuration = self._trials.configurations[entry.configuration_name(call.number)]
        names = [name for name, _ in entry.objectives]
        value: float | tuple[float, ...] | None
        spread: float | tuple[float, ...] | None
        if len(names) == 1:
            mean = mean_of(configuration.values)
            value = None if math.isnan(mean) else mean
            spread = spread_of(configuration.values)
            if not entry.constraints:
                return replace(call, value=value, spread=spread)
        counted = [(trial.best.record, self._facts(trial)) for trial in configuration.counted]
        if len(names) > 1:
            values = [objective_values(names, best, facts) for best, facts in counted]
            value = tuple(map(mean_of, zip(*values, strict=True)))
            spread = None
            if configuration.has_repeats:
                spreads = map(spread_of, zip(*values, strict=True))
                spread = tuple(math.nan if number is None else number for number in spreads)
        violations = [violations_of(entry.constraints, best, facts) for best, facts in counted]
        return replace(
            call,
            value=value,
            spread=spread,
            violations=tuple(map(mean_of, zip(*violations, strict=True))),
        )

    def _facts(self, trial: Trial) -> dict[str, float | None]:
        """Return values of a network that do not depend on its epochs' metrics."""
        history = self._run.status_of(trial.name).history
        rates = [epoch.samples / (epoch.seconds * epoch.gpus) for epoch in history if epoch.seconds]
        return {
            "parameters": self._run.parameters.get(trial.name),
            "rate": self.rate_of(trial.name) or max(rates, default=0.0) or None,
            "epochs": len(history),
            "seconds": sum(epoch.seconds for epoch in history),
            "energy": kilojoules(self._run.joules.get(trial.name)),
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
        network = (
            self.entries[entry].configuration_name(about) if about in session.proposals else ""
        )
        wrong = ""
        repeats = 1
        if isinstance(follows, AddNetwork):
            wrong = follows.wrong
            repeats = 1 if wrong else self.entries[entry].settings.repeats
        self._decided.append(as_event(entry, call, answer, network, wrong, repeats))
        if isinstance(follows, AddNetwork):
            self.add(follows, repeats)
        return follows, network

    def add(self, proposal: AddNetwork, repeats: int) -> None:
        """Add the networks of a configuration that was proposed.

        Args:
            proposal: the proposal, with the name of the configuration, and of its parent.
            repeats: number of networks.
        """
        configuration = proposal.network
        parents = []
        if proposal.parent is not None:
            parents = list(self._trials.configurations[proposal.parent].counted)
        for repeat in range(repeats):
            name = network_name(configuration, repeat if repeats > 1 else None)
            stopping = self._stopping.get(name, self.entries[proposal.entry].stopping)
            self._trials.index(
                Trial(name, proposal.entry, proposal.number, stopping, configuration)
            )
            self._decided.append(
                replace(
                    proposal,
                    network=name,
                    repeat=repeat if repeats > 1 else None,
                    parent=parents[repeat % len(parents)].name if parents else None,
                )
            )

    def fail(self, entry: str, reason: str) -> None:
        """Stop calling a searcher."""
        self.is_calling = False
        if not self.sessions[entry].failure:
            self.sessions[entry].fail(reason)
            self._decided.append(SearcherFailed(entry, reason))
