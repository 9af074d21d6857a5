"""Let a running run release nodes, and go on training on the others.

  fleet release-nodes runs/digits --nodes 1 --within 2min

The launch chooses the nodes on which stopping costs least. The groups there save and stop at their
next step; if the time is too short for that, they lose what they have trained since their last
checkpoint. Their networks continue elsewhere. The command returns once the nodes are free. Under
mpirun --with-ft ulfm the processes on the nodes end, and with --shrink JOB Slurm then removes the
nodes from its job. In other launches the processes wait idle for the end of the launch, since MPI
does not allow ranks to end early.
"""

from __future__ import annotations

import argparse

from fleet.arguments import add_run, count, duration
from fleet.commands.output import print_json
from fleet.companions.node_release.request import request_nodes, wait_for_nodes
from fleet.domain.events import NodesReleased
from fleet.errors import ExitStatus, InfrastructureError
from launch.errors import InputError
from launch.slurm_control import shrink

# The command waits for this multiple of the requested time, plus some seconds.
_PATIENCE = 2.0
_PATIENCE_S = 60.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument(
        "--nodes", type=count, required=True, metavar="N", help="number of nodes to release"
    )
    parser.add_argument(
        "--within",
        type=duration,
        required=True,
        metavar="2min",
        help="time in which the nodes should be free",
    )
    parser.add_argument(
        "--shrink",
        metavar="JOB",
        help="Slurm job of the run, from which to remove the nodes; srun must not have started the "
        "daemons of mpirun, as it does by default (docs/eviction.md)",
    )


def run(args: argparse.Namespace) -> int:
    """Request the release of nodes, and wait for it; return 1 if it took longer than requested."""
    release = request_nodes(args.run, args.nodes, args.within)
    if not args.json:
        for action, networks in (
            ("saves and stops", release.saving),
            ("stops without saving", release.dropping),
        ):
            for network in networks:
                print(f"{network} {action}", flush=True)
    released = wait_for_nodes(args.run, release, _PATIENCE * args.within + _PATIENCE_S)
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
            outcome = (
                "its processes wait for the end of the launch, which runs without --with-ft ulfm"
            )
        late = ", later than requested" if is_late else ""
        print(
            f"{', '.join(released.hosts)}: released after {released.seconds:.1f} s{late}; {outcome}"
        )
    if remaining is not None and not args.json:
        print(f"job {args.shrink} continues on {', '.join(remaining)}")
    if is_late:
        return ExitStatus.INFRASTRUCTURE
    return ExitStatus.OK


def _shrink(job: str, released: NodesReleased) -> list[str]:
    """Let Slurm remove nodes from a job; return the nodes that it keeps.

    Raises:
        InfrastructureError: processes still run on the nodes, or Slurm refuses.
    """
    if not released.has_ended:
        raise InfrastructureError(
            f"job {job} keeps its nodes: the launch runs without --with-ft ulfm, so its processes "
            "on them end only with the launch"
        )
    try:
        return shrink(job, released.hosts)
    except InputError as error:
        raise InfrastructureError(
            f"the nodes are idle, but job {job} keeps them: {error}"
        ) from None
