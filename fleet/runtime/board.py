"""What rank 0 has beside its roles: the coordinator and everything that watches it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fleet.comm.base import World
from fleet.domain.events import (
    Commanded,
    Event,
    NetworkFellBack,
    NetworkRetried,
    Profiled,
    RateLearned,
    RateMeasured,
    RateOff,
    RatesEstimated,
    RatesRemembered,
    RememberedRate,
    SharingLearned,
)
from fleet.domain.run import RunState
from fleet.ensemble.claims import Claims
from fleet.ensemble.rates import traits_of
from fleet.ensemble.setup import Setup
from fleet.ensemble.survey import Survey
from fleet.errors import ExitStatus, UserError
from fleet.monitor.html import write_report
from fleet.monitor.report import best_rows, read_report
from fleet.monitor.tensorboard import TensorBoardObserver
from fleet.monitor.view import make_view
from fleet.prediction.ensembles import EnsembleResult, fed_alike, judge_ensembles, table_of, write_ensembles
from fleet.runtime.admission import Admission
from fleet.runtime.ahead import busy
from fleet.runtime.coordinator import Coordinator, Observer, Search
from fleet.runtime.harvest import Harvest
from fleet.runtime.interrupt import Interruption
from fleet.runtime.known_rates import Profile
from fleet.runtime.laps import Laps
from fleet.runtime.outside.clerk import Clerk
from fleet.runtime.outside.mailbox import Mailbox
from fleet.runtime.prepare import Prepared
from fleet.runtime.replay import compare
from fleet.runtime.searchers import Searchers
from fleet.runtime.searches import calls_of, make_mind, make_searchers
from fleet.spec import NetworkSpec
from fleet.storage.event_log import EventLog, RunTail, logged_epochs, read_events
from fleet.storage.files import STDOUT, SharedPacing, storing
from fleet.storage.identity import codes_of_all, speed_identity, trial_identity
from fleet.storage.lease import Lease, check_of
from fleet.storage.network_leases import NetworkLeases
from fleet.storage.rate_cache import KnownRate, RateBook, alone_key, cache_path, numbers, sharing_key, timings
from fleet.storage.results import NetworkResult, Results, Status, parameters_of, recover
from fleet.terminal import print_table
from fleet.units import counted
from launch.environment import find_launcher
from scheduler.ensemble.online import OnlineRates
from scheduler.ensemble.sharing import Sharing, worth


def meaning(status: ExitStatus, rows: Iterable[NetworkResult]) -> str:
    """What an end is that launchers take for an abort; nothing for all others.

    >>> meaning(ExitStatus.NETWORK_FAILED, [])
    'a searcher is called no more, and a warning above says why'
    """
    if status is ExitStatus.RESUMABLE:
        return "networks are left, and the same command goes on with them"
    if status is not ExitStatus.NETWORK_FAILED:
        return ""
    if any(row.status is Status.FAILED for row in rows):
        return "some networks have failed, and the table says why"
    return "a searcher is called no more, and a warning above says why"


class CoordinatorSide:
    """What rank 0 has beside its roles: the coordinator and everything that watches it.

    Args:
        lease: of this process, where several launches work at a time.

    Attributes:
        first_epoch: of the stream, in this launch.
    """

    def __init__(self, world: World, prepared: Prepared, interruption: Interruption, lease: Lease | None = None,
                 laps: Laps | None = None) -> None:
        spec, paths = prepared.spec, prepared.paths
        self._prepared = prepared
        self.results = Results(spec, paths, prepared.epoch_samples, _parameters(prepared),
                               lambda network: trial_identity(network, spec, prepared.sample, prepared.beside),
                               test="" if prepared.test() is None else str(spec.data.test),
                               check=check_of(prepared.fence))
        tail = RunTail(paths, from_end=True)  # before: what is logged meanwhile is heard afterwards
        states = recover(self.results)
        for sample in prepared.left_out:
            self.results.add_bad(sample.name, sample.reason)
        self.results.write()
        histories = {name: standing.history for name, standing in self.results.standings.items()}
        run = RunState(spec)
        self._view = make_view(run, prepared.plain)
        self._log = tuple(logged.event for logged in read_events(paths.events)) if paths.events.exists() else ()
        self._book = RateBook(cache_path(), prepared.remeasure)
        self._survey = self._make_survey()
        consumed = [record.stream_epoch for history in histories.values() for record in history]
        consumed += [state.stream_epoch for state in states.values()]
        self.first_epoch = 1 + max(consumed, default=-1)
        self._harvest = self._make_harvest(lease, tail)
        # Among other launches that is seen when a network is taken: they may be about to log what they have saved.
        logged = logged_epochs(paths) if self._harvest is None else set()
        unlogged = [(name, record) for name, history in histories.items() for record in history
                    if (name, record.epoch, record.stream_epoch) not in logged and self._harvest is None]
        self._events = EventLog(paths.events)
        left_s = interruption.seconds_left()
        setup = Setup(spec, prepared.roles, prepared.layout, self.results.samples, world.outlives,
                      ends_s=None if left_s is None else self._events.now() + left_s,
                      first_epoch=self.first_epoch, replayed=tuple(prepared.replayed_epochs()),
                      replayed_batches=tuple(record.batch for record in prepared.replayed),
                      bad=frozenset(self.results.bad),
                      elsewhere=frozenset() if self._harvest is None else frozenset(self._left),
                      sharing=self._sharing(), alone=self._alone(), hosts=world.hosts)
        online = self._online()
        observers: list[Observer] = [self._view, TensorBoardObserver(paths), self]
        self.coordinator = Coordinator(world, setup, self._survey, prepared.rates, self.results, self._events,
                                       Profile(paths.profile), observers, interruption, unlogged, self._remembered(),
                                       (prepared.cache.event(prepared.roles.shared), *prepared.changes,
                                        *self._damaged()), prepared.fence, online, self._harvest,
                                       self._search(online is not None), laps, run)
        if self._harvest is not None:
            self.results.check, self.results.pacing = self._harvest.check, SharedPacing(paths.results)
            self._harvest.start()

    @property
    def busy(self) -> tuple[int, ...]:
        """The trainers that can be busy at once, by what is left to train."""
        together = max(1, worth(Sharing(self._sharing()).curve))
        return busy(self._survey.networks, self._prepared.roles, bool(self._prepared.spec.searches), together)

    @property
    def _left(self) -> dict[str, int]:
        """Network that is not over -> epochs that it has been trained."""
        return {name: len(standing.history) for name, standing in self.results.standings.items()
                if standing.outcome is None}

    def _make_harvest(self, lease: Lease | None, tail: RunTail) -> Harvest | None:
        """The networks that this launch is to hold; None where it holds all."""
        prepared, beside = self._prepared, self._prepared.beside_others
        if beside is None or lease is None:
            return None
        largest = max((network.min_gpus for network in prepared.spec.networks), default=1)
        claims = Claims(self._left, max(1, len(prepared.roles.trainers) // largest), beside.idle_s)
        return Harvest(prepared.paths, NetworkLeases(prepared.paths, lease), claims, self.results, tail)

    def _damaged(self) -> list[NetworkFellBack]:
        """The networks that stay finished, though their newest checkpoints are damaged."""
        return [NetworkFellBack(name, damage, len(self.results.standing(name).history), position=0, finished=True)
                for name, damage in self.results.damaged.items()]

    def _search(self, learns: bool) -> Search | None:
        """What asks for networks and prunes them."""
        prepared, survey = self._prepared, self._survey
        if prepared.ends is None:
            return None
        searchers = make_searchers(prepared.ends)
        mind = make_mind(prepared.spec, prepared.ends, searchers, len(prepared.roles.trainers),
                         judges=not prepared.replayed)
        admission = Admission(prepared, self.results, survey.known, learns)
        clerk = None if prepared.replayed or prepared.beside_others is not None else Clerk(
            Mailbox(prepared.paths.mailbox), self.results, admission,
            (event for event in self._log if isinstance(event, Commanded)))
        patience_s = {entry.stem: entry.search.answer_within
                      for entry in prepared.ends.searches.values() if entry.search is not None}
        return Search(mind, Searchers(searchers, calls_of(self._log), patience_s), admission, self._log, clerk)

    def _make_survey(self) -> Survey:
        """The measurements that networks which are not done need, beside those that are known."""
        prepared, spec, roles = self._prepared, self._prepared.spec, self._prepared.roles
        left = [network for network in spec.networks if self.results.standing(network.name).outcome is None]
        codes = codes_of_all(spec, prepared.beside)
        keys = {network.name: speed_identity(network, spec.resources, prepared.sample, prepared.machine, codes)
                for network in left}
        return Survey(left, keys, spec.profile, roles.cluster.whole_gpus, roles.whole_per_node,
                      numbers(self._book.known), timings(self._book.known))

    def _online(self) -> OnlineRates | None:
        """What learns rates from training; None where they are given, or measured before."""
        prepared, survey = self._prepared, self._survey
        is_measured = prepared.spec.profile.when == "before" or any(map(_is_elastic, survey.networks))
        if prepared.rates is not None or is_measured:
            return None
        samples = [prepared.sample.of(network.feed) for network in survey.networks]
        traits = [traits_of(network, survey.keys[network.name], sample.image.shape, sample.classes)
                  for network, sample in zip(survey.networks, samples, strict=True)]
        roles = prepared.roles
        return OnlineRates(traits, self.results.samples, roles.whole_per_node, roles.cluster.whole_gpus, survey.known,
                           roles.slots, self._sharing(), roles.idle_slots)

    def _sharing(self) -> dict[int, float]:
        """What networks that share a GPU are known to train together, by their number: from a file, or earlier runs."""
        given = self._prepared.rates
        if given is not None and len(given.sharing) > 1:
            return dict(enumerate(given.sharing[1:], start=2))
        return numbers(self._book.known).get(self._sharing_key, {})

    def on_event(self, event: Event) -> None:
        """Keep what was measured, or learned, soon after that, whatever becomes of this launch."""
        match event:
            case RateLearned():
                self._book.add(self._survey.keys[event.network], event.gpus, self._found(event, "trained"))
            case RateMeasured() if event.rate > 0:
                self._book.add(self._survey.keys[event.network], event.gpus, replace(
                    self._found(event, "measured"), timed=event.timed, parameters=event.parameters))
            case RateOff() if event.corrected:
                self._book.correct(self._survey.keys[event.network], event.gpus, self._found(event, "trained"))
                self._book.write()
            case SharingLearned() if self._prepared.spec.engine.learns and event.speedups != Sharing(
                    self._sharing()).curve:  # else it is what earlier runs have shown
                for count, speedup in enumerate(event.speedups[1:], start=2):
                    self._book.add(self._sharing_key, count, KnownRate(
                        speedup, 0.0, 1, time.time(), self._machine, "trained",
                        f"{count} networks on one {event.device}"))
            case NetworkRetried(alone=True):
                self._book.add(alone_key(self._survey.keys[event.network]), 1, KnownRate(
                    1.0, 0.0, 1, time.time(), self._machine, event.reason, event.network))
                self._book.write()
            case Profiled():
                self._book.write()
            case RatesEstimated():
                self._book.write_if_due()

    def _found(self, event: RateMeasured | RateLearned | RateOff, how: str) -> KnownRate:
        """A rate of this launch, for later ones."""
        return KnownRate(event.rate, event.spread, event.steps, time.time(), self._machine, how, event.network)

    @property
    def _machine(self) -> str:
        """Where what is found out holds."""
        return f"{socket.gethostname()}: {self._prepared.machine.hardware}"

    @property
    def _sharing_key(self) -> str:
        """What networks train together that share a GPU holds for an engine on one kind of machine."""
        return sharing_key(self._prepared.spec.resources.engine, self._prepared.machine.hardware)

    def _alone(self) -> frozenset[str]:
        """The networks that ran out of memory beside others, here or in earlier runs on this machine."""
        return frozenset(name for name, key in self._survey.keys.items() if alone_key(key) in self._book.known)

    def _remembered(self) -> RatesRemembered | None:
        """The rates of earlier launches that this one goes by; None where there are none, or rates are not measured."""
        if self._prepared.rates is not None:
            return None
        now = time.time()
        rates = {name: tuple(RememberedRate(gpus, one.rate, one.spread, max(0.0, now - one.at), one.machine, one.how)
                             for gpus, one in sorted(self._book.known.get(key, {}).items()))
                 for name, key in self._survey.keys.items()}
        known = {name: found for name, found in rates.items() if found}
        return RatesRemembered(str(self._book.path), known) if known else None

    def on_pace(self, network: str, samples: int, samples_per_s: float) -> None:
        """Nothing is kept of that."""

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._view.close()

    def end(self) -> int:
        """Write and print what came out; returns the exit status."""
        self._book.write()
        self.coordinator.stop()
        if self._harvest is not None:
            self._harvest.close()
            self._harvest.refresh()
        self.results.write()
        self._events.close()
        status = ExitStatus(self.coordinator.status or 0)
        if self._prepared.cache.is_passing and not self._left:  # no launch of this run wants it any more
            self._prepared.paths.decoded.unlink(missing_ok=True)
        with storing(STDOUT):
            self._print()
            if (said := meaning(status, self.results.rows())) and find_launcher(os.environ) is not None:
                print(f"Status {status.value}: {said}. Launchers take it for an abort; no rank has crashed.",
                      flush=True)
        return int(status)

    def _print(self) -> None:
        rows = self.results.rows()
        headers, lines, left_out = best_rows(rows)
        print_table(headers, lines, title=f"{self._prepared.spec.document.name}: the best network first")
        if left_out:
            print(left_out)
        if together := self._joined(rows):
            print_table(*table_of(together), title="The best networks together")
        print(self.coordinator.summary())
        replayed = self.results.standing(rows[0].name).history if rows else ()
        if self._prepared.replayed and len(replayed) == len(self._prepared.replayed):  # otherwise it failed
            network, = self._prepared.spec.networks
            print(compare(self._prepared.replayed, replayed, network.train.deterministic))
        if self.results.bad:
            print(f"{counted(len(self.results.bad), 'sample')} could not be read: {self._prepared.paths.bad_samples}")
        shown = "report.html shows it"
        try:
            report = read_report(self._prepared.paths)
            for search in report.searches:
                if not search.tried:
                    print(search.words)
            write_report(self._prepared.paths.report, report)
        except UserError as error:  # a log that was damaged is no reason to fail after all else went well
            shown = f"without a report, because {error}"
        print(f"Everything is in {self._prepared.paths.root}; {shown}.", flush=True)


    def _joined(self, rows: Sequence[NetworkResult]) -> list[EnsembleResult]:
        """How good the best networks are together, once all that will finish have."""
        if self._prepared.replayed or any(row.status in (Status.WAITING, Status.TRAINING) for row in rows):
            return []
        feed, found = fed_alike(self._prepared.spec, rows)
        together = judge_ensembles(self._prepared.paths, found, self._prepared.sample.of(feed).target.kind)
        if together:
            write_ensembles(self._prepared.paths, together)
        return together


def _parameters(prepared: Prepared) -> dict[str, int]:
    """The parameter counts that are known without building a network."""
    counts = {network.name: parameters_of(network, prepared.sample) for network in prepared.spec.networks}
    return {name: count for name, count in counts.items() if count is not None}


def _is_elastic(network: NetworkSpec) -> bool:
    """Whether its rates are no number for each number of GPUs: the policy chooses its batch."""
    return network.train.batch.is_elastic
