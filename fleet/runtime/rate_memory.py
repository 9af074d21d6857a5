"""Rates from the cache of earlier runs, and rates that are stored for later ones."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace

from fleet.control.launch_state import PriorRates
from fleet.control.measurement import RateMeasurement
from fleet.control.rates import traits_of
from fleet.domain import events as ev
from fleet.domain.overheads import measure_overheads, observed_rates
from fleet.domain.run_launch import RunLaunch
from fleet.runtime.startup.launch import PreparedLaunch
from fleet.spec import NetworkSpec
from fleet.spec.entries import variants
from fleet.storage import rate_cache
from fleet.storage.identity import hash_all_sources, speed_identity
from fleet.storage.rank_deaths import find_marked
from scheduler.ensemble.online import OnlineRates, Traits
from scheduler.ensemble.sharing import Sharing
from scheduler.ensemble.spans import by_gpus

_MIN_S = 1e-6  # shortest duration in the cache of rates


class RateMemory:
    """The rates that a launch knows and stores; see the module.

    Args:
        unfinished: the networks that have not ended when the launch begins.

    Attributes:
        keys: network -> speed key, including added networks; networks with equal keys train at
            equal speed.
        prior_rates: key -> shape -> samples/s, from earlier runs.
        learns: whether rates are learned from training, neither read nor measured before.
    """

    def __init__(self, launch: PreparedLaunch, unfinished: Sequence[NetworkSpec]) -> None:
        spec = launch.spec
        self._launch = launch
        self._unfinished = unfinished
        self._book = rate_cache.RateBook(rate_cache.cache_path(), launch.request.remeasure)
        self.keys: dict[str, str] = {}
        self.add_keys(*unfinished)
        self.prior_rates = rate_cache.rates_of(self._book.rates)
        # The throughput of a shared GPU depends on the engine and the hardware.
        self._sharing_key = rate_cache.sharing_key(spec.resources.engine, launch.machine.hardware)
        self._machine = f"{socket.gethostname()}: {launch.machine.hardware}"
        # The rate of an elastic batch is not a function of the number of GPUs. A search may propose
        # the next trial once all others have finished.
        is_measured = spec.profile.when == "offline" or any(
            network.train.batch.is_elastic for network in (*unfinished, *variants(spec))
        )
        self.learns = launch.rates is None and not is_measured

    def add_keys(self, *networks: NetworkSpec) -> None:
        """Add the speed keys of networks."""
        launch = self._launch
        spec = replace(launch.spec, networks=networks)
        codes = hash_all_sources(spec, launch.request.spec_folder)
        for network in networks:
            self.keys[network.name] = speed_identity(
                network, spec.resources, launch.sample, launch.machine, codes
            )

    def traits_of(self, network: NetworkSpec) -> Traits:
        """Return the features of a network by which its rate is estimated."""
        sample = self._launch.sample.for_pipeline(network.pipeline)
        return traits_of(network, self.keys[network.name], sample.joined_shape, sample.classes)

    # ---- from earlier runs ----

    @property
    def sharing(self) -> dict[int, float]:
        """Number of networks that share a GPU -> their total throughput."""
        rates = self._launch.rates
        if rates is not None and len(rates.sharing) > 1:
            return dict(enumerate(rates.sharing[1:], start=2))
        return rate_cache.sharing_of(self._book.rates, self._sharing_key)

    @property
    def alone(self) -> frozenset[str]:
        """Networks that ran out of memory on a shared GPU of this machine."""
        return frozenset(
            name for name, key in self.keys.items() if rate_cache.alone_key(key) in self._book.rates
        )

    @property
    def remembered(self) -> ev.CachedRatesUsed | None:
        """Cached rates that this launch uses; None without any."""
        if self._launch.rates is not None:
            return None
        now = time.time()
        rates = {
            name: tuple(
                ev.RememberedRate(
                    shape.gpus,
                    entry.rate,
                    entry.spread,
                    max(0.0, now - entry.at),
                    entry.machine,
                    entry.how,
                    shape.span,
                )
                for shape, entry in sorted(self._book.rates.get(key, {}).items())
            )
            for name, key in self.keys.items()
        }
        prior_rates = {name: entries for name, entries in rates.items() if entries}
        if prior_rates:
            return ev.CachedRatesUsed(str(self._book.path), prior_rates)
        return None

    def speeds(self) -> PriorRates:
        """Return known rates, missing measurements and the online learner."""
        roles = self._launch.roles
        # A network may kill each launch before that may record the death.
        elsewhere = find_marked(self._launch.paths) if self._launch.request.shares_run else ()
        measurement = RateMeasurement(
            [network for network in self._unfinished if network.name not in elsewhere],
            self.keys,
            self._launch.spec.profile,
            roles.cluster.whole_gpus,
            roles.physical_gpus_per_node,
            {key: by_gpus(rates) for key, rates in self.prior_rates.items()},
            rate_cache.timings(self._book.rates),
            [network for network in self._unfinished if network.name in elsewhere],
        )
        online = None
        if self.learns:
            online = OnlineRates(
                list(map(self.traits_of, self._unfinished)),
                self._launch.inputs.epoch_samples,
                roles.physical_gpus_per_node,
                roles.cluster.whole_gpus,
                self.prior_rates,
                roles.slots,
                self.sharing,
                roles.idle_slots,
            )
        return PriorRates(measurement, self._launch.rates, online)

    # ---- for later runs ----

    def on_event(self, event: ev.Event) -> None:
        """Store measured or learned rates."""
        match event:
            case ev.RateLearned():
                self._book.add(
                    self.keys[event.network], event.shape, self._make_rate(event, "trained")
                )
            case ev.RateMeasured() if event.rate > 0:
                self._book.add(
                    self.keys[event.network],
                    event.gpus,
                    replace(
                        self._make_rate(event, "measured"),
                        timed=event.timed,
                        parameters=event.parameters,
                    ),
                )
            case ev.RateMismatch() if event.corrected:
                self._book.correct(
                    self.keys[event.network], event.shape, self._make_rate(event, "trained")
                )
                self._book.write()
            # Unless it is the cached curve.
            case ev.SharingLearned() if (
                self._launch.spec.engine.learns and event.speedups != Sharing(self.sharing).curve
            ):
                for count, speedup in enumerate(event.speedups[1:], start=2):
                    self._book.add(
                        self._sharing_key,
                        count,
                        self._make_note(speedup, f"{count} networks on one {event.device}"),
                    )
            case ev.NetworkRetried(alone=True):
                self._book.add(
                    rate_cache.alone_key(self.keys[event.network]),
                    1,
                    self._make_note(1.0, event.network, event.reason),
                )
                self._book.write()
            case ev.ProfilingFinished():
                self._book.write()
            case ev.RatesEstimated():
                self._book.write_if_due()

    def close(self, run_launch: RunLaunch | None) -> None:
        """Store overheads and observed rates, and write the cache.

        Args:
            run_launch: the state of the launch; None if it never started.
        """
        spec = self._launch.spec
        data = self._launch.inputs.data
        if run_launch is not None and spec.engine.learns and not self._launch.replayed:
            validation_samples = 0 if data.validation is None else len(data.validation)
            if not spec.policy.needs_rates:
                for name, rates in observed_rates(run_launch, validation_samples).items():
                    for gpus, rate in rates.items():
                        self._book.add(self.keys[name], gpus, self._make_note(rate, name))
            overheads = measure_overheads(run_launch, validation_samples)
            if overheads is not None:
                key = rate_cache.beside_steps_key(
                    spec.resources.engine, self._launch.machine.hardware
                )
                for number, (name, seconds) in enumerate(vars(overheads).items(), start=1):
                    self._book.add(key, number, self._make_note(max(seconds, _MIN_S), name))
        self._book.write()

    def _make_rate(
        self, event: ev.RateMeasured | ev.RateLearned | ev.RateMismatch, how: str
    ) -> rate_cache.KnownRate:
        return rate_cache.KnownRate(
            event.rate, event.spread, event.steps, time.time(), self._machine, how, event.network
        )

    def _make_note(self, number: float, name: str, how: str = "trained") -> rate_cache.KnownRate:
        return rate_cache.KnownRate(number, 0.0, 1, time.time(), self._machine, how, name)
