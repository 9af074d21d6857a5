"""Keep one job of a chain; the scripts that fleet submit writes end in this command.

    fleet job RUN --system slurm --jobs 20 --retries 2 -- mpirun ... python -m fleet.run SPEC

It starts the launch, and passes SIGTERM and SIGUSR2 on to it as SIGUSR2, upon which the launch
saves everything and ends with status 75. If networks are left then, it sees to it that another job
follows. It ends with the status of the launch.

With --harvest it makes one launch, beside those of other jobs, and keeps jobs in the queue as long
as networks wait.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from fleet.arguments import count, duration, integer
from fleet.errors import UserError
from fleet.jobs.chain import ChainJob, ChainLimits
from fleet.jobs.harvest import Backlog, BatchQueue, HarvestJob, HarvestPlan
from fleet.jobs.systems import find_system
from fleet.spec import allow_imports_beside
from fleet.storage.paths import RunPaths
from launch.systems import System


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--system", metavar="NAME", required=True, help="batch system of this job")
    parser.add_argument(
        "--jobs", type=count, default=1, metavar="N", help="number of jobs after one another (1)"
    )
    parser.add_argument(
        "--retries",
        type=integer(),
        default=0,
        metavar="N",
        help="number of failures of the machine after which to go on (0)",
    )
    parser.add_argument(
        "--warn-after",
        type=duration,
        metavar="SECONDS",
        help="when to save everything, if the batch system sends no signal",
    )
    parser.add_argument(
        "--request",
        type=duration,
        metavar="SECONDS",
        action="append",
        default=[],
        help="walltime of the first job of the chain, of the second, ...; that of the script if none "
        "is given",
    )
    parser.add_argument(
        "--once",
        metavar="OPTION",
        action="append",
        default=[],
        help="option to add to the command until a launch has started with it, such as "
        "--once=--remeasure; may be given several times",
    )
    parser.add_argument(
        "--harvest",
        type=Path,
        metavar="FILE",
        help="how the job is one of several that share the run; fleet harvest writes the file",
    )
    parser.add_argument("command", nargs="+", help="command of the launch, after --")


def run(args: argparse.Namespace) -> int:
    """Keep the job."""
    allow_imports_beside(_spec_of(args.command))  # beside it lies what a user has made
    system = find_system(args.system)
    job = _job_id(system)
    if args.harvest is not None:
        backlog = Backlog(
            HarvestPlan.read(args.harvest), BatchQueue(system), os.environ, args.harvest
        )
        return HarvestJob(RunPaths(args.run, job), backlog, system, job).run(args.command)
    return ChainJob(
        RunPaths(args.run),
        system,
        job,
        ChainLimits(args.jobs, args.retries),
        args.warn_after,
        args.once,
        args.request,
    ).run(args.command)


def _spec_of(command: Sequence[str]) -> str:
    """Return the spec in the command of a launch: the word after ``fleet.run``, or the last one."""
    if "fleet.run" in command[:-1]:
        index = command.index("fleet.run") + 1
    else:
        index = -1
    return command[index]


def _job_id(system: System) -> str:
    if not system.job_variable:
        return f"process {os.getpid()}"
    job = os.environ.get(system.job_variable)
    if not job:
        raise UserError(
            f"{system.job_variable} is not set: this is no job of {system.name} (fleet submit starts one)"
        )
    return job
