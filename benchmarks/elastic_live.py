"""Networks that arrive over time on emulated GPUs, live: batches that follow the GPUs beside fixed ones.

    python benchmarks/elastic_live.py [--gpus 8] [--minutes 60] [--time-scale 0.02] [--patterns low high bursty]

Jobs are drawn as for `fleet simulate autoscale`: the paper's categories and arrival patterns. Each is a network that is
added to a run when it arrives; the policy `elastic` gives it GPUs and a batch from its range, or GPUs for the batch
that was drawn. The whole runtime runs; only steps sleep. Beside it stands what the autoscaler's simulation makes of the
same jobs at the moments at which they came. Busy and quiet times take half of the minutes each. A step of the emulation
stands for several of the paper's, so that it is longer than what this machine takes for it; scaling factors are the
same.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fleet.api import launch, write_spec
from fleet.storage.event_log import read_events
from fleet.storage.events import NetworkAdded, NetworkFinished
from fleet.storage.files import write_json
from fleet.storage.paths import RunPaths
from fleet.terminal import print_table
from scheduler.base import CommTime, Network, RateTable, StepTime
from scheduler.elastic.allocate import exchange_seconds
from scheduler.elastic.autoscaler import Autoscaling
from scheduler.elastic.jobs import PATTERNS, Category, generate, workload
from scheduler.elastic.simulation import ElasticJob, Outcome, simulate
from scheduler.ensemble.elastic import curve_of, step_rate
from scheduler.ensemble.rates_file import write_rates

SAMPLES = 4096  # of an epoch: some of the largest batches, and a minute and three quarters on one GPU
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


def draw(args: argparse.Namespace, pattern: str, policy: str) -> tuple[list[Job], tuple[CommTime, ...]]:
    """Jobs, and how long the exchanges of their networks take."""
    kinds = workload().categories
    slower = [_rate(kind) / RATE for kind in kinds]
    # Two categories are of one size; here each has one of its own, since their steps stand for different numbers.
    comm = tuple(CommTime(float(place), gpus, times * seconds) for place, (kind, times) in enumerate(zip(
        kinds, slower, strict=True), start=1) for gpus, seconds in enumerate(exchange_seconds(
            workload().comm_s, kind.network.params_mb or 0.0, args.gpus).tolist(), start=1) if gpus > 1)
    jobs = []
    # Drawn for as many minutes as a busy and a quiet time take, and then made to come within fewer.
    drawn_min = 2 * workload().burst_min
    squeezed = drawn_min / args.minutes
    drawn = generate(args.gpus, drawn_min, pattern, policy, args.seed, args.load / squeezed)
    for number, job in enumerate(drawn):
        place = next(place for place, kind in enumerate(kinds) if kind.length_min == job.length_min)
        kind = kinds[place]
        fixed = job.curve.batches[job.curve.least - 1]
        batches = (fixed, fixed) if policy != "elastic" else (kind.batches.smallest, kind.batches.largest)
        steps = tuple(StepTime(step.batch, step.seconds * slower[place]) for step in kind.network.step_s)
        jobs.append(Job(job.arrival_min / squeezed, Network(
            f"job{number}", (1.0,), epochs=max(1, round(job.length_min * 60 * RATE / SAMPLES)),
            params_mb=float(place + 1), step_s=steps, batches=batches)))
    return jobs, comm


def _rate(kind: Category) -> float:
    """Samples/s on one GPU with the largest batch that it holds and the job may use."""
    most = min(max(step.batch for step in kind.network.step_s), kind.batches.largest)
    return step_rate(kind.network, (), 1, most)


def live(jobs: Sequence[Job], comm: tuple[CommTime, ...], folder: Path, args: argparse.Namespace
         ) -> dict[str, tuple[float, float]]:
    """Train the jobs as they arrive; returns when each came and was done, in minutes of the emulated time."""
    minute_s = 60 * args.time_scale
    pause_s = minute_s * max(after.arrival_min - job.arrival_min for job, after in pairwise(jobs))
    table = RateTable(SAMPLES, args.gpus, tuple(replace(job.network, batches=None) for job in jobs), comm)
    write_json(folder / "rates.json", write_rates(table))
    write_spec({"name": "live", "output": str(folder / "run"), "models": [], "open_for": f"{pause_s + 5:.0f}s",
                "data": {"source": "builtin:noise", "options": {"samples": SAMPLES}, "validation": None,
                         "transforms": [], "cache": "memory"},
                "schedule": {"policy": "elastic", "rates": str(folder / "rates.json")},
                "resources": {"engine": "emulated", "time_scale": args.time_scale, "preprocessors": 1}},
               folder / "live.yaml")
    with launch(folder / "live.yaml", args.gpus + 1, "--plain", "--fresh", log=sys.stderr) as running:
        began = 0.0
        for job in jobs:
            began = began or time.monotonic() - minute_s * job.arrival_min
            time.sleep(max(0.0, began + minute_s * job.arrival_min - time.monotonic()))
            running.add({"family": "softmax", "name": job.network.name,
                         "train": {"batch": {"size": list(job.network.batches or ())},
                                   "converge": {"max_epochs": job.network.epochs, "monitor": "loss"}}})
    came: dict[str, float] = {}
    found = {}
    for t_s, event in read_events(RunPaths(folder / "run").events):
        if isinstance(event, NetworkAdded):
            came[event.network] = t_s / minute_s
        elif isinstance(event, NetworkFinished):
            found[event.network] = (came[event.network], t_s / minute_s)
    return found


def simulated(jobs: Sequence[Job], comm: tuple[CommTime, ...], came: dict[str, tuple[float, float]], gpus: int
              ) -> Outcome:
    """What the autoscaler's simulation makes of jobs that come when they came."""
    twins = []
    for job in jobs:
        curve = curve_of(job.network, comm, gpus)
        least = curve.least
        rate = step_rate(job.network, comm, least, curve.batches[least - 1]) / curve.factors[least - 1]
        twins.append(ElasticJob(came[job.network.name][0], (job.network.epochs or 1) * SAMPLES / rate / 60, curve))
    return simulate(twins, Autoscaling(gpus, interval_min=0))


def main() -> None:
    """Run all patterns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=60.0, help="for how long jobs arrive")
    parser.add_argument("--load", type=float, default=1.0, help="of busy times")
    parser.add_argument("--time-scale", type=float, default=0.02, help="seconds that a second of training takes")
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = []
    for pattern in args.patterns:
        for policy in ("elastic", "fixed"):
            jobs, comm = draw(args, pattern, policy)
            with tempfile.TemporaryDirectory() as folder:
                done = live(jobs, comm, Path(folder), args)
            told = simulated(jobs, comm, done, args.gpus)
            took = statistics.mean(end - start for start, end in done.values())
            last = max(end for _, end in done.values()) - min(start for start, _ in done.values())
            first = min(start for start, _ in done.values())
            rows.append([pattern, policy, len(jobs), took, told.mean_completion_min,
                         f"{100 * (took / told.mean_completion_min - 1):+.1f}", last, told.end_min - first,
                         f"{100 * (last / (told.end_min - first) - 1):+.1f}"])
            print(f"{pattern}, {policy}: done", file=sys.stderr)
    print_table(["arrivals", "batches", "jobs", "completion, min", "simulated", "off, %", "all done, min", "simulated",
                 "off, %"], rows, title=f"{args.gpus} emulated GPUs, jobs arrive for {args.minutes:g} min, "
                f"time scale {args.time_scale:g}, seed {args.seed}")


if __name__ == "__main__":
    main()
