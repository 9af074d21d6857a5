"""One job of a chain: what job scripts end in.

    fleet job RUN --system slurm --jobs 20 --retries 2 -- mpirun ... python -m fleet.run SPEC

Starts the launch, passes SIGTERM and SIGUSR2 on to it as SIGUSR2 (with which it saves everything and ends with
status 75), and then, if networks are left, sees to it that another job follows. Ends with the status of the launch.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fleet.errors import UserError
from fleet.jobs.chain import Keeper, Limits
from fleet.jobs.systems import find_system
from fleet.spec import look_beside
from fleet.storage.paths import RunPaths
from launch.systems import System


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("--system", metavar="NAME", required=True, help="the batch system of this job")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="at most so many jobs after one another (1)")
    parser.add_argument("--retries", type=int, default=0, metavar="N", help="after failures of the machine (0)")
    parser.add_argument("--warn-after", type=float, metavar="SECONDS",
                        help="have everything saved then, where the batch system sends no signal")
    parser.add_argument("command", nargs="+", help="the launch, after --")


def run(args: argparse.Namespace) -> int:
    """Keep the job."""
    if args.warn_after is not None and not 0 <= args.warn_after <= 366 * 86400:
        raise UserError(f"--warn-after is {args.warn_after:g}; it should be seconds, at most those of a year")
    look_beside(args.command[-1])  # the spec: beside it lies what a user has made
    system = find_system(args.system)
    keeper = Keeper(RunPaths(args.run), system, _job_id(system), Limits(args.jobs, args.retries),
                    args.warn_after)
    return keeper.run(args.command)


def _job_id(system: System) -> str:
    if not system.job_variable:
        return f"process {os.getpid()}"
    if not (job := os.environ.get(system.job_variable)):
        raise UserError(f"{system.job_variable} is not set: this is no job of {system.name} (fleet submit makes one)")
    return job
