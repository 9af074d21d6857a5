"""The networks that launches of a run leave out, by the wish of a user (``fleet skip``)."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.storage.files import remove, write_json
from fleet.storage.json_lines import read_json_object
from fleet.storage.paths import RunPaths


def read_skipped(paths: RunPaths) -> frozenset[str]:
    """The names of the networks that the next launch leaves out."""
    names = (read_json_object(paths.skipped) or {}).get("networks", ())
    return frozenset(filter(lambda name: isinstance(name, str), names))


def write_skipped(paths: RunPaths, names: Iterable[str]) -> None:
    """Have the next launches leave these networks out, and no others.

    Raises:
        StorageError: the disk is full, ...
    """
    skipped = sorted(names)
    if skipped:
        write_json(paths.skipped, {"networks": skipped})
    else:
        remove(paths.skipped)
