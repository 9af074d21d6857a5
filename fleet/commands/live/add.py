"""Add networks to a running run.

  fleet add runs/digits entry.yaml

The file contains an entry of `models`, as in a spec: a family or a build: function, args, train,
gpus, ... The names of its networks are printed once the run has accepted them. A network with
invalid values fails without affecting the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet.arguments import add_run
from fleet.commands.output import show
from fleet.live_run import add
from fleet.spec import read_yaml


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument(
        "entry", metavar="ENTRY", type=Path, help="YAML file with an entry of `models`"
    )


def run(args: argparse.Namespace) -> None:
    """Add the networks of an entry, and print their names."""
    content, _ = read_yaml(
        args.entry, "the keys of one entry of `models:`, such as `family:` and `args:`"
    )
    networks = add(args.run, content)
    show(args, lambda: {"networks": networks}, lambda: print("\n".join(networks)))
