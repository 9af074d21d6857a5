"""All searchers of a run and its pruner (pure).

The :class:`SearchController` receives epochs, ended networks and answers. It returns decisions in
order: the event of a call comes before everything that follows from it, so a run can be interrupted
between any two of them. Given the log of earlier launches, it is in the state that theirs was in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from fleet.domain.events import Event
from fleet.domain.events.search import USER
from fleet.domain.network import EpochRecord
from fleet.domain.remaining_work import RemainingWork
from fleet.domain.run import RunState
from fleet.search.calls import AddPriorTrial, Call, InvalidAnswer
from fleet.search.decisions import AddNetwork, Decision
from fleet.search.entries import Entry, entries_of
from fleet.search.pruning import Pruner, make_pruner
from fleet.search.restoring import Restoration
from fleet.search.rungs import natural_key
from fleet.search.sampling import Sampling
from fleet.search.searcher import ResumesTrials, Searcher, TrialOutcome, Verdict, may_judge
from fleet.search.trials import Trial, Trials
from fleet.search.verdicts import SEARCHER, Verdicts
from fleet.spec import Spec, Stopping
from fleet.spec.search import Prune, find_rule


class SearchController:
    """All searchers of a run and its pruner.

    Args:
        run: the state of the run, to which the decisions are applied once they are carried out.
        entries: the entries with searchers.
        networks: names of the networks that no searcher has proposed.
        pruner: the pruner, in its initial state.
        rule: its name, for the log.
        trainers: number of trainers.
        obeys: whether answers of searchers to reports have an effect.
        stopping: network -> its stopping rule, also of proposed networks of earlier launches.
        configurations: network -> the configuration that it repeats, of those with repeats.

    Attributes:
        trials: what searches remember of each network.
        sampling: the searchers.
        verdicts: who is pruned, and who is paused by whom.
        is_open: whether commands may still add networks; until then paused networks wait.
    """

    def __init__(
        self,
        run: RunState,
        entries: Iterable[Entry],
        networks: Iterable[str],
        pruner: Pruner,
        rule: str,
        trainers: int,
        obeys: bool = True,
        stopping: Mapping[str, Stopping] | None = None,
        configurations: Mapping[str, str] | None = None,
    ) -> None:
        stopping = stopping or {}
        configurations = configurations or {}
        self._run = run
        self._decided: list[Decision] = []
        self.pruner = pruner
        self.trials = Trials()
        self.sampling = Sampling(
            run,
            entries,
            self.trials,
            self._decided,
            trainers,
            obeys,
            stopping,
        )
        self.verdicts = Verdicts(self.trials, self.sampling, self._decided, pruner, rule)
        self.is_open = False
        for name in networks:
            self.admit(name, stopping.get(name, Stopping()), configurations.get(name, ""))

    @property
    def is_over(self) -> bool:
        """Whether no more decisions can follow, once all networks have ended."""
        return self.sampling.is_idle and not self.verdicts.unreported

    @property
    def remaining_work(self) -> RemainingWork:
        """The trials that may still come, for estimates of the time left."""
        sampling = self.sampling
        return RemainingWork(
            self.next_rung,
            self.pruner.expected,
            tuple(map(sampling.expected_trials, sampling.entries)),
        )

    def next_rung(self, name: str, epochs: int) -> int | None:
        """Return the epochs at the next rung of a network; None without rungs."""
        return self.pruner.next_rung(self.trials.configuration_name(name), epochs)

    # ---- inputs ----

    def restore(self, log: Iterable[Event]) -> None:
        """Restore the state from the log, and finish what earlier launches did not.

        Args:
            log: all events in order; at its end, epochs that were saved but not logged.
        """
        Restoration(self._run, self.trials, self.sampling, self.verdicts).apply(log)

    def end_epoch(self, name: str, record: EpochRecord, is_done: bool) -> None:
        """Record a finished epoch of a network; an epoch trained again is not judged again.

        For a network that was pruned meanwhile only its last epoch counts: then it has finished.

        Args:
            name: name of the network.
            record: the epoch.
            is_done: whether there is nothing left to train.
        """
        self.verdicts.end_epoch(self.trials[name], record, is_done)

    def end_network(self, name: str, outcome: TrialOutcome) -> None:
        """Record that a network has finished or failed."""
        self.verdicts.end(self.trials[name], outcome)

    def admit(self, name: str, stopping: Stopping, configuration: str = "") -> None:
        """Add a network, or the stopping rule of one that a searcher has proposed.

        Args:
            name: name of the network.
            stopping: its stopping rule.
            configuration: name of the configuration that it repeats, if it has repeats.
        """
        trial = self.trials.get(name) or Trial(name, configuration=configuration)
        trial.stopping = stopping
        self.trials.index(trial)

    def apply_command(self, name: str, verdict: Verdict) -> None:
        """Pause, stop or resume a network, which has not ended, by a user's command."""
        if verdict is Verdict.STOP:
            self.verdicts.stop(name, USER)
        elif verdict is Verdict.GO_ON:
            self.verdicts.resume(name, USER)
        else:
            self.verdicts.pause(name, USER)

    def handle_answer(self, entry: str, call: Call, answer: object) -> None:
        """Handle the answer of a searcher; see :func:`fleet.search.calls.make_call`.

        Args:
            entry: name of the entry.
            call: the call.
            answer: the answer, as JSON.
        """
        try:
            follows, network = self.sampling.handle_answer(entry, call, answer)
        except InvalidAnswer as error:
            self.fail_searcher(entry, str(error))
            return
        match follows:
            case AddNetwork() if follows.wrong:
                self.end_network(network, TrialOutcome.FAILED)
            case Verdict():
                configuration = self.trials.configurations[network]
                is_held = any(trial.awaits_answer for trial in configuration.trials.values())
                if is_held and not self.sampling.is_awaited(configuration):
                    self.verdicts.judge(configuration)
            case int():
                self.verdicts.resume_all(self.trials.configurations[network], SEARCHER)

    def fail_searcher(self, entry: str, reason: str) -> None:
        """Stop calling a searcher that raised, timed out or gave an invalid answer."""
        self.sampling.fail(entry, reason)
        awaiting = self.trials.configurations_of(
            name for name in self.trials.awaited if self.trials[name].awaits_answer
        )
        for name in sorted(awaiting, key=natural_key):
            configuration = self.trials.configurations[name]
            if configuration.entry == entry:
                self.verdicts.judge(configuration)

    # ---- decide ----

    def decide(self, training: Iterable[str] = (), busy: Collection[str] = ()) -> list[Decision]:
        """Return the decisions that follow from all inputs.

        Args:
            training: networks that have a group.
            busy: networks of which another epoch may arrive, even if they were pruned.
        """
        sampling = self.sampling
        training = frozenset(training)
        if sampling.entries:
            sampling.training = Counter(self.trials[name].entry for name in training)
        self.verdicts.report_pruned(busy)
        self.verdicts.pause_waiting(training)
        self.verdicts.promote()
        sampling.consult()
        while (
            not (sampling.is_calling or self.is_open)
            and self.verdicts.can_settle()
            and self.verdicts.settle()
        ):
            self.verdicts.report_pruned(busy)
            sampling.consult()
        decided = self._decided.copy()
        self._decided.clear()
        return decided


def make_controller(
    spec: Spec,
    ends: Spec,
    run: RunState,
    searchers: Mapping[str, Searcher],
    trainers: int,
    judges: bool = True,
    earlier: Mapping[str, Sequence[AddPriorTrial]] | None = None,
) -> SearchController:
    """Return the search controller of a run.

    Args:
        spec: the spec with the networks that exist when the launch begins.
        ends: the spec with networks that stand for those of its searches.
        run: the state of the run.
        searchers: entry -> searcher.
        trainers: number of trainers.
        judges: whether the pruner of the spec is used; in a replay it is not.
        earlier: entry -> results of earlier runs that its searcher receives.
    """
    prune = spec.document.prune if judges else Prune()
    everyone = [*spec.networks, *ends.networks]
    entries = [
        replace(
            entry,
            resumes=isinstance(searchers[entry.name], ResumesTrials),
            judges=may_judge(searchers[entry.name]),
            prior_trials=tuple((earlier or {}).get(entry.name, ())),
        )
        for entry in entries_of(ends).values()
    ]
    most_epochs = max((network.train.stopping.max_epochs for network in everyone), default=1)
    return SearchController(
        run,
        entries,
        [network.name for network in spec.networks if network.number is None or not entries],
        make_pruner(prune, most_epochs, spec.seed),
        prune.rule,
        trainers,
        obeys=find_rule(prune.rule).obeys,
        stopping={network.name: network.train.stopping for network in spec.networks},
        configurations={
            network.name: network.stem for network in spec.networks if network.repeat is not None
        },
    )
