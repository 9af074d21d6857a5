"""Predict with the best network of a run, or with an ensemble of several.

  fleet predict runs/digits photo.png folder/            with the best network
  fleet predict runs/digits folder/ --top 5 --json       with the mean of the best five
  fleet predict runs/digits folder/ --select greedy      with the best ensemble on validation data
  fleet predict runs/digits --top 5 --save five.keras    save them as one Keras model
  fleet predict runs/wine new.csv > predicted.csv        for each row of a table

Inputs are prepared like the validation samples of the run. A .npy file contains inputs as rows of
an array; .npz and HDF5 files, and folders of .npy files, contain those of several inputs by name.
The columns of a table are matched by name, and predictions for its rows are printed as CSV.
Networks of the engine torch are saved as .safetensors. fleet report compares ensembles.
"""

from __future__ import annotations

import argparse
import csv
import sys
from contextlib import nullcontext, redirect_stdout
from typing import Any, TypeAlias

import numpy as np

from fleet.arguments import add_run, count
from fleet.commands.output import only_results, result_output, show
from fleet.errors import StorageError, UserError
from fleet.prediction.ensembles import GREEDY
from fleet.predictor import Predictor
from fleet.terminal import print_table
from preprocess.target_kinds import TargetKind

_Predicted: TypeAlias = Any  # an array of predictions; of several targets, by name


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument(
        "images",
        metavar="INPUTS",
        nargs="*",
        help="image files, folders of images, tables (CSV or Parquet), or .npy, .npz or HDF5 files "
        "of inputs",
    )
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("--top", type=count, metavar="K", help="average the best K networks (1)")
    selection.add_argument(
        "--select",
        choices=[GREEDY],
        help="average the ensemble that is best on the validation samples; a network may be "
        "selected several times",
    )
    parser.add_argument(
        "--save", metavar="FILE", help="save the networks as one .keras or .safetensors file"
    )


def run(args: argparse.Namespace) -> None:
    """Print the predictions."""
    if not args.images and args.save is None:
        raise UserError("give images, tables or arrays, or a file to --save the networks to")
    with nullcontext() if args.json else only_results():
        _run(args)


def _run(args: argparse.Namespace) -> None:
    predictor = Predictor(args.run, args.top, args.select)
    if predictor.sample.target.semantics.is_of_pixels and args.images:
        raise UserError(
            "masks cannot be printed: --save the networks as one, or use fleet.api.Predictor"
        )
    if args.save is not None:
        try:
            predictor.save(args.save)
        except StorageError as error:
            raise UserError(f"--save: {error}") from None
    if any(map(predictor.is_table, args.images)):
        _predict_rows(predictor, args)
        return
    predictions: list[dict[str, Any]] = []
    if args.images:
        names, predicted = predictor.predict_files(args.images)
        predictions = [
            {"image": name, **record}
            for name, record in zip(names, _records(predictor, predicted), strict=True)
        ]
    show(
        args,
        lambda: {"networks": predictor.weights, "names": predictor.names, "images": predictions},
        lambda: _print(predictor, predictions, args.save),
    )


def _predict_rows(predictor: Predictor, args: argparse.Namespace) -> None:
    """Print the predictions for the rows of tables, as CSV or JSON."""
    tables = {table: predictor.predict_files([table])[1] for table in args.images}
    show(
        args,
        lambda: {
            "networks": predictor.weights,
            "names": predictor.names,
            "rows": [
                {"table": table, "row": row, **record}
                for table, predicted in tables.items()
                for row, record in enumerate(_records(predictor, predicted))
            ],
        },
        lambda: _print_rows(predictor, tables),
    )


def _print_rows(predictor: Predictor, tables: dict[str, _Predicted]) -> None:
    semantics = predictor.sample.target.semantics
    print(f"With {_describe_ensemble(predictor)}:", file=sys.stderr)
    first = 1 if len(tables) == 1 else 0  # the name of the only table is left out
    if predictor.sample.target.parts:
        _print_several(predictor, tables, first)
        return
    headers = [
        *["table", "row"][first:],
        *(predictor.target_column or header for header in semantics.headers),
    ]
    writer = csv.writer(result_output(), lineterminator="\n")
    writer.writerow(
        [*headers, *(f"predicted {name}" if name in headers else name for name in predictor.names)]
    )
    for table, predicted in tables.items():
        for row, numbers in enumerate(predicted):
            prediction = semantics.choose(predictor.names, numbers)
            chosen = [_joined(prediction[header]) for header in semantics.headers]
            writer.writerow([table, row, *chosen, *map(str, numbers)][first:])


def _print_several(predictor: Predictor, tables: dict[str, _Predicted], first: int) -> None:
    """Print the predictions of several targets for the rows of tables, as CSV.

    Args:
        tables: name of a table -> predictions for its rows, by target.
        first: the first of the columns table and row that is printed.
    """
    targets = predictor.sample.target.parts
    columns = ["table", "row"]
    for name, target in targets.items():
        columns += [name] * len(target.semantics.headers)
        columns += _output_columns(predictor, name)
    writer = csv.writer(result_output(), lineterminator="\n")
    writer.writerow(columns[first:])
    for table, predicted in tables.items():
        for row in range(len(next(iter(predicted.values())))):
            cells: list[Any] = [table, row]
            for name, target in targets.items():
                numbers = predicted[name][row]
                chosen = target.semantics.choose(predictor.names_of(name), numbers)
                cells += [_joined(chosen[header]) for header in target.semantics.headers]
                cells += map(str, numbers)
            writer.writerow(cells[first:])


def _output_columns(predictor: Predictor, name: str) -> list[str]:
    """Return the columns of the outputs for one of several targets."""
    target = predictor.sample.target.parts[name]
    if target.semantics.is_numeric and target.outputs == 1:
        return [name]
    return [f"{name} {output}" for output in predictor.names_of(name)]


def _records(predictor: Predictor, predicted: _Predicted) -> list[dict[str, Any]]:
    """Return the predictions for samples as the JSON output has them; of several, by target."""
    target = predictor.sample.target
    if not target.parts:
        return [_as_record(target.semantics, predictor.names, row) for row in predicted]
    by_target = {
        name: [_as_record(part.semantics, predictor.names_of(name), row) for row in predicted[name]]
        for name, part in target.parts.items()
    }
    rows = zip(*by_target.values(), strict=True)
    return [dict(zip(by_target, records, strict=True)) for records in rows]


def _as_record(semantics: TargetKind, names: tuple[str, ...], row: np.ndarray) -> dict[str, Any]:
    """Return the prediction of a target for a sample as the JSON output has it."""
    return {
        **semantics.choose(names, row),
        "values" if semantics.is_numeric else "probabilities": dict(
            zip(names, map(float, row), strict=True)
        ),
    }


def _joined(chosen: str | list[str]) -> str:
    return chosen if isinstance(chosen, str) else ";".join(chosen)


def _print(predictor: Predictor, predictions: list[dict[str, Any]], saved: str | None) -> None:
    with redirect_stdout(result_output()):
        _print_text(predictor, predictions, saved)


def _print_text(predictor: Predictor, predictions: list[dict[str, Any]], saved: str | None) -> None:
    print(f"With {_describe_ensemble(predictor)}:")
    if predictions:
        columns = [
            name
            for name in predictions[0]
            if name != "probabilities" or not predictor.sample.target.semantics.is_scalar
        ]
        headers = columns
        if predictor.sample.parts:  # of several inputs, not of an image
            headers = ["sample", *columns[1:]]
        print_table(
            headers, [[_format_value(row[column]) for column in columns] for row in predictions]
        )
    if saved is not None:
        print(f"Saved as one network: {saved}")


def _describe_ensemble(predictor: Predictor) -> str:
    """Describe the averaged networks, and the number of folds of each, in one line."""
    weights = predictor.weights
    shares = {
        name: sum(map(weights.__getitem__, parts)) for name, parts in predictor.folds.items()
    } or weights
    folds = {len(parts) for parts in predictor.folds.values()}
    if len(shares) == 1:
        return next(iter(shares)) + "".join(f", the mean of its {count} folds" for count in folds)
    named = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return named + "".join(f", each the mean of its {count} folds" for count in folds)


def _format_value(value: Any) -> Any:
    if isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
        return _format_target(value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:.4g}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    return value


def _format_target(record: dict[str, Any]) -> str:
    """Format the prediction of one of several targets: the class, the labels or the values."""
    if "class" in record:
        return f"{record['class']} ({record['probability']:.4g})"
    if "labels" in record:
        return ", ".join(record["labels"])
    return ", ".join(f"{number:.4g}" for number in record["values"].values())
