"""Records of jobs that chains and harvests share, as lines of JSON with the time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fleet.domain.json_record import JsonRecord, OmitDefault, from_json
from fleet.storage.json_lines import read_lines


class JobSubmitted(JsonRecord, word="submitted"):
    """A job was submitted: the first of a chain, or any of a harvest.

    Attributes:
        nodes: number of nodes that it requests, in a harvest.
    """

    job: str
    nodes: Annotated[int, OmitDefault] = 0


class JobStarted(JsonRecord, word="begun"):
    """The launch of a job is about to start, for the first time or again.

    Attributes:
        log_bytes: size of the launch's event log at that time.
    """

    job: str
    log_bytes: Annotated[int, OmitDefault] = 0


class ChainCancelled(JsonRecord, word="called_off"):
    """A user wants no more jobs (``--end``)."""


def read_notes(path: Path, kinds: Mapping[str, type]) -> list[Any]:
    """Return all notes of a file in order; damaged lines are skipped."""
    return [note for line in read_lines(path) if (note := from_json(line, kinds)) is not None]
