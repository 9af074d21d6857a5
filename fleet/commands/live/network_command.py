"""Stop, pause or resume a network of a run that is going on.

  fleet stop runs/digits cnn-3      drop it at the end of its epoch; it is `pruned`
  fleet pause runs/digits cnn-3     let it stand, saved and without GPUs, until it is resumed
  fleet resume runs/digits cnn-3    let it go on

The command ends once the run has accepted it.
"""

from __future__ import annotations

import argparse

from fleet.live_run import command


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; which of the three commands it is, its name says."""
    parser.set_defaults(do=parser.prog.split()[-1])
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("network", metavar="NAME", help="name of the network")


def run(args: argparse.Namespace) -> None:
    """Have it done."""
    command(args.run, {"do": args.do, "network": args.network})
