"""Store the networks that launches leave out on a user's request (``fleet skip``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet.domain.json_record import write_record
from fleet.storage.files import remove, write_json
from fleet.storage.json_lines import read_json_record
from fleet.storage.paths import RunPaths


@dataclass(frozen=True)
class _SkippedNetworks:
    networks: list[str]


def read_skipped(paths: RunPaths) -> frozenset[str]:
    """Return the names of the networks that the next launch leaves out."""
    saved = read_json_record(paths.skipped, _SkippedNetworks)
    return frozenset(saved.networks if saved else ())


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
        write_json(paths.skipped, write_record(_SkippedNetworks(skipped)))
    else:
        remove(paths.skipped)
