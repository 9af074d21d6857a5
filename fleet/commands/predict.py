"""Predict with the best networks of a run, or with the mean of several.

  fleet predict runs/digits photo.png folder/            with the best network
  fleet predict runs/digits folder/ --top 5 --json       with the mean of the best five
  fleet predict runs/digits folder/ --select greedy      with those that go together best on the validation samples
  fleet predict runs/digits --top 5 --save five.keras    write them as one Keras model

Images are prepared as the run prepares its validation samples. A .npy file holds inputs as rows of an array. How good
the networks are together, fleet report says.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from fleet.arguments import count
from fleet.commands.options import add_json, print_json
from fleet.errors import ExitStatus, StorageError, UserError
from fleet.prediction.ensembles import GREEDY
from fleet.predictor import Predictor
from fleet.terminal import print_table


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("images", metavar="IMAGES", nargs="*",
                        help="image files, folders of images, or .npy files of inputs")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--top", type=count, metavar="K", help="join the best K networks (1)")
    which.add_argument("--select", choices=[GREEDY],
                       help="join the networks that go together best on the validation samples, each perhaps several "
                            "times")
    parser.add_argument("--save", metavar="FILE", help="write the networks as one, a .keras file")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what the networks predict."""
    if not args.images and args.save is None:
        raise UserError("name images, or a file to --save the networks to")
    predictor = Predictor(args.run, args.top, args.select)
    kind = predictor.sample.target.kind
    if kind == "mask" and args.images:
        raise UserError("masks are not printed: --save the networks as one, or use fleet.api.Predictor")
    if args.save is not None:
        try:
            predictor.save(args.save)
        except StorageError as error:
            raise UserError(f"--save: {error}") from None
    found: list[dict[str, Any]] = []
    if args.images:
        names, predicted = predictor.predict_files(args.images)
        found = [{"image": name, **_ANSWERS[kind](predictor.names, row)}
                 for name, row in zip(names, predicted, strict=True)]
    if args.json:
        print_json({"networks": predictor.weights, "names": predictor.names, "images": found})
    else:
        _print(predictor, found, args.save)
    return ExitStatus.OK


def _class(names: tuple[str, ...], row: np.ndarray) -> dict[str, Any]:
    likeliest = int(row.argmax())
    return {"class": names[likeliest], "probability": float(row[likeliest]), "probabilities": _named(names, row)}


def _labels(names: tuple[str, ...], row: np.ndarray) -> dict[str, Any]:
    return {"labels": [name for name, share in zip(names, row, strict=True) if share > 0.5],
            "probabilities": _named(names, row)}


def _values(names: tuple[str, ...], row: np.ndarray) -> dict[str, Any]:
    return {"values": _named(names, row)}


def _named(names: tuple[str, ...], row: np.ndarray) -> dict[str, float]:
    return dict(zip(names, map(float, row), strict=True))


_ANSWERS = {"class": _class, "multilabel": _labels, "value": _values}


def _print(predictor: Predictor, found: list[dict[str, Any]], saved: str | None) -> None:
    shares = ", ".join(f"{name} {share:.0%}" for name, share in predictor.weights.items())
    print(f"With {shares}:" if len(predictor.weights) > 1 else f"With {next(iter(predictor.weights))}:")
    if found:
        columns = [name for name in found[0] if name != "probabilities" or "class" not in found[0]]
        print_table(columns, [[_shown(row[column]) for column in columns] for row in found])
    if saved is not None:
        print(f"{saved} holds them as one network.")


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:.4g}" for name, number in value.items())
    return ", ".join(value) if isinstance(value, list) else value
