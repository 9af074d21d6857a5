"""Check a spec and list its networks, before any rank is started.

TensorFlow is loaded only for networks whose parameters cannot be counted without it: those of
keras.applications and of functions of your own.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from fleet.commands.options import add_json, add_spec, print_json
from fleet.engines.base import network_warnings
from fleet.engines.registry import parameters_of
from fleet.errors import ExitStatus, UserError
from fleet.runtime.inputs import Inputs, open_inputs
from fleet.spec import NetworkSpec, Spec, load
from fleet.spec.fields import default_of
from fleet.spec.model import FAMILIES
from fleet.terminal import print_table
from fleet.units import format_size


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_spec(parser, optional=True)
    parser.add_argument("--families", action="store_true", help="list the model families and their parameters instead")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the networks of a spec."""
    if args.families:
        _print_families(args.json)
        return ExitStatus.OK
    if args.spec is None:
        raise UserError("name a spec file, or ask for --families")
    spec = load(args.spec)
    opened = open_inputs(spec)
    if opened.data.remark:
        print(f"fleet check: {opened.data.remark}", file=sys.stderr)
    with network_warnings() as told:
        counts = {network.name: parameters_of(network, spec, opened.sample) for network in spec.networks}
    for warning in dict.fromkeys(told):  # networks of one function say the same
        print(f"fleet check: WARNING: {warning}", file=sys.stderr)
    if args.json:
        print_json(_numbers(spec, opened, counts))
    else:
        _print(args.spec, spec, opened, counts)
    return ExitStatus.OK


def _numbers(spec: Spec, opened: Inputs, counts: Mapping[str, int | None]) -> dict[str, Any]:
    data, image = opened.data, opened.sample.image
    return {"name": spec.document.name, "samples": len(data.train), "validation_samples": len(data.validation or ()),
            **({} if data.test is None else {"test_samples": len(data.test)}),
            "classes": list(data.classes), "shape": list(image.shape), "dtype": image.dtype,
            "networks": [_record(network, counts[network.name]) for network in spec.networks]}


def _print(path: str, spec: Spec, opened: Inputs, counts: Mapping[str, int | None]) -> None:
    data, image = opened.data, opened.sample.image
    test = "" if data.test is None else f" and {len(data.test)} test"
    print(f"{path}: {len(data.train)} training and {len(data.validation or ())} validation{test} samples of {image} in "
          f"{len(data.classes)} classes ({format_size(len(data.train) * image.nbytes)} decoded)")
    print_table(["network", "model", "parameters", "batch", "optimizer", "GPUs", "epochs"],
                [_row(network, counts[network.name]) for network in spec.networks])


def _row(network: NetworkSpec, parameters: int | None) -> list[Any]:
    optimizer = network.train.optimizer
    rate = optimizer.learning_rate
    shown = rate["name"] if isinstance(rate, dict) else f"{rate:g}"
    arguments = ", ".join(f"{key}={value}" for key, value in network.architecture.args.items())
    gpus = f"{network.min_gpus} or more" if network.max_gpus is None else f"{network.min_gpus} to {network.max_gpus}"
    return [network.name, f"{network.architecture.target}({arguments})", parameters, network.train.batch.size,
            f"{optimizer.name} {shown}", gpus, network.train.converge.max_epochs]


def _record(network: NetworkSpec, parameters: int | None) -> dict[str, Any]:
    return {"name": network.name, "model": network.architecture.target, "args": dict(network.architecture.args),
            "parameters": parameters, "batch": network.train.batch.size, "seed": network.seed,
            "min_gpus": network.min_gpus, "max_gpus": network.max_gpus, "drawn": network.parameters}


def _print_families(as_json: bool) -> None:
    rows = [(name, field.name, default_of(field)) for name, family in FAMILIES.items()
            for field in dataclasses.fields(family)]
    if as_json:
        print_json({name: {field: default for owner, field, default in rows if owner == name} for name in FAMILIES})
    else:
        print_table(["family", "parameter", "default"], [[name, field, str(default)] for name, field, default in rows])
