"""Add a network like another one, with other settings, to a run.

  fleet clone runs/digits cnn-3 --set train.optimizer.learning_rate=0.01
  fleet clone runs/digits cnn-3 --set filters.0=32 train.batch.size=64 --name wide
  fleet clone runs/digits cnn-3 --set train.optimizer.learning_rate=1e-4 --warm

The keys are those of a space, and the values are YAML. A running launch trains the clone as soon as
it has room; if none is running, the next one does. With --warm the clone starts from the newest
checkpoint of the network: its weights and the state of its optimizer. The name of the clone is
printed.
"""

from __future__ import annotations

import argparse
from typing import Any

from fleet.arguments import add_run
from fleet.commands.output import show
from fleet.errors import UserError
from fleet.live_run import clone
from fleet.spec.yaml_file import read_value


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument("network", metavar="NETWORK", help="name of the network to clone")
    parser.add_argument(
        "--set",
        dest="settings",
        action="extend",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that differs, such as train.optimizer.learning_rate=0.01",
    )
    parser.add_argument("--warm", action="store_true", help="start from the weights of the network")
    parser.add_argument("--name", help="name of the clone; NETWORK-clone by default")


def run(args: argparse.Namespace) -> None:
    """Clone the network, and print the name of the clone."""
    values = dict(map(_setting, args.settings))
    networks = clone(args.run, args.network, values, warm=args.warm, name=args.name)
    show(args, lambda: {"networks": networks}, lambda: print("\n".join(networks)))


def _setting(text: str) -> tuple[str, Any]:
    """Return the key and the value of ``KEY=VALUE``.

    >>> _setting("train.batch.size=64")
    ('train.batch.size', 64)
    """
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UserError(f"--set {text}: it should be KEY=VALUE, such as train.batch.size=64")
    return key, read_value(value)
