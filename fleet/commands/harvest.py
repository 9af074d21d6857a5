"""Train the networks of one or several specs on nodes that are idle for a while, in jobs that may be ended at any time.

    fleet harvest photos.yaml --system slurm --nodes-per-job 1 --backlog 2 --max-jobs 32 --idle-timeout 5min -- --qos=preempt
    fleet harvest a.yaml b.yaml --system slurm --walltime 4h --dry-run -- --partition=low
    fleet harvest photos.yaml --system slurm --end

Each job is an ordinary launch on networks that it holds by lease; when it is ended, others take
them over, and at most an epoch is trained again. This command hands in the first jobs. From then on
each job keeps --backlog jobs in the queue as long as networks wait, and takes back what is left
when all are done. What follows -- goes to sbatch, bsub or qsub. The nodes that are idle now, and
what was measured in the runs, decide which run the next job is for, and how large it is.
jobs/harvest.jsonl in the folder of each run has all that was done. After three launches in a row
that finished no epoch no more jobs are handed in; the same command begins again. Jobs that you
cancel are replaced as those that others preempt, until you say --end.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path

from fleet.arguments import duration, integer
from fleet.commands import job_options as opts
from fleet.commands.output import add_json, show
from fleet.errors import UserError
from fleet.jobs.backlog import HarvestLimits
from fleet.jobs.harvest import Backlog, BatchQueue, HarvestPlan, HarvestRun
from fleet.jobs.harvest_log import add_note, is_cancelled
from fleet.jobs.job_events import ChainCancelled
from fleet.runtime.folder import check_folder, check_shareable, writing_into
from fleet.runtime.prepare import with_epochs_from_rates
from fleet.runtime.startup import IDLE_S
from fleet.spec import Spec, load
from fleet.storage.files import atomic_write
from fleet.storage.paths import RunPaths
from fleet.units import format_duration, pluralize
from launch.queues import QUEUES
from launch.render import Job, render
from launch.sites import Site
from launch.systems import SYSTEMS, System

INTERMIXED = True  # what follows -- comes after options, and belongs to the words before them
FORMER_OPTIONS = {"--most": "--max-jobs", "--idle": "--idle-timeout"}
_WALLTIME_S = 3600.0
_DEFAULTS = HarvestLimits()


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "specs",
        nargs="+",
        metavar="SPEC",
        help="YAML files of the specs; after --, options of sbatch, bsub or qsub",
    )
    parser.add_argument(
        "--nodes-per-job",
        type=integer(1, 1000),
        default=_DEFAULTS.nodes_per_job,
        metavar="N",
        help=f"number of nodes of a job at most ({_DEFAULTS.nodes_per_job})",
    )
    parser.add_argument(
        "--backlog",
        type=opts.size,
        default=_DEFAULTS.backlog,
        metavar="N",
        help=f"number of jobs to keep in the queue while networks wait ({_DEFAULTS.backlog})",
    )
    parser.add_argument(
        "--max-jobs",
        type=opts.size,
        default=_DEFAULTS.max_jobs,
        metavar="N",
        help=f"number of jobs that wait or run, at most ({_DEFAULTS.max_jobs})",
    )
    parser.add_argument(
        "--idle-timeout",
        type=duration,
        default=IDLE_S,
        metavar="5min",
        help=f"a job ends after this time without a network ({format_duration(IDLE_S)})",
    )
    parser.add_argument(
        "--walltime",
        type=duration,
        metavar="2h",
        help="walltime of a job (that of the spec, or "
        f"{format_duration(_WALLTIME_S)}); --time after -- takes its place",
    )
    opts.add(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--end",
        action="store_true",
        help="submit no more jobs, and cancel the waiting ones; running jobs continue",
    )
    instead.add_argument("--dry-run", action="store_true", help="only print the scripts")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Write the scripts, and hand in the first jobs."""
    names, options = _apart(args.specs)
    site = opts.find_site(args.site)
    system = opts.system_of(args.system, site, args.site)
    if system.queue_commands not in QUEUES:
        able = ", ".join(
            other_system.name for other_system in SYSTEMS.values() if other_system.queue_commands
        )
        raise UserError(
            f"--system {system.name}: a harvest asks for idle nodes, which this system does not report; "
            f"{able} do"
        )
    args.nodes = args.nodes_per_job
    specs = [(name, load(name)) for name in names]
    roots = [spec.output.absolute() for _, spec in specs]
    if len(set(roots)) < len(roots):
        raise UserError("two of the specs have the same output; each run needs a folder of its own")
    if args.end:
        _call_off(args, roots, system)
        return
    runs = []
    scripts = {}
    for name, spec in specs:
        check_shareable(spec, name)
        of_spec = opts.with_gpus(args, spec, site)
        harvest_run = _run(args, spec, of_spec)
        runs.append(harvest_run)
        for nodes in range(1, args.nodes_per_job + 1):
            args.nodes = nodes
            job = _job(args, name, spec, harvest_run, system, of_spec)
            scripts[harvest_run.paths.harvest_script(nodes)] = render(job, system, of_spec)
    plan = HarvestPlan(
        tuple(runs),
        HarvestLimits(args.nodes_per_job, args.backlog, args.max_jobs),
        tuple(options),
        QUEUES[system.queue_commands].queue_of(options) or args.queue or site.queue or None,
        f"cd {shlex.quote(str(Path.cwd()))} && {args.command_line}",
    )
    if args.dry_run:
        show(
            args,
            lambda: {"scripts": list(scripts.values())},
            lambda: print("\n".join(scripts.values()), end=""),
        )
    else:
        _begin(args, plan, system, scripts)


def _begin(
    args: argparse.Namespace, plan: HarvestPlan, system: System, scripts: dict[Path, str]
) -> None:
    for run_ in plan.runs:
        check_folder(run_.paths)
        with writing_into(run_.paths):
            run_.paths.jobs.mkdir(exist_ok=True)
    replaced = _replaced(plan, scripts)
    for path, script in scripts.items():
        with atomic_write(path) as file:
            file.write(script)
    plan.write()
    plan.record_request()
    orders = Backlog(plan, BatchQueue(system), os.environ).top_up(resubmit=bool(replaced))
    for change in replaced:
        print(f"fleet harvest: this replaces what was asked for before: {change}", file=sys.stderr)
    places = [str(run_.paths.harvest_log) for run_ in plan.runs]
    show(
        args,
        lambda: {"done": [str(order) for order in orders], "noted": places, "replaced": replaced},
        lambda: print(
            f"{pluralize(len(orders), 'change')} of the queue; {', '.join(places)} will tell of all others"
        ),
    )
    if not (orders or args.json):
        print(
            "fleet harvest: nothing is to be handed in: all networks are over or in training, or the backlog is full",
            file=sys.stderr,
        )


def _replaced(plan: HarvestPlan, scripts: Mapping[Path, str]) -> list[str]:
    """Return the settings of a running harvest that this one changes, as ``old -> new``."""
    changes: dict[str, None] = {}
    for run_ in plan.runs:
        if not run_.paths.harvest.exists() or is_cancelled(run_.paths):
            continue
        with suppress(UserError):  # what cannot be read is no harvest that goes on
            changes |= dict.fromkeys(_changes(HarvestPlan.read(run_.paths.harvest), plan))
        for path, script in scripts.items():
            if path.parent == run_.paths.jobs and path.exists():
                changes |= dict.fromkeys(_words_changed(path.read_text(encoding="utf-8"), script))
    return list(changes)


def _changes(old: HarvestPlan, new: HarvestPlan) -> Iterator[str]:
    """In which options two plans differ."""
    for limit in ("nodes_per_job", "backlog", "max_jobs"):
        before = getattr(old.limits, limit)
        now = getattr(new.limits, limit)
        if before != now:
            yield f"--{limit.replace('_', '-')} {before} -> {now}"
    for label, before, now in (
        ("runs", [str(run.root) for run in old.runs], [str(run.root) for run in new.runs]),
        ("options behind --", old.options, new.options),
    ):
        if list(before) != list(now):
            yield f"{label}: {' '.join(before) or 'none'} -> {' '.join(now) or 'none'}"


def _words_changed(old: str, new: str) -> Iterator[str]:
    """Where two scripts differ, word by word.

    >>> list(_words_changed("#SBATCH --time=01:00:00 x", "#SBATCH --time=02:00:00 x"))
    ['--time=01:00:00 -> --time=02:00:00']
    """
    before = old.split()
    now = new.split()
    for tag, begin, end, new_begin, new_end in SequenceMatcher(
        None, before, now, autojunk=False
    ).get_opcodes():
        if tag != "equal":
            yield f"{' '.join(before[begin:end]) or 'none'} -> {' '.join(now[new_begin:new_end]) or 'none'}"


def _call_off(args: argparse.Namespace, roots: Sequence[Path], system: System) -> None:
    plans = [HarvestPlan.read(RunPaths(root).harvest) for root in roots]
    for root in roots:
        add_note(RunPaths(root), ChainCancelled())  # until the harvest is asked for again
    orders = []
    running_jobs = []
    queue = BatchQueue(system)
    for root, plan in zip(
        roots, plans, strict=True
    ):  # runs that are harvested together look again, which is no harm
        orders += Backlog(plan, queue, os.environ).top_up()
        running_jobs += [
            job.id
            for job in queue.jobs([run.job for run in plan.runs if run.root == root])
            if job.runs
        ]
    at_work = running_jobs and [
        f"{', '.join(running_jobs)} at work: such a job goes on until no network is left for it, and may be "
        "ended as any job"
    ]
    show(
        args,
        lambda: {"done": [str(order) for order in orders], "running": running_jobs},
        lambda: print(
            f"no more jobs are handed in; {pluralize(len(orders), 'change')} of the queue",
            *at_work,
            sep="\n",
        ),
    )


def _apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into the specs and the options after them.

    Raises:
        UserError: there is no spec.

    >>> _apart(["a.yaml", "--qos=preempt", "-p", "low"])
    (['a.yaml'], ['--qos=preempt', '-p', 'low'])
    """
    first = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    if not first:
        raise UserError("a SPEC comes before the --")
    return list(words[:first]), list(words[first:])


def _run(args: argparse.Namespace, spec: Spec, site: Site) -> HarvestRun:
    root = spec.output.absolute()
    epochs = {
        network.name: network.train.stopping.max_epochs
        for network in with_epochs_from_rates(spec).networks
    }
    roles = opts.roles_of_job(args, spec, site)
    return HarvestRun(
        f"fleet-{zlib.crc32(os.fsencode(root.resolve())):08x}",
        root,
        tuple(epochs),
        max(1, len(roles.trainers) // roles.nodes),
        epochs,
    )


def _job(
    args: argparse.Namespace,
    path: str,
    spec: Spec,
    harvest_run: HarvestRun,
    system: System,
    site: Site,
) -> Job:
    walltime = args.walltime or spec.document.walltime or _WALLTIME_S
    return replace(
        opts.job_of(args, path, spec, system, site, walltime),
        name=harvest_run.job,
        harvest=harvest_run.paths.harvest,
        words=("--share-run", f"--idle-timeout={args.idle_timeout:g}s"),
    )
