"""Networks that arrive over time on emulated GPUs, live: batches that follow the GPUs beside fixed ones.

    python benchmarks/elastic_live.py [--gpus 8] [--minutes 60] [--time-scale 0.02] [--patterns low high bursty]
                                      [--seeds 1 2 3]

Jobs are drawn as for `fleet simulate autoscale`: the paper's categories and arrival patterns. Each is a network that is
added to a run when it arrives; the policy `elastic` gives it GPUs and a batch from its range, or GPUs for the batch
that was drawn. The whole runtime runs; only steps sleep. Busy and quiet times take half of the minutes each. A step of
the emulation stands for several of the paper's, so that it is longer than what this machine takes for it; scaling
factors are the same.

Beside it stand two simulations of the same jobs, that come at the moments at which they came: the autoscaler's, as
everywhere in the paper (jobs change at any moment, and nothing costs time); and that of ensembles, which knows what a
run does (GPUs are let go of, and batches change, at the end of epochs; the last step of an epoch has what is left) and
is told what the run itself shows of its costs: to form a group, to change it, to decide, between two epochs.
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
from fleet.monitor.timeline import replay_log
from fleet.storage.event_log import read_events, read_run
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

SAMPLES = (
    4096  # of an epoch: some of the largest batches, and a minute and three quarters on one GPU
)
RATE = 40.0  # samples/s of every category on one GPU with the largest batch that it holds


@dataclass(frozen=True)
class Job:
    """A network that arrives.

    Args:
        arrival_min: after the run has begun.
        network: with the range of its batch, and its epochs.
    """

    arrival_min: float
    network: Network


def draw(
    args: argparse.Namespace, pattern: str, policy: str, seed: int
) -> tuple[list[Job], tuple[CommTime, ...]]:
    """Jobs, and how long the exchanges of their networks take."""
    kinds = workload().categories
    slower = [_rate(kind) / RATE for kind in kinds]
    # Two categories are of one size; here each has one of its own, since their steps stand for different numbers.
    comm = tuple(
        CommTime(float(index), gpus, times * seconds)
        for index, (kind, times) in enumerate(zip(kinds, slower, strict=True), start=1)
        for gpus, seconds in enumerate(
            exchange_seconds(workload().comm_s, kind.network.params_mb or 0.0, args.gpus).tolist(),
            start=1,
        )
        if gpus > 1
    )
    jobs = []
    # Drawn for as many minutes as a busy and a quiet time take, and then made to come within fewer.
    drawn_min = 2 * workload().burst_min
    squeezed = drawn_min / args.minutes
    drawn = generate(args.gpus, drawn_min, pattern, policy, seed, args.load / squeezed)
    for number, job in enumerate(drawn):
        index = next(index for index, kind in enumerate(kinds) if kind.length_min == job.length_min)
        kind = kinds[index]
        fixed = job.curve.batches[job.curve.min_gpus - 1]
        batches = (
            (fixed, fixed) if policy != "elastic" else (kind.batches.smallest, kind.batches.largest)
        )
        steps = tuple(
            StepTime(step.batch, step.seconds * slower[index]) for step in kind.network.step_s
        )
        jobs.append(
            Job(
                job.arrival_min / squeezed,
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
    """Samples/s on one GPU with the largest batch that it holds and the job may use."""
    max_batch = min(max(step.batch for step in kind.network.step_s), kind.batches.largest)
    return step_rate(kind.network, (), 1, max_batch)


def live(
    jobs: Sequence[Job], comm: tuple[CommTime, ...], folder: Path, args: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Train the jobs as they arrive; returns when each came and was done, in minutes of the emulated time.

    Raises:
        SystemExit: a network has failed.
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
    if failed := [
        f"{row.name}: {row.reason}" for row in running.results() if row.status != Status.FINISHED
    ]:
        raise SystemExit("\n".join(failed))
    came: dict[str, float] = {}
    results = {}
    for t_s, event in read_events(RunPaths(folder / "run").events):
        if isinstance(event, NetworkAdded):
            came[event.network] = t_s / minute_s
        elif isinstance(event, NetworkFinished):
            results[event.network] = (came[event.network], t_s / minute_s)
    return results


def _table(
    networks: Sequence[Network], comm: tuple[CommTime, ...], args: argparse.Namespace
) -> RateTable:
    return RateTable(SAMPLES, args.gpus, tuple(networks), comm)


def simulated(
    jobs: Sequence[Job], comm: tuple[CommTime, ...], came: Mapping[str, float], gpus: int
) -> dict[str, tuple[float, float]]:
    """When jobs that come when they came are done by the autoscaler's simulation; as :func:`live`."""
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
                came[job.network.name], (job.network.epochs or 1) * SAMPLES / rate / 60, curve
            )
        )
    outcome = simulate_jobs(twins, Autoscaling(gpus, interval_min=0))
    return {
        job.network.name: (twin.arrival_min, twin.arrival_min + (took or 0.0))
        for job, twin, took in zip(jobs, twins, outcome.completion_min, strict=True)
    }


def simulated_run(
    jobs: Sequence[Job],
    comm: tuple[CommTime, ...],
    came: Mapping[str, float],
    costs: Costs,
    args: argparse.Namespace,
) -> dict[str, tuple[float, float]]:
    """The same by the simulation of ensembles, with what moves cost."""
    first = min(came.values())
    arrivals = {name: 60 * (moment - first) for name, moment in came.items()}
    account = simulate(
        _table([job.network for job in jobs], comm, args),
        Cluster.of(args.gpus, args.gpus),
        POLICIES["elastic"],
        Options(),
        costs,
        arrivals=arrivals,
    )
    return {
        name: (
            came[name],
            first + max(stint.end_s for stint in account.stints if stint.name == name) / 60,
        )
        for name in came
    }


def costs_of(folder: Path, time_scale: float) -> Costs:
    """What moves cost in a run, in seconds of the emulated time."""
    run_account = account(replay_log(read_run(RunPaths(folder / "run"))))
    assert run_account is not None  # it has come to its end
    return Costs(
        **{name: seconds / time_scale for name, seconds in asdict(run_account.costs).items()}
    )


def mean_and_last(done: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """Mean minutes from a job's arrival to its end, and those from the first arrival to the last end."""
    return (
        statistics.mean(end - start for start, end in done.values()),
        max(end for _, end in done.values()) - min(start for start, _ in done.values()),
    )


def measured(
    args: argparse.Namespace, pattern: str, policy: str, seed: int
) -> tuple[int, list[float]]:
    """Jobs of a run, and of both means and both ends: live, and how much more that is than simulated, %."""
    jobs, comm = draw(args, pattern, policy, seed)
    with tempfile.TemporaryDirectory() as folder:
        done = live(jobs, comm, Path(folder), args)
        costs = costs_of(Path(folder), args.time_scale)
    came = {name: start for name, (start, _) in done.items()}
    account = [
        mean_and_last(simulated(jobs, comm, came, args.gpus)),
        mean_and_last(simulated_run(jobs, comm, came, costs, args)),
    ]
    results = []
    for index, value in enumerate(mean_and_last(done)):
        results += [value, *(100 * (value / epoch[index] - 1) for epoch in account)]
    forming, deciding, between = (
        1000 * args.time_scale * seconds
        for seconds in (costs.regroup_s, costs.scheduling_s, costs.epoch_s)
    )
    print(
        f"{pattern}, {policy}, seed {seed}: {len(jobs)} jobs, {', '.join(f'{value:.2f}' for value in results)}; ms to "
        f"form a group {forming:.1f}, to decide {deciding:.1f}, between epochs {between:.1f}",
        file=sys.stderr,
        flush=True,
    )
    return len(jobs), results


def middle(values: Sequence[float], form: str = ".1f") -> str:
    """The median, and in brackets the least and the most.

    >>> middle([3.0, 1.0, 2.0])
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
    parser.add_argument("--minutes", type=float, default=60.0, help="for how long jobs arrive")
    parser.add_argument("--load", type=float, default=1.0, help="of busy times")
    parser.add_argument(
        "--time-scale", type=float, default=0.02, help="seconds that a second of training takes"
    )
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    args = parser.parse_args()
    lines = []
    for pattern in args.patterns:
        for policy in ("elastic", "fixed"):
            counts, runs = zip(
                *(measured(args, pattern, policy, seed) for seed in args.seeds), strict=True
            )
            took, *other_runs = zip(*runs, strict=True)
            cells = [
                middle(took),
                *(middle(values, "+.1f") for values in other_runs[:2]),
                middle(other_runs[2]),
                *(middle(values, "+.1f") for values in other_runs[3:]),
            ]
            lines.append(
                f"| {pattern} | {policy} | {', '.join(map(str, counts))} | {' | '.join(cells)} |"
            )
    print(
        "| arrivals | batches | jobs | completion, min | off, % | off with costs, % | all done, min | off, % | "
        "off with costs, % |\n| --- | --- | --- | " + " | ".join(6 * ["---:"]) + " |"
    )
    print("\n".join(lines))
    print(
        f"{args.gpus} emulated GPUs, jobs arrive for {args.minutes:g} min, time scale {args.time_scale:g}, seeds "
        f"{', '.join(map(str, args.seeds))}; the load of the machine was {os.getloadavg()[2]:.1f} in the end"
    )


if __name__ == "__main__":
    main()
