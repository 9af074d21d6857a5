"""Have a run that is going on give nodes back, and train on with the rest.

  fleet release-nodes runs/digits --nodes 1 --within 2min

The launch chooses the nodes on which stopping costs least. The groups there save and leave, at
their next step; where the time is too short for that, they give up what they have trained since
their last checkpoint. Their networks go on elsewhere. The command ends once the nodes are free.
Under mpirun --with-ft ulfm their processes end as well, and with --shrink JOB Slurm takes the nodes
out of its job then. In any other launch they wait, without work, for its end, since MPI lets no
rank leave before the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet.arguments import count, duration
from fleet.commands.output import add_json, print_json
from fleet.domain.events import NodesReleased
from fleet.errors import ExitStatus, InfrastructureError
from fleet.live_run import request_nodes, wait_for_nodes
from launch.base import InputError
from launch.slurm_control import shrink

_LATER = 2.0  # times as long as was asked for is waited, and
_LATER_S = 60.0  # so many seconds


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run")
    parser.add_argument("--nodes", type=count, required=True, metavar="N", help="how many nodes")
    parser.add_argument(
        "--within",
        type=duration,
        required=True,
        metavar="2min",
        help="time until they should be free",
    )
    parser.add_argument(
        "--shrink",
        metavar="JOB",
        help="the Slurm job of the run: have Slurm take the nodes out of it; mpirun's daemons must not "
        "have been started by srun, which is what it does by itself (docs/eviction.md)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Have nodes given back, and wait for it; status 1 where that took longer than was asked for."""
    release = request_nodes(args.run, args.nodes, args.within)
    if not args.json:
        for action, networks in (
            ("saves and leaves", release.saving),
            ("leaves without saving", release.dropping),
        ):
            for network in networks:
                print(f"{network} {action}", flush=True)
    released = wait_for_nodes(args.run, release, _LATER * args.within + _LATER_S)
    is_late = released is not None and released.seconds > args.within
    if args.shrink is not None and released is not None:
        remaining = _shrink(args.shrink, released)
    else:
        remaining = None
    if args.json:
        print_json(
            {
                "nodes": release.hosts,
                "saved": release.saving,
                "dropped": release.dropping,
                "seconds": None if released is None else released.seconds,
                "has_ended": released is None or released.has_ended,
                **({} if remaining is None else {"keeps": remaining}),
            }
        )
    elif released is None:
        print("the launch has ended and has no more nodes")
    else:
        if released.has_ended:
            outcome = "its processes end"
        else:
            outcome = "its processes wait, without work, for the end of the launch, which is not under --with-ft ulfm"
        late = ", later than asked for" if is_late else ""
        print(
            f"{', '.join(released.hosts)}: given back after {released.seconds:.1f} s{late}; {outcome}"
        )
    if remaining is not None and not args.json:
        print(f"job {args.shrink} goes on with {', '.join(remaining)}")
    if is_late:
        return ExitStatus.INFRASTRUCTURE
    return ExitStatus.OK


def _shrink(job: str, released: NodesReleased) -> list[str]:
    """Have Slurm take nodes out of a job; those that it keeps.

    Raises:
        InfrastructureError: there are still processes on them, or Slurm refuses.
    """
    if not released.has_ended:
        raise InfrastructureError(
            f"job {job} keeps its nodes: the launch is not under --with-ft ulfm, so its "
            "processes on them do not end before it does"
        )
    try:
        return shrink(job, released.hosts)
    except InputError as error:
        raise InfrastructureError(
            f"the nodes are quiet, but job {job} keeps them: {error}"
        ) from None
