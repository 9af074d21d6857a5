"""All searchers of a run and its rule together: who is asked for, paused, dropped, and let go on (pure).

The :class:`Mind` hears of epochs, of networks that are over, and of answers. It returns what follows, in order: the
line of a call stands before all that follows from it, so a run can be broken off between any two of them. A mind that
is given the log of earlier launches is as far as theirs was.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from fleet.domain import events as ev
from fleet.domain.events.search import USER
from fleet.domain.network import Best, EpochRecord, NetworkStatus, best_of
from fleet.domain.objectives import come_to
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
from fleet.search.rungs import natural
from fleet.search.searcher import End, Mode, ResumesTrials, Searcher, Verdict
from fleet.search.session import Proposal, SearcherSession
from fleet.spec import NetworkSpec, Spec, Stopping
from fleet.spec.origin import is_below
from fleet.spec.search import Prune, Search, find_rule
from fleet.spec.space import Member, Space, override, size_of, space_of

_SEARCHER = "searcher"
_END = "end"


@dataclass(frozen=True)
class Entry:
    """An entry of a spec whose networks are asked for.

    Attributes:
        name: of the entry; its networks are ``NAME-0``, ``NAME-1``, ...
        mode: whether high or low values are good.
        monitor: the loss, accuracy or metric that is judged.
        resumes: whether its searcher can say which paused network goes on.
        earlier: what earlier runs found of which it is told.
        min_delta: how much better an epoch must be than the best one so far, where the space does not say it.
    """

    name: str
    settings: Search
    space: Space
    mode: Mode
    monitor: str
    resumes: bool = False
    earlier: tuple[AddPriorTrial, ...] = ()
    min_delta: float = 0.0

    def converge_of(self, values: Mapping[str, object]) -> Stopping:
        """What decides which epoch of a network with these values is the best."""
        drawn = override({}, {k: v for k, v in values.items() if is_below(k, "train.stopping")})
        settings = drawn.get("train", {}).get("stopping", {})
        min_delta = settings.get("min_delta", self.min_delta)
        return converge_by(self.monitor, self.mode, min_delta)

    @property
    def objectives(self) -> tuple[tuple[str, Mode], ...]:
        """What counts, the monitored quantity first, and whether high or low values of it are good."""
        others = self.settings.objectives[1:]
        return (
            (self.monitor, self.mode),
            *((one.value, one.sense or "maximize") for one in others),
        )

    @property
    def modes(self) -> Mode | tuple[Mode, ...]:
        """What a searcher is made with: whether high or low values are good, of several objectives of each."""
        if len(self.objectives) > 1:
            return tuple(mode for _, mode in self.objectives)
        return self.mode

    def network(self, number: int) -> str:
        """The name of one of its networks."""
        return f"{self.name}-{number}"


def entries_of(ends: Spec) -> dict[int, Entry]:
    """The entries whose networks are asked for in this launch, by their places in the spec; none are in a replay.

    Args:
        ends: the spec, with the networks that stand for those of its searches.
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


def converge_by(monitor: str, mode: Mode, min_delta: float = 0.0) -> Stopping:
    """What decides which epoch is the best."""
    direction: Literal["max", "min"] = "max" if mode == "maximize" else "min"
    return Stopping(monitor=monitor, direction=direction, min_delta=min_delta)


def _mode(network: NetworkSpec) -> Mode:
    if network.train.stopping.sign > 0:
        return "maximize"
    return "minimize"


# ---- what follows ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogEvent:
    """Log an event."""

    event: ev.Event


@dataclass(frozen=True)
class CallSearcher:
    """Call a searcher; nothing else is wanted of any until its answer is heard."""

    entry: str
    call: Call


@dataclass(frozen=True)
class AddNetwork:
    """A network was asked for.

    Attributes:
        number: within its entry.
        parent: the network from whose weights it starts, if there is one.
        wrong: what is wrong with its values: then it is a failed row.
    """

    network: str
    entry: str
    number: int
    values: Member
    parent: str | None = None
    wrong: str = ""


Decision: TypeAlias = LogEvent | CallSearcher | AddNetwork


@dataclass
class TrialState:
    """A network, as far as a search must know it.

    Attributes:
        entry, number: empty for a network that was in the spec.
        values: the monitored one of each epoch that the rule has heard of.
        converge: what decides which epoch is the best.
        top: the best epoch so far.
        seconds: that it has trained.
        rate: the most samples/s that an epoch had on each of its GPUs, 0 before there is one.
        verdict: of the rule, on the newest of them.
        acted: the epoch up to which it is known that verdicts have been acted on, where that changed anything.
        is_resumed: whether an earlier launch heard from the searcher that it goes on, and broke off.
        waits: for the searcher's answer about its newest epoch.
        holders: who has paused it.
        end: once it is over.
    """

    name: str
    entry: str = ""
    number: int = -1
    values: list[float] = field(default_factory=list)
    converge: Stopping = field(default_factory=Stopping)
    top: Best = field(default_factory=Best)
    seconds: float = 0.0
    rate: float = 0.0
    verdict: Verdict = Verdict.GO_ON
    acted: int = 0
    is_resumed: bool = False
    waits: bool = False
    holders: set[str] = field(default_factory=set)
    end: End | None = None

    @property
    def best(self) -> float:
        """The monitored value of its best epoch; NaN before there is one."""
        return self.converge.sign * self.top.score

    @property
    def judged(self) -> int:
        """The epochs that the rule has heard of."""
        return len(self.values)

    @property
    def is_alive(self) -> bool:
        """Whether it is neither over nor paused."""
        return self.end is None and not self.holders


class SearchController:
    """See the module.

    Args:
        networks: those that are in the spec.
        judge: the rule, at its beginning.
        rule: its name, for the log.
        mode: whether high or low values are good, for networks of no entry.
        monitor: the loss, accuracy or metric that is judged, of them.
        trainers: how many there are.
        obeys: whether what searchers answer to a report is done.
        parameters: network -> how many weights it has, where that is known; a view.
        converge: network -> what decides which epoch is the best, where its entry does not say so.

    Attributes:
        rate_of: gives the samples/s of a network on one GPU, as they are known now; None where they are not.
        is_open: whether networks may come that no searcher has asked for: as long, those that are paused wait.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        networks: Iterable[str],
        judge: Pruner,
        rule: str,
        mode: Mode,
        monitor: str,
        trainers: int,
        obeys: bool = True,
        parameters: Mapping[str, int] | None = None,
        converge: Mapping[str, Stopping] | None = None,
    ) -> None:
        self.is_open = False
        self.rate_of: Callable[[str], float | None] = lambda name: None
        self._parameters = {} if parameters is None else parameters
        self._entries = {entry.name: entry for entry in entries}
        self._talks = {
            entry.name: SearcherSession(entry.space, entry.settings.limit, entry.resumes and obeys)
            for entry in entries
        }
        self._converge = converge_by(monitor, mode)  # of networks of no entry
        self._own = dict(converge or {})
        self._lives = {
            name: TrialState(name, converge=self._own.get(name, self._converge))
            for name in networks
        }
        self._judge = judge
        self._rule = rule
        self._obeys = obeys
        self._trainers = trainers
        self._objectives: dict[
            str, object
        ] = {}  # entry -> those of its newest searcher, in the log
        self._epochs = dict.fromkeys(self._entries, 0)  # that networks of each have trained
        self._gpu_s = dict.fromkeys(self._entries, 0.0)
        self._alive: dict[str, set[str]] = {
            name: set() for name in ["", *self._entries]
        }  # networks, by entry
        self._living: set[str] = set()  # networks of any entry
        self._paused: set[str] = set()
        self._awaited: set[str] = set()
        self._untold: dict[
            str, None
        ] = {}  # networks that were dropped, in order; each may yet end its last epoch
        for life in self._lives.values():
            self._sort(life)
        # Network -> after which epochs it was done in earlier launches, also if it was dropped in the last one.
        self._finishes: defaultdict[str, set[int]] = defaultdict(set)
        self._out: CallSearcher | None = None
        self._decided: list[Decision] = []

    # ---- what is known ----

    @property
    def paused(self) -> frozenset[str]:
        """The networks that get no devices until they are let go on."""
        return frozenset(self._paused)

    @property
    def pruned(self) -> list[str]:
        """The networks that were dropped before they were done."""
        return [name for name, life in self._lives.items() if life.end is End.PRUNED]

    @property
    def asks(self) -> bool:
        """Whether there is anybody who asks for networks."""
        return bool(self._entries)

    def entry(self, name: str) -> str:
        """The entry of a network; nothing for one that nobody has asked for."""
        return self._lives[name].entry

    @property
    def awaited(self) -> frozenset[str]:
        """The networks whose groups must wait for a searcher's answer."""
        return frozenset(self._awaited)

    @property
    def has_untold(self) -> bool:
        """Whether networks were dropped of which no searcher was told yet, since they may finish all the same."""
        return bool(self._untold)

    @property
    def has_failed(self) -> bool:
        """Whether there is a searcher that is not called again."""
        return any(talk.failure for talk in self._talks.values())

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow any more, once all networks are over."""
        return (
            self._out is None
            and not self._untold
            and all(talk.next(self._wants(name, 0)) is None for name, talk in self._talks.items())
        )

    @property
    def outlook(self) -> RemainingWork:
        """What may yet come, for whoever estimates how long the run will go on."""
        return RemainingWork(
            frozenset(self._paused.union(self.pruned)),
            self.next_rung,
            self._judge.expected,
            tuple(map(self._coming, self._entries)),
        )

    def _coming(self, entry: str) -> ExpectedTrials:
        """How many networks an entry may yet ask for, and how many epochs its budget has left for them."""
        settings = self._entries[entry].settings
        talk = self._talks[entry]
        networks = 0.0
        epochs = 0.0
        if not (talk.is_closed or self._is_spent(entry)):
            networks = min(settings.limit, size_of(self._entries[entry].space)) - talk.number
            budget = settings.budget
            trained = self._epochs[entry]
            epochs = math.inf
            if budget is not None and budget.epochs is not None:
                epochs = budget.epochs - trained
            if budget is not None and budget.gpu_hours is not None and self._gpu_s[entry]:
                epochs = min(epochs, (3600 * budget.gpu_hours / self._gpu_s[entry] - 1) * trained)
        at_once = math.inf if settings.max_concurrent == "auto" else settings.max_concurrent
        return ExpectedTrials(
            max(0, networks),
            epochs,
            at_once,
            {
                life.name: None if life.is_alive else life.judged
                for life in self._lives.values()
                if life.entry == entry
            },
        )

    @property
    def has_rungs(self) -> bool:
        """Whether networks come to rungs at which they are judged."""
        return self._judge.expected(1) is not None

    def next_rung(self, name: str, epochs: int) -> int | None:
        """The epochs after which a network that has ended so many is judged next; None where there are no rungs."""
        return self._judge.next_rung(name, epochs)

    # ---- earlier launches ----

    def restore(
        self, log: Iterable[ev.Event], standings: Mapping[str, NetworkStatus]
    ) -> list[Decision]:
        """Take up what earlier launches have logged, and what they did not come to.

        Args:
            log: all events, in order; at its end the epochs that were saved and had not been logged.
            standings: how far the networks are.

        Returns:
            What follows; first of all the networks that were asked for.
        """
        log = list(log)
        for event in log:
            if isinstance(event, ev.NetworkFinished):
                self._finishes[event.network].add(event.epochs)
        for name, standing in standings.items():
            if standing.is_finished:
                self._finishes[name].add(len(standing.history))
        # the last line, if it is a judgement, and who has gone on in that moment
        judged = None
        went_on = set[str]()
        for event in log:
            self._recall(event)
            judged = event if isinstance(event, ev.NetworkJudged) else None
            if judged is None or not judged.left:
                went_on = set()
            elif judged.verdict == Verdict.GO_ON:
                went_on.add(judged.network)
        self._decided = [decision for decision in self._decided if isinstance(decision, AddNetwork)]
        for entry, talk in self._talks.items():
            talk.know(self._entries[entry].earlier)
        for name in sorted(self._lives, key=natural):
            self._take_up(self._lives[name], standings.get(name, NetworkStatus()))
        if judged is not None and judged.left:
            self._settle(went_on)
        return self._taken()

    def _recall(self, event: ev.Event) -> None:
        match event:
            case ev.Searched() if event.entry in self._talks:
                follows = self._talks[event.entry].take(as_call(event), event.answer, event.wrong)
                if isinstance(follows, Proposal):
                    self._add(event.entry, follows)
                    self._lives[event.network].end = End.FAILED if follows.wrong else None
                elif isinstance(follows, int):
                    self._lives[self._entries[event.entry].network(follows)].is_resumed = True
            case ev.SearcherBegan() if event.entry in self._talks:
                before = self._objectives.get(event.entry)
                self._objectives[event.entry] = event.settings["objectives"]
                if event.is_another:
                    self._change(event, before == event.settings["objectives"])
            case ev.EpochEnded() if event.network in self._lives:
                self._hear_epoch(
                    self._lives[event.network],
                    event.record,
                    event.record.epoch in self._finishes.get(event.network, ()),
                )
            case ev.NetworkFinished() if event.network in self._lives:
                self._lives[event.network].end = None  # also if it was dropped in its last epoch
                self._untold.pop(event.network, None)
                self._recall_judged(self._lives[event.network], Verdict.GO_ON, (), event.epochs)
            case ev.NetworkJudged() if event.network in self._lives:
                self._recall_judged(
                    self._lives[event.network], Verdict(event.verdict), event.by, event.epochs
                )
            case ev.NetworkFellBack(afresh=True) if event.network in self._lives:
                self._begin_afresh(self._lives[event.network])

    def _change(self, began: ev.SearcherBegan, judges_alike: bool) -> None:
        """Another searcher has taken over: what the one before it has paused goes on."""
        lives = [life for life in self._lives.values() if life.entry == began.entry]
        for life in lives:
            life.is_resumed |= _SEARCHER in life.holders
        self._talks[began.entry].change(
            space_of(began.settings["space"]),
            began.knows,
            {life.number: life.values for life in lives},
            {life.number: life.name for life in lives},
            judges_alike,
        )

    def _recall_judged(
        self, life: TrialState, verdict: Verdict, by: tuple[str, ...], epochs: int
    ) -> None:
        if by != (USER,):  # that is no answer to what was said of an epoch
            life.verdict = Verdict.GO_ON
            life.acted = epochs
            life.is_resumed = False
        life.holders = set(by) if verdict is Verdict.PAUSE else set()
        if verdict is Verdict.STOP:
            self._drop(life)
            if life.name not in self._finishes:
                self._tell_dropped(())
        elif self._rule not in life.holders:
            self._judge.let_go_on(life.name)
        self._sort(life)

    def _begin_afresh(self, life: TrialState) -> None:
        """Somebody has a network start over: it is judged again once it has more epochs than it had."""
        life.end = None
        life.verdict = Verdict.GO_ON
        life.acted = life.judged
        life.is_resumed = False
        life.holders.clear()
        self._untold.pop(life.name, None)
        self._judge.let_go_on(life.name)
        self._sort(life)

    def _take_up(self, life: TrialState, standing: NetworkStatus) -> None:
        """See to it that what an earlier launch knew of a network, and did not act on, is acted on."""
        is_done = standing.outcome is not None
        if len(standing.history) == life.judged:  # only this knows where data was changed
            life.top = best_of(standing.history, life.converge)
        talk = self._talks.get(life.entry)
        if talk is not None:
            for epoch, value in enumerate(life.values, 1):
                talk.report(life.number, epoch, value)
        if life.end is not None or is_done:
            self.network_over(
                life.name, End.FINISHED if standing.is_finished else life.end or End.FAILED
            )
        elif life.is_resumed:
            self._let_go_on(life, _SEARCHER)
        elif life.acted < life.judged:
            self._await_or_resolve(life)

    # ---- heard ----

    def epoch_ended(self, name: str, record: EpochRecord, is_done: bool) -> None:
        """A network has ended an epoch; one that it trained again is judged no more.

        Of one that was dropped meanwhile only its last epoch counts, with which it has finished all the same.

        Args:
            is_done: whether there is nothing left to train.
        """
        if self._hear_epoch(self._lives[name], record, is_done) and not is_done:
            self._await_or_resolve(self._lives[name])

    def _hear_epoch(self, life: TrialState, record: EpochRecord, is_done: bool) -> bool:
        """Have the rule and the searcher hear of an epoch; returns whether it counts."""
        if (life.end is not None and not is_done) or not self._count(life, record, is_done):
            return False
        talk = self._talks.get(life.entry)
        if talk is not None:
            talk.report(life.number, record.epoch, life.values[-1])
        return True

    def _await_or_resolve(self, life: TrialState) -> None:
        """Wait for what the searcher says of a network's newest epoch, unless it has said so, or never will."""
        talk = self._talks.get(life.entry)
        life.waits = talk is not None and talk.awaits(life.number)
        self._sort(life)
        if not life.waits:
            said = None if talk is None else talk.verdict(life.number, life.judged)
            self._resolve(life, said or Verdict.GO_ON)

    def _count(self, life: TrialState, record: EpochRecord, is_done: bool) -> bool:
        """Take an epoch into account; returns whether it is new."""
        if record.epoch != life.judged + 1:
            return False
        life.top = life.top.after(record, life.converge)
        life.values.append(record.value(life.converge.metric))
        life.seconds += record.seconds
        life.rate = max(
            life.rate, record.samples / (record.seconds * record.gpus) if record.seconds else 0.0
        )
        if life.entry:
            self._epochs[life.entry] += 1
            self._gpu_s[life.entry] += record.gpus * record.seconds
        score = life.top.score if math.isfinite(life.top.score) else -math.inf
        life.verdict = self._judge.add(life.name, record.epoch, score, is_done)
        return True

    def network_over(self, name: str, end: End) -> None:
        """A network has finished or failed."""
        life = self._lives[name]
        self._end(life, end)
        self._untold.pop(name, None)
        if life.entry:
            self._talks[life.entry].tell(life.number, end, self._known_best(life))

    def _end(self, life: TrialState, end: End) -> None:
        life.end = end
        life.waits = False
        life.holders.clear()
        self._sort(life)
        if end is End.FINISHED:
            self._judge.let_go_on(life.name)
        self._judge.leave(life.name)

    def _drop(self, life: TrialState) -> None:
        """A network is dropped; its searcher is told when it can no longer finish all the same."""
        self._end(life, End.PRUNED)
        self._untold[life.name] = None

    def _tell_dropped(self, busy: Collection[str]) -> None:
        """Tell searchers of what was dropped, but of networks that may be in their last epoch."""
        for name in [name for name in self._untold if name not in busy]:
            self.network_over(name, End.PRUNED)

    def answered(self, entry: str, call: Call, answer: object) -> None:
        """A searcher has answered what it was asked; see :func:`fleet.search.calls.make`."""
        self._out = None
        talk = self._talks[entry]
        try:
            follows = talk.take(call, answer)
        except InvalidAnswer as error:
            self.searcher_failed(entry, str(error))
            return
        about = answer if isinstance(call, Resume) else call.number
        if isinstance(about, int) and about in talk.asked:
            network = self._entries[entry].network(about)
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
                    self.network_over(self._entries[entry].network(follows.number), End.FAILED)
            case Verdict() if isinstance(call, Report):
                self._hear_verdict(self._lives[network], call.epoch, follows)
            case int():
                self._let_go_on(self._lives[network], _SEARCHER)

    def add(self, name: str, converge: Stopping | None = None) -> None:
        """A network has come that no searcher has asked for.

        Args:
            converge: what decides which epoch is the best.
        """
        self._lives[name] = life = TrialState(name, converge=converge or self._converge)
        self._sort(life)

    def rule(self, name: str, verdict: Verdict) -> None:
        """Somebody outside wants a network, which is not over, to pause, to stop, or to go on."""
        life = self._lives[name]
        if verdict is Verdict.STOP:
            self._stop(life, (USER,))
        elif verdict is Verdict.GO_ON:
            self._let_go_on(life, USER)
        elif USER not in life.holders:
            life.holders.add(USER)
            self._sort(life)
            self._judged(life, Verdict.PAUSE, tuple(sorted(life.holders)))

    def searcher_failed(self, entry: str, reason: str) -> None:
        """A searcher has raised, hangs, or talks nonsense: it is not called again, and nobody waits for it."""
        self._out = None
        talk = self._talks[entry]
        if talk.failure:
            return
        talk.fail(reason)
        self._note(ev.SearchFailed(entry, reason))
        for name in sorted(self._awaited, key=natural):
            if self._lives[name].entry == entry:
                self._await_or_resolve(self._lives[name])

    def _add(self, entry: str, asked: Proposal) -> None:
        name = self._entries[entry].network(asked.number)
        if asked.parent is None:
            parent = None
        else:
            parent = self._entries[entry].network(asked.parent)
        converge = self._entries[entry].converge_of({} if asked.wrong else asked.values)
        self._lives[name] = life = TrialState(name, entry, asked.number, converge=converge)
        self._sort(life)
        self._decided.append(
            AddNetwork(name, entry, asked.number, asked.values, parent, asked.wrong)
        )

    def _hear_verdict(self, life: TrialState, epoch: int, verdict: Verdict) -> None:
        if not life.waits or epoch != life.judged:
            return
        life.waits = False
        self._sort(life)
        self._resolve(life, verdict)

    # ---- verdicts ----

    def _resolve(self, life: TrialState, said: Verdict) -> None:
        """Act on what the rule and the searcher say of a network's newest epoch."""
        said = said if self._obeys else Verdict.GO_ON
        final = life.verdict.stricter(said)
        by = tuple(
            who
            for who, verdict in ((self._rule, life.verdict), (_SEARCHER, said))
            if verdict is final
        )
        if final is Verdict.STOP:
            self._stop(life, by)
        elif final is Verdict.PAUSE:
            life.holders |= set(by)
            self._sort(life)
            self._judged(
                life, final, tuple(sorted(life.holders)) if len(life.holders) > len(by) else by
            )
        life.verdict = Verdict.GO_ON

    def _stop(self, life: TrialState, by: tuple[str, ...], left: int = 0) -> None:
        self._judged(life, Verdict.STOP, by, left)
        self._drop(life)

    def _let_go_on(self, life: TrialState, holder: str, left: int = 0) -> None:
        if holder == self._rule:
            self._judge.let_go_on(life.name)
            if (
                life.verdict is Verdict.PAUSE
            ):  # of an epoch of which the searcher has said nothing yet
                life.verdict = Verdict.GO_ON
        if holder not in life.holders:
            return
        life.holders.discard(holder)
        self._sort(life)
        if life.holders:  # somebody else has paused it as well
            self._judged(life, Verdict.PAUSE, tuple(sorted(life.holders)), left)
        else:
            self._judged(life, Verdict.GO_ON, (holder,), left)

    def _judged(
        self, life: TrialState, verdict: Verdict, by: tuple[str, ...], left: int = 0
    ) -> None:
        self._note(ev.NetworkJudged(life.name, life.judged, verdict.value, by, left))

    # ---- decide ----

    def decide(
        self, training: Mapping[str, int] | None = None, busy: Collection[str] = ()
    ) -> list[Decision]:
        """What follows from all that was heard.

        Args:
            training: entry -> how many of its networks have a group.
            busy: the networks of which another epoch may be heard, though they may have been dropped.
        """
        self._tell_dropped(busy)
        self._promote(training or {})
        self._consult(training or {})
        while self._out is None and self._settle():
            self._tell_dropped(busy)
            self._consult(training or {})
        return self._taken()

    def _taken(self) -> list[Decision]:
        decided = self._decided
        self._decided = []
        return decided

    def _wants(self, entry: str, training: int) -> bool:
        """Whether one more network of an entry should be alive."""
        settings = self._entries[entry].settings
        if settings.max_concurrent == "auto":
            most = max(self._trainers, training + 2)
        else:
            most = settings.max_concurrent
        return not self._is_spent(entry) and len(self._alive[entry]) < most

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
        while (name := self._judge.promotable()) is not None:
            life = self._lives[name]
            if life.entry and not self._wants(life.entry, training.get(life.entry, 0)):
                return
            self._let_go_on(life, self._rule)

    def _consult(self, training: Mapping[str, int]) -> None:
        """Make the next call: what has happened is said before anything is asked."""
        if self._out is not None:
            return
        for may_want in (False, True):
            for name, talk in self._talks.items():
                call = talk.next(may_want and self._wants(name, training.get(name, 0)))
                if call is not None:
                    if isinstance(call, Tell) or (
                        isinstance(call, AddPriorTrial) and call.outcome and not call.source
                    ):
                        call = replace(call, value=self._come_to(self._entries[name], call.number))
                    self._out = CallSearcher(name, call)
                    self._decided.append(self._out)
                    return

    def _come_to(self, entry: Entry, number: int) -> float | tuple[float, ...] | None:
        """What a searcher is told that a network has come to: of several objectives in each."""
        names = [name for name, _ in entry.objectives]
        life = self._lives[entry.network(number)]
        best = self._known_best(life)
        if len(names) == 1:
            return best
        return come_to(
            names,
            life.top.record,
            {
                "parameters": self._parameters.get(life.name),
                "rate": self.rate_of(life.name) or life.rate or None,
                "epochs": life.judged,
                "seconds": life.seconds,
            },
        )

    def _settle(self, went_on: Collection[str] | None = None) -> bool:
        """Judge those that wait, if no network can come any more that they wait for; returns whether any did.

        Args:
            went_on: those that an earlier launch let go on in this moment, in which it broke off.
        """
        if not self._paused or (
            went_on is None and (self.is_open or any(map(self._may_come, self._talks)))
        ):
            return False
        alive = self._living if not went_on else self._living.difference(went_on)
        go_on, stop = self._judge.settle(alive)
        left = len(stop) + len(go_on)
        if not alive and not went_on and (not left or self._are_spent):
            return self._drop_paused()
        for name in stop:  # first: while nobody has gone on, all is as it was
            left -= 1
            self._stop(self._lives[name], (self._rule,), left)
        for name in go_on:
            left -= 1
            self._let_go_on(self._lives[name], self._rule, left)
        return bool(go_on or stop)

    def _may_come(self, entry: str) -> bool:
        """Whether an entry may yet ask for a network, now or after something else was said."""
        talk = self._talks[entry]
        if talk.is_closed or self._is_spent(entry):
            return False
        alive = bool(self._alive[entry]) or any(
            self._lives[name].entry == entry for name in self._untold
        )
        return talk.may_ask or alive

    def _drop_paused(self) -> bool:
        """Nothing is alive, and nothing can go on: what was paused is dropped."""
        paused = sorted(self._paused, key=natural)
        for place, name in enumerate(paused, start=1):
            self._stop(self._lives[name], (_END,), len(paused) - place)
        return True

    # ---- small things ----

    def _sort(self, life: TrialState) -> None:
        """Have a network in the sets where it belongs."""
        for names, belongs in (
            (self._alive[life.entry], life.is_alive),
            (self._living, life.is_alive),
            (self._awaited, life.waits),
            (self._paused, life.end is None and bool(life.holders)),
        ):
            (names.add if belongs else names.discard)(life.name)

    def _known_best(self, life: TrialState) -> float | None:
        if math.isfinite(life.best):
            return life.best
        return None

    def _note(self, event: ev.Event) -> None:
        self._decided.append(LogEvent(event))


def make_controller(
    spec: Spec,
    ends: Spec,
    searchers: Mapping[str, Searcher],
    trainers: int,
    judges: bool = True,
    parameters: Mapping[str, int] | None = None,
    earlier: Mapping[str, Sequence[AddPriorTrial]] | None = None,
) -> SearchController:
    """The mind of a run.

    Args:
        spec: with the networks that there are when the launch begins.
        ends: with those that stand for the networks of its searches.
        trainers: how many there are.
        judges: whether networks are pruned by the rule of the spec; in a replay none are.
        parameters: network -> how many weights it has, where that is known; a view.
        earlier: entry -> what earlier runs found of which its searcher is told.
    """
    prune = spec.document.prune if judges else Prune()
    everyone = [*spec.networks, *ends.networks]
    entries = [
        replace(
            entry,
            resumes=isinstance(searchers[entry.name], ResumesTrials),
            earlier=tuple((earlier or {}).get(entry.name, ())),
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
        converge={network.name: network.train.stopping for network in spec.networks},
    )
