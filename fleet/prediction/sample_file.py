"""What the networks of a run are fed with, and what they answer, kept in its folder for whoever uses them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from fleet.errors import UserError
from fleet.storage.files import write_json
from fleet.storage.paths import RunPaths
from preprocess.sample import ImageSpec, SampleSpec
from preprocess.target import TargetSpec


def write_sample(paths: RunPaths, sample: SampleSpec, names: Mapping[str, tuple[str, ...]]) -> None:
    """Keep what a sample is.

    Args:
        names: of the classes, labels or values of each feed; empty where they have none.

    Raises:
        StorageError: the disk is full, ...
    """
    feeds = {feed: _described(sample.of(feed), known) for feed, known in names.items()}
    first = next(iter(feeds.values()))
    write_json(paths.sample, first if len(feeds) == 1 else {**first, "feeds": feeds})


def _described(sample: SampleSpec, names: tuple[str, ...]) -> dict[str, Any]:
    return {"image": asdict(sample.image), "target": asdict(replace(sample.target, names=names))}


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
        said: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                for name, value in found["target"].items()}
        target = TargetSpec(**said)
    except FileNotFoundError:
        raise UserError(f"{paths.root} has no {paths.sample.name}: it is no run, or one of an earlier version, which "
                        "the command that made it completes") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{paths.sample} cannot be read: {error}") from error
    return SampleSpec(image, target.outputs, target=target)
