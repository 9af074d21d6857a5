"""Run one job of a chain; the scripts that fleet submit writes call this command.

    fleet job RUN --system slurm --jobs 20 --retries 2 -- mpirun ... python -m fleet.run SPEC

It starts the launch, and forwards SIGTERM and SIGUSR2 as the signal that the launcher passes on to
the ranks: SIGUSR2, but SIGTERM with MPICH. Then the launch saves everything and ends with status
75. If networks remain, it makes another job follow. It ends with the status of the launch.

With --harvest it runs one launch, alongside those of other jobs, and keeps jobs in the queue while
networks wait.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from fleet.arguments import count, duration, integer
from fleet.batch_systems import find_system
from fleet.companions.chains.chain import ChainJob
from fleet.companions.harvest.harvest import Backlog, BatchQueue, HarvestJob, HarvestPlan
from fleet.errors import UserError
from fleet.spec import allow_imports_beside
from fleet.storage.paths import RunPaths
from launch.systems import System

HAS_JSON = False  # it prints what the launch prints


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--system", metavar="NAME", required=True, help="batch system of this job")
    parser.add_argument(
        "--jobs", type=count, default=1, metavar="N", help="maximum number of jobs of the chain (1)"
    )
    parser.add_argument(
        "--retries",
        type=integer(),
        default=0,
        metavar="N",
        help="number of machine failures after which the chain continues (0)",
    )
    parser.add_argument(
        "--warn-after",
        type=duration,
        metavar="SECONDS",
        help="time after which to save everything, if the batch system sends no signal",
    )
    parser.add_argument(
        "--request",
        type=duration,
        metavar="SECONDS",
        action="append",
        default=[],
        help="walltime of the first job of the chain; repeat it for the second, ... (the script's)",
    )
    parser.add_argument(
        "--once",
        metavar="OPTION",
        action="append",
        default=[],
        help="option to add to the command until a launch has started with it, such as "
        "--once=--remeasure; repeat it for several options",
    )
    parser.add_argument(
        "--harvest",
        type=Path,
        metavar="FILE",
        help="file of the harvest that the job belongs to; fleet harvest writes it",
    )
    parser.add_argument("command", nargs="+", help="command of the launch, after --")


def run(args: argparse.Namespace) -> int:
    """Run the job."""
    allow_imports_beside(_spec_of(args.command))  # custom modules may be next to the spec
    system = find_system(args.system)
    job = _job_id(system)
    if args.harvest is not None:
        backlog = Backlog(HarvestPlan.read(args.harvest), BatchQueue(system), args.harvest)
        return HarvestJob(RunPaths(args.run, job), backlog, system, job).run(args.command)
    return ChainJob(
        RunPaths(args.run),
        system,
        job,
        args.jobs,
        args.retries,
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
            f"{system.job_variable} is not set: this is not a job of {system.name}; start one with "
            "fleet submit"
        )
    return job
