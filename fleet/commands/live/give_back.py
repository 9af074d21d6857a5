"""Have a run that is going on give nodes back, and train on with the rest.

  fleet yield runs/digits --nodes 1 --within 2min

The launch chooses the nodes on which stopping costs least. The groups there save and leave, at their next step; where
the time is too short for that, they give up what they have trained since their last checkpoint. Their networks go on
elsewhere. The command ends once the nodes are free. Under mpirun --with-ft ulfm their processes end as well; in any
other launch they wait, without work, for its end, since MPI lets no rank leave before the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet.arguments import count, duration
from fleet.commands.options import add_json, print_json
from fleet.errors import ExitStatus
from fleet.running import ask_nodes, await_nodes
from fleet.storage.event_log import log_mark
from fleet.storage.paths import RunPaths

_LATER = 2.0  # times as long as was asked for is waited, and
_LATER_S = 60.0  # so many seconds


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run")
    parser.add_argument("--nodes", type=count, required=True, metavar="N", help="how many nodes")
    parser.add_argument("--within", type=duration, required=True, metavar="2min", help="until when they should be free")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Have nodes given back, and wait for it; status 1 where that took longer than was asked for."""
    _, start = log_mark(RunPaths(args.run).events)
    asked = ask_nodes(args.run, args.nodes, args.within)
    if not args.json:
        for does, networks in (("saves and leaves", asked.saving), ("leaves without saving", asked.dropping)):
            for network in networks:
                print(f"{network} {does}", flush=True)
    left = await_nodes(args.run, asked, start, _LATER * args.within + _LATER_S)
    is_late = left is not None and left.seconds > args.within
    if args.json:
        print_json({"nodes": asked.hosts, "saved": asked.saving, "dropped": asked.dropping,
                    "seconds": None if left is None else left.seconds, "has_ended": left is None or left.has_ended})
    elif left is None:
        print("the launch has ended, with all its nodes")
    else:
        became = ("its processes end" if left.has_ended else
                  "its processes wait, without work, for the end of the launch, which is not under --with-ft ulfm")
        late = ", later than asked for" if is_late else ""
        print(f"{', '.join(left.hosts)}: given back after {left.seconds:.1f} s{late}; {became}")
    return ExitStatus.INFRASTRUCTURE if is_late else ExitStatus.OK
