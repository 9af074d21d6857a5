"""Make a rates file of an ensemble to simulate: drawn like the paper's, or converted.

  fleet simulate draw --networks 100 --seed 1 --out rates.json
  fleet simulate draw --convert table.json --out rates.json

A drawn ensemble has ResNet and DenseNet variants in equal numbers, with random numbers of blocks;
rates, sizes and epochs are in the ranges of section 6.1 of the paper. A table to convert has the
keys images_per_epoch, gpus_per_node and dnns, a list of {id, r, epochs, params_mb}, where r are the
rates on 1, 2, ... GPUs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet.arguments import count
from fleet.commands.options import add_seed
from fleet.commands.output import print_json, show
from fleet.errors import StorageError, UserError
from fleet.storage.files import write_json
from launch.errors import pluralize
from scheduler.ensemble.rates_file import write_rates
from scheduler.files import read_json
from scheduler.simulation.draw import convert, generate


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--convert", metavar="FILE", help="convert the table in this JSON file instead of drawing"
    )
    parser.add_argument(
        "--networks", type=count, default=100, metavar="N", help="number of networks to draw (100)"
    )
    add_seed(parser, "the draws")
    parser.add_argument(
        "--heavy-tail",
        action="store_true",
        help="draw epochs from a log-normal distribution instead of a normal one",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write (standard output)")


def run(args: argparse.Namespace) -> None:
    """Write the rates file."""
    if args.convert:
        table = convert(read_json(args.convert), args.convert)
    else:
        table = generate(args.networks, args.seed, args.heavy_tail)
    if args.out is None:
        print_json(write_rates(table))
        return
    try:
        write_json(args.out, write_rates(table))
    except StorageError as error:
        raise UserError(f"--out: {error}") from None
    networks = len(table.models)
    samples = table.samples_per_epoch
    show(
        args,
        lambda: {"file": str(args.out), "networks": networks, "samples_per_epoch": samples},
        lambda: print(
            f"{args.out}: {pluralize(networks, 'network')}, "
            f"{pluralize(samples, 'sample')} per epoch"
        ),
    )
