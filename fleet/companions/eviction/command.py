"""Plan which running jobs to checkpoint or kill so that nodes are free in time, for every deadline.

    fleet evict --jobs jobs.csv --nodes 1024 --deadline 15
    fleet evict --slurm --nodes 8 --deadline 15 --aggregate-bandwidth 250 --node-bandwidth 2
    fleet evict --slurm --nodes 8 --deadline 15 --carry-out [--for 4711] [--yes]

The jobs come from a file (CSV with a header, or JSON), or from Slurm: the jobs that run on this
cluster now. A file has the columns id,nodes,loss,app_time,sys_time (in node-seconds and minutes;
empty if not possible), or id,nodes,memory_gb,critical_gb,since_checkpoint_min,interval_min, from
which the others are computed with the bandwidths. The plan for a deadline has the smallest loss
and, among plans of equal loss, the shortest time. No job is changed without --carry-out --yes. With
them, jobs are sent the checkpoint signal that their comment names, and are requeued or cancelled,
in the order and at the times of the plan, until the nodes are free. Requeued jobs are held in the
queue until the job of --for has started, or without --for until the deadline. --carry-out alone
prints what would be done. Only your own jobs are changed, unless you are an operator of Slurm.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

from fleet.arguments import duration, exact_number, integer
from fleet.commands.output import add_plot, figure_file, show
from fleet.companions.eviction import eviction
from fleet.companions.eviction.job_holds import DeferredSignals, unreleased_jobs
from fleet.companions.eviction.slurm_running import SiteCheckpoints, read_site, running_jobs
from fleet.errors import ExitStatus, UserError
from fleet.monitor.charts import subsample
from fleet.terminal import bar, print_table
from launch import slurm_control, slurm_jobs
from launch.errors import InputError, pluralize
from launch.slurm_jobs import SlurmJob
from scheduler.base import check_range
from scheduler.eviction.execution import Eviction, Step, dry_run
from scheduler.eviction.plan import Action, Plan, RunningJob, Spectrum, check_jobs, plan_evictions
from scheduler.eviction.running_jobs import RESOLUTION, FileSystem, read_jobs

MAX_ROWS = 31  # of a table on a terminal
MAX_DEADLINE_MIN = 60 * 24 * 28  # of an eviction that is carried out
RECORD = "fleet-evictions.jsonl"
LETTERS: dict[Action, str] = {"kill": "K", "app": "a", "sys": "s"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--jobs", type=Path, metavar="FILE", help="file of the running jobs, .csv or .json"
    )
    source.add_argument(
        "--slurm", action="store_true", help="ask Slurm for the jobs that run on this cluster"
    )
    parser.add_argument(
        "--site",
        type=Path,
        metavar="FILE.json",
        help="with --slurm: how jobs without a comment checkpoint",
    )
    parser.add_argument(
        "--partition", metavar="NAME", help="with --slurm: only the jobs of this partition"
    )
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument(
        "--nodes", type=integer(), metavar="K", help="minimum number of nodes to free"
    )
    goal.add_argument(
        "--spectrum", action="store_true", help="show the smallest loss for every number of nodes"
    )
    parser.add_argument(
        "--deadline",
        type=exact_number,
        required=True,
        metavar="MIN",
        help="last deadline, in minutes",
    )
    parser.add_argument(
        "--step", type=exact_number, default=1, metavar="MIN", help="minutes between deadlines (1)"
    )
    parser.add_argument(
        "--resolution",
        type=exact_number,
        metavar="MIN",
        help="round checkpoint times up to multiples of this many minutes (not at all if a file "
        f"has the times, else {RESOLUTION:g})",
    )
    parser.add_argument(
        "--aggregate-bandwidth",
        type=exact_number,
        metavar="GB/s",
        help="bandwidth of the file system",
    )
    parser.add_argument(
        "--node-bandwidth", type=exact_number, metavar="GB/s", help="bandwidth of one node"
    )
    parser.add_argument(
        "--carry-out",
        action="store_true",
        help="with --slurm: print the actions for each job with their times; with --yes do them",
    )
    parser.add_argument(
        "--yes", action="store_true", help="with --carry-out: signal, requeue and cancel jobs"
    )
    parser.add_argument(
        "--for",
        dest="urgent",
        metavar="JOB",
        help="with --carry-out: the waiting job that needs the nodes; requeued jobs are held until "
        "it has started (until the deadline, for at least a minute)",
    )
    parser.add_argument(
        "--margin",
        type=duration,
        metavar="1min",
        help="with --carry-out: stop jobs that lose work this long before the deadline, since they "
        "take a while to end (1min, or a tenth of the deadline if that is less)",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help=f"with --carry-out --yes: file that records all actions ({RECORD})",
    )
    add_plot(parser, "the trade-off")


def run(args: argparse.Namespace) -> int:
    """Print the plan; carry it out on request."""
    if args.carry_out:
        return _carry_out(args)
    for option, value in (
        ("--yes", args.yes),
        ("--margin", args.margin),
        ("--record", args.record),
        ("--for", args.urgent),
    ):
        if value:
            raise UserError(f"{option} needs --carry-out")
    jobs = _jobs(args)
    if args.spectrum:
        if args.plot is not None:
            raise UserError("--plot draws the trade-off for --nodes, not the --spectrum")
        _spectrum(args, jobs)
        return ExitStatus.OK
    try:
        check_jobs(jobs, args.nodes)
    except InputError as error:
        raise UserError(f"{args.jobs or 'squeue'}: {error}") from None
    plans = plan_evictions(jobs, args.nodes, args.deadline, args.step)
    if args.plot is not None:
        _draw(plans, args.nodes, args.plot)
    show(args, lambda: {"deadlines": plans}, lambda: _print(jobs, args.nodes, plans))
    return ExitStatus.OK


# ---------------------------------------------------------------- jobs


def _jobs(args: argparse.Namespace) -> list[RunningJob]:
    storage = _storage(args)
    if args.jobs is not None:
        if args.site is not None or args.partition is not None:
            raise UserError("--site and --partition need --slurm")
        return read_jobs(args.jobs, storage, args.resolution)
    return _costs(args, storage)(slurm_jobs.running_jobs(args.partition))


def _costs(
    args: argparse.Namespace, storage: FileSystem | None
) -> Callable[[Sequence[SlurmJob]], list[RunningJob]]:
    """Return a function that reads costs of Slurm jobs from the site file and their comments."""
    site = SiteCheckpoints() if args.site is None else read_site(args.site)
    warned: set[str] = set()

    def warn(text: str) -> None:
        if text not in warned:
            print(f"fleet evict: {text}", file=sys.stderr)
        warned.add(text)

    return lambda jobs: running_jobs(jobs, site, storage, time.time(), args.resolution, warn)


def _carry_out(args: argparse.Namespace) -> int:
    """Print what would be done, or do it."""
    if not args.slurm or args.nodes is None:
        raise UserError("--carry-out needs --slurm and --nodes: it acts on jobs that run now")
    if args.plot is not None:
        raise UserError("--plot draws a plan; use it without --carry-out")
    if args.yes and args.json:
        raise UserError("use --json without --yes; --record is a file of JSON lines")
    deadline = args.deadline
    check_range("--deadline", deadline, 0, MAX_DEADLINE_MIN, "min")
    user = None if slurm_control.is_operator() else slurm_control.current_user()
    if args.urgent is not None:
        urgent = slurm_jobs.find_jobs(f"--jobs={args.urgent}").get(args.urgent)
        if urgent is None or not urgent.is_waiting:
            raise UserError(f"--for {args.urgent}: no waiting job has this id")
    machine = eviction.ClusterView(args.partition, user, args.urgent, _costs(args, _storage(args)))
    first = machine.take_snapshot()
    if args.margin is None:
        margin = min(1.0, deadline / 10)
    else:
        margin = args.margin / 60
    plan = Eviction(args.nodes, deadline, margin, first.signals, first.runs)
    owner = "all users" if user is None else user
    try:
        check_jobs(first.jobs, args.nodes)
    except InputError as error:
        raise UserError(f"squeue, running jobs of {owner}: {error}") from None
    record = args.record or Path(RECORD)
    waiting = unreleased_jobs(record)
    held_jobs = machine.jobs_held_elsewhere(first, waiting)
    if held_jobs:
        print(
            f"{', '.join(held_jobs)}: held in the queue, but not by an eviction in {record}; if "
            f"another eviction did: scontrol release {','.join(held_jobs)}"
        )
    if not args.yes:
        rivals = machine.competing_jobs(first)
        steps = dry_run(first.jobs, plan)
        show(
            args,
            lambda: {
                "running_jobs": len(first.jobs),
                "steps": [
                    {"at_min": minute, "step": step.kind, "job": step.job, "nodes": step.nodes}
                    for minute, step in steps
                ],
                "would_hold": rivals,
                "held_by_earlier_eviction": waiting,
                "held_elsewhere": held_jobs,
            },
            lambda: _print_preview(owner, first, machine, steps, rivals, waiting),
        )
        return ExitStatus.OK
    log = eviction.EvictionLog(record)
    log.note(
        "begin",
        f"free {args.nodes} nodes within {deadline:g} min, from the jobs of {owner}; log: {record}",
        nodes=args.nodes,
        deadline_min=float(deadline),
        user=slurm_control.current_user(),
        whose=owner,
    )
    with DeferredSignals() as interruption:
        has_succeeded = eviction.Execution(plan, first, machine, log, waiting, interruption).run()
    if has_succeeded:
        return ExitStatus.OK
    return ExitStatus.INFRASTRUCTURE


def _print_preview(
    owner: str,
    first: eviction.ClusterSnapshot,
    machine: eviction.ClusterView,
    steps: Sequence[tuple[float, Step]],
    rivals: Sequence[str],
    waiting: Sequence[str],
) -> None:
    users = {job: status.user for job, status in machine.seen.items()}
    print(f"{pluralize(len(first.jobs), 'running job')} of {owner} may be stopped")
    print("\n".join(eviction.dry_run_lines(steps, users, first.signals)))
    if rivals:
        print(f"{', '.join(rivals)}: would be held in the queue until then")
    if waiting:
        print(
            f"{', '.join(waiting)}: still held by an eviction that was killed; this one would "
            "release them"
        )
    print("Nothing was done; add --yes to carry this out.")


def _storage(args: argparse.Namespace) -> FileSystem | None:
    bandwidths = (args.aggregate_bandwidth, args.node_bandwidth)
    if bandwidths == (None, None):
        return None
    if None in bandwidths:
        raise UserError("--aggregate-bandwidth and --node-bandwidth go together")
    return FileSystem(*bandwidths)


# ---------------------------------------------------------------- output


def _print(jobs: Sequence[RunningJob], nodes: int, plans: Sequence[Plan]) -> None:
    in_use = sum(job.nodes for job in jobs)
    print(
        f"{pluralize(len(jobs), 'running job')} on {pluralize(in_use, 'node')}; "
        f"nodes to free: at least {nodes}"
    )
    rows = plans if len(plans) <= MAX_ROWS else _changes(plans)
    _show_trade_off(rows)
    if len(rows) <= MAX_ROWS:
        _show_actions(jobs, rows)


def _changes(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans that differ from the one before."""
    return [next(equal_plans) for _, equal_plans in groupby(plans, attrgetter("actions"))]


def _show_trade_off(plans: Sequence[Plan]) -> None:
    rows = []
    for before, plan in zip([plans[0], *plans], plans, strict=False):
        saved = before.loss - plan.loss
        counts = Counter(plan.actions.values())
        rows.append(
            [
                plan.deadline,
                f"{plan.loss / 3600:.1f}",
                f"{saved / 3600:.1f}" if saved else "",
                plan.checkpoint_time,
                plan.nodes,
                *(counts[action] or "" for action in LETTERS),
                bar(plan.loss, plans[0].loss),
            ]
        )
    print_table(
        [
            "deadline, min",
            "loss, node-hours",
            "saved",
            "checkpointing, min",
            "nodes freed",
            "killed",
            "app",
            "sys",
            "",
        ],
        rows,
    )


def _show_actions(jobs: Sequence[RunningJob], plans: Sequence[Plan]) -> None:
    """Print how each job is stopped: a row per job, a column per deadline."""
    stopped = [job for job in jobs if any(job.id in plan.actions for plan in plans)]
    rows = [
        [
            job.id,
            job.nodes,
            *(LETTERS[plan.actions[job.id]] if job.id in plan.actions else "·" for plan in plans),
        ]
        for job in stopped
    ]
    if rows:
        print_table(["job", "nodes", *(str(plan.deadline) for plan in plans)], rows)
        print(
            "K: killed, a: checkpoints itself, s: checkpointed by the system; "
            f"{pluralize(len(jobs) - len(stopped), 'job')} not listed, since no plan stops them"
        )


def _draw(plans: Sequence[Plan], nodes: int, path: Path) -> None:
    deadlines = [plan.deadline for plan in plans]
    with figure_file(path, 6, 3.5) as figure:
        axes = figure.add_subplot()
        axes.step(deadlines, [plan.loss / 3600 for plan in plans], where="post", label="loss")
        axes.set(
            xlabel="deadline, min",
            ylabel="loss, node-hours",
            title=f"at least {pluralize(nodes, 'node')} free",
            ylim=(0, None),
        )
        times = axes.twinx()
        times.step(
            deadlines,
            [plan.checkpoint_time for plan in plans],
            where="post",
            color="tab:gray",
            linestyle=":",
        )
        times.set_ylabel("checkpointing, min (dotted)")


def _spectrum(args: argparse.Namespace, jobs: Sequence[RunningJob]) -> None:
    spectrum = Spectrum(jobs, args.deadline, args.step)
    losses = spectrum.losses()
    # One row for numbers of nodes with equal losses, labeled with the largest.
    counts = [
        nodes
        for nodes in range(len(losses))
        if nodes + 1 == len(losses) or (losses[nodes] != losses[nodes + 1]).any()
    ]
    show(
        args,
        lambda: {
            "deadlines": spectrum.deadlines,
            "spectrum": [{"nodes": nodes, "losses": losses[nodes]} for nodes in counts],
        },
        lambda: _print_spectrum(spectrum, losses, subsample(counts, 1, MAX_ROWS)),
    )


def _print_spectrum(spectrum: Spectrum, losses: np.ndarray, node_counts: Sequence[int]) -> None:
    moments = subsample(range(len(spectrum.deadlines)), 1, 16)
    print("Smallest loss in node-hours: rows are nodes to free, columns are deadlines in min")
    print_table(
        ["nodes", *(str(spectrum.deadlines[moment]) for moment in moments)],
        [
            [nodes, *(f"{losses[nodes, moment] / 3600:.1f}" for moment in moments)]
            for nodes in node_counts
        ],
    )
