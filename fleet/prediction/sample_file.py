"""Store the inputs and outputs of a run's networks in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter

from fleet.errors import UserError
from fleet.spec.model import wrapping_errors
from fleet.storage.files import write_json
from fleet.storage.paths import RunPaths
from preprocess.base import INPUT
from preprocess.moments import Standardization
from preprocess.record_target import RecordTarget
from preprocess.sample import ArraySpec, RecordSpec, SampleSpec
from preprocess.sources.table import Columns, InputColumns
from preprocess.target import TargetSpec


def write_sample(
    paths: RunPaths,
    sample: SampleSpec,
    names: Mapping[str, tuple[str, ...]],
    columns: Columns | None = None,
) -> None:
    """Write the shape and type of samples and targets.

    Args:
        paths: paths of the run.
        sample: shape and type of samples.
        names: names of the classes, labels or values of each input pipeline; empty if unnamed.
        columns: columns of the table whose rows are the samples, if there is one.

    Raises:
        StorageError: the file cannot be written, for example because the disk is full.
    """
    feeds = {}
    for feed, feed_names in names.items():
        described = sample.for_pipeline(feed)
        target = described.target
        if not target.parts:
            target = replace(target, names=feed_names)
        feeds[feed] = {**_describe_inputs(described), "target": asdict(target)}
    first = next(iter(feeds.values()))
    content: dict[str, Any] = dict(first)
    if len(feeds) > 1:
        content["feeds"] = feeds
    if columns is not None:
        content["table"] = {name: getattr(columns, name) for name in _TABLE_FIELDS}
        if columns.parts:
            content["table"]["parts"] = list(map(asdict, columns.parts))
    write_json(paths.sample, content)


def _describe_inputs(sample: SampleSpec) -> dict[str, Any]:
    """Return the shape and type of the input, or of several by name."""
    if isinstance(sample.input, RecordSpec):
        described: dict[str, Any] = {
            "inputs": {name: asdict(part.input) for name, part in sample.parts.items()}
        }
        for key in ("padded", "varying"):
            if getattr(sample.input, key):
                described[key] = getattr(sample.input, key)
        return described
    return {"image": asdict(sample.input)}


_TABLE_FIELDS = ("inputs", "is_paths", "targets", "delimiter")


def read_columns(paths: RunPaths) -> Columns | None:
    """Return the columns of the table whose rows are samples; None if samples are no table rows.

    Raises:
        UserError: the file is damaged.
    """
    with wrapping_errors(f"{paths.sample} cannot be read:", UserError):
        table = json.loads(paths.sample.read_text(encoding="utf-8")).get("table")
        if table is None:
            return None
        return Columns(
            tuple(table["inputs"]),
            bool(table["is_paths"]),
            tuple(table["targets"]),
            delimiter=table["delimiter"],
            parts=tuple(
                InputColumns(part["name"], tuple(part["columns"]), part["are_files"])
                for part in table.get("parts", ())
            ),
        )


def write_standardized(paths: RunPaths, standardized: Mapping[str, Standardization]) -> None:
    """Write the means and standard deviations that standardize the inputs.

    Args:
        paths: paths of the run.
        standardized: moments of each input pipeline.

    Raises:
        StorageError: the file cannot be written, for example because the disk is full.
    """
    if standardized:
        write_json(
            paths.standardized, {feed: asdict(moments) for feed, moments in standardized.items()}
        )


def read_standardized(paths: RunPaths) -> dict[str, Standardization]:
    """Return the stored means and standard deviations; empty if none are stored.

    Raises:
        UserError: the file is damaged.
    """
    try:
        return TypeAdapter(dict[str, Standardization]).validate_json(
            paths.standardized.read_bytes()
        )
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{paths.standardized} cannot be read: {' '.join(str(error).split())}; delete it, and "
            "FLEET will compute the means and standard deviations again"
        ) from error


def target_of_record(record: Mapping[str, Any]) -> TargetSpec:
    """Return the target that :func:`dataclasses.asdict` has described."""
    if "fields" in record:
        parts = {name: target_of_record(part) for name, part in record["fields"]}
        return RecordTarget.of(parts, record["weighted"])
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
    }
    return TargetSpec(**fields)


def read_sample(paths: RunPaths, feed: str = "") -> SampleSpec:
    """Return the description of a run's samples, without the scaling that exports apply.

    Args:
        paths: paths of the run.
        feed: key of the input pipeline.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        record = json.loads(paths.sample.read_text(encoding="utf-8"))
        record = record.get("feeds", {}).get(feed, record)
        arrays = {
            name: ArraySpec(tuple(array["shape"]), array["dtype"])
            for name, array in record.get("inputs", {INPUT: record.get("image")}).items()
        }
        target = target_of_record(record["target"])
    except FileNotFoundError:
        raise UserError(
            f"{paths.root} has no {paths.sample.name}, so it is not a run, or is a run of an "
            "earlier version; repeat the command that started it to add the file"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{paths.sample} cannot be read: {error}") from error
    if "inputs" not in record:
        return SampleSpec(arrays[INPUT], target.outputs, target=target)
    return SampleSpec.of_parts(
        {name: SampleSpec(array, target.outputs, target=target) for name, array in arrays.items()},
        target,
        tuple(record.get("padded", ())),
        tuple(record.get("varying", ())),
    )
