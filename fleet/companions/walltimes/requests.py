"""Compute the walltime requests of the jobs of an ensemble, for ``--walltime auto``."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from fleet.comm.roles import Roles
from fleet.commands.known_rates import known_beside_steps, known_rates_of, with_sharing
from fleet.companions.batch_jobs.options import MAX_JOBS, WARNING_S, JobRequest
from fleet.companions.chains.chain import ChainTimes, chain_times
from fleet.domain.events import TrainersReady
from fleet.domain.overheads import FORWARD, measure_overheads
from fleet.errors import UserError
from fleet.runtime.interrupt import RESERVE_S
from fleet.runtime.startup.caching import HostResources, choose_cache
from fleet.runtime.startup.data import Inputs, open_inputs
from fleet.spec import Spec, Stopping
from fleet.storage.event_log import read_events, read_run_state
from fleet.storage.paths import RunPaths
from fleet.units import format_duration
from launch import slurm_control
from launch.errors import InputError, pluralize
from launch.systems import System, past_runs
from scheduler.base import Cluster, RateTable
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.pace import Stream
from scheduler.reservation.chained_requests import Chain, best_chain, evaluate_chain
from scheduler.reservation.distributions import Discrete, empirical_law
from scheduler.reservation.requests import MIN_RUNS, SAFETY
from scheduler.simulation.ensemble import simulate

# Number of simulations with drawn epochs: the maximum, the minimum, and the time for all of them.
DRAWS = 60
MIN_DRAWS = 8
DRAWS_S = 10.0
START_S = 60.0  # until ranks are ready, if no launch has measured it
_MINUTE = 60.0


@dataclass(frozen=True)
class KnownTimes:
    """The likely duration of an ensemble, in seconds, and how it is known."""

    law: Discrete
    reason: str


@dataclass(frozen=True)
class WalltimeRequests:
    """The walltimes to request.

    Attributes:
        chain: the requests, in seconds.
        single: a single request for the longest time, for comparison.
        reason: how the times are known.
    """

    chain: Chain
    single: Chain
    reason: str

    def lines(self, nodes: int, is_chain: bool) -> list[str]:
        """Describe the requests, one line each."""
        first, *later = map(format_duration, self.chain.requests)
        then = f", then {', '.join(later)} if that is not enough" if later else ""
        if is_chain or not later:
            hint = ""
        else:
            hint = " (repeat the command for the next request, or use --chain)"
        lines = [
            f"requests {first}{then}{hint}",
            f"based on {self.reason}",
            f"expected: {_hours(self.chain.requested, nodes)} node-hours requested, "
            f"{_hours(self.chain.used, nodes)} used, {self.chain.jobs:.2f} jobs; with one request "
            f"of {format_duration(self.single.requests[0])}: "
            f"{_hours(self.single.requested, nodes)} requested, {_hours(self.single.used, nodes)} "
            "used",
        ]
        if later:
            lines.append(
                "if the queue starts any job that fits when nodes are idle (work-conserving), only "
                "the used time matters, and shorter requests can be slower; then use "
                f"--walltime {math.ceil(self.single.requests[0] / _MINUTE)}min"
            )
        return lines

    def numbers(self) -> dict[str, object]:
        """Return the requests for JSON, in seconds of one node."""
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


def automatic(request: JobRequest) -> WalltimeRequests:
    """Return the requests with the lowest expected node time.

    Raises:
        UserError: the duration of the ensemble is unknown.
    """
    args = request.options
    system = request.system
    if args.chain and not (system.warns and system.walltime):
        raise UserError(
            f"--walltime auto and --chain do not work together on {system.name}: each job of a "
            "chain requests its own walltime, and must be warned before it ends; give a walltime, "
            "such as 2h"
        )
    if not system.has_queue:
        raise UserError(f"--walltime auto: {system.name} has no queue")
    past = chain_times(request.paths.stops)
    times = _remaining_times(_known_times(request, past), past)
    start_s = _start_s(request.spec, request.paths)
    saving_s = max(args.warn or WARNING_S, RESERVE_S)
    overhead = start_s + saving_s
    best = best_chain(times.law, overhead, args.max_jobs or MAX_JOBS)
    requests = [_whole_minutes(request) for request in best.requests]
    longest = _whole_minutes(times.law.longest + overhead)

    def chain(requests: list[float]) -> Chain:
        expectation = evaluate_chain(times.law, requests, overhead)
        # The last job ends before it would have to save.
        return replace(expectation, used=expectation.used - saving_s)

    return WalltimeRequests(chain(requests), chain([longest]), times.reason)


def _whole_minutes(seconds: float) -> float:
    """Round seconds up to whole minutes, as batch systems do."""
    return _MINUTE * max(1, math.ceil(seconds / _MINUTE - 1e-6))


def _known_times(request: JobRequest, past: ChainTimes) -> KnownTimes:
    """Return times from finished chains, past jobs of the same name, or else simulations."""
    spec = request.spec
    system = request.system
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
            f"{len(accounted)} completed jobs named {spec.document.name} in the records of "
            f"{system.past[0]} ({_range(accounted)})",
        )
    is_growing = bool(spec.searches) or not spec.networks
    simulated = None if is_growing else _simulated(request)
    if simulated is not None:
        return simulated
    few = (*finished, *accounted)
    if few:
        longest = SAFETY * max(few)
        return KnownTimes(
            empirical_law([longest]),
            f"{pluralize(len(few), 'past run')}, too few to learn from: twice the longest "
            f"({_range(few)})",
        )
    if is_growing:
        missing = "its networks are proposed during the run, so it cannot be simulated"
    else:
        missing = "no rates are known (from schedule.rates, or an earlier run on this machine)"
    raise UserError(
        f"--walltime auto: the duration of {spec.document.name} is unknown: no chain in "
        f"{spec.output} has finished, {reason}, and {missing}; give a walltime for the first job, "
        "such as 2h"
    )


def _accounted(name: str, system: System) -> tuple[list[float], str]:
    """Return the seconds of past jobs of this name, and the reason if there are none."""
    try:
        runs = past_runs(system, name, slurm_control.current_user())
    except InputError as error:
        return [], str(error)
    return runs, f"{system.past[0]} has no completed job of this name"


def _range(seconds: tuple[float, ...] | list[float]) -> str:
    ends = format_duration(min(seconds)), format_duration(max(seconds))
    if ends[0] == ends[1]:
        return ends[0]
    return f"{ends[0]} to {ends[1]}"


def _remaining_times(times: KnownTimes, past: ChainTimes) -> KnownTimes:
    """Subtract the time of the newest chain; double it if it exceeds all known times."""
    if past.so_far <= 0:
        return times
    done = f"; {format_duration(past.so_far)} are done"
    remaining = times.law.longer_than(past.so_far)
    if remaining is None:
        longest = max(times.law.longest, past.so_far)
        return KnownTimes(
            empirical_law([longest]),
            f"{times.reason}{done}, which is longer than all of these: requesting as much again",
        )
    return KnownTimes(
        Discrete(remaining.values - past.so_far, remaining.probabilities), times.reason + done
    )


def _start_s(spec: Spec, paths: RunPaths) -> float:
    """Return the start-up seconds of the run's last launch, or of the last one on this machine."""
    times = [at for at, event in read_events(paths.events) if isinstance(event, TrainersReady)]
    if times:
        return times[-1]
    overheads = known_beside_steps(spec)
    if overheads is None:
        return START_S
    return overheads.ready_s


# ---- simulation ---------------------------------------------------------------------------------


def _simulated(request: JobRequest) -> KnownTimes | None:
    """Simulate how long the ensemble takes with known rates; return None if there are none.

    For networks that stop early by ``patience`` or ``stop_at``, the epoch of the last improvement
    is unknown; it is drawn log-uniformly from all epochs that they may train.
    """
    spec = request.spec
    opened = open_inputs(spec)
    roles = request.roles
    cluster = roles.cluster
    rates_and_origin = known_rates_of(
        spec,
        request.path,
        None,
        opened.sample,
        Cluster.of(cluster.whole_gpus, roles.physical_gpus_per_node),
    )
    if rates_and_origin is None:
        return None
    table, origin = rates_and_origin
    rates = with_sharing(spec, replace(table, samples_per_epoch=len(opened.data.train)))
    before_s, costs, stream = _read_overheads(request, opened, roles, rates)
    if math.isinf(stream.rate):
        input_rate = ""
    else:
        input_rate = f" and an input of {stream.rate:.0f} samples/s"
    if cluster.slots > 1:
        shared = f" with up to {cluster.slots} networks on each"
    else:
        shared = ""
    rng = np.random.default_rng(spec.seed)
    end = time.monotonic() + DRAWS_S
    times: list[float] = []
    while len(times) < DRAWS and (len(times) < MIN_DRAWS or time.monotonic() < end):
        drawn = replace(
            rates,
            models=tuple(
                replace(
                    network,
                    epochs=draw_epochs(
                        spec.by_name[network.name].train.stopping,
                        rng,
                        rates.samples_per_epoch / network.rates[0],
                    ),
                )
                for network in rates.models
            ),
        )
        times.append(
            before_s + simulate(drawn, cluster, spec.policy, spec.options, costs, stream).makespan_s
        )
    return KnownTimes(
        empirical_law(times),
        f"{len(times)} simulations on {pluralize(cluster.whole_gpus, 'device')}{shared}, rates: "
        f"{origin}{input_rate}, with a random last improvement of each network "
        f"({_range(times)})",
    )


def _read_overheads(
    request: JobRequest, opened: Inputs, roles: Roles, rates: RateTable
) -> tuple[float, Costs, Stream]:
    """Return what training takes beside steps, as the last launch logged it, or as estimated.

    Returns:
        The seconds that the fastest network waits for samples that are decoded once; the costs of
        moves and of ends of epochs; and how networks share samples, with the rate of the input.
    """
    spec = request.spec
    run = read_run_state(request.paths)
    probe = opened.probes["train"]
    samples = len(opened.data.train)
    if opened.data.validation is None:
        validation_samples = 0
    else:
        validation_samples = len(opened.data.validation)
    workers = len(roles.preprocessors or roles.trainers)
    resources = HostResources(len(roles.preprocessors), roles.gpus_per_node)
    cache = choose_cache(spec, opened, resources, run.cache).cache
    # Each trainer finishes stored samples itself; reading them takes no time in comparison.
    sample_s = probe.varying_s + probe.fixed_s * (cache == "none")
    input_rate = workers / sample_s if roles.shared and cache != "memory" else 1 / sample_s
    if (
        run.launch is not None
        and run.launch.supply is not None
        and cache == "none"
        and roles.shared
    ):
        input_rate = run.launch.supply.supply_samples_per_s
    past = None if run.launch is None else measure_overheads(run.launch, validation_samples)
    past = past or known_beside_steps(spec)
    decoding_s = probe.fixed_s * (validation_samples + samples * (cache != "none")) / workers
    if cache == "memory":  # samples are decoded during the first epoch
        fastest = max(rate for network in rates.models for rate in network.rates)
        decoding_s = max(0.0, decoding_s - rates.samples_per_epoch / fastest)
    sample_times = [1 / network.rates[0] for network in rates.models]
    validation_s = validation_samples * sum(sample_times) / len(sample_times) / FORWARD
    if past is None:
        costs = replace(spec.policy.costs, epoch_s=validation_s)
    else:
        costs = Costs(regroup_s=past.start_s, epoch_s=past.epoch_s + validation_s)
    return decoding_s, costs, replace(spec.policy.stream, rate=input_rate)


def draw_epochs(stopping: Stopping, rng: np.random.Generator, epoch_s: float) -> int:
    """Draw the number of epochs that a network trains under its stopping rule.

    Args:
        stopping: the stopping rule.
        rng: a source of random numbers.
        epoch_s: seconds of an epoch on one GPU.
    """
    max_epochs = stopping.max_epochs_of(epoch_s)
    last = math.floor(math.exp(rng.uniform(0.0, math.log(max_epochs + 1))))
    if stopping.patience is not None:
        last = min(last, max_epochs) + stopping.patience
    elif stopping.stop_at is None:
        last = max_epochs
    return min(last, max_epochs)
