"""Store the networks that launches leave out on a user's request (``fleet skip``)."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.storage.files import remove, write_json
from fleet.storage.json_lines import read_json_object
from fleet.storage.paths import RunPaths


def read_skipped(paths: RunPaths) -> frozenset[str]:
    """Return the names of the networks that the next launch leaves out."""
    names = (read_json_object(paths.skipped) or {}).get("networks", ())
    return frozenset(filter(lambda name: isinstance(name, str), names))


def write_skipped(paths: RunPaths, names: Iterable[str]) -> None:
    """Set the networks that the next launches leave out.

    Args:
        paths: files of the run.
        names: names of all skipped networks.

    Raises:
        StorageError: the disk is full, ...
    """
    skipped = sorted(names)
    if skipped:
        write_json(paths.skipped, {"networks": skipped})
    else:
        remove(paths.skipped)
