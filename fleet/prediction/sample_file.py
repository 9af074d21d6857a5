"""What the networks of a run are fed with, and what they answer, kept in its folder for whoever uses them."""

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
from preprocess.moments import Standardization
from preprocess.sample import ImageSpec, SampleSpec
from preprocess.sources.table import Columns
from preprocess.target import TargetSpec


def write_sample(
    paths: RunPaths,
    sample: SampleSpec,
    names: Mapping[str, tuple[str, ...]],
    columns: Columns | None = None,
) -> None:
    """Keep what a sample is.

    Args:
        names: of the classes, labels or values of each feed; empty where they have none.
        columns: of the table that samples are rows of, where they are.

    Raises:
        StorageError: the disk is full, ...
    """
    feeds = {feed: _described(sample.for_pipeline(feed), known) for feed, known in names.items()}
    first = next(iter(feeds.values()))
    if columns is None:
        table = {}
    else:
        table = {"table": {name: getattr(columns, name) for name in _OF_TABLE}}
    write_json(paths.sample, {**first, **({} if len(feeds) == 1 else {"feeds": feeds}), **table})


def _described(sample: SampleSpec, names: tuple[str, ...]) -> dict[str, Any]:
    return {"image": asdict(sample.image), "target": asdict(replace(sample.target, names=names))}


_OF_TABLE = ("inputs", "is_paths", "targets", "delimiter")


def read_columns(paths: RunPaths) -> Columns | None:
    """What is where in the table that a run's samples are rows of; None where they are of none, or it was not kept.

    Raises:
        UserError: what was kept is damaged.
    """
    with wrapping_errors(f"{paths.sample} cannot be read:", UserError):
        found = json.loads(paths.sample.read_text(encoding="utf-8")).get("table")
        if found is None:
            return None
        return Columns(
            tuple(found["inputs"]),
            bool(found["is_paths"]),
            tuple(found["targets"]),
            delimiter=found["delimiter"],
        )


def write_standardized(paths: RunPaths, found: Mapping[str, Standardization]) -> None:
    """Keep by which means and deviations the networks of each feed standardize their inputs.

    Raises:
        StorageError: the disk is full, ...
    """
    if found:
        write_json(paths.standardized, {feed: asdict(one) for feed, one in found.items()})


def read_standardized(paths: RunPaths) -> dict[str, Standardization]:
    """What was kept; nothing where nothing was.

    Raises:
        UserError: it is damaged.
    """
    try:
        return TypeAdapter(dict[str, Standardization]).validate_json(
            paths.standardized.read_bytes()
        )
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{paths.standardized} cannot be read: {' '.join(str(error).split())}; move it away, and means "
            "and deviations are found anew"
        ) from error


def read_sample(paths: RunPaths, feed: str = "") -> SampleSpec:
    """What a sample of a run is, without what an engine does to it first, which exported networks do themselves.

    Args:
        feed: of the networks that are fed with it.

    Raises:
        UserError: it was not kept, or is damaged.
    """
    try:
        found = json.loads(paths.sample.read_text(encoding="utf-8"))
        found = found.get("feeds", {}).get(feed, found)
        image = ImageSpec(tuple(found["image"]["shape"]), found["image"]["dtype"])
        said: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found["target"].items()
        }
        target = TargetSpec(**said)
    except FileNotFoundError:
        raise UserError(
            f"{paths.root} has no {paths.sample.name}: it is no run, or one of an earlier version, which "
            "the command that made it completes"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{paths.sample} cannot be read: {error}") from error
    return SampleSpec(image, target.outputs, target=target)
