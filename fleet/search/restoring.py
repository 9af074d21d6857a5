"""Restore searches from the log of earlier launches (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fleet.domain import events as ev
from fleet.domain.network import best_of
from fleet.domain.run import RunState
from fleet.search.calls import as_call
from fleet.search.decisions import AddNetwork
from fleet.search.rungs import natural_key
from fleet.search.sampling import Sampling
from fleet.search.searcher import Verdict
from fleet.search.trials import Configuration, Trials, mean_of, outcome_of
from fleet.search.verdicts import SEARCHER, Verdicts, is_judgment
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
        # configuration -> epoch up to which verdicts were acted on, as far as they changed anything
        self._resolved_epochs: dict[str, int] = {}
        # configurations that the searcher has resumed, although no event says so
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
        # the last line, if it is a verdict, and the configurations that were resumed with it
        judged = None
        resumed = set[str]()
        for event in log:
            self._apply(event)
            judged = event if isinstance(event, ev.NetworkVerdict) else None
            if judged is None or not judged.left:
                resumed = set()
            elif judged.verdict == Verdict.GO_ON:
                resumed.add(self._trials.configuration_name(judged.network))
        for entry, session in self._sampling.sessions.items():
            session.add_prior_trials(self._sampling.entries[entry].prior_trials)
        remaining = 0 if judged is None else judged.left
        for name in sorted(self._trials.configurations, key=natural_key):
            configuration = self._trials.configurations[name]
            if judged is not None and judged.network in configuration.trials:
                remaining = self._finish(configuration, remaining)
            else:
                self._finish(configuration)
        if remaining and self._trials.paused:
            self._verdicts.settle(resumed)

    def _apply(self, event: ev.Event) -> None:
        match event:
            case ev.SearcherCalled() if event.entry in self._sampling.sessions:
                follows = self._sampling.sessions[event.entry].handle_answer(
                    as_call(event), event.answer, event.wrong
                )
                if isinstance(follows, AddNetwork):
                    self._sampling.add(follows, event.repeats)
                    if follows.wrong:
                        self._trials[follows.network].has_ended = True
                elif isinstance(follows, int):
                    self._resumed.add(
                        self._sampling.entries[event.entry].configuration_name(follows)
                    )
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
                self._begin_again(event.network, event.epochs, is_afresh=False)
            case ev.NetworkFailed() if event.network in self._trials:
                self._verdicts.exclude(self._trials[event.network])
            case ev.NetworkVerdict() if event.network in self._trials:
                self._apply_verdict(event)
            case ev.NetworkRolledBack(afresh=True) if event.network in self._trials:
                # It is judged again once it has more epochs than before.
                epochs = self._trials[event.network].epochs
                self._begin_again(event.network, epochs, is_afresh=True)

    def _replace_searcher(self, began: ev.SearcherStarted, is_alike: bool) -> None:
        """Replace a searcher; networks that the old one had paused are resumed."""
        curves = {}
        for configuration in self._trials.configurations.values():
            if configuration.entry == began.entry:
                if SEARCHER in configuration.paused_by:
                    self._resumed.add(configuration.name)
                curves[configuration.number] = self._curve(configuration)
        self._sampling.sessions[began.entry].replace_searcher(
            space_of(began.settings["space"]), began.knows, curves, is_alike
        )

    def _curve(self, configuration: Configuration) -> list[float]:
        """Return the monitored value after each epoch, of repeats the mean."""
        columns = [
            [epoch.value(trial.stopping.metric) for epoch in history]
            for trial in configuration.counted
            if (history := self._run.status_of(trial.name).history)
        ]
        epochs = min(configuration.epochs, max(map(len, columns), default=0))
        return [
            mean_of([values[min(epoch, len(values) - 1)] for values in columns])
            for epoch in range(epochs)
        ]

    def _apply_verdict(self, event: ev.NetworkVerdict) -> None:
        if is_judgment(event):
            self._resolve(self._trials.configuration_name(event.network), event.epochs)
        self._verdicts.apply(event)
        if event.verdict == Verdict.STOP and event.network not in self._finishes:
            self._verdicts.report_pruned(())

    def _resolve(self, name: str, epochs: int) -> None:
        """Record that nothing is left to decide on a configuration's epochs up to this one."""
        self._resolved_epochs[name] = epochs
        self._resumed.discard(name)

    def _begin_again(self, name: str, epochs: int, is_afresh: bool) -> None:
        """Forget the verdicts on a network."""
        trial = self._trials[name]
        if not self._trials.configuration_of(name).has_repeats:
            self._resolve(name, epochs)
        self._verdicts.begin_again(trial, is_afresh)

    def _finish(self, configuration: Configuration, remaining: int = 0) -> int:
        """Finish what an earlier launch knew about a configuration but had not acted on.

        Args:
            configuration: the configuration.
            remaining: the number of verdicts of the moment of its last one that remained.

        Returns:
            The number that remains now.
        """
        for trial in configuration.trials.values():
            status = self._run.status_of(trial.name)
            if len(status.history) == trial.epochs:  # only the history knows where data changed
                trial.best = best_of(status.history, trial.stopping)
            if status.outcome is not None or trial.has_ended:
                self._verdicts.end(trial, outcome_of(status))
        if configuration.has_ended:
            return remaining
        remaining = self._verdicts.complete(configuration, remaining)
        if configuration.name in self._resumed:
            self._verdicts.resume_all(configuration, SEARCHER)
        elif self._resolved_epochs.get(configuration.name, 0) < configuration.epochs:
            self._verdicts.judge(configuration)
        else:
            self._verdicts.go_on(configuration)
        return remaining
