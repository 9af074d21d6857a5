"""Train the networks of one or several specs on idle nodes, in jobs that may be preempted.

    fleet harvest photos.yaml --system slurm --backlog 2 --max-jobs 32 -- --qos=preempt
    fleet harvest a.yaml b.yaml --system slurm --walltime 4h --dry-run -- --partition=low
    fleet harvest photos.yaml --system slurm --end

Each job is an ordinary launch that holds leases of the networks that it trains; when a job ends,
other jobs take its networks over, and repeat at most one epoch. This command submits the first
jobs. Then each job keeps --backlog jobs in the queue while networks wait, and cancels the remaining
ones when all networks are done. Options after -- are passed to sbatch, bsub or qsub. The idle nodes
and the measurements of the runs determine the run and the size of the next job. The file
jobs/harvest.jsonl in the folder of each run records all actions. After three launches in a row
without a finished epoch no more jobs are submitted; repeat the command to go on. Jobs that you
cancel are replaced like preempted ones, until you use --end.
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
from fleet.commands.output import show
from fleet.companions.batch_jobs import options as opts
from fleet.companions.batch_jobs.job_events import ChainCancelled
from fleet.companions.harvest.backlog import HarvestLimits
from fleet.companions.harvest.harvest import Backlog, BatchQueue, HarvestPlan, HarvestRun
from fleet.companions.harvest.harvest_log import HarvestRequested, add_note, is_cancelled
from fleet.companions.shared_run.shared_run import SharedRun
from fleet.errors import UserError
from fleet.runtime.known_rates import with_epochs_from_rates
from fleet.runtime.startup.folder import check_folder, writing_into
from fleet.runtime.startup.request import IDLE_S
from fleet.spec import load
from fleet.storage.files import atomic_write
from fleet.storage.paths import RunPaths
from fleet.units import format_duration
from launch.errors import pluralize
from launch.queues import QUEUES
from launch.render import Job, render
from launch.systems import SYSTEMS, System

INTERMIXED = True  # the words after -- follow options, but belong to the specs before them
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
        help=f"maximum number of nodes of a job ({_DEFAULTS.nodes_per_job})",
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
        help=f"maximum number of waiting and running jobs ({_DEFAULTS.max_jobs})",
    )
    parser.add_argument(
        "--idle-timeout",
        type=duration,
        default=IDLE_S,
        metavar="5min",
        help=f"end a job after this time without a network ({format_duration(IDLE_S)})",
    )
    parser.add_argument(
        "--walltime",
        type=duration,
        metavar="2h",
        help="walltime of a job (the spec's, or "
        f"{format_duration(_WALLTIME_S)}); --time after -- overrides it",
    )
    opts.add(parser)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--end",
        action="store_true",
        help="submit no more jobs, and cancel the waiting ones; running jobs continue",
    )
    modes.add_argument("--dry-run", action="store_true", help="only print the scripts")


def run(args: argparse.Namespace) -> None:
    """Write the scripts, and submit the first jobs."""
    names, options = _split_words(args.specs)
    site = opts.find_site(args.site)
    system = opts.system_of(args, site)
    if system.queue_commands not in QUEUES:
        able = ", ".join(
            other_system.name for other_system in SYSTEMS.values() if other_system.queue_commands
        )
        raise UserError(
            f"--system {system.name}: this system does not report idle nodes, which a harvest "
            f"needs; use {able}"
        )
    specs = [(name, load(name)) for name in names]
    roots = [spec.output.absolute() for _, spec in specs]
    if len(set(roots)) < len(roots):
        raise UserError("two of the specs have the same output; each run needs its own folder")
    if args.end:
        _end(args, roots, system)
        return
    runs = []
    scripts = {}
    for name, spec in specs:
        SharedRun.check_spec(spec, name)
        spec_site = opts.with_gpus(args, spec, site)
        request = opts.JobRequest(args, name, spec, system, spec_site, args.nodes_per_job)
        harvest_run = _run(request)
        runs.append(harvest_run)
        for nodes in range(1, args.nodes_per_job + 1):
            job = _job(replace(request, nodes=nodes), harvest_run)
            scripts[harvest_run.paths.harvest_script(nodes)] = render(job, system, spec_site)
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
    for run_ in plan.runs:  # earlier fruitless launches no longer count
        add_note(run_.paths, HarvestRequested())
    orders = Backlog(plan, BatchQueue(system)).top_up(resubmit=bool(replaced))
    for change in replaced:
        print(f"fleet harvest: this changes the running harvest: {change}", file=sys.stderr)
    logs = [str(run_.paths.harvest_log) for run_ in plan.runs]
    show(
        args,
        lambda: {"done": [str(order) for order in orders], "noted": logs, "replaced": replaced},
        lambda: print(
            f"{pluralize(len(orders), 'change')} of the queue; see {', '.join(logs)} for later ones"
        ),
    )
    if not (orders or args.json):
        print(
            "fleet harvest: no job was submitted: all networks have ended or are training, or the "
            "backlog is full",
            file=sys.stderr,
        )


def _replaced(plan: HarvestPlan, scripts: Mapping[Path, str]) -> list[str]:
    """Return the settings of a running harvest that this one changes, as ``old -> new``."""
    changes: dict[str, None] = {}
    for run_ in plan.runs:
        if not run_.paths.harvest.exists() or is_cancelled(run_.paths):
            continue
        with suppress(UserError):  # an unreadable file does not belong to a running harvest
            changes |= dict.fromkeys(_changes(HarvestPlan.read(run_.paths.harvest), plan))
        for path, script in scripts.items():
            if path.parent == run_.paths.jobs and path.exists():
                changes |= dict.fromkeys(_words_changed(path.read_text(encoding="utf-8"), script))
    return list(changes)


def _changes(old: HarvestPlan, new: HarvestPlan) -> Iterator[str]:
    """Yield the options in which two plans differ, as ``--option old -> new``."""
    for limit in ("nodes_per_job", "backlog", "max_jobs"):
        before = getattr(old.limits, limit)
        now = getattr(new.limits, limit)
        if before != now:
            yield f"--{limit.replace('_', '-')} {before} -> {now}"
    for label, before, now in (
        ("runs", [str(run.root) for run in old.runs], [str(run.root) for run in new.runs]),
        ("options after --", old.options, new.options),
    ):
        if list(before) != list(now):
            yield f"{label}: {' '.join(before) or 'none'} -> {' '.join(now) or 'none'}"


def _words_changed(old: str, new: str) -> Iterator[str]:
    """Yield the words in which two scripts differ, as ``old -> new``.

    >>> list(_words_changed("#SBATCH --time=01:00:00 x", "#SBATCH --time=02:00:00 x"))
    ['--time=01:00:00 -> --time=02:00:00']
    """
    before = old.split()
    now = new.split()
    for tag, begin, end, new_begin, new_end in SequenceMatcher(
        None, before, now, autojunk=False
    ).get_opcodes():
        if tag != "equal":
            replaced = " ".join(before[begin:end]) or "none"
            yield f"{replaced} -> {' '.join(now[new_begin:new_end]) or 'none'}"


def _end(args: argparse.Namespace, roots: Sequence[Path], system: System) -> None:
    plans = [HarvestPlan.read(RunPaths(root).harvest) for root in roots]
    for root in roots:
        add_note(RunPaths(root), ChainCancelled())  # holds until the next fleet harvest
    orders = []
    running_jobs = []
    queue = BatchQueue(system)
    for root, plan in zip(roots, plans, strict=True):
        # A plan may cover several of the runs; topping it up twice does no harm.
        orders += Backlog(plan, queue).top_up()
        running_jobs += [
            job.id
            for job in queue.jobs([run.job for run in plan.runs if run.root == root])
            if job.runs
        ]
    at_work = running_jobs and [
        f"still running: {', '.join(running_jobs)}; each goes on until no network is left for it, "
        "and you may cancel it"
    ]
    show(
        args,
        lambda: {"done": [str(order) for order in orders], "running": running_jobs},
        lambda: print(
            f"no more jobs are submitted; {pluralize(len(orders), 'change')} of the queue",
            *at_work,
            sep="\n",
        ),
    )


def _split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into specs and the options after them.

    Raises:
        UserError: no spec is given.

    >>> _split_words(["a.yaml", "--qos=preempt", "-p", "low"])
    (['a.yaml'], ['--qos=preempt', '-p', 'low'])
    """
    first = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    if not first:
        raise UserError("give at least one SPEC before the --")
    return list(words[:first]), list(words[first:])


def _run(request: opts.JobRequest) -> HarvestRun:
    root = request.paths.root
    epochs = {
        network.name: network.train.stopping.max_epochs
        for network in with_epochs_from_rates(request.spec).networks
    }
    roles = request.roles
    return HarvestRun(
        f"fleet-{zlib.crc32(os.fsencode(root.resolve())):08x}",
        root,
        tuple(epochs),
        max(1, len(roles.trainers) // roles.nodes),
        epochs,
    )


def _job(request: opts.JobRequest, harvest_run: HarvestRun) -> Job:
    args = request.options
    return replace(
        request.make_job(args.walltime or request.spec.document.walltime or _WALLTIME_S),
        name=harvest_run.job,
        harvest=harvest_run.paths.harvest,
        words=("--share-run", f"--idle-timeout={args.idle_timeout:g}s"),
    )
