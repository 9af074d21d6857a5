"""Stop, pause or resume a network of a running run.

  fleet stop runs/digits cnn-3      stop it after its current epoch; its status is then `pruned`
  fleet pause runs/digits cnn-3     save it and free its GPUs, until it is resumed
  fleet resume runs/digits cnn-3    continue its training

The command returns once the run has accepted it.
"""

from __future__ import annotations

import argparse

from fleet.arguments import add_run
from fleet.live_run import command

HAS_JSON = False  # it prints nothing


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; the name of the program selects one of the three commands."""
    parser.set_defaults(do=parser.prog.split()[-1])
    add_run(parser)
    parser.add_argument("network", metavar="NAME", help="name of the network")


def run(args: argparse.Namespace) -> None:
    """Send the command to the run."""
    command(args.run, {"do": args.do, "network": args.network})
