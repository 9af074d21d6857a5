"""Train networks that arrive over time on emulated GPUs, with elastic and with fixed batches.

    python benchmarks/elastic_live.py [--gpus 8] [--minutes 60] [--time-scale 0.02]
        [--patterns low high bursty] [--seeds 1 2 3]

Jobs are drawn as in `fleet simulate autoscale`: the paper's categories and arrival patterns. Each
is a network that is added to a run when it arrives; the policy `elastic` gives it GPUs and a batch
from its range, or GPUs for its drawn batch. The whole runtime runs; only steps sleep. Busy and
quiet times take half of the minutes each. An emulated step stands for several of the paper's, so
that it is longer than the overhead of this machine; scaling factors are the same.

Two simulations get the same jobs with their actual arrival times. The autoscaler's simulation is
the paper's: jobs change at any moment, without costs. The ensemble simulation models a run: GPUs
are released and batches change at the end of epochs, and the last step of an epoch has the
remaining samples. It uses the measured costs of the run: to form a group, to change it, to decide,
between two epochs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fleet.api import launch, write_spec
from fleet.domain.events import NetworkAdded, NetworkFinished
from fleet.monitor.accounting import account
from fleet.storage.event_log import read_events, read_run_state
from fleet.storage.files import write_json
from fleet.storage.paths import RunPaths
from fleet.storage.results import Status
from scheduler.base import Cluster, CommTime, Network, Options, RateTable, StepTime
from scheduler.elastic.allocate import exchange_seconds
from scheduler.elastic.autoscaler import Autoscaling
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.elastic import curve_of, step_rate
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.rates_file import write_rates
from scheduler.simulation.autoscale import ElasticJob
from scheduler.simulation.autoscale import simulate as simulate_jobs
from scheduler.simulation.elastic_jobs import PATTERNS, Category, generate, workload
from scheduler.simulation.ensemble import simulate

SAMPLES = 4096  # per epoch: several of the largest batches, and 1.7 minutes on one GPU
RATE = 40.0  # samples/s of every category on one GPU with its largest batch


@dataclass(frozen=True)
class Job:
    """A network that arrives.

    Args:
        arrival_min: Minutes after the start of the run.
        network: The network, with its epochs and the range of its batch.
    """

    arrival_min: float
    network: Network


def draw(
    args: argparse.Namespace, pattern: str, policy: str, seed: int
) -> tuple[list[Job], tuple[CommTime, ...]]:
    """Draw jobs, and the times of their gradient exchanges."""
    kinds = workload().categories
    slowdowns = [_rate(kind) / RATE for kind in kinds]
    # Each category has its own size here, because their steps stand for different numbers of steps.
    comm = tuple(
        CommTime(float(index), gpus, factor * seconds)
        for index, (kind, factor) in enumerate(zip(kinds, slowdowns, strict=True), start=1)
        for gpus, seconds in enumerate(
            exchange_seconds(workload().comm_s, kind.network.params_mb or 0.0, args.gpus).tolist(),
            start=1,
        )
        if gpus > 1
    )
    jobs = []
    # Drawn for the minutes of a busy and a quiet time, then compressed.
    drawn_min = 2 * workload().burst_min
    compression = drawn_min / args.minutes
    drawn = generate(args.gpus, drawn_min, pattern, policy, seed, args.load / compression)
    for number, job in enumerate(drawn):
        index = next(index for index, kind in enumerate(kinds) if kind.length_min == job.length_min)
        kind = kinds[index]
        fixed = job.curve.batches[job.curve.min_gpus - 1]
        batches = (fixed, fixed)
        if policy == "elastic":
            batches = (kind.batches.smallest, kind.batches.largest)
        steps = tuple(
            StepTime(step.batch, step.seconds * slowdowns[index]) for step in kind.network.step_s
        )
        jobs.append(
            Job(
                job.arrival_min / compression,
                Network(
                    f"job{number}",
                    (1.0,),
                    epochs=max(1, round(job.length_min * 60 * RATE / SAMPLES)),
                    params_mb=float(index + 1),
                    step_s=steps,
                    batches=batches,
                ),
            )
        )
    return jobs, comm


def _rate(kind: Category) -> float:
    """Return samples/s on one GPU with the largest batch that fits and the job may use."""
    max_batch = min(max(step.batch for step in kind.network.step_s), kind.batches.largest)
    return step_rate(kind.network, (), 1, max_batch)


def live(
    jobs: Sequence[Job], comm: tuple[CommTime, ...], folder: Path, args: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Train the jobs as they arrive; return their arrival and end in minutes of emulated time.

    Raises:
        SystemExit: A network failed.
    """
    minute_s = 60 * args.time_scale
    pause_s = minute_s * max(after.arrival_min - job.arrival_min for job, after in pairwise(jobs))
    networks = [replace(job.network, batches=None) for job in jobs]
    write_json(folder / "rates.json", write_rates(_table(networks, comm, args)))
    write_spec(
        {
            "name": "live",
            "output": str(folder / "run"),
            "models": [],
            "keep_open": f"{pause_s + 5:.0f}s",
            "data": {
                "source": "builtin:noise",
                "options": {"samples": SAMPLES},
                "validation": None,
                "transforms": [],
                "cache": "memory",
            },
            "schedule": {"policy": "elastic", "rates": str(folder / "rates.json")},
            "resources": {"engine": "emulated", "time_scale": args.time_scale, "preprocessors": 1},
        },
        folder / "live.yaml",
    )
    with launch(
        folder / "live.yaml", args.gpus + 1, "--plain", "--fresh", log=sys.stderr
    ) as running:
        began = 0.0
        for job in jobs:
            began = began or time.monotonic() - minute_s * job.arrival_min
            time.sleep(max(0.0, began + minute_s * job.arrival_min - time.monotonic()))
            running.add(
                {
                    "family": "softmax",
                    "name": job.network.name,
                    "train": {
                        "batch": {"size": list(job.network.batches or ())},
                        "stopping": {"max_epochs": job.network.epochs, "monitor": "loss"},
                    },
                }
            )
    failures = [
        f"{row.name}: {row.reason}" for row in running.results() if row.status != Status.FINISHED
    ]
    if failures:
        raise SystemExit("\n".join(failures))
    arrivals: dict[str, float] = {}
    results = {}
    for t_s, event in read_events(RunPaths(folder / "run").events):
        if isinstance(event, NetworkAdded):
            arrivals[event.network] = t_s / minute_s
        elif isinstance(event, NetworkFinished):
            results[event.network] = (arrivals[event.network], t_s / minute_s)
    return results


def _table(
    networks: Sequence[Network], comm: tuple[CommTime, ...], args: argparse.Namespace
) -> RateTable:
    return RateTable(SAMPLES, args.gpus, tuple(networks), comm)


def simulate_autoscaler(
    jobs: Sequence[Job], comm: tuple[CommTime, ...], arrival_min: Mapping[str, float], gpus: int
) -> dict[str, tuple[float, float]]:
    """Simulate the autoscaler with the actual arrivals; return as :func:`live`."""
    twins = []
    for job in jobs:
        curve = curve_of(job.network, comm, gpus)
        min_gpus = curve.min_gpus
        rate = (
            step_rate(job.network, comm, min_gpus, curve.batches[min_gpus - 1])
            / curve.factors[min_gpus - 1]
        )
        twins.append(
            ElasticJob(
                arrival_min[job.network.name],
                (job.network.epochs or 1) * SAMPLES / rate / 60,
                curve,
            )
        )
    outcome = simulate_jobs(twins, Autoscaling(gpus, interval_min=0))
    return {
        job.network.name: (twin.arrival_min, twin.arrival_min + (took or 0.0))
        for job, twin, took in zip(jobs, twins, outcome.completion_min, strict=True)
    }


def simulate_ensemble(
    jobs: Sequence[Job],
    comm: tuple[CommTime, ...],
    arrival_min: Mapping[str, float],
    costs: Costs,
    args: argparse.Namespace,
) -> dict[str, tuple[float, float]]:
    """Simulate the ensemble with actual arrivals and measured costs; return as :func:`live`."""
    first = min(arrival_min.values())
    schedule = simulate(
        _table([job.network for job in jobs], comm, args),
        Cluster.of(args.gpus, args.gpus),
        POLICIES["elastic"],
        Options(),
        costs,
        arrivals={name: 60 * (arrival - first) for name, arrival in arrival_min.items()},
    )
    return {
        name: (
            arrival_min[name],
            first + max(stint.end_s for stint in schedule.stints if stint.name == name) / 60,
        )
        for name in arrival_min
    }


def measure_costs(folder: Path, time_scale: float) -> Costs:
    """Return the costs of moves in a run, in seconds of emulated time."""
    run_account = account(read_run_state(RunPaths(folder / "run")))
    assert run_account is not None  # the run has finished
    return Costs(
        **{name: seconds / time_scale for name, seconds in asdict(run_account.costs).items()}
    )


def mean_and_last(done: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """Return the mean minutes from arrival to end, and those from first arrival to last end."""
    return (
        statistics.mean(end - start for start, end in done.values()),
        max(end for _, end in done.values()) - min(start for start, _ in done.values()),
    )


def measure(
    args: argparse.Namespace, pattern: str, policy: str, seed: int
) -> tuple[int, list[float]]:
    """Return the number of jobs; mean and end live; and their excess over the simulations in %."""
    jobs, comm = draw(args, pattern, policy, seed)
    with tempfile.TemporaryDirectory() as folder:
        done = live(jobs, comm, Path(folder), args)
        costs = measure_costs(Path(folder), args.time_scale)
    arrival_min = {name: start for name, (start, _) in done.items()}
    simulations = [
        mean_and_last(simulate_autoscaler(jobs, comm, arrival_min, args.gpus)),
        mean_and_last(simulate_ensemble(jobs, comm, arrival_min, costs, args)),
    ]
    results = []
    for index, value in enumerate(mean_and_last(done)):
        results += [value, *(100 * (value / simulation[index] - 1) for simulation in simulations)]
    forming, deciding, between = (
        1000 * args.time_scale * seconds
        for seconds in (costs.regroup_s, costs.scheduling_s, costs.epoch_s)
    )
    print(
        f"{pattern}, {policy}, seed {seed}: {len(jobs)} jobs, "
        f"{', '.join(f'{value:.2f}' for value in results)}; ms to form a group {forming:.1f}, to "
        f"decide {deciding:.1f}, between epochs {between:.1f}",
        file=sys.stderr,
        flush=True,
    )
    return len(jobs), results


def median_and_range(values: Sequence[float], form: str = ".1f") -> str:
    """Format the median, and in parentheses the minimum and maximum.

    >>> median_and_range([3.0, 1.0, 2.0])
    '2.0 (1.0 to 3.0)'
    """
    ends = f" ({min(values):{form}} to {max(values):{form}})" if len(values) > 1 else ""
    return f"{statistics.median(values):{form}}{ends}"


def main() -> None:
    """Run all patterns, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="minutes during which jobs arrive"
    )
    parser.add_argument("--load", type=float, default=1.0, help="load of busy times")
    parser.add_argument(
        "--time-scale", type=float, default=0.02, help="real seconds per emulated second"
    )
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    args = parser.parse_args()
    lines = []
    for pattern in args.patterns:
        for policy in ("elastic", "fixed"):
            counts, runs = zip(
                *(measure(args, pattern, policy, seed) for seed in args.seeds), strict=True
            )
            took, *columns = zip(*runs, strict=True)
            cells = [
                median_and_range(took),
                *(median_and_range(values, "+.1f") for values in columns[:2]),
                median_and_range(columns[2]),
                *(median_and_range(values, "+.1f") for values in columns[3:]),
            ]
            lines.append(
                f"| {pattern} | {policy} | {', '.join(map(str, counts))} | {' | '.join(cells)} |"
            )
    print(
        "| arrivals | batches | jobs | completion, min | error, % | error with costs, % | "
        "all done, min | error, % | error with costs, % |\n"
        "| --- | --- | --- | " + " | ".join(6 * ["---:"]) + " |"
    )
    print("\n".join(lines))
    print(
        f"{args.gpus} emulated GPUs, jobs arrive for {args.minutes:g} min, time scale "
        f"{args.time_scale:g}, seeds {', '.join(map(str, args.seeds))}; "
        f"load at the end {os.getloadavg()[2]:.1f}"
    )


if __name__ == "__main__":
    main()
