"""Restore searches from the log of earlier launches (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fleet.domain import events as ev
from fleet.domain.events.search import USER
from fleet.domain.network import best_of
from fleet.domain.run import RunState
from fleet.search.calls import as_call
from fleet.search.decisions import AddNetwork
from fleet.search.rungs import natural_key
from fleet.search.sampling import Sampling
from fleet.search.searcher import Verdict
from fleet.search.trials import Trial, Trials, outcome_of
from fleet.search.verdicts import SEARCHER, Verdicts
from fleet.spec.space import space_of


class Restoration:
    """Repeats what a log tells of searches, and then finishes what it has not.

    Args:
        run: the state of the run now.
        trials, sampling, verdicts: parts of the search controller, in their initial states.
    """

    def __init__(
        self, run: RunState, trials: Trials, sampling: Sampling, verdicts: Verdicts
    ) -> None:
        self._run = run
        self._trials = trials
        self._sampling = sampling
        self._verdicts = verdicts
        # network -> epochs after which it has finished, even if it was pruned then
        self._finishes: defaultdict[str, set[int]] = defaultdict(set)
        # network -> epoch up to which verdicts were acted on, as far as they changed anything
        self._resolved_epochs: dict[str, int] = {}
        # networks that the searcher has resumed, although no event says so
        self._resumed: set[str] = set()
        # entry -> objectives and constraints of its newest searcher
        self._objectives: dict[str, object] = {}

    def apply(self, log: Iterable[ev.Event]) -> None:
        """Restore the state.

        Args:
            log: all events in order; at its end, epochs that were saved but not logged.
        """
        log = list(log)
        for event in log:
            if isinstance(event, ev.NetworkFinished):
                self._finishes[event.network].add(event.epochs)
        for name, status in self._run.statuses.items():
            if status.is_finished:
                self._finishes[name].add(len(status.history))
        # the last line, if it is a verdict, and the networks that were resumed with it
        judged = None
        resumed = set[str]()
        for event in log:
            self._apply(event)
            judged = event if isinstance(event, ev.NetworkVerdict) else None
            if judged is None or not judged.left:
                resumed = set()
            elif judged.verdict == Verdict.GO_ON:
                resumed.add(judged.network)
        for entry, session in self._sampling.sessions.items():
            session.add_prior_trials(self._sampling.entries[entry].prior_trials)
        for name in sorted(self._trials, key=natural_key):
            self._finish(self._trials[name])
        if judged is not None and judged.left and self._trials.paused:
            self._verdicts.settle(resumed)

    def _apply(self, event: ev.Event) -> None:
        match event:
            case ev.SearcherCalled() if event.entry in self._sampling.sessions:
                follows = self._sampling.sessions[event.entry].handle_answer(
                    as_call(event), event.answer, event.wrong
                )
                if isinstance(follows, AddNetwork):
                    self._sampling.add(follows).has_ended = bool(follows.wrong)
                elif isinstance(follows, int):
                    self._resumed.add(self._sampling.entries[event.entry].network_name(follows))
            case ev.SearcherStarted() if event.entry in self._sampling.sessions:
                objectives = (event.settings["objectives"], event.settings.get("constraints"))
                if event.is_another:
                    is_alike = self._objectives.get(event.entry) == objectives
                    self._replace_searcher(event, is_alike)
                self._objectives[event.entry] = objectives
            case ev.EpochEnded() if event.network in self._trials:
                is_done = event.record.epoch in self._finishes.get(event.network, ())
                self._verdicts.add_epoch(self._trials[event.network], event.record, is_done)
            case ev.NetworkFinished() if event.network in self._trials:
                # even if it was pruned in its last epoch
                self._begin_again(self._trials[event.network], event.epochs)
            case ev.NetworkVerdict() if event.network in self._trials:
                self._apply_verdict(event)
            case ev.NetworkRolledBack(afresh=True) if event.network in self._trials:
                # It is judged again once it has more epochs than before.
                trial = self._trials[event.network]
                self._begin_again(trial, trial.epochs)

    def _replace_searcher(self, began: ev.SearcherStarted, is_alike: bool) -> None:
        """Replace a searcher; networks that the old one had paused are resumed."""
        curves = {}
        for trial in self._trials.values():
            if trial.entry == began.entry:
                if SEARCHER in trial.paused_by:
                    self._resumed.add(trial.name)
                history = self._run.status_of(trial.name).history[: trial.epochs]
                curves[trial.number] = [epoch.value(trial.stopping.metric) for epoch in history]
        self._sampling.sessions[began.entry].replace_searcher(
            space_of(began.settings["space"]), began.knows, curves, is_alike
        )

    def _apply_verdict(self, event: ev.NetworkVerdict) -> None:
        if event.by != (USER,):  # a command is no verdict on an epoch
            self._resolve(event.network, event.epochs)
        self._verdicts.apply(event)
        if event.verdict == Verdict.STOP and event.network not in self._finishes:
            self._verdicts.report_pruned(())

    def _resolve(self, name: str, epochs: int) -> None:
        """Record that nothing is left to decide on a network's epochs up to this one."""
        self._resolved_epochs[name] = epochs
        self._resumed.discard(name)

    def _begin_again(self, trial: Trial, epochs: int) -> None:
        """Forget the verdicts on a network."""
        self._resolve(trial.name, epochs)
        trial.has_ended = False
        self._verdicts.unreported.pop(trial.name, None)
        self._verdicts.apply(ev.NetworkVerdict(trial.name, epochs, Verdict.GO_ON, by=()))

    def _finish(self, trial: Trial) -> None:
        """Finish what an earlier launch knew about a network but had not acted on."""
        status = self._run.status_of(trial.name)
        if len(status.history) == trial.epochs:  # only the history knows where data changed
            trial.best = best_of(status.history, trial.stopping)
        if status.outcome is not None or trial.has_ended:
            self._verdicts.end(trial, outcome_of(status))
        elif trial.name in self._resumed:
            self._verdicts.resume(trial.name, SEARCHER)
        elif self._resolved_epochs.get(trial.name, 0) < trial.epochs:
            self._verdicts.judge(trial)
