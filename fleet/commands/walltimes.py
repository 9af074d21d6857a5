"""``--walltime auto``: what the jobs of an ensemble should ask for, one after the other, and why."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace

import numpy as np

from fleet.comm.roles import Roles
from fleet.commands.job_options import MOST_JOBS, WARNING_S, roles_of_job
from fleet.commands.known_rates import known_beside_steps, known_rates_of, with_sharing
from fleet.domain.events import TrainersReady
from fleet.errors import UserError
from fleet.jobs.chain import ChainTimes, chain_times
from fleet.monitor.overheads import FORWARD, Overheads, measure_overheads
from fleet.monitor.timeline import replay_log
from fleet.runtime.caching import HostResources, choose_cache
from fleet.runtime.inputs import Inputs, open_inputs
from fleet.runtime.interrupt import RESERVE_S
from fleet.spec import Spec, Stopping
from fleet.storage.event_log import read_events, read_run
from fleet.storage.paths import RunPaths
from fleet.units import format_duration, pluralize
from launch import slurm_control
from launch.base import InputError
from launch.sites import Site
from launch.systems import System, past_runs
from scheduler.base import Cluster, RateTable
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.pace import Stream
from scheduler.reservation.chained_requests import Chain, best_chain, evaluate_chain
from scheduler.reservation.distributions import Discrete, empirical_law
from scheduler.reservation.requests import MIN_RUNS, SAFETY
from scheduler.simulation.ensemble import simulate

# of how many epochs networks train: so many, or fewer where they take long
DRAWS = 60
LEAST_DRAWS = 8
DRAWS_S = 10.0
START_S = 60.0  # until ranks are ready, where no launch here has told
_MINUTE = 60.0


@dataclass(frozen=True)
class KnownTimes:
    """How long an ensemble is likely to take, in seconds, and by what that is known."""

    law: Discrete
    reason: str


@dataclass(frozen=True)
class WalltimeRequests:
    """What to ask for.

    Attributes:
        chain: the requests, in seconds.
        single: one request for the longest, beside it.
        why: where that comes from.
    """

    chain: Chain
    single: Chain
    reason: str

    def lines(self, nodes: int, is_chain: bool) -> list[str]:
        """Describe the requests, one line each."""
        first, *later = map(format_duration, self.chain.requests)
        then = f", then {', '.join(later)} if that is not enough" if later else ""
        if is_chain or not later:
            again = ""
        else:
            again = " (the same command asks for the next; --chain does it by itself)"
        cost = f"{_hours(self.chain.requested, nodes)} node-hours asked for, {_hours(self.chain.used, nodes)} used"
        lines = [
            f"asks for {first}{then}{again}",
            f"by {self.reason}",
            f"expected: {cost}, {self.chain.jobs:.2f} jobs; with one request of "
            f"{format_duration(self.single.requests[0])}: {_hours(self.single.requested, nodes)} and "
            f"{_hours(self.single.used, nodes)}",
        ]
        if later:
            lines.append(
                "in a queue that starts any job that fits when nodes are idle (work-conserving) only what is "
                "used counts, and shorter requests can lose: there ask for "
                f"--walltime {math.ceil(self.single.requests[0] / _MINUTE)}min"
            )
        return lines

    def numbers(self) -> dict[str, object]:
        """Return the requests for JSON; seconds of one node."""
        return {
            "requests_s": list(self.chain.requests),
            "why": self.reason,
            "asked_s": self.chain.requested,
            "used_s": self.chain.used,
            "jobs": self.chain.jobs,
            "single_s": self.single.requests[0],
            "single_asked_s": self.single.requested,
            "single_used_s": self.single.used,
        }


def _hours(seconds: float, nodes: int) -> str:
    return f"{nodes * seconds / 3600:.3g}"


def automatic(args: argparse.Namespace, spec: Spec, system: System, site: Site) -> WalltimeRequests:
    """Return the requests with the least expected node time.

    Raises:
        UserError: nothing is known of how long the ensemble takes.
    """
    if args.chain and not (system.warns and system.walltime):
        raise UserError(
            f"--walltime auto does not go with --chain on {system.name}: each job of a chain asks for its "
            "own time, and has to be warned before it ends; name a walltime, such as 2h"
        )
    if not system.has_queue:
        raise UserError(f"--walltime auto: on {system.name} there is no queue to ask")
    paths = RunPaths(spec.output.absolute())
    past = chain_times(paths.stops)
    times = _remaining_times(_known_times(args, spec, system, site, past), past)
    start_s = _start_s(spec, paths)
    saving_s = max(args.warn or WARNING_S, RESERVE_S)
    overhead = start_s + saving_s
    best = best_chain(times.law, overhead, args.max_jobs or MOST_JOBS)
    requests = [_whole_minutes(request) for request in best.requests]
    longest = _whole_minutes(times.law.longest + overhead)

    def chain(requests: list[float]) -> Chain:
        expectation = evaluate_chain(times.law, requests, overhead)
        return replace(
            expectation, used=expectation.used - saving_s
        )  # the last job ends before it would have to save

    return WalltimeRequests(chain(requests), chain([longest]), times.reason)


def _whole_minutes(seconds: float) -> float:
    """As batch systems count."""
    return _MINUTE * max(1, math.ceil(seconds / _MINUTE - 1e-6))


def _known_times(
    args: argparse.Namespace, spec: Spec, system: System, site: Site, past: ChainTimes
) -> KnownTimes:
    """By enough finished chains of the folder, past jobs of the name, simulation, or the few that there are."""
    finished = past.finished
    if len(finished) >= MIN_RUNS:
        return KnownTimes(
            empirical_law(finished),
            f"{len(finished)} finished chains in {spec.output} ({_range(finished)})",
        )
    accounted, reason = _accounted(spec.document.name, system)
    if len(accounted) >= MIN_RUNS:
        return KnownTimes(
            empirical_law(accounted),
            f"{len(accounted)} completed jobs named {spec.document.name} that "
            f"{system.past[0]} knows ({_range(accounted)})",
        )
    grows = bool(spec.searches) or not spec.networks
    simulated = None if grows else _simulated(args, spec, site)
    if simulated is not None:
        return simulated
    few = (*finished, *accounted)
    if few:
        longest = SAFETY * max(few)
        return KnownTimes(
            Discrete(np.array([longest]), np.array([1.0])),
            f"{pluralize(len(few), 'past run')}, too few to learn from: twice the longest ({_range(few)})",
        )
    if grows:
        missing = "what it trains is asked for while it runs, so that it cannot be simulated"
    else:
        missing = "no rates are known (schedule.rates, or those of an earlier run on this machine)"
    raise UserError(
        f"--walltime auto: nothing tells how long {spec.document.name} takes: no chain in {spec.output} "
        f"has finished, {reason}, and {missing}; name a walltime for the first job, such as 2h"
    )


def _accounted(name: str, system: System) -> tuple[list[float], str]:
    """Return the seconds of past jobs of this name, and the reason if there are none."""
    try:
        runs = past_runs(system, name, slurm_control.current_user())
    except InputError as error:
        return [], str(error)
    return runs, f"{system.past[0]} knows of no completed job of that name"


def _range(seconds: tuple[float, ...] | list[float]) -> str:
    ends = format_duration(min(seconds)), format_duration(max(seconds))
    if ends[0] == ends[1]:
        return ends[0]
    return f"{ends[0]} to {ends[1]}"


def _remaining_times(times: KnownTimes, past: ChainTimes) -> KnownTimes:
    """Subtract the time of the newest chain; double it if it exceeds all known times."""
    if past.so_far <= 0:
        return times
    done = f"; {format_duration(past.so_far)} of it are done"
    remaining = times.law.longer_than(past.so_far)
    if remaining is None:
        longest = max(times.law.longest, past.so_far)
        return KnownTimes(
            Discrete(np.array([longest]), np.array([1.0])),
            f"{times.reason}{done}, which is longer than all of these: as long again",
        )
    return KnownTimes(
        Discrete(remaining.values - past.so_far, remaining.probabilities), times.reason + done
    )


def _start_s(spec: Spec, paths: RunPaths) -> float:
    """How long ranks take to be ready, as the last launch of the folder tells, or else the last one on this machine."""
    times = [at for at, event in read_events(paths.events) if isinstance(event, TrainersReady)]
    if times:
        return times[-1]
    overheads = known_beside_steps(spec)
    if overheads is None:
        return START_S
    return overheads.ready_s


# ---- by simulation ------------------------------------------------------------------------------


def _simulated(args: argparse.Namespace, spec: Spec, site: Site) -> KnownTimes | None:
    """Simulate how long the ensemble takes with known rates; return None if there are none.

    How long networks go on improving is not known. For those that stop early by ``patience`` or
    ``stop_at``, the epoch of the last improvement is drawn log-uniformly from all that they may
    train.
    """
    opened = open_inputs(spec)
    roles = roles_of_job(args, spec, site)
    cluster = roles.cluster
    rates_found = known_rates_of(
        spec,
        args.spec,
        None,
        opened.sample,
        Cluster.of(cluster.whole_gpus, roles.physical_gpus_per_node),
    )
    if rates_found is None:
        return None
    input_rates = _read_input_rates(spec, opened, roles)
    rates = with_sharing(spec, replace(rates_found[0], samples_per_epoch=len(opened.data.train)))
    origin = rates_found[1]
    if cluster.slots > 1:
        shared = f", up to {cluster.slots} networks on each,"
    else:
        shared = ""
    rng = np.random.default_rng(spec.seed)
    end = time.monotonic() + DRAWS_S
    times: list[float] = []
    while len(times) < DRAWS and (len(times) < LEAST_DRAWS or time.monotonic() < end):
        drawn = replace(
            rates,
            models=tuple(
                replace(network, epochs=epochs_of(spec.by_name[network.name].train.stopping, rng))
                for network in rates.models
            ),
        )
        times.append(
            input_rates.before_s(rates)
            + simulate(
                drawn,
                cluster,
                spec.policy,
                spec.options,
                input_rates.costs(spec, rates),
                input_rates.stream,
            ).makespan_s
        )
    return KnownTimes(
        empirical_law(times),
        (
            f"simulating it {len(times)} times on {pluralize(cluster.whole_gpus, 'device')}{shared} with the rates of "
            f"{origin}{input_rates.words}, networks improving for 1 epoch to all that they may train ({_range(times)})"
        ),
    )


@dataclass(frozen=True)
class _InputRates:
    """What networks are given to train on, and how fast.

    Attributes:
        stream: how they depend on it.
        decoding_s: seconds that decoding takes which is done once.
        is_beside: whether that goes on while the first epoch is trained on.
        judging: samples that each network is judged by after an epoch.
        past: what was beside steps in an earlier launch of the run, or on this machine; None where
            there was none.
    """

    stream: Stream
    decoding_s: float
    is_beside: bool
    judging: int
    past: Overheads | None

    def before_s(self, rates: RateTable) -> float:
        """Seconds for which the fastest network waits for samples that are decoded once."""
        trained_s = rates.samples_per_epoch / max(
            rate for network in rates.models for rate in network.rates
        )
        return max(0.0, self.decoding_s - trained_s * self.is_beside)

    def costs(self, spec: Spec, rates: RateTable) -> Costs:
        """Of moves and of epochs' ends."""
        each_s = [1 / network.rates[0] for network in rates.models]
        judged_s = self.judging * sum(each_s) / len(each_s) / FORWARD
        if self.past is None:
            return replace(spec.policy.costs, epoch_s=judged_s)
        return Costs(regroup_s=self.past.start_s, epoch_s=self.past.epoch_s + judged_s)

    @property
    def words(self) -> str:
        """It, as a part of a sentence."""
        if math.isinf(self.stream.rate):
            return ""
        return f" and an input of {self.stream.rate:.0f} samples/s"


def _read_input_rates(spec: Spec, opened: Inputs, roles: Roles) -> _InputRates:
    """By what the last launch has noted, or else by what a look at the samples takes here."""
    paths = RunPaths(spec.output.absolute())
    run = replay_log(read_run(paths))
    look = opened.probes["train"]
    samples = len(opened.data.train)
    if opened.data.validation is None:
        judging = 0
    else:
        judging = len(opened.data.validation)
    hands = len(roles.preprocessors or roles.trainers)
    means = HostResources(len(roles.preprocessors), roles.gpus_per_node)
    cache = choose_cache(spec, opened, means, run.cache).cache
    # What is kept in memory each trainer finishes for itself; a row of a file is read in no time
    # beside the rest.
    each_s = look.varying_s + look.fixed_s * (cache == "none")
    rate = hands / each_s if roles.shared and cache != "memory" else 1 / each_s
    if (
        run.launch is not None
        and run.launch.supply is not None
        and cache == "none"
        and roles.shared
    ):
        rate = run.launch.supply.supply_samples_per_s
    past = None if run.launch is None else measure_overheads(run.launch, judging)
    decoding_s = look.fixed_s * (judging + samples * (cache != "none")) / hands
    return _InputRates(
        replace(spec.policy.stream, rate=rate),
        decoding_s,
        cache == "memory",
        judging,
        past or known_beside_steps(spec),
    )


def epochs_of(converge: Stopping, rng: np.random.Generator) -> int:
    """For how many epochs a network trains, at random, by its convergence rule."""
    max_epochs = converge.max_epochs
    last = math.floor(math.exp(rng.uniform(0.0, math.log(max_epochs + 1))))
    if converge.patience is not None:
        last = min(last, max_epochs) + converge.patience
    elif converge.stop_at is None:
        last = max_epochs
    return min(last, max_epochs)
