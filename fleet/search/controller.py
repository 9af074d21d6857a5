"""All searchers of a run and its pruner (pure).

The :class:`SearchController` receives epochs, ended networks and answers. It returns decisions in
order: the event of a call comes before everything that follows from it, so a run can be interrupted
between any two of them. Given the log of earlier launches, it is in the state that theirs was in.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from fleet.domain import events as ev
from fleet.domain.events.search import USER
from fleet.domain.network import BestEpoch, EpochRecord, NetworkStatus, best_of
from fleet.domain.objectives import objective_values
from fleet.domain.remaining_work import ExpectedTrials, RemainingWork
from fleet.search.calls import (
    AddPriorTrial,
    Call,
    InvalidAnswer,
    Report,
    Resume,
    Tell,
    as_call,
    as_event,
)
from fleet.search.pruning import Pruner, make_pruner
from fleet.search.rungs import natural_key
from fleet.search.searcher import Mode, ResumesTrials, Searcher, TrialOutcome, Verdict
from fleet.search.session import Proposal, SearcherSession
from fleet.spec import NetworkSpec, Spec, Stopping
from fleet.spec.origin import is_below
from fleet.spec.search import Prune, Search, find_rule
from fleet.spec.space import Member, Space, override, size_of, space_of

_SEARCHER = "searcher"
_END = "end"


@dataclass(frozen=True)
class Entry:
    """An entry of a spec whose networks are proposed by a searcher.

    Attributes:
        name: name of the entry; its networks are ``NAME-0``, ``NAME-1``, ...
        settings: settings of the search.
        space: space of its parameters.
        mode: ``maximize`` or ``minimize``.
        monitor: the monitored loss, accuracy or metric.
        resumes: whether its searcher can resume paused networks.
        prior_trials: results of earlier runs that it receives.
        min_delta: minimum improvement over the best epoch, if the space does not say it.
    """

    name: str
    settings: Search
    space: Space
    mode: Mode
    monitor: str
    resumes: bool = False
    prior_trials: tuple[AddPriorTrial, ...] = ()
    min_delta: float = 0.0

    def stopping_for(self, values: Mapping[str, object]) -> Stopping:
        """Return the stopping rule that decides the best epoch of a network with these values."""
        drawn = override({}, {k: v for k, v in values.items() if is_below(k, "train.stopping")})
        settings = drawn.get("train", {}).get("stopping", {})
        min_delta = settings.get("min_delta", self.min_delta)
        return make_stopping(self.monitor, self.mode, min_delta)

    @property
    def objectives(self) -> tuple[tuple[str, Mode], ...]:
        """The objectives, the monitored value first, with their modes."""
        further = self.settings.objectives[1:]
        return (
            (self.monitor, self.mode),
            *((objective.value, objective.sense or "maximize") for objective in further),
        )

    @property
    def modes(self) -> Mode | tuple[Mode, ...]:
        """The mode that a searcher is constructed with: one, or a tuple for several objectives."""
        if len(self.objectives) > 1:
            return tuple(mode for _, mode in self.objectives)
        return self.mode

    def network_name(self, number: int) -> str:
        """Return the name of one of its networks."""
        return f"{self.name}-{number}"


def entries_of(ends: Spec) -> dict[int, Entry]:
    """Return the entries with searchers, by their places in the spec; none in a replay.

    Args:
        ends: the spec, with networks that stand for those of its searches.
    """
    first = {network.entry: network for network in reversed(ends.networks)}
    return {
        index: Entry(
            entry.stem,
            entry.search,
            entry.space or {},
            _mode(first[index]),
            first[index].train.stopping.metric,
            min_delta=first[index].train.stopping.min_delta,
        )
        for index, entry in ends.searches.items()
        if entry.search is not None and index in first
    }


def make_stopping(monitor: str, mode: Mode, min_delta: float = 0.0) -> Stopping:
    """Return a stopping rule that only decides which epoch is the best."""
    direction: Literal["max", "min"] = "max" if mode == "maximize" else "min"
    return Stopping(monitor=monitor, direction=direction, min_delta=min_delta)


def _mode(network: NetworkSpec) -> Mode:
    if network.train.stopping.sign > 0:
        return "maximize"
    return "minimize"


# ---- decisions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallSearcher:
    """Call a searcher; no other call is made until it has answered."""

    entry: str
    call: Call


@dataclass(frozen=True)
class AddNetwork:
    """Add a network that was proposed.

    Attributes:
        number: within its entry.
        values: values of its parameters.
        parent: the network from whose weights it starts, if any.
        wrong: what is wrong with its values: then it has failed.
    """

    network: str
    entry: str
    number: int
    values: Member
    parent: str | None = None
    wrong: str = ""


Decision: TypeAlias = ev.Event | CallSearcher | AddNetwork  # an event is logged


@dataclass
class TrialState:
    """The state of a network in a search.

    Attributes:
        entry, number: empty for a network of the spec.
        values: the monitored value of each epoch that the pruner has received.
        stopping: decides which epoch is the best.
        best_epoch: the best epoch so far.
        seconds: duration of its training.
        rate: highest samples/s per GPU of its epochs; 0 before there is one.
        verdict: verdict of the pruner, on its newest epoch.
        resolved_epochs: epoch up to which verdicts were acted on, as far as they changed anything.
        is_resumed: whether an earlier launch was killed before it acted on a resume.
        awaits_answer: whether the searcher has yet to answer about its newest epoch.
        paused_by: who has paused it.
        end: its outcome, once it has ended.
    """

    name: str
    entry: str = ""
    number: int = -1
    values: list[float] = field(default_factory=list)
    stopping: Stopping = field(default_factory=Stopping)
    best_epoch: BestEpoch = field(default_factory=BestEpoch)
    seconds: float = 0.0
    rate: float = 0.0
    verdict: Verdict = Verdict.GO_ON
    resolved_epochs: int = 0
    is_resumed: bool = False
    awaits_answer: bool = False
    paused_by: set[str] = field(default_factory=set)
    end: TrialOutcome | None = None

    @property
    def best(self) -> float:
        """The monitored value of its best epoch; NaN before there is one."""
        return self.stopping.sign * self.best_epoch.score

    @property
    def epochs(self) -> int:
        """The number of epochs that the pruner has received."""
        return len(self.values)

    @property
    def is_alive(self) -> bool:
        """Whether it has neither ended nor been paused."""
        return self.end is None and not self.paused_by


class SearchController:
    """All searchers of a run and its pruner.

    Args:
        entries: the entries with searchers.
        networks: names of the networks of the spec.
        pruner: the pruner, in its initial state.
        rule: its name, for the log.
        mode: ``maximize`` or ``minimize``, for networks without an entry.
        monitor: the monitored loss, accuracy or metric of these.
        trainers: number of trainers.
        obeys: whether answers of searchers to reports have an effect.
        parameters: network -> number of parameters, if known; a view.
        stopping: network -> its stopping rule, if its entry does not define it.

    Attributes:
        rate_of: returns the samples/s of a network on one GPU; None if unknown.
        is_open: whether commands may still add networks; until then paused networks wait.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        networks: Iterable[str],
        pruner: Pruner,
        rule: str,
        mode: Mode,
        monitor: str,
        trainers: int,
        obeys: bool = True,
        parameters: Mapping[str, int] | None = None,
        stopping: Mapping[str, Stopping] | None = None,
    ) -> None:
        self.is_open = False
        self.rate_of: Callable[[str], float | None] = lambda name: None
        self._parameters = {} if parameters is None else parameters
        self._entries = {entry.name: entry for entry in entries}
        self._sessions = {
            entry.name: SearcherSession(entry.space, entry.settings.limit, entry.resumes and obeys)
            for entry in entries
        }
        self._default_stopping = make_stopping(monitor, mode)  # of networks of no entry
        self._stopping_rules = dict(stopping or {})
        self._trials = {
            name: TrialState(name, stopping=self._stopping_rules.get(name, self._default_stopping))
            for name in networks
        }
        self._pruner = pruner
        self._rule = rule
        self._obeys = obeys
        self._trainers = trainers
        # entry -> objectives of its newest searcher, in the log
        self._objectives: dict[str, object] = {}
        self._epochs = dict.fromkeys(self._entries, 0)  # that networks of each have trained
        self._gpu_s = dict.fromkeys(self._entries, 0.0)
        # entry -> its networks
        self._alive: dict[str, set[str]] = {name: set() for name in ["", *self._entries]}
        self._living: set[str] = set()  # networks of any entry
        self._paused: set[str] = set()
        self._awaited: set[str] = set()
        # pruned networks in order; each may still end its last epoch
        self._unreported: dict[str, None] = {}
        for trial in self._trials.values():
            self._reindex(trial)
        # Network -> epochs after which it finished in earlier launches, even if it was pruned then.
        self._finishes: defaultdict[str, set[int]] = defaultdict(set)
        self._out: CallSearcher | None = None
        self._decided: list[Decision] = []

    # ---- queries ----

    @property
    def paused(self) -> frozenset[str]:
        """The networks that get no devices until they are resumed."""
        return frozenset(self._paused)

    @property
    def pruned(self) -> list[str]:
        """The networks that were pruned."""
        return [name for name, trial in self._trials.items() if trial.end is TrialOutcome.PRUNED]

    @property
    def has_searchers(self) -> bool:
        """Whether any entry has a searcher."""
        return bool(self._entries)

    def entry_of(self, name: str) -> str:
        """Return the entry of a network; empty for one that no searcher proposed."""
        return self._trials[name].entry

    @property
    def awaiting_answer(self) -> frozenset[str]:
        """The networks whose groups wait for the answer of a searcher."""
        return frozenset(self._awaited)

    @property
    def has_unreported(self) -> bool:
        """Whether pruned networks have not been reported yet, since they may still finish."""
        return bool(self._unreported)

    @property
    def has_failed(self) -> bool:
        """Whether a searcher has failed and is not called again."""
        return any(session.failure for session in self._sessions.values())

    @property
    def is_over(self) -> bool:
        """Whether no more decisions can follow, once all networks have ended."""
        return (
            self._out is None
            and not self._unreported
            and all(
                session.next_call(self._wants(name, 0)) is None
                for name, session in self._sessions.items()
            )
        )

    @property
    def remaining_work(self) -> RemainingWork:
        """The trials that may still come, for estimates of the time left."""
        return RemainingWork(
            frozenset(self._paused.union(self.pruned)),
            self.next_rung,
            self._pruner.expected,
            tuple(map(self._expected_trials, self._entries)),
        )

    def _expected_trials(self, entry: str) -> ExpectedTrials:
        """Return the trials that an entry may still propose, with their epochs."""
        settings = self._entries[entry].settings
        session = self._sessions[entry]
        networks = 0.0
        epochs = 0.0
        if not (session.is_closed or self._is_spent(entry)):
            networks = min(settings.limit, size_of(self._entries[entry].space)) - session.number
            budget = settings.budget
            trained = self._epochs[entry]
            epochs = math.inf
            if budget is not None and budget.epochs is not None:
                epochs = budget.epochs - trained
            if budget is not None and budget.gpu_hours is not None and self._gpu_s[entry]:
                epochs = min(epochs, (3600 * budget.gpu_hours / self._gpu_s[entry] - 1) * trained)
        max_concurrent = math.inf if settings.max_concurrent == "auto" else settings.max_concurrent
        return ExpectedTrials(
            max(0, networks),
            epochs,
            max_concurrent,
            {
                trial.name: None if trial.is_alive else trial.epochs
                for trial in self._trials.values()
                if trial.entry == entry
            },
        )

    @property
    def has_rungs(self) -> bool:
        """Whether networks are judged at rungs."""
        return self._pruner.expected(1) is not None

    def next_rung(self, name: str, epochs: int) -> int | None:
        """Return the epochs at the next rung of a network; None without rungs."""
        return self._pruner.next_rung(name, epochs)

    # ---- earlier launches ----

    def restore(
        self, log: Iterable[ev.Event], statuses: Mapping[str, NetworkStatus]
    ) -> list[Decision]:
        """Restore the state from the log, and finish what earlier launches did not.

        Args:
            log: all events in order; at its end, epochs that were saved but not logged.
            statuses: the status of each network.

        Returns:
            The decisions that follow, proposed networks first.
        """
        log = list(log)
        for event in log:
            if isinstance(event, ev.NetworkFinished):
                self._finishes[event.network].add(event.epochs)
        for name, status in statuses.items():
            if status.is_finished:
                self._finishes[name].add(len(status.history))
        # the last line, if it is a verdict, and the networks that were resumed with it
        judged = None
        resumed = set[str]()
        for event in log:
            self._recall(event)
            judged = event if isinstance(event, ev.NetworkVerdict) else None
            if judged is None or not judged.left:
                resumed = set()
            elif judged.verdict == Verdict.GO_ON:
                resumed.add(judged.network)
        self._decided = [decision for decision in self._decided if isinstance(decision, AddNetwork)]
        for entry, session in self._sessions.items():
            session.add_prior_trials(self._entries[entry].prior_trials)
        for name in sorted(self._trials, key=natural_key):
            self._restore_trial(self._trials[name], statuses.get(name, NetworkStatus()))
        if judged is not None and judged.left:
            self._settle_paused(resumed)
        return self._take_decisions()

    def _recall(self, event: ev.Event) -> None:
        match event:
            case ev.SearcherCalled() if event.entry in self._sessions:
                follows = self._sessions[event.entry].handle_answer(
                    as_call(event), event.answer, event.wrong
                )
                if isinstance(follows, Proposal):
                    self._add(event.entry, follows)
                    self._trials[event.network].end = TrialOutcome.FAILED if follows.wrong else None
                elif isinstance(follows, int):
                    self._trials[self._entries[event.entry].network_name(follows)].is_resumed = True
            case ev.SearcherStarted() if event.entry in self._sessions:
                before = self._objectives.get(event.entry)
                self._objectives[event.entry] = event.settings["objectives"]
                if event.is_another:
                    self._replace_searcher(event, before == event.settings["objectives"])
            case ev.EpochEnded() if event.network in self._trials:
                self._record_epoch(
                    self._trials[event.network],
                    event.record,
                    event.record.epoch in self._finishes.get(event.network, ()),
                )
            case ev.NetworkFinished() if event.network in self._trials:
                self._trials[event.network].end = None  # even if it was pruned in its last epoch
                self._unreported.pop(event.network, None)
                self._recall_judged(self._trials[event.network], Verdict.GO_ON, (), event.epochs)
            case ev.NetworkVerdict() if event.network in self._trials:
                self._recall_judged(
                    self._trials[event.network], Verdict(event.verdict), event.by, event.epochs
                )
            case ev.NetworkRolledBack(afresh=True) if event.network in self._trials:
                self._begin_afresh(self._trials[event.network])

    def _replace_searcher(self, began: ev.SearcherStarted, judges_alike: bool) -> None:
        """Replace a searcher; networks that the old one had paused are resumed."""
        trials = [trial for trial in self._trials.values() if trial.entry == began.entry]
        for trial in trials:
            trial.is_resumed |= _SEARCHER in trial.paused_by
        self._sessions[began.entry].replace_searcher(
            space_of(began.settings["space"]),
            began.knows,
            {trial.number: trial.values for trial in trials},
            {trial.number: trial.name for trial in trials},
            judges_alike,
        )

    def _recall_judged(
        self, trial: TrialState, verdict: Verdict, by: tuple[str, ...], epochs: int
    ) -> None:
        if by != (USER,):  # a command is no verdict on an epoch
            trial.verdict = Verdict.GO_ON
            trial.resolved_epochs = epochs
            trial.is_resumed = False
        trial.paused_by = set(by) if verdict is Verdict.PAUSE else set()
        if verdict is Verdict.STOP:
            self._drop(trial)
            if trial.name not in self._finishes:
                self._report_dropped(())
        elif self._rule not in trial.paused_by:
            self._pruner.let_go_on(trial.name)
        self._reindex(trial)

    def _begin_afresh(self, trial: TrialState) -> None:
        """Start a network over: it is judged again once it has more epochs than before."""
        trial.end = None
        trial.verdict = Verdict.GO_ON
        trial.resolved_epochs = trial.epochs
        trial.is_resumed = False
        trial.paused_by.clear()
        self._unreported.pop(trial.name, None)
        self._pruner.let_go_on(trial.name)
        self._reindex(trial)

    def _restore_trial(self, trial: TrialState, status: NetworkStatus) -> None:
        """Finish what an earlier launch knew about a network but had not acted on."""
        is_done = status.outcome is not None
        if len(status.history) == trial.epochs:  # only the history knows where data changed
            trial.best_epoch = best_of(status.history, trial.stopping)
        session = self._sessions.get(trial.entry)
        if session is not None:
            for epoch, value in enumerate(trial.values, 1):
                session.report(trial.number, epoch, value)
        if trial.end is not None or is_done:
            self.end_network(
                trial.name,
                TrialOutcome.FINISHED if status.is_finished else trial.end or TrialOutcome.FAILED,
            )
        elif trial.is_resumed:
            self._resume(trial, _SEARCHER)
        elif trial.resolved_epochs < trial.epochs:
            self._await_or_resolve(trial)

    # ---- inputs ----

    def end_epoch(self, name: str, record: EpochRecord, is_done: bool) -> None:
        """Record a finished epoch of a network; an epoch trained again is not judged again.

        For a network that was pruned meanwhile only its last epoch counts: then it has finished.

        Args:
            name: name of the network.
            record: the epoch.
            is_done: whether there is nothing left to train.
        """
        if self._record_epoch(self._trials[name], record, is_done) and not is_done:
            self._await_or_resolve(self._trials[name])

    def _record_epoch(self, trial: TrialState, record: EpochRecord, is_done: bool) -> bool:
        """Pass an epoch to the pruner and the searcher; return True if it counts."""
        if (trial.end is not None and not is_done) or not self._count(trial, record, is_done):
            return False
        session = self._sessions.get(trial.entry)
        if session is not None:
            session.report(trial.number, record.epoch, trial.values[-1])
        return True

    def _await_or_resolve(self, trial: TrialState) -> None:
        """Wait for the searcher's answer about the newest epoch, or act without it."""
        session = self._sessions.get(trial.entry)
        trial.awaits_answer = session is not None and session.awaits(trial.number)
        self._reindex(trial)
        if not trial.awaits_answer:
            verdict = None if session is None else session.verdict(trial.number, trial.epochs)
            self._resolve(trial, verdict or Verdict.GO_ON)

    def _count(self, trial: TrialState, record: EpochRecord, is_done: bool) -> bool:
        """Add an epoch to the state of a trial; return True if it is new."""
        if record.epoch != trial.epochs + 1:
            return False
        trial.best_epoch = trial.best_epoch.with_epoch(record, trial.stopping)
        trial.values.append(record.value(trial.stopping.metric))
        trial.seconds += record.seconds
        trial.rate = max(
            trial.rate, record.samples / (record.seconds * record.gpus) if record.seconds else 0.0
        )
        if trial.entry:
            self._epochs[trial.entry] += 1
            self._gpu_s[trial.entry] += record.gpus * record.seconds
        score = trial.best_epoch.score if math.isfinite(trial.best_epoch.score) else -math.inf
        trial.verdict = self._pruner.add(trial.name, record.epoch, score, is_done)
        return True

    def end_network(self, name: str, end: TrialOutcome) -> None:
        """Record that a network has finished or failed."""
        trial = self._trials[name]
        self._end_trial(trial, end)
        self._unreported.pop(name, None)
        if trial.entry:
            self._sessions[trial.entry].tell(trial.number, end, self._known_best(trial))

    def _end_trial(self, trial: TrialState, end: TrialOutcome) -> None:
        trial.end = end
        trial.awaits_answer = False
        trial.paused_by.clear()
        self._reindex(trial)
        if end is TrialOutcome.FINISHED:
            self._pruner.let_go_on(trial.name)
        self._pruner.leave(trial.name)

    def _drop(self, trial: TrialState) -> None:
        """Prune a network; it is reported to its searcher when it can no longer finish."""
        self._end_trial(trial, TrialOutcome.PRUNED)
        self._unreported[trial.name] = None

    def _report_dropped(self, busy: Collection[str]) -> None:
        """Report pruned networks, except networks that may be in their last epoch."""
        for name in [name for name in self._unreported if name not in busy]:
            self.end_network(name, TrialOutcome.PRUNED)

    def handle_answer(self, entry: str, call: Call, answer: object) -> None:
        """Handle the answer of a searcher; see :func:`fleet.search.calls.make_call`.

        Args:
            entry: name of the entry.
            call: the call.
            answer: the answer, as JSON.
        """
        self._out = None
        session = self._sessions[entry]
        try:
            follows = session.handle_answer(call, answer)
        except InvalidAnswer as error:
            self.fail_searcher(entry, str(error))
            return
        about = answer if isinstance(call, Resume) else call.number
        if isinstance(about, int) and about in session.proposals:
            network = self._entries[entry].network_name(about)
        else:
            network = ""
        self._note(
            as_event(
                entry, call, answer, network, follows.wrong if isinstance(follows, Proposal) else ""
            )
        )
        match follows:
            case Proposal():
                self._add(entry, follows)
                if follows.wrong:
                    self.end_network(
                        self._entries[entry].network_name(follows.number), TrialOutcome.FAILED
                    )
            case Verdict() if isinstance(call, Report):
                self._take_verdict(self._trials[network], call.epoch, follows)
            case int():
                self._resume(self._trials[network], _SEARCHER)

    def add_network(self, name: str, stopping: Stopping | None = None) -> None:
        """Add a network that no searcher has proposed.

        Args:
            name: name of the network.
            stopping: its stopping rule.
        """
        self._trials[name] = trial = TrialState(name, stopping=stopping or self._default_stopping)
        self._reindex(trial)

    def apply_command(self, name: str, verdict: Verdict) -> None:
        """Pause, stop or resume a network, which has not ended, by a user's command."""
        trial = self._trials[name]
        if verdict is Verdict.STOP:
            self._stop(trial, (USER,))
        elif verdict is Verdict.GO_ON:
            self._resume(trial, USER)
        elif USER not in trial.paused_by:
            trial.paused_by.add(USER)
            self._reindex(trial)
            self._log_verdict(trial, Verdict.PAUSE, tuple(sorted(trial.paused_by)))

    def fail_searcher(self, entry: str, reason: str) -> None:
        """Stop calling a searcher that raised, timed out or gave an invalid answer."""
        self._out = None
        session = self._sessions[entry]
        if session.failure:
            return
        session.fail(reason)
        self._note(ev.SearcherFailed(entry, reason))
        for name in sorted(self._awaited, key=natural_key):
            if self._trials[name].entry == entry:
                self._await_or_resolve(self._trials[name])

    def _add(self, entry: str, proposal: Proposal) -> None:
        name = self._entries[entry].network_name(proposal.number)
        if proposal.parent is None:
            parent = None
        else:
            parent = self._entries[entry].network_name(proposal.parent)
        stopping = self._entries[entry].stopping_for({} if proposal.wrong else proposal.values)
        self._trials[name] = trial = TrialState(name, entry, proposal.number, stopping=stopping)
        self._reindex(trial)
        self._decided.append(
            AddNetwork(name, entry, proposal.number, proposal.values, parent, proposal.wrong)
        )

    def _take_verdict(self, trial: TrialState, epoch: int, verdict: Verdict) -> None:
        if not trial.awaits_answer or epoch != trial.epochs:
            return
        trial.awaits_answer = False
        self._reindex(trial)
        self._resolve(trial, verdict)

    # ---- verdicts ----

    def _resolve(self, trial: TrialState, searcher_verdict: Verdict) -> None:
        """Act on the verdicts of the pruner and the searcher on the newest epoch of a network."""
        searcher_verdict = searcher_verdict if self._obeys else Verdict.GO_ON
        final = trial.verdict.stricter(searcher_verdict)
        by = tuple(
            name
            for name, verdict in ((self._rule, trial.verdict), (_SEARCHER, searcher_verdict))
            if verdict is final
        )
        if final is Verdict.STOP:
            self._stop(trial, by)
        elif final is Verdict.PAUSE:
            trial.paused_by |= set(by)
            self._reindex(trial)
            self._log_verdict(
                trial,
                final,
                tuple(sorted(trial.paused_by)) if len(trial.paused_by) > len(by) else by,
            )
        trial.verdict = Verdict.GO_ON

    def _stop(self, trial: TrialState, by: tuple[str, ...], remaining: int = 0) -> None:
        self._log_verdict(trial, Verdict.STOP, by, remaining)
        self._drop(trial)

    def _resume(self, trial: TrialState, holder: str, remaining: int = 0) -> None:
        if holder == self._rule:
            self._pruner.let_go_on(trial.name)
            if trial.verdict is Verdict.PAUSE:  # the searcher has not judged this epoch yet
                trial.verdict = Verdict.GO_ON
        if holder not in trial.paused_by:
            return
        trial.paused_by.discard(holder)
        self._reindex(trial)
        if trial.paused_by:  # it is still paused by another
            self._log_verdict(trial, Verdict.PAUSE, tuple(sorted(trial.paused_by)), remaining)
        else:
            self._log_verdict(trial, Verdict.GO_ON, (holder,), remaining)

    def _log_verdict(
        self, trial: TrialState, verdict: Verdict, by: tuple[str, ...], remaining: int = 0
    ) -> None:
        self._note(ev.NetworkVerdict(trial.name, trial.epochs, verdict.value, by, remaining))

    # ---- decide ----

    def decide(
        self, training: Mapping[str, int] | None = None, busy: Collection[str] = ()
    ) -> list[Decision]:
        """Return the decisions that follow from all inputs.

        Args:
            training: entry -> number of its networks that have a group.
            busy: networks of which another epoch may arrive, even if they were pruned.
        """
        self._report_dropped(busy)
        self._promote(training or {})
        self._consult(training or {})
        while self._out is None and self._settle_paused():
            self._report_dropped(busy)
            self._consult(training or {})
        return self._take_decisions()

    def _take_decisions(self) -> list[Decision]:
        decided = self._decided
        self._decided = []
        return decided

    def _wants(self, entry: str, training: int) -> bool:
        """Return True if one more network of an entry should be alive."""
        settings = self._entries[entry].settings
        if settings.max_concurrent == "auto":
            max_alive = max(self._trainers, training + 2)
        else:
            max_alive = settings.max_concurrent
        return not self._is_spent(entry) and len(self._alive[entry]) < max_alive

    def _is_spent(self, entry: str) -> bool:
        budget = self._entries[entry].settings.budget
        return budget is not None and (
            (budget.epochs is not None and self._epochs[entry] >= budget.epochs)
            or (budget.gpu_hours is not None and self._gpu_s[entry] >= 3600 * budget.gpu_hours)
        )

    @property
    def _are_spent(self) -> bool:
        return bool(self._entries) and all(map(self._is_spent, self._entries))

    def _promote(self, training: Mapping[str, int]) -> None:
        while (name := self._pruner.promotable()) is not None:
            trial = self._trials[name]
            if trial.entry and not self._wants(trial.entry, training.get(trial.entry, 0)):
                return
            self._resume(trial, self._rule)

    def _consult(self, training: Mapping[str, int]) -> None:
        """Make the next call; reports come before asks."""
        if self._out is not None:
            return
        for may_want in (False, True):
            for name, session in self._sessions.items():
                call = session.next_call(may_want and self._wants(name, training.get(name, 0)))
                if call is not None:
                    if isinstance(call, Tell) or (
                        isinstance(call, AddPriorTrial) and call.outcome and not call.source
                    ):
                        call = replace(
                            call, value=self._objective_values(self._entries[name], call.number)
                        )
                    self._out = CallSearcher(name, call)
                    self._decided.append(self._out)
                    return

    def _objective_values(self, entry: Entry, number: int) -> float | tuple[float, ...] | None:
        """Return the value, or the values of several objectives, to report to a searcher."""
        names = [name for name, _ in entry.objectives]
        trial = self._trials[entry.network_name(number)]
        best = self._known_best(trial)
        if len(names) == 1:
            return best
        return objective_values(
            names,
            trial.best_epoch.record,
            {
                "parameters": self._parameters.get(trial.name),
                "rate": self.rate_of(trial.name) or trial.rate or None,
                "epochs": trial.epochs,
                "seconds": trial.seconds,
            },
        )

    def _settle_paused(self, resumed: Collection[str] | None = None) -> bool:
        """Judge paused networks if nothing they wait for can come; return True if any was judged.

        Args:
            resumed: networks that an earlier launch resumed just before it was killed.
        """
        if not self._paused or (
            resumed is None and (self.is_open or any(map(self._may_propose, self._sessions)))
        ):
            return False
        alive = self._living if not resumed else self._living.difference(resumed)
        go_on, stop = self._pruner.settle(alive)
        remaining = len(stop) + len(go_on)
        if not alive and not resumed and (not remaining or self._are_spent):
            return self._drop_paused()
        for name in stop:  # first, while no network has been resumed
            remaining -= 1
            self._stop(self._trials[name], (self._rule,), remaining)
        for name in go_on:
            remaining -= 1
            self._resume(self._trials[name], self._rule, remaining)
        return bool(go_on or stop)

    def _may_propose(self, entry: str) -> bool:
        """Return True if an entry may still propose a network, now or after another report."""
        session = self._sessions[entry]
        if session.is_closed or self._is_spent(entry):
            return False
        alive = bool(self._alive[entry]) or any(
            self._trials[name].entry == entry for name in self._unreported
        )
        return session.may_ask or alive

    def _drop_paused(self) -> bool:
        """Prune all paused networks: nothing is alive, and nothing can resume them."""
        paused = sorted(self._paused, key=natural_key)
        for count, name in enumerate(paused, start=1):
            self._stop(self._trials[name], (_END,), len(paused) - count)
        return True

    # ---- helpers ----

    def _reindex(self, trial: TrialState) -> None:
        """Update the sets that a network belongs to."""
        for names, belongs in (
            (self._alive[trial.entry], trial.is_alive),
            (self._living, trial.is_alive),
            (self._awaited, trial.awaits_answer),
            (self._paused, trial.end is None and bool(trial.paused_by)),
        ):
            (names.add if belongs else names.discard)(trial.name)

    def _known_best(self, trial: TrialState) -> float | None:
        if math.isfinite(trial.best):
            return trial.best
        return None

    def _note(self, event: ev.Event) -> None:
        self._decided.append(event)


def make_controller(
    spec: Spec,
    ends: Spec,
    searchers: Mapping[str, Searcher],
    trainers: int,
    judges: bool = True,
    parameters: Mapping[str, int] | None = None,
    earlier: Mapping[str, Sequence[AddPriorTrial]] | None = None,
) -> SearchController:
    """Return the search controller of a run.

    Args:
        spec: the spec with the networks that exist when the launch begins.
        ends: the spec with networks that stand for those of its searches.
        searchers: entry -> searcher.
        trainers: number of trainers.
        judges: whether the pruner of the spec is used; in a replay it is not.
        parameters: network -> number of parameters, if known; a view.
        earlier: entry -> results of earlier runs that its searcher receives.
    """
    prune = spec.document.prune if judges else Prune()
    everyone = [*spec.networks, *ends.networks]
    entries = [
        replace(
            entry,
            resumes=isinstance(searchers[entry.name], ResumesTrials),
            prior_trials=tuple((earlier or {}).get(entry.name, ())),
        )
        for entry in entries_of(ends).values()
    ]
    most_epochs = max((network.train.stopping.max_epochs for network in everyone), default=1)
    return SearchController(
        entries,
        [network.name for network in spec.networks if network.number is None or not entries],
        make_pruner(prune, most_epochs, spec.seed),
        prune.rule,
        _mode(everyone[0]) if everyone else "maximize",
        everyone[0].train.stopping.metric if everyone else "val_accuracy",
        trainers,
        obeys=find_rule(prune.rule).obeys,
        parameters=parameters,
        stopping={network.name: network.train.stopping for network in spec.networks},
    )
