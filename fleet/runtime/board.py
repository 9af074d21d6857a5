"""What rank 0 has beside its roles: the coordinator and everything that watches it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from fleet.comm.base import World
from fleet.domain import events as ev
from fleet.domain.network import Standing
from fleet.domain.run import RunState
from fleet.ensemble.claims import Claims
from fleet.ensemble.launch import Setup, Speeds
from fleet.ensemble.rates import traits_of
from fleet.ensemble.survey import Survey
from fleet.errors import ExitStatus, UserError
from fleet.export.trackers import places
from fleet.monitor.beside_steps import beside_steps, shown_rates
from fleet.monitor.html import write_report
from fleet.monitor.report import best_rows, read_report
from fleet.monitor.tensorboard import TensorBoardObserver
from fleet.monitor.timeline import state_of
from fleet.monitor.view import describe, make_view
from fleet.prediction.ensembles import EnsembleResult, fed_alike, judge_ensembles, table_of, write_ensembles
from fleet.runtime.admission import Admission
from fleet.runtime.ahead import busy
from fleet.runtime.coordinator import Coordinator, Files, Preamble, Search
from fleet.runtime.earlier import earlier_of
from fleet.runtime.harvest import Harvest
from fleet.runtime.interrupt import Interruption
from fleet.runtime.known_rates import Profile
from fleet.runtime.launch import Launch
from fleet.runtime.outside.clerk import Clerk
from fleet.runtime.outside.mailbox import Mailbox
from fleet.runtime.outside.tracking import Tracking
from fleet.runtime.replay import compare
from fleet.runtime.searchers import Searchers, calls_of, make_searchers
from fleet.runtime.start import Laps
from fleet.search.calls import Know
from fleet.search.changing import beginning
from fleet.search.mind import entries_of, make_mind
from fleet.search.searcher import Knowing
from fleet.storage import rate_cache
from fleet.storage.event_log import EventLog, RunTail, in_order, logged_epochs, read_events
from fleet.storage.files import STDOUT, SharedPacing, storing
from fleet.storage.identity import codes_of_all, speed_identity, trial_identity
from fleet.storage.lease import Lease, check_of
from fleet.storage.network_leases import NetworkLeases
from fleet.storage.results import NetworkResult, Results, Status, parameters_of, recover
from fleet.terminal import print_table
from fleet.units import counted
from launch.environment import find_launcher
from scheduler.ensemble.online import OnlineRates
from scheduler.ensemble.sharing import Sharing, worth

# For trackers, when all else is done: their libraries take seconds to load. Little of a walltime may be left.
_PATIENCE_S, _HURRIED_S = 60.0, 10.0
_LEAST_S = 1e-6  # in the cache of rates


def meaning(status: ExitStatus, rows: Iterable[NetworkResult]) -> str:
    """What an end is that launchers take for an abort; nothing for all others.

    >>> meaning(ExitStatus.NETWORK_FAILED, [])
    'a searcher is not called again, and a warning above says why'
    """
    if status is ExitStatus.RESUMABLE:
        return "networks are left, and the same command goes on with them"
    if status is not ExitStatus.NETWORK_FAILED:
        return ""
    if any(row.status is Status.FAILED for row in rows):
        return "some networks have failed, and the table says why"
    return "a searcher is not called again, and a warning above says why"


def _lost(run: RunState, standings: Mapping[str, Standing], saved: Container[str], changes: Sequence[ev.Event]
          ) -> list[ev.NetworkFellBack]:
    """The networks that start over because no checkpoint is left of them, as when somebody has deleted their folders.

    Args:
        run: by the log alone.
        standings: by the checkpoints.
        saved: the networks that have one.
        changes: what is said already.
    """
    said = {event.network for event in changes if isinstance(event, ev.NetworkFellBack)}
    return [ev.NetworkFellBack(name, f"no checkpoint of it is left, and the log has {counted(epochs, 'epoch')} of it",
                               epochs=0, position=0)
            for name, before in run.standings.items()
            if (epochs := len(before.history)) and not before.is_pruned and name not in saved and name not in said
            and name in standings and standings[name].outcome is None]


class CoordinatorSide:
    """What rank 0 has beside its roles: the coordinator and everything that watches it.

    Args:
        lease: of this process, where several launches work at a time.

    Attributes:
        first_epoch: of the stream, in this launch.
    """

    def __init__(self, world: World, launch: Launch, interruption: Interruption, lease: Lease | None, laps: Laps
                 ) -> None:
        spec, paths = launch.spec, launch.paths
        self._launch = launch
        tail = RunTail(paths, from_end=True)  # before: what is logged meanwhile is heard afterwards
        logs = {path: list(read_events(path)) for path in paths.event_logs()}
        self._run = run = RunState(spec) if launch.request.beside_others else state_of(in_order(logs.values()), spec)
        self.results = Results(spec, paths, launch.epoch_samples, run, _parameters(launch),
                               lambda network: trial_identity(network, spec, launch.sample, launch.beside),
                               test=str(spec.data.test) if launch.is_tested else "",
                               check=check_of(launch.fence))
        standings, states = recover(self.results, launch.found)
        lost = [] if launch.replayed else _lost(run, standings, states, launch.changes)
        found = {} if launch.request.beside_others else run.differing(standings)
        run.take_up(standings)
        for sample in launch.inputs.left_out:
            self.results.add_bad(sample.name, sample.reason)
        self.results.write()
        histories = {name: standing.history for name, standing in standings.items()}
        self._view = make_view(run, launch.request.plain)
        self._log = tuple(logged.event for logged in logs.get(paths.events, ()))
        self._book = rate_cache.RateBook(rate_cache.cache_path(), launch.request.remeasure)
        self._left = [network for network in spec.networks
                      if self.results.standing(network.name).outcome is None]  # when the launch begins
        codes = codes_of_all(spec, launch.beside)
        # Of each network, also of those that come: equal keys train at equal speed.
        self._keys = {network.name: speed_identity(network, spec.resources, launch.sample, launch.machine, codes)
                      for network in self._left}
        self._known = rate_cache.numbers(self._book.known)
        consumed = [record.stream_epoch for history in histories.values() for record in history]
        consumed += [state.stream_epoch for state in states.values()]
        self.first_epoch = 1 + max(consumed, default=-1)
        self._harvest = self._make_harvest(lease, tail)
        # Among other launches that is seen when a network is taken: they may be about to log what they have saved.
        logged = logged_epochs(chain.from_iterable(logs.values())) if self._harvest is None else set()
        unlogged = [ev.EpochEnded(name, record) for name, history in histories.items() for record in history
                    if (name, record.epoch, record.stream_epoch) not in logged and self._harvest is None]
        self._events = EventLog(paths.events)
        left_s = interruption.seconds_left()
        setup = Setup(spec, launch.roles, launch.layout, self.results.samples, world.outlives,
                      ends_s=None if left_s is None else self._events.now() + left_s,
                      first_epoch=self.first_epoch, replayed=tuple(launch.replayed_epochs()),
                      replayed_batches=tuple(record.batch for record in launch.replayed),
                      bad=frozenset(self.results.bad),
                      elsewhere=frozenset() if self._harvest is None else frozenset(self._epochs_left),
                      sharing=self._sharing(), alone=self._alone(), hosts=world.hosts)
        online = self._online()
        self._tracking = Tracking([] if launch.replayed else places(spec.document.track, paths.root), paths,
                                  launch.request.spec)
        self._tensorboard = TensorBoardObserver(paths, self.results.networks)
        self.coordinator = Coordinator(
            world, setup, Speeds(self._make_survey(), launch.rates, online),
            Files(self.results, self._events, Profile(paths.profile), launch.fence, self._tracking),
            [self._view.on_event, self._tensorboard.on_event, self._tracking.on_event, self._on_event],
            self._view.on_pace, interruption,
            Preamble(unlogged, self._remembered(), found, (launch.cache, *launch.changes,
                                                       *self._damaged(), *lost), laps),
            self._search(online is not None), self._harvest)
        if self._harvest is not None:
            self.results.check, self.results.pacing = self._harvest.leases.check, SharedPacing(paths.results)
            self._harvest.leases.start()

    @property
    def busy(self) -> tuple[int, ...]:
        """The trainers that can be busy at once, by what is left to train."""
        together = max(1, worth(Sharing(self._sharing()).curve))
        return busy(self._left, self._launch.roles, bool(self._launch.spec.searches), together)

    @property
    def _epochs_left(self) -> dict[str, int]:
        """Network that is not over -> epochs that it has been trained."""
        return {name: len(standing.history) for name in self.results.networks
                if (standing := self._run.standing(name)).outcome is None}

    def _make_harvest(self, lease: Lease | None, tail: RunTail) -> Harvest | None:
        """The networks that this launch is to hold; None where it holds all."""
        launch = self._launch
        if not launch.request.beside_others or lease is None:
            return None
        largest = max((network.min_gpus for network in launch.spec.networks), default=1)
        claims = Claims(self._epochs_left, max(1, len(launch.roles.trainers) // largest), launch.request.idle)
        return Harvest(launch.paths, NetworkLeases(launch.paths, lease), claims, self.results, tail)

    def _damaged(self) -> list[ev.NetworkFellBack]:
        """The networks that stay finished, though their newest checkpoints are damaged."""
        return [ev.NetworkFellBack(name, damage, len(self.results.standing(name).history), position=0, finished=True)
                for name, damage in self.results.damaged.items()]

    def _search(self, learns: bool) -> Search:
        """What asks for networks and prunes them."""
        launch = self._launch
        searchers, earlier = make_searchers(launch.ends, self._log), dict[str, list[Know]]()
        begins = list[ev.SearcherBegan | ev.EarlierRead]()
        for entry in entries_of(launch.ends).values():
            knows, earlier[entry.name] = isinstance(searchers[entry.name], Knowing), []
            if (began := beginning(entry, self._log, knows)) is not None:
                begins.append(began)
            for run in entry.settings.earlier:
                found, read = earlier_of(entry, run, [*self._log, *begins], knows)
                earlier[entry.name] += found
                begins += [] if read is None else [read]
        mind = make_mind(launch.spec, launch.ends, searchers, len(launch.roles.trainers),
                         judges=not launch.replayed, parameters=self.results.parameters, earlier=earlier)
        admission = Admission(launch, self.results, self._keys, self._known, learns)
        clerk = None if launch.replayed or launch.request.beside_others else Clerk(
            Mailbox(launch.paths.mailbox), self.results, admission,
            (event for event in self._log if isinstance(event, ev.Commanded)))
        patience_s = {entry.stem: entry.search.answer_within
                      for entry in launch.ends.searches.values() if entry.search is not None}
        return Search(mind, Searchers(searchers, calls_of([*self._log, *begins]), patience_s), admission, self._log,
                      clerk, tuple(begins))

    def _make_survey(self) -> Survey:
        """The measurements that networks which are not done need, beside those that are known."""
        roles = self._launch.roles
        return Survey(self._left, self._keys, self._launch.spec.profile, roles.cluster.whole_gpus,
                      roles.whole_per_node, self._known, rate_cache.timings(self._book.known))

    def _online(self) -> OnlineRates | None:
        """What learns rates from training; None where they are given, or measured before."""
        launch = self._launch
        is_measured = launch.spec.profile.when == "before" or any(
            network.train.batch.is_elastic for network in self._left)  # no number for each number of GPUs says its rate
        if launch.rates is not None or is_measured:
            return None
        samples = [launch.sample.of(network.feed) for network in self._left]
        traits = [traits_of(network, self._keys[network.name], sample.image.shape, sample.classes)
                  for network, sample in zip(self._left, samples, strict=True)]
        roles = launch.roles
        return OnlineRates(traits, self.results.samples, roles.whole_per_node, roles.cluster.whole_gpus, self._known,
                           roles.slots, self._sharing(), roles.idle_slots)

    def _sharing(self) -> dict[int, float]:
        """What networks that share a GPU are known to train together, by their number: from a file, or earlier runs."""
        given = self._launch.rates
        if given is not None and len(given.sharing) > 1:
            return dict(enumerate(given.sharing[1:], start=2))
        return rate_cache.numbers(self._book.known).get(self._sharing_key, {})

    def _on_event(self, event: ev.Event) -> None:
        """Keep what was measured, or learned, soon after that, whatever becomes of this launch."""
        match event:
            case ev.RateLearned():
                self._book.add(self._keys[event.network], event.gpus, self._found(event, "trained"))
            case ev.RateMeasured() if event.rate > 0:
                self._book.add(self._keys[event.network], event.gpus, replace(
                    self._found(event, "measured"), timed=event.timed, parameters=event.parameters))
            case ev.RateOff() if event.corrected:
                self._book.correct(self._keys[event.network], event.gpus, self._found(event, "trained"))
                self._book.write()
            case ev.SharingLearned() if self._launch.spec.engine.learns and event.speedups != Sharing(
                    self._sharing()).curve:  # else it is what earlier runs have shown
                for count, speedup in enumerate(event.speedups[1:], start=2):
                    self._book.add(self._sharing_key, count, self._shown(
                        speedup, f"{count} networks on one {event.device}"))
            case ev.NetworkRetried(alone=True):
                self._book.add(rate_cache.alone_key(self._keys[event.network]), 1,
                               self._shown(1.0, event.network, event.reason))
                self._book.write()
            case ev.Profiled():
                self._book.write()
            case ev.RatesEstimated():
                self._book.write_if_due()

    def _found(self, event: ev.RateMeasured | ev.RateLearned | ev.RateOff, how: str) -> rate_cache.KnownRate:
        """A rate of this launch, for later ones."""
        return rate_cache.KnownRate(
            event.rate, event.spread, event.steps, time.time(), self._machine, how, event.network)

    @property
    def _machine(self) -> str:
        """Where what is found out holds."""
        return f"{socket.gethostname()}: {self._launch.machine.hardware}"

    @property
    def _sharing_key(self) -> str:
        """What networks train together that share a GPU holds for an engine on one kind of machine."""
        return rate_cache.sharing_key(self._launch.spec.resources.engine, self._launch.machine.hardware)

    def _alone(self) -> frozenset[str]:
        """The networks that ran out of memory beside others, here or in earlier runs on this machine."""
        return frozenset(name for name, key in self._keys.items() if rate_cache.alone_key(key) in self._book.known)

    def _remembered(self) -> ev.RatesRemembered | None:
        """The rates of earlier launches that this one goes by; None where there are none, or rates are not measured."""
        if self._launch.rates is not None:
            return None
        now = time.time()
        rates = {name: tuple(ev.RememberedRate(gpus, one.rate, one.spread, max(0.0, now - one.at), one.machine, one.how)
                             for gpus, one in sorted(self._book.known.get(key, {}).items()))
                 for name, key in self._keys.items()}
        known = {name: found for name, found in rates.items() if found}
        return ev.RatesRemembered(str(self._book.path), known) if known else None

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._view.close()

    def end(self) -> int:
        """Write and print what came out; returns the exit status."""
        self._keep_beside_steps()
        self._book.write()
        self.coordinator.stop()
        if self._harvest is not None:
            self._harvest.leases.close()
            self._harvest.refresh()
        self.results.write()
        self._events.close()
        self._tensorboard.close()
        status = ExitStatus(self.coordinator.status or 0)
        if self._launch.cache.is_passing and not self._epochs_left:  # no launch of this run wants it any more
            self._launch.paths.decoded.unlink(missing_ok=True)
        with storing(STDOUT):
            self._print()
            for failed in self._tracking.close(_HURRIED_S if status is ExitStatus.RESUMABLE else _PATIENCE_S):
                print(describe(failed, {}), flush=True)
            if (said := meaning(status, self.results.rows())) and find_launcher(os.environ) is not None:
                print(f"Status {status.value}: {said}. Launchers take it for an abort; no rank has crashed.",
                      flush=True)
        return int(status)

    def _keep_beside_steps(self) -> None:
        """Keep how long all took but steps; and the rates that were shown where nobody looked at any."""
        spec, shown, data = self._launch.spec, self._run.launch, self._launch.inputs.data
        if shown is None or not spec.engine.learns or self._launch.replayed:
            return
        judging = 0 if data.validation is None else len(data.validation)
        if not spec.policy.needs_rates:
            for name, rates in shown_rates(shown, judging).items():
                for gpus, rate in rates.items():
                    self._book.add(self._keys[name], gpus, self._shown(rate, name))
        if (found := beside_steps(shown, judging)) is not None:
            key = rate_cache.beside_steps_key(spec.resources.engine, self._launch.machine.hardware)
            for number, (name, seconds) in enumerate(vars(found).items(), start=1):
                self._book.add(key, number, self._shown(max(seconds, _LEAST_S), name))

    def _shown(self, number: float, name: str, how: str = "trained") -> rate_cache.KnownRate:
        return rate_cache.KnownRate(number, 0.0, 1, time.time(), self._machine, how, name)

    def _print(self) -> None:
        rows = self.results.rows()
        headers, lines, left_out = best_rows(rows)
        print_table(headers, lines, title=f"{self._launch.spec.document.name}: the best network first")
        if left_out:
            print(left_out)
        if together := self._joined(rows):
            print_table(*table_of(together), title="The best networks together")
        print(self.coordinator.summary())
        replayed = self.results.standing(rows[0].name).history if rows else ()
        if self._launch.replayed and len(replayed) == len(self._launch.replayed):  # otherwise it failed
            network, = self._launch.spec.networks
            print(compare(self._launch.replayed, replayed, network.train.deterministic))
        if self.results.bad:
            print(f"{counted(len(self.results.bad), 'sample')} could not be read: {self._launch.paths.bad_samples}")
        shown = "report.html shows it"
        try:
            report = read_report(self._launch.paths)
            for search in report.searches:
                if not search.tried:
                    print(search.words)
            write_report(self._launch.paths.report, report, in_haste=True)
        except UserError as error:  # a log that was damaged is no reason to fail after all else went well
            shown = f"without a report, because {error}"
        print(f"Everything is in {self._launch.paths.root}; {shown}.", flush=True)

    def _joined(self, rows: Sequence[NetworkResult]) -> list[EnsembleResult]:
        """How good the best networks are together, once all that will finish have."""
        if self._launch.replayed or any(row.status in (Status.WAITING, Status.TRAINING) for row in rows):
            return []
        feed, found = fed_alike(self._launch.spec, rows)
        together = judge_ensembles(self._launch.paths, found, self._launch.sample.of(feed).target.kind)
        if together:
            write_ensembles(self._launch.paths, together)
        return together


def _parameters(launch: Launch) -> dict[str, int]:
    """The parameter counts that are known without building a network."""
    counts = {network.name: parameters_of(network, launch.sample) for network in launch.spec.networks}
    return {name: count for name, count in counts.items() if count is not None}
