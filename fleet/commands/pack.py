"""Put an image folder into one HDF5 file, which a spec reads with `source: hdf5`.

Files stay encoded as they are; with --decoded they become uint8 pixels of one size, which costs space
and saves decoding in every epoch. Images that cannot be read or decoded are left out and named.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.arguments import whole
from fleet.commands.options import add_json, print_json
from fleet.errors import ExitStatus
from fleet.storage.files import storing
from fleet.terminal import progress_bar
from fleet.units import counted, format_size

if TYPE_CHECKING:  # pydantic and the decoders take a while
    from preprocess.base import BadSample, DataSet


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", help="folder that holds <class>/, or train/<class>/ and validation/<class>/")
    parser.add_argument("out", help="HDF5 file to write; one that exists is replaced")
    parser.add_argument("--decoded", type=whole(1, 99_999), metavar="SIZE",
                        help="write pixels: resize the shorter side to SIZE, and take the SIZE x SIZE pixels at the "
                             "centre")
    parser.add_argument("--mode", choices=("RGB", "L"), default="RGB",
                        help="with --decoded: colour or greyscale (RGB)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the file and say what is in it."""
    from preprocess.source import open_data
    from preprocess.sources.hdf5 import open_hdf5

    data = open_data("image_folder", args.folder, validation=None, seed=0)
    if data.remark:
        print(f"fleet pack: {data.remark}", file=sys.stderr)
    left_out = _write(data, args)
    train, validation = open_hdf5(args.out)
    counts = {"train": len(train), "validation": len(validation or ())}
    written = os.path.getsize(args.out)
    if args.json:
        print_json({"path": args.out, "classes": len(data.classes), **counts, "bytes": written,
                    "left_out": [{"name": sample.name, "reason": sample.reason} for sample in left_out]})
        return ExitStatus.OK
    print(f"{args.out}: {counted(counts['train'], 'training image')} and "
          f"{counted(counts['validation'], 'validation image')} of {len(data.classes)} classes, "
          f"{format_size(written)}; {len(left_out)} left out")
    for sample in left_out:
        print(f"  left out {sample}")
    return ExitStatus.OK


def _write(data: DataSet, args: argparse.Namespace) -> Sequence[BadSample]:
    """Write the images; returns those that are left out."""
    from preprocess.base import CannotWrite
    from preprocess.packing import write_hdf5
    from preprocess.pipeline import Pipeline
    from preprocess.transforms import parse_transforms

    size = args.decoded
    transforms = parse_transforms([] if size is None else [
        {"decode": {"mode": args.mode}}, {"resize": {"size": size}}, {"center_crop": {"size": [size, size]}}])
    parts = {name: Pipeline.probed(source, transforms, 0) if transforms else source
             for name, source in data.parts().items()}
    total = sum(map(len, data.parts().values()))
    with progress_bar(total, "images") as advance, storing(Path(args.out), kind=CannotWrite):
        return write_hdf5(parts, args.out, advance)
