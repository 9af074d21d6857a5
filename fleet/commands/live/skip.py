"""Exclude networks from the next launches of a run, or include them again.

  fleet skip runs/digits cnn-3           the next launches do not train cnn-3, which is `skipped`
  fleet skip runs/digits cnn-3 --undo    the next launches train it again, from its checkpoint

You can use it at any time; it takes effect when a launch starts. The current launch goes on
training the network; stop it there with `fleet stop`.
"""

from __future__ import annotations

import argparse

from fleet.arguments import add_run
from fleet.commands.output import show
from fleet.domain.added_networks import with_added_networks
from fleet.domain.events import CommandReceived, NetworkAdded
from fleet.errors import UserError
from fleet.storage.event_log import read_run_state
from fleet.storage.lease import is_held
from fleet.storage.network_leases import find_held_lease
from fleet.storage.paths import RunPaths
from fleet.storage.run_spec import load_run_spec
from fleet.storage.skipped_networks import read_skipped, write_skipped
from fleet.units import listed


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument("networks", metavar="NAME", nargs="+", help="name of a network")
    parser.add_argument("--undo", action="store_true", help="train them again")


def run(args: argparse.Namespace) -> None:
    """Record which networks to skip."""
    paths = RunPaths(args.run)
    if not paths.marker.exists():
        raise UserError(f"{args.run} is not the folder of a run")
    state = read_run_state(paths, (NetworkAdded, CommandReceived))
    names = list(with_added_networks(load_run_spec(paths), state).by_name)
    before = read_skipped(paths)
    chosen = frozenset(args.networks)
    # Skipped networks may have been removed from the spec.
    unknown = sorted(chosen - (before if args.undo else frozenset()) - set(names))
    if unknown:
        raise UserError(
            f"the run has no network named {unknown[0]!r}; it has {listed(names, 8) or 'none yet'}"
        )
    skipped = before - chosen if args.undo else before | chosen
    write_skipped(paths, skipped)
    action = "train" if args.undo else "skip"
    is_running = is_held(paths.lease) or find_held_lease(paths) is not None
    notes = ["the current launch is not affected"] * is_running
    show(
        args,
        lambda: {"skipped": sorted(skipped), "is_running": is_running},
        lambda: print(f"the next launches {action} {', '.join(args.networks)}", *notes, sep="\n"),
    )
