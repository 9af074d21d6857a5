"""Convert a data set into one HDF5 file, which a spec reads with `source: hdf5`.

Any source of a spec can be converted, with its targets and weights: an image folder unless --source
names another one. Files stay encoded; with --decoded they become uint8 pixels of one size, which
takes more space but avoids decoding in every epoch. Unreadable samples are left out and listed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from fleet.arguments import integer
from fleet.commands.output import show
from fleet.storage.files import storage_errors
from fleet.terminal import progress_bar
from fleet.units import format_size
from launch.errors import pluralize
from preprocess.base import CannotWrite, DataSet, Source, UnreadableSample
from preprocess.packing import write_hdf5
from preprocess.pipeline import Pipeline
from preprocess.probe import probe_samples
from preprocess.source import open_data
from preprocess.sources.hdf5 import open_hdf5
from preprocess.target import KINDS, TargetSpec, TargetWish, target_of
from preprocess.transforms import Transform, parse_transforms


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path",
        help="data to convert: a folder with <class>/, or with train/<class>/ and "
        "validation/<class>/, unless --source names another source",
    )
    parser.add_argument("out", help="HDF5 file to write; an existing file is replaced")
    parser.add_argument(
        "--decoded",
        type=integer(1, 99_999),
        metavar="SIZE",
        help="write pixels: resize the shorter side to SIZE, and crop the center to SIZE x SIZE",
    )
    parser.add_argument(
        "--mode",
        choices=("RGB", "L"),
        default="RGB",
        help="with --decoded: color (RGB) or grayscale (L); default: RGB",
    )
    parser.add_argument(
        "--bits",
        type=integer(8, 16),
        default=16,
        help="with --decoded: number of bits that 16-bit grayscale files use (16)",
    )
    parser.add_argument(
        "--source", default="image_folder", help="source, as in data.source (image_folder)"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=_option,
        metavar="NAME=VALUE",
        help="option of the source, as in data.options; repeat it for several options",
    )
    parser.add_argument(
        "--target",
        type=_target,
        metavar="KIND",
        help="kind of targets, as in data.target: class, multilabel, value, mask, or a mapping "
        "as YAML",
    )


def run(args: argparse.Namespace) -> None:
    """Write the file and print its contents."""
    data = open_data(
        args.source,
        args.path,
        validation=None,
        seed=0,
        options=dict(args.option),
        target=args.target,
    )
    _print_remark(data.remark)
    left_out = _write(data, _transforms(args), args.out)
    counts = {
        name: len(part or ())
        for name, part in zip(("train", "validation", "test"), open_hdf5(args.out), strict=True)
    }
    written = os.path.getsize(args.out)
    target = target_of(data.train)
    show(
        args,
        lambda: {
            "path": args.out,
            "target": target.kind,
            "classes": target.outputs,
            **counts,
            "bytes": written,
            "left_out": [{"name": sample.name, "reason": sample.reason} for sample in left_out],
        },
        lambda: _print(args, counts, target, written, left_out),
    )


def _print(
    args: argparse.Namespace,
    counts: dict[str, int],
    target: TargetSpec,
    written: int,
    left_out: Sequence[UnreadableSample],
) -> None:
    unit = "image" if args.source == "image_folder" else "sample"
    if counts["test"]:
        test = f" and {pluralize(counts['test'], f'test {unit}')}"
    else:
        test = ""
    print(
        f"{args.out}: {pluralize(counts['train'], f'training {unit}')} and "
        f"{pluralize(counts['validation'], f'validation {unit}')}{test} "
        f"{target.semantics.preposition} {target}, {format_size(written)}; {len(left_out)} left out"
    )
    for sample in left_out:
        print(f"  left out {sample}")


def _print_remark(remark: str) -> None:
    for line in remark.splitlines():
        print(f"fleet convert: {line}", file=sys.stderr)


def _option(text: str) -> tuple[str, Any]:
    """Read ``name=value``, with the value as in a spec."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} should be NAME=VALUE")
    return name, _yaml(value)


def _target(text: str) -> TargetWish:
    """Read a kind of targets, or a mapping as in `data.target` of a spec."""
    content = _yaml(text)
    try:
        target = TargetWish(**content) if isinstance(content, dict) else TargetWish(content)
    except TypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} should be a kind, or {{kind: KIND, outputs: NUMBER, names: [...], "
            "ignore: NUMBER}"
        ) from None
    if target.kind not in KINDS:
        raise argparse.ArgumentTypeError(f"{target.kind!r} should be one of {', '.join(KINDS)}")
    return replace(target, names=tuple(map(str, target.names)))


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be read: {' '.join(str(error).split())}"
        ) from None


def _transforms(args: argparse.Namespace) -> tuple[Transform, ...]:
    """Return the transforms that are applied to each image before it is written."""
    size = args.decoded
    if size is None:
        return ()
    return parse_transforms(
        [
            {"decode": {"mode": args.mode, "bits": args.bits}},
            {"resize": {"size": size}},
            {"center_crop": {"size": [size, size]}},
        ]
    )


def _write(data: DataSet, transforms: Sequence[Transform], out: str) -> Sequence[UnreadableSample]:
    """Write the samples; return the unreadable ones, which are left out."""
    parts: dict[str, Source | Pipeline] = dict(data.splits())
    for name, source in data.splits().items() if transforms else ():
        probe = probe_samples(source, transforms, seed=0)
        _print_remark(probe.remark if name == "train" else "")
        parts[name] = Pipeline(source, transforms, 0, probe.sample)
    total = sum(map(len, data.splits().values()))
    with progress_bar(total, "samples") as advance, storage_errors(Path(out), kind=CannotWrite):
        return write_hdf5(parts, out, advance)
