"""What chains and harvests both note of their jobs, as lines of JSON with the time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fleet.domain.json_record import JsonRecord, OmitDefault, from_json
from fleet.storage.json_lines import read_lines


class JobSubmitted(JsonRecord, word="submitted"):
    """A job was handed in: the first of a chain, or any of a harvest.

    Attributes:
        nodes: that it asks for, of a harvest.
    """

    job: str
    nodes: Annotated[int, OmitDefault] = 0


class JobStarted(JsonRecord, word="begun"):
    """The launch of a job is about to begin, perhaps not for the first time.

    Attributes:
        log_bytes: size of the launch's event log by then.
    """

    job: str
    log_bytes: Annotated[int, OmitDefault] = 0


class ChainCancelled(JsonRecord, word="called_off"):
    """A user wants no further jobs (``--end``)."""


def read_notes(path: Path, kinds: Mapping[str, type]) -> list[Any]:
    """All that a file has noted, in order; damaged lines are passed over."""
    return [note for line in read_lines(path) if (note := from_json(line, kinds)) is not None]
